"""Finds the blocks of a network in one forward pass: modules of a list that pass states on, or parts between sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained.discovery._calls import BlockSites, Hooks, ModuleCall, Pass
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError
from tokendynamics.pretrained.discovery.attention_call import AttentionCall
from tokendynamics.pretrained.length_dependence import as_before
from tokendynamics.pretrained.network import quietly, submodule
from tokendynamics.pretrained.other_libraries import refusing
from tokendynamics.pretrained.packs import ids_in

_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class BlockCall:
    """One call of one block.

    Attributes:
        call: The call; of a block that is no module, from the beginning of its first module to the end of its last.
        attentions: Times and arguments of the attentions that ran inside it; empty for a block without attention.
        sites: Where the states before and after it show.
    """

    call: ModuleCall
    attentions: tuple[tuple[int, AttentionCall], ...]
    sites: BlockSites = field(default_factory=BlockSites)


def chained(calls: Sequence[ModuleCall]) -> list[bool]:
    """Return of each of these calls but the first whether it reads what the one before it gave."""
    return [_same(after.given, before.y) for before, after in pairwise(calls)]


def joining(calls: Sequence[ModuleCall]) -> list[bool]:
    """Return of each block whether the network changes what the block before it gave until it reads that."""
    several = [False]
    for before, after in pairwise(calls):
        comparable = after.given is not None and after.given.shape == before.y.shape
        several.append(comparable and not any(_same(after.given, y) for y in (before.y, *before.beside)))
    return several


def spans(network: nn.Module, recorded: Pass, branches: Sequence[ModuleCall]) -> list[BlockCall]:
    """Return blocks that hand on their states, put together from calls that do not; empty where they cannot be.

    Args:
        network: The one that ran.
        recorded: Its pass.
        branches: The calls, in the order in which they ran.
    """
    lists = [name for outer in _outer_lists(network, branches) for name in outer]
    inside = {name: calls for name in lists if (calls := _inside(recorded, name))}
    by_list = dict(sorted(inside.items(), key=lambda entry: entry[1][0].start))
    renamed, beside = _of_lists_beside(network, recorded, branches[0].name)
    for calls, groups in ((None, by_list), (None, {call.name: [call] for call in branches}), (renamed, beside)):
        if len(groups) > 1 and (sites := _sites(groups)) is not None:
            recorded.calls[:] = recorded.calls if calls is None else calls
            return [_block(network, recorded, name, group, sites) for name, group in groups.items()]
    return []


def _of_lists_beside(
    network: nn.Module, recorded: Pass, name: str
) -> tuple[list[ModuleCall], dict[str, list[ModuleCall]]]:
    """Return the calls of a pass with the names of layers whose parts stand in lists beside each other, and by layer.

    Such as ``{attentions,norms}.0``, see `submodule`; by layer stand the outermost calls.

    Args:
        network: The one that ran.
        recorded: Its pass.
        name: Of a module in one of the lists.

    Returns:
        Nothing where there are no such lists, or where the parts of a layer do not all run before those of the next.
    """
    around = name.rpartition(".")[0]
    while around and isinstance(network.get_submodule(around), nn.ModuleList):
        around = around.rpartition(".")[0]
    prefix, owner = f"{around}." if around else "", network.get_submodule(around)
    lengths = {one: len(child) for one, child in owner.named_children() if isinstance(child, nn.ModuleList)}
    # The list of each call, its place there, and the name within that member.
    parts = {call: call.name.removeprefix(prefix).split(".", 2) for call in sorted(recorded.calls, key=_start)}
    inside = {call: names for call, names in parts.items() if names[0] in lengths and call.name.startswith(prefix)}
    lists = list(dict.fromkeys(names[0] for names in inside.values()))
    layers = min((lengths[one] for one in lists), default=0)
    if len(lists) < 2 or any(lengths[one] % layers for one in lists):
        return [], {}
    label, renamed = f"{prefix}{{{','.join(lists)}}}", dict[ModuleCall, ModuleCall]()
    for call, (one, place, *inner) in inside.items():
        layer, number = divmod(int(place), lengths[one] // layers)
        several = [str(number)] if lengths[one] > layers else []
        renamed[call] = replace(call, name=".".join([f"{label}.{layer}", one, *several, *inner]))
    calls = [renamed.get(call, call) for call in recorded.calls]
    groups = {one: _inside(replace(recorded, calls=calls), one) for one in (f"{label}.{n}" for n in range(layers))}
    follow = all(groups.values()) and all(one[-1].end < other[0].start for one, other in pairwise(groups.values()))
    return (calls, groups) if follow else ([], {})


def _start(call: ModuleCall) -> int:
    return call.start


def _outer_lists(network: nn.Module, branches: Sequence[ModuleCall]) -> list[list[str]]:
    """Return the names of all members of each list of lists of modules around some calls."""
    outer: dict[str, list[str]] = {}
    for call in branches:
        owner = call.name.rpartition(".")[0]
        while owner:
            around = owner.rpartition(".")[0]
            members = network.get_submodule(around)
            if all(type(module) is nn.ModuleList for module in (network.get_submodule(owner), members)):
                outer[around] = [f"{around}.{name}" for name, _ in members.named_children()]
                break
            owner = around
    return list(outer.values())


def _inside(recorded: Pass, name: str) -> list[ModuleCall]:
    """Return the outermost calls of the modules in a list, in the order in which they ran."""
    calls = [call for call in recorded.calls if call.name.startswith(f"{name}.")]
    outer = [call for call in calls if not any(call.is_inside(other) for other in calls)]
    return sorted(outer, key=lambda call: call.start)


def _sites(by_name: Mapping[str, Sequence[ModuleCall]]) -> BlockSites | None:
    """Return where the states show that each group reads and hands on to the next; None if they do not alike in all.

    A group may give its states with the tokens first, or read them so.
    """
    groups = list(by_name.values())
    count, enter = min(map(len, groups)), groups[0][0].name_in(next(iter(by_name)))
    for place, reader in product(range(1, 1 + count), (None, *range(1, 1 + count))):
        inner, added_to = (
            {group[-which].name_in(name) for name, group in by_name.items()} if which is not None else {None}
            for which in (place, reader)
        )
        if len(inner) > 1 or len(added_to) > 1:
            continue
        states = [_state(group[-place], None if reader is None else group[-reader]) for group in groups]
        pairs = zip(states[:-1], groups[1:], strict=True)
        if all(_same(after[0].given, state) or _same(after[0].given, _turned(state)) for state, after in pairs):
            side: Literal["output", "sum"] = "output" if reader is None else "sum"
            added = None if reader in (None, place) else added_to.pop()
            return BlockSites(enter, (str(inner.pop()), side), added)
    return None


def _turned(states: Tensor | None) -> Tensor | None:
    return None if states is None or states.ndim != 3 else states.transpose(0, 1)


def _block(network: nn.Module, recorded: Pass, name: str, group: Sequence[ModuleCall], sites: BlockSites) -> BlockCall:
    first, by_name = group[0], {call.name_in(name): call for call in group}
    last = by_name[sites.leave[0]]
    reader = last if sites.added_to is None else by_name[sites.added_to]
    y = _state(last, reader if sites.leave[1] == "sum" else None)
    # A moment before the first and after the last, so that both stand inside.
    start, end = (first.start, last.end) if first is last and first.name == name else (first.start - 1, last.end + 1)
    call = ModuleCall(
        name, submodule(network, name), first.given, first.x, last.y if y is None else y, first.arguments, start, end
    )
    return BlockCall(call, recorded.attentions_in(call), replace(sites, enter=first.name_in(name)))


def _state(call: ModuleCall, reader: ModuleCall | None) -> Tensor | None:
    """Return what a module gives, added to what another one read that began no later; None where these do not fit."""
    if reader is None:
        return call.y
    given, fits = reader.given, reader.given is not None and reader.given.shape == call.y.shape
    return given + call.y if given is not None and fits and reader.start <= call.start else None


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    """Return whether a call reads what another gave, besides tokens that a mask of padding multiplies by 0."""
    if one is None or other is None or one.shape != other.shape:
        return False
    there = one.ne(0.0).any(dim=-1, keepdim=True)
    other = torch.where(there, other, 0.0) if bool(there.any()) else other
    size = float(other.abs().nan_to_num().max())
    return torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE * size, equal_nan=True)


_Owners: TypeAlias = dict[nn.Module, list[nn.Module]]
"""The lists that hold a module."""

_ONE_LIST = "all blocks in one list (an nn.ModuleList), with the same tokens in each"


def block_calls(network: nn.Module, recorded: Pass, is_residual: Callable[[ModuleCall], bool]) -> list[BlockCall]:
    """Return the calls of the blocks, in the order in which they ran.

    A block is a member of a list of modules or, where no list has any, one of several modules of one class that stand
    in attributes or in a dictionary. The lists are those with an attention in a member; the other members of the same
    list are blocks as well if they pass on states of the same shape: a hybrid network has a convolution or a recurrence
    in them.

    Args:
        network: The one that ran.
        recorded: Its pass.
        is_residual: Whether a block's output is its input plus outputs of its modules. Asked for members of an
            nn.Sequential, which may also hold embeddings and heads, and for blocks none of which reads what the one
            before it gave.

    Raises:
        LayoutNotFoundError: There is no list of blocks, or what its members give is not what the next ones read.
    """
    if not recorded.attentions:
        return [BlockCall(call, ()) for call in _chained(network, recorded)]
    members, attending = _attending(network, recorded)
    lists = {id(members_list): members_list for call in attending.values() for members_list in members[call.module]}
    like = next(iter(attending.values())).y.shape
    calls = list(attending.values())
    for call in recorded.calls:
        owners = [members_list for members_list in members.get(call.module, ()) if id(members_list) in lists]
        if id(call) in attending or not owners or next(call.module.children(), None) is None:
            continue
        if (
            call.x is None
            or not call.x.shape == call.y.shape == like
            or any(call.is_inside(other) or other.is_inside(call) for other in attending.values())
        ):
            continue
        if isinstance(owners[0], nn.ModuleList) or is_residual(call):
            calls.append(call)
    outermost = [call for call in calls if not any(call.is_inside(other) for other in calls)]
    outermost = sorted(outermost, key=lambda outer: outer.start)
    _check_alike(network, outermost)
    hands_on = chained(outermost)
    repeated = len({call.name for call in outermost}) < len(outermost)
    blocks = [] if all(hands_on) or (repeated and any(hands_on)) else spans(network, recorded, outermost)
    # What blocks give that add to what they read are states, whatever the network does to them in between.
    if not blocks and (any(hands_on) or len(outermost) < 2 or all(map(is_residual, outermost))):
        return [BlockCall(call, recorded.attentions_in(call)) for call in outermost]
    if not blocks:
        _check_called(network, recorded, outermost)
        _check_state_first(network, recorded)
        wanted, names = "blocks that hand on their states", ", ".join(call.name for call in outermost[:3])
        advice = (
            "what each gives, or adds to what it reads, is not what the next one reads; put the sum into the blocks"
        )
        raise LayoutNotFoundError(expected(type(network).__name__, wanted, names, advice))
    return blocks


def _check_called(network: nn.Module, recorded: Pass, inside: Sequence[ModuleCall]) -> None:
    """Refuse members of a list whose inner modules ran while they themselves were not called: no hook on them runs."""
    ran = {call.module for call in recorded.calls}
    for call in inside:
        owner = call.name.rpartition(".")[0]
        while owner:
            around, module = owner.rpartition(".")[0], network.get_submodule(owner)
            listed = isinstance(network.get_submodule(around), nn.ModuleList)
            if listed and module not in ran and not isinstance(module, nn.ModuleList | nn.ModuleDict):
                wanted, came = "blocks that are called as modules", f"{owner}, whose forward method is called"
                advice = "call the module itself, so that its hooks run"
                raise LayoutNotFoundError(expected(type(network).__name__, wanted, came, advice))
            owner = around


def _check_state_first(network: nn.Module, recorded: Pass) -> None:
    """Refuse members of a list that read what the one before them gave behind another tensor, such as a context."""
    members = _members(network)
    calls = sorted((call for call in recorded.calls if call.module in members), key=lambda call: call.start)
    for before, after in pairwise(calls):
        if before.name.rpartition(".")[0] != after.name.rpartition(".")[0]:
            continue
        positional, named = after.arguments
        others = [value for value in (*positional, *named.values()) if isinstance(value, Tensor)]
        if not _same(after.given, before.y) and any(_same(value, before.y) for value in others):
            wanted = "blocks that read their states as the first argument"
            came = f"{after.name}, for which what {before.name} gives is a later one"
            raise LayoutNotFoundError(expected(type(network).__name__, wanted, came, "put it first"))


def _attending(network: nn.Module, recorded: Pass) -> tuple[_Owners, dict[int, ModuleCall]]:
    """Return the lists of each member, and the calls of the members with an attention by their identity.

    Where no member of a list has one attention alone, those with several count, then modules beside each other, and
    then any module that gives states of the shape of those that it reads, such as the one block of a small network.
    Members none of which gives as many tokens as it reads, such as one that pools them, count where no others do.

    Raises:
        LayoutNotFoundError: There is no such module around an attention.
    """
    listed, single = _members(network), _keeping_shape(network, recorded)
    pooling: tuple[_Owners, dict[int, ModuleCall]] | None = None
    for members, several in ((listed, False), (listed, True), (_siblings(network), False), (single, False)):
        around = (_block_around(time, recorded, members, several=several) for time, _ in recorded.attentions)
        attending = {id(call): call for call in around if call is not None}
        # Inputs or tokens may be first.
        if any(call.x is None or sorted(call.x.shape[:-1]) == sorted(call.y.shape[:-1]) for call in attending.values()):
            return members, attending
        pooling = pooling or ((members, attending) if attending else None)
    if pooling is not None:
        return pooling
    seen = recorded.attentions[0][1].module
    name = next((name for name, module in network.named_modules() if module is seen), "") or type(network).__name__
    wanted = "a block, a list of blocks (an nn.ModuleList) or several blocks of one class, with an attention in each"
    raise LayoutNotFoundError(expected(name, wanted, "an attention that stands in none"))


def _check_alike(network: nn.Module, blocks: Sequence[ModuleCall]) -> None:
    """Refuse blocks that give states of several shapes, naming the first two between which they change."""
    for before, after in pairwise(blocks):
        if before.y.shape != after.y.shape:
            begin = int(before.y.shape[0] == after.y.shape[0])  # the number of inputs says nothing
            shapes = [tuple(call.y.shape[begin:]) for call in (before, after)]
            came = f"states of shape {shapes[0]} after {before.name} and {shapes[1]} after {after.name}"
            other = "widths" if shapes[0][:-1] == shapes[1][:-1] else "numbers of tokens, as after pooling,"
            wanted, advice = "blocks whose states are of one shape", f"layers with different {other} cannot be compared"
            which = " or ".join(f"its module {owner}" for owner in _owners(network, blocks, before, after))
            advice += f"; pass {which}, with inputs= of that" if which else ""
            raise LayoutNotFoundError(expected(type(network).__name__, wanted, came, advice))


def _owners(network: nn.Module, blocks: Sequence[ModuleCall], before: ModuleCall, after: ModuleCall) -> list[str]:
    """Return the modules that hold the lists of two blocks, if each holds one of them alone, as towers do."""
    owners = [call.name.rpartition(".")[0] for call in (before, after)]
    # An nn.Sequential runs by itself, an nn.ModuleList does not.
    runs = [isinstance(network.get_submodule(owner), nn.Sequential) for owner in owners]
    owners = [owner if alone else owner.rpartition(".")[0] for owner, alone in zip(owners, runs, strict=True)]
    apart = all(owners) and not any(
        f"{other}.".startswith(f"{owner}.") for owner, other in (owners, tuple(reversed(owners)))
    )
    # A block of the same list with states of another shape would be refused again.
    alike = all(
        call.y.shape == first.y.shape
        for owner, first in zip(owners, (before, after), strict=True)
        for call in blocks
        if call.name.startswith(f"{owner}.")
    )
    return owners if apart and alike else []


def _members(network: nn.Module) -> _Owners:
    """Return, for each member of a list of modules, the lists that hold it."""
    lists: _Owners = {}
    for module in network.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            for child in module.children():
                lists.setdefault(child, []).append(module)
    return lists


def _siblings(network: nn.Module) -> _Owners:
    """Return the modules with weights that stand beside others of their class, with those that hold them."""
    siblings: _Owners = {}
    for owner in network.modules():
        children = list(owner.children())
        for child in children:
            weights = any(True for _ in child.parameters())
            if weights and sum(type(other) is type(child) for other in children) > 1:
                siblings.setdefault(child, []).append(owner)
    return siblings


def _keeping_shape(network: nn.Module, recorded: Pass) -> _Owners:
    """Return the modules with others inside that read and gave states (input, token, feature) of one shape."""
    return {
        call.module: [network]
        for call in recorded.calls
        if call.module is not network
        and next(call.module.children(), None) is not None
        and call.x is not None
        and call.x.ndim == 3
        and call.x.shape == call.y.shape
    }


def _block_around(time: int, recorded: Pass, members: _Owners, *, several: bool = False) -> ModuleCall | None:
    """Return the outermost call of a member of a list in which one attention module alone ran, at this time.

    Of `several` in a block, it is the innermost call of a member of a list of modules.
    """
    around = sorted((call for call in recorded.calls if call.is_open(time)), key=lambda outer: outer.start)
    # What gives fewer features than it reads, such as a head of a list of heads, hands on no states.
    around = [call for call in around if call.x is None or call.x.shape[-1] == call.y.shape[-1]]
    seen = next((attention.module for when, attention in recorded.attentions if when == time), None)
    # A residual connection in a list of a layer runs an attention that belongs to the layer.
    holding = [call for call in around if call.module in members and seen in set(call.module.modules())]
    around = holding or around
    if several:
        kinds = (nn.ModuleList, nn.Sequential)
        lists = [call for call in around if any(type(one) in kinds for one in members.get(call.module, ()))]
        of_modules = [call for call in lists if any(type(one) is nn.ModuleList for one in members[call.module])]
        return (of_modules or lists or [None])[-1]
    for call in around:
        if call.module in members and len({seen.module for _, seen in recorded.attentions_in(call)}) == 1:
            return call
    return None  # such as a pooling attention behind the blocks


def leaves_out_cross_attention(block: BlockCall, recorded: Pass) -> bool:
    """Return whether a block has a second module of its attention's kind that did not run: a cross-attention.

    Args:
        block: Its call.
        recorded: The pass.
    """
    inside = [call for call in recorded.calls if call.is_inside(block.call)]
    ran = {call.module for call in inside}
    attending = {type(call.module) for call in inside for time, _ in block.attentions if call.is_open(time)}
    return any(type(module) in attending and module not in ran for module in block.call.module.modules())


def streams_of(blocks: Sequence[BlockCall]) -> int:
    """Return how many tensors of states each block hands on to the next: more than one in a reversible network.

    Args:
        blocks: Their calls, in the order in which they ran.
    """
    counts = [1]
    for before, after in pairwise(block.call for block in blocks):
        positional, named = after.arguments
        read = [*positional, *named.values()]
        counts.append(1 + sum(any(tensor is other for tensor in read) for other in before.beside))
    return max(counts)


def _chained(network: nn.Module, recorded: Pass) -> list[ModuleCall]:
    """Return the calls of the longest list of modules each of which reads what the one before it gave.

    Without such a list, they are the most modules of one class in a row in an nn.Sequential, which may also hold
    embeddings and heads.
    """
    best: list[ModuleCall] = []
    for name, module in network.named_modules():
        if isinstance(module, nn.ModuleList):
            prefix = f"{name}." if name else ""
            children = {f"{prefix}{child}" for child, _ in module.named_children()}
            calls = sorted((call for call in recorded.calls if call.name in children), key=lambda call: call.start)
            chained = all(_hands_on(recorded, before, after) for before, after in pairwise(calls))
            if chained and len(calls) > len(best) and calls[0].x is not None and calls[0].x.shape == calls[0].y.shape:
                best = calls
    if not best:
        best = _in_a_row(network, recorded)
    if not best:
        wanted = "a list of blocks (an nn.ModuleList whose modules read what the one before them gave)"
        raise LayoutNotFoundError(expected(type(network).__name__, wanted, "none"))
    outside = _alike_outside(network, recorded, best)
    if outside:
        came = f"{len(best)} of {len(best) + outside} {type(best[0].module).__name__} in the longest"
        raise LayoutNotFoundError(expected(type(network).__name__, _ONE_LIST, came))
    return best


def _hands_on(recorded: Pass, before: ModuleCall, after: ModuleCall) -> bool:
    """Return whether a call reads what another one gave, or what one module, such as a norm, makes of that."""
    if after.x is None or after.x.shape != before.y.shape:
        return False
    between = (call for call in recorded.calls if before.end < call.start and call.end < after.start)
    return after.reads_from(before) or any(call.reads_from(before) and after.reads_from(call) for call in between)


def _in_a_row(network: nn.Module, recorded: Pass) -> list[ModuleCall]:
    """Return the calls of the most modules of one class that stand in a row in an nn.Sequential; empty without two.

    They hold other modules, and give states of the shape of those that they read.
    """
    best: list[ModuleCall] = []
    calls: dict[nn.Module, list[ModuleCall]] = {}
    for call in recorded.calls:
        calls.setdefault(call.module, []).append(call)
    for module in network.modules():
        row: list[ModuleCall] = []
        for child in module.children() if isinstance(module, nn.Sequential) else ():
            call = calls[child][0] if len(calls.get(child, ())) == 1 else None
            is_block = call is not None and call.x is not None and call.x.ndim == 3 and call.x.shape == call.y.shape
            if call is None or not is_block or next(child.children(), None) is None:
                row = []
                continue
            row = [*row, call] if row and type(child) is type(row[-1].module) and call.reads_from(row[-1]) else [call]
            best = row if len(row) > max(1, len(best)) else best
    return best


def _alike_outside(network: nn.Module, recorded: Pass, blocks: Sequence[ModuleCall]) -> int:
    """Return how many calls of blocks of the same class stand in other lists: Funnel and CANINE pool tokens between."""
    kind = type(blocks[0].module)
    if next(blocks[0].module.children(), None) is None:
        return 0
    lists = [module for module in network.modules() if isinstance(module, nn.ModuleList | nn.Sequential)]
    if any(blocks[0].module in module.children() for module in lists if isinstance(module, nn.ModuleList)):
        lists = [module for module in lists if isinstance(module, nn.ModuleList)]
    listed = {child for module in lists for child in module.children()}
    calls = [call for call in recorded.calls if type(call.module) is kind and call.module in listed]
    return sum(not any(call is block or call.is_inside(block) for block in blocks) for call in calls)


def block_list(network: nn.Module) -> str:
    """Return the name of the outermost list of modules that holds the most parameters; empty if there is no list.

    >>> block_list(nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(9, 9)]), "ends": nn.ModuleList()}))
    'layers'
    """
    sizes: dict[str, int] = {}
    for name, module in network.named_modules():
        if isinstance(module, nn.ModuleList) and not any(name.startswith(f"{outer}.") for outer in sizes):
            sizes[name] = sum(parameter.numel() for parameter in module.parameters())
    return max(sizes, key=lambda name: sizes[name]) if sizes else ""


_TOKENS = 8


def random_ids(vocabulary: int) -> Tensor:
    """Return the token ids of one random prompt, (1, token)."""
    return torch.randint(0, vocabulary, (1, _TOKENS), generator=torch.Generator().manual_seed(1))


def ignores_later_tokens(network: nn.Module, given: Mapping[str, Any], last_block: str, name: str) -> bool:
    """Tell whether the states of earlier tokens stay the same when the last token, or the one in the middle, changes.

    Args:
        network: Ready to run.
        given: Arguments of its forward pass for one input; false without token ids, or where they are all the same.
        last_block: Name of the module whose output is compared.
        name: What a message calls it.

    Raises:
        CheckpointError: It does not run.
    """
    states: list[Tensor] = []
    ids = ids_in(given)
    if ids is None:
        return False
    argument = next(key for key, value in given.items() if value is ids)
    tokens, several = ids.shape[1], [ids]
    for place in (tokens - 1, tokens // 2):
        others = ids[ids != ids[0, place]]
        if not len(others):
            return False
        several.append(ids.clone())
        several[-1][0, place] = others[0]
    with Hooks() as hooks, as_before(network), quietly(network), torch.no_grad():
        hooks.after(submodule(network, last_block), lambda given: states.append(given.detach().clone()))
        with refusing(lambda words: CheckpointError(expected(name, "a network that runs", words))):
            for changed in several:
                network(**{**given, argument: changed})
    # A block that runs again (shared weights) leaves one state for each of its runs: the last one counts.
    runs = len(states) // len(several)
    if not runs or len(states) % len(several) or any(of_pass.shape != states[0].shape for of_pass in states):
        return False
    before, *after = (of_pass.reshape(-1, of_pass.shape[-1]).double() for of_pass in states[runs - 1 :: runs])
    near = 100 * torch.finfo(states[0].dtype).eps * float(before.abs().max())
    places = (tokens - 1, tokens // 2)
    return all(
        float((changed - before)[:place].abs().max()) <= near
        for place, changed in zip(places, after, strict=True)
        if place
    )
