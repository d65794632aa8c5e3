"""Finds by trying which axis of the states is that of the tokens, and which tokens act on each other in a block.

Lengths of axes may agree by chance. What an attention compares are the tokens: one changed place along their axis
changes one query of each input, one changed feature all of them. Without an attention, a block takes fewer tokens, and
never fewer features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from math import prod
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from tokendynamics.pretrained.discovery._blocks import BlockCall, joining
from tokendynamics.pretrained.discovery._calls import Hooks, ModuleCall, Pass, states_given, with_state
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError
from tokendynamics.pretrained.discovery.attention_call import AttentionCall
from tokendynamics.pretrained.discovery.interface import watching
from tokendynamics.pretrained.length_dependence import as_before
from tokendynamics.pretrained.network import copied, without_cache

Mixing: TypeAlias = Literal["none", "earlier tokens", "all tokens"]
"""Which other tokens act on a token inside a block."""

_CHANGED = 1e-5
"""Smallest change of a query or a token's output, relative to the largest entry, that counts: above rounding."""


def mixing_of(block: ModuleCall) -> Mixing:
    """Return which other tokens act on a token inside a block; "all tokens" where the block cannot be run by itself.

    Args:
        block: Its call, which is repeated with its first, its middle and its last token changed: one that reduces
            the number of its keys may leave out the last one.
    """
    x = block.x
    if x is None or x.ndim != 3 or x.shape[1] < 2:
        return "all tokens"

    def changed(token: int) -> Tensor:
        state = x.clone()
        state[:, token] = state[:, token].roll(1, dims=-1) + x.std()
        return state

    later = [token for token in (x.shape[1] // 2, x.shape[1] - 1) if token]
    outputs = _outputs(block, [x, changed(0), *map(changed, later)])
    if outputs is None:
        return "all tokens"
    same, first, *others = outputs
    if any(_differ(other[:, :token], same[:, :token]) for token, other in zip(later, others, strict=True)):
        return "all tokens"
    return "earlier tokens" if _differ(first[:, 1:], same[:, 1:]) else "none"


def sees_order(block: ModuleCall) -> bool:
    """Tell whether a block gives the last token another state when its first two tokens change places.

    Args:
        block: Its call. False where it cannot be run by itself.
    """
    x = block.x
    if x is None or x.ndim != 3 or x.shape[1] < 3:
        return False
    swapped = x.clone()
    swapped[:, 0], swapped[:, 1] = x[:, 1], x[:, 0]
    outputs = _outputs(block, [x, swapped])
    return outputs is not None and _differ(outputs[1][:, -1], outputs[0][:, -1])


def takes_rows_apart(block: ModuleCall) -> bool:
    """Tell whether in states (…, token, feature) the first token acts on all tokens of its row and on no others.

    Args:
        block: Its call, which is repeated with that token changed. False where it cannot be run by itself.
    """
    x = block.x
    if x is None or x.ndim < 4:
        return False
    state, first = x.clone(), (0,) * (x.ndim - 1)
    state[first] = state[first].roll(1) + x.std()
    outputs = _outputs(block, [x, state])
    if outputs is None or outputs[0].shape != x.shape:
        return False
    rows = [output.flatten(0, -3) for output in outputs]
    inside = all(_differ(*(output[0, token] for output in rows)) for token in range(x.shape[-2]))
    return inside and not _differ(*(output[1:] for output in rows))


def acts_on(block: ModuleCall, source: str, target: str) -> bool | None:
    """Tell whether the output of one module inside a block changes with that of another one.

    Args:
        block: Its call, which is repeated with other outputs of the first.
        source: Name of the first module in the network.
        target: Name of the other one.

    Returns:
        None where the block cannot be run by itself, or does not run one of them.
    """
    if block.x is None:
        return None
    prefix, given, changing = f"{block.name}." if block.name else "", list[Tensor](), list[bool]()

    def change(states: Tensor) -> Tensor | None:
        return states.roll(1, dims=-1) + states.std() if changing else None

    with Hooks() as hooks:
        try:
            modules = [block.module.get_submodule(name.removeprefix(prefix)) for name in (source, target)]
        except AttributeError:
            return None
        hooks.after(modules[0], change)
        hooks.after(modules[1], lambda states: given.append(states.clone()))
        usual = _outputs(block, [block.x])
        changing.append(True)
        outputs = None if usual is None else _outputs(block, [block.x])
    if outputs is None or len(given) != 2 or given[0].shape != given[1].shape:
        return None
    return _differ(given[1], given[0])


def mixes_besides(block: ModuleCall, attention: str, target: str) -> bool:
    """Tell whether a module inside a block acts on other tokens although the attention gives what it gave before.

    What leads to the module counts, such as a convolution before a norm.

    Args:
        block: Its call, which is repeated with its first and its last token changed.
        attention: Name of the module that gives the attention's part.
        target: Name of the other module. True where the block cannot be run by itself.
    """
    x, kept, given = block.x, list[Tensor](), list[Tensor]()
    if x is None or x.ndim != 3 or x.shape[1] < 2:
        return True
    prefix = f"{block.name}." if block.name else ""

    def hold(states: Tensor) -> Tensor | None:
        if kept:
            return kept[0]
        kept.append(states.clone())
        return None

    several = [x, x.clone(), x.clone()]
    for states, token in zip(several[1:], (0, -1), strict=True):
        states[:, token] = x[:, token].roll(1, dims=-1) + x.std()
    with Hooks() as hooks:
        for name, act in ((attention, hold), (target, lambda states: given.append(states.clone()))):
            hooks.after(block.module.get_submodule(name.removeprefix(prefix)), act)
        outputs = _outputs(block, several)
    if outputs is None or len(given) != len(several) or any(states.shape != x.shape for states in given):
        return True
    usual, first, last = given
    return _differ(first[:, 1:], usual[:, 1:]) or _differ(last[:, :-1], usual[:, :-1])


def keys_of_another_sequence(block: ModuleCall) -> bool:
    """Tell whether the keys of a block's attention stay as they are when its states are others.

    Args:
        block: Its call. False where it cannot be run by itself, or gives several streams of states.
    """
    if block.x is None or block.beside:  # keys of one stream stay where another one changes
        return False
    keys: list[Tensor] = []
    with watching(block.module, lambda call: keys.append(call.key.clone()), of_w=True):
        outputs = _outputs(block, [block.x, block.x.roll(1, dims=-1)])
    return outputs is not None and len(keys) == 2 and torch.equal(*keys)


@dataclass(frozen=True, eq=False)
class Repeated:
    """What a block gave when it was run again.

    Attributes:
        y: Its output.
        read: The states that each module inside read first, by its name in the block.
        gave: What each module without others inside gave, call by call.
    """

    y: Tensor
    read: dict[str, Tensor]
    gave: dict[str, list[Any]]


def repeated(
    block: ModuleCall,
    factors: Mapping[str, float],
    held: Mapping[str, Sequence[Any]] | None = None,
    carrier: tuple[str, float] | None = None,
) -> Repeated | None:
    """Run a block again with what some of its modules give multiplied.

    Args:
        block: Its call.
        factors: By the names of the modules within the block.
        held: What other modules give instead, call by call; see `Repeated.gave`.
        carrier: A further module and the factor of what it gives, or of the states before the block for an empty name.

    Returns:
        None where the block cannot be run by itself.
    """
    if block.x is None:
        return None
    read: dict[str, Tensor] = {}
    gave: dict[str, list[Any]] = {}
    carried, factor = ("", 1.0) if carrier is None else carrier

    def record(name: str, module: nn.Module, given: Any, output: Any) -> Any:
        del module
        passed = given[0] if given else None
        if isinstance(passed, Tensor) and isinstance(output, Tensor) and _same(passed, output):
            return output  # such as dropout in evaluation
        calls = gave.setdefault(name, [])
        several = () if held is None else held.get(name, ())
        output = several[len(calls)] if len(calls) < len(several) else output
        calls.append(output)
        return factor * output if name == carried and isinstance(output, Tensor) else output

    with Hooks() as hooks:
        for name, module in block.module.named_modules():
            if not name:
                continue
            hooks.before(module, partial(_keep_first, read, name))
            if next(module.children(), None) is None:
                hooks.callback(module.register_forward_hook(partial(record, name)).remove)
            if name in factors:
                hooks.after(module, partial(torch.mul, other=torch.tensor(factors[name])))
        outputs = _outputs(block, [block.x if carried else factor * block.x])
    return None if outputs is None else Repeated(outputs[0], read, gave)


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _keep_first(kept: dict[str, Tensor], name: str, states: Tensor) -> None:
    if name not in kept:
        kept[name] = states.clone()


def proportion(none: Tensor, half: Tensor, whole: Tensor, twice: Tensor) -> Literal["sum", "norm"] | None:
    """Tell whether states are a sum with none, half, the whole and twice of a part.

    Returns:
        "norm" if they are such a sum after a norm without a gain and a bias; None if they are neither.
    """
    none, half, whole, twice = (states.double() for states in (none, half, whole, twice))
    near = _OF_CHANGE * float((whole - none).norm()) + _CHANGED * float(whole.norm())
    if float((half - (none + whole) / 2).norm()) <= near and float((twice - 2 * whole + none).norm()) <= near:
        return "sum"
    lengths = [states.norm(dim=-1) for states in (none, half, whole, twice)]
    if not all(bool(((length - lengths[2]).abs() <= _OF_CHANGE * lengths[2]).all()) for length in lengths):
        return None
    # A norm gives λ(u + αv): half is that of ρ·none and whole, and so is twice as much with other multiples.
    pair = torch.stack((none, whole), dim=-1)
    solution = torch.linalg.lstsq(pair, half[..., None]).solution
    if not bool((solution > _OF_CHANGE).all()):  # it changes nothing by how much there is, as before a norm of its own
        return None
    ratio = solution[..., :1, 0] / solution[..., 1:, 0]
    expected_twice = 2 * whole - ratio * none
    expected_twice = expected_twice * (lengths[3] / expected_twice.norm(dim=-1).clamp_min(1e-300))[..., None]
    fits = float((pair @ solution - half[..., None]).norm()) <= near
    return "norm" if fits and float((expected_twice - twice).norm()) <= near else None


_OF_CHANGE = 1e-4
"""Misfit of a sum, of what the part adds to it, below which it is a sum: above the rounding of two states."""


def attends_by_token(block: ModuleCall) -> Literal["yes", "heads first", "no"]:
    """Tell whether the queries and keys of a block's attention are one for each token, in the order of the tokens.

    Each input is repeated with another one of its tokens changed, which must change its own query and key. Those of
    some others may change as well, by a convolution, but not far more.

    Args:
        block: Its call. "yes" where it cannot be run by itself, or its attention runs several times.

    Returns:
        "heads first" where they are, but each head stands with all inputs behind the last one (set transformers).
    """
    x = block.x
    if x is None or x.ndim != 3:
        return "yes"
    inputs, tokens = x.shape[:2]
    rows = torch.arange(inputs)
    places = rows % tokens if inputs >= tokens else rows * tokens // inputs
    calls = list[tuple[Tensor, Tensor]]()

    def change(states: Tensor) -> Tensor:
        changed = states.clone()
        changed[rows, places] = states[rows, places].roll(1, dims=-1) + states.std()
        return changed

    with watching(block.module, lambda call: calls.append((call.query.clone(), call.key.clone())), of_w=True):
        outputs = _outputs(block, [x, change(x)])
        if block.beside and outputs is not None:  # of several streams, each may be that of the keys
            calls.clear()
            positional, named = block.arguments
            alike = tree_map(lambda value: _changed_alike(value, x, change), (positional, named))
            outputs = [x, x] if all(_runs(block.module, given) for given in ((positional, named), alike)) else None
    if outputs is None or len(calls) != 2:
        return "yes"
    pairs = list(zip(*calls, strict=True))
    if all(_stands_at(usual, other, places, tokens) for usual, other in pairs):
        return "yes"
    several = inputs > 1 and all(len(usual) > inputs for usual, _ in pairs)
    heads_first = several and all(_stands_at(usual, other, places, tokens, heads_first=True) for usual, other in pairs)
    return "heads first" if heads_first else "no"


def scales_with_length(block: ModuleCall) -> bool:
    """Tell whether a block's logits have a factor that depends on how many tokens there are, such as log n.

    The block is repeated without the last token.

    Args:
        block: Its call. False where it cannot be run by itself, or where its attention runs several times.
    """
    x, calls = block.x, list[tuple[float, Tensor, Tensor]]()
    if x is None or x.ndim != 3 or x.shape[1] < 3:
        return False

    def watch(call: AttentionCall) -> None:
        calls.append((call.scale, call.query.clone(), call.key.clone()))

    with watching(block.module, watch, of_w=True):
        outputs = _outputs(block, [x, x[:, :-1]])
    if outputs is None or len(calls) != 2:
        return False
    (scale, *usual), (other_scale, *shorter) = calls
    both = [_multiple(one, other) for one, other in zip(usual, shorter, strict=True)]
    multiples = [multiple for multiple in both if multiple is not None]
    if len(multiples) < len(both) or not other_scale:
        return False
    return abs(scale / other_scale * prod(multiples) - 1) > _OTHER_FACTOR


_OTHER_FACTOR = 1e-4
"""Relative difference from which two factors are others, and misfit below which one tensor is a multiple of another."""


def _multiple(usual: Tensor, shorter: Tensor) -> float | None:
    """Return what multiplies queries or keys where there is a token more; None where they differ otherwise."""
    first, other = usual[:, :, : shorter.shape[2]].double(), shorter.double()
    if first.shape != other.shape or usual.shape[2] <= shorter.shape[2]:
        return None
    multiple = float((first * other).sum() / other.square().sum().clamp_min(1e-300))
    return multiple if float((first - multiple * other).norm()) <= _OTHER_FACTOR * float(first.norm()) else None


def _changed_alike(value: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Any:
    return change(value) if isinstance(value, Tensor) and value.shape == x.shape else value


def _runs(module: nn.Module, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
    try:
        with torch.no_grad():
            module(*arguments[0], **arguments[1])
    except Exception:  # what a block of the user's own raises when it runs outside its network
        return False
    return True


_OF_LARGEST = 0.5
"""Share of the largest change that the query and the key of the changed token must have."""


def _stands_at(usual: Tensor, other: Tensor, places: Tensor, tokens: int, *, heads_first: bool = False) -> bool:
    """Return whether what differs between queries or keys stands at one place of each input, if anything differs."""
    if usual.shape != other.shape or len(usual) % len(places) or usual.shape[2] != tokens:
        return False
    difference = other - usual
    if heads_first:
        difference = difference.unflatten(0, (-1, len(places))).transpose(0, 1)
    sizes = difference.reshape(len(places), -1, *usual.shape[2:]).norm(dim=(1, 3))
    largest, there = sizes.amax(dim=1), sizes[torch.arange(len(places)), places]
    return not bool(((largest > _CHANGED * usual.norm()) & (there < _OF_LARGEST * largest)).any())


def _outputs(block: ModuleCall, states: Sequence[Tensor]) -> list[Tensor] | None:
    """Return what a block gives for other states than those of its call; None where it cannot be run by itself."""
    positional, named = block.arguments
    tensors = (argument for argument in (*positional, *named.values()) if isinstance(argument, Tensor))
    try:
        former = next(tensor for tensor in tensors if block.x is not None and tensor.shape == block.x.shape)
        with torch.no_grad():
            several = []
            for state in states:
                given, by_name = with_state(state.clone(), former, positional, named)
                several.append(states_given(block.module(*given, **by_name)))
    except Exception:  # what a block of the user's own raises when it runs outside its network
        return None
    outputs = [output for output in several if output is not None]
    return outputs if len(outputs) == len(states) else None


def _differ(one: Tensor, other: Tensor) -> bool:
    return not float((one - other).abs().max()) <= _CHANGED * float(other.abs().max())


_WANTED = "states of shape (input, token, feature)"

_SEED = 17


def check_axes(
    network: nn.Module, inputs: Callable[[int], Mapping[str, Any]], blocks: Sequence[BlockCall], recorded: Pass
) -> None:
    """Refuse states whose axes are others than (input, token, feature).

    Args:
        network: In evaluation mode.
        inputs: Makes the arguments of a forward pass for a given number of inputs.
        blocks: Of the recorded pass.
        recorded: A pass of two inputs.

    Raises:
        LayoutNotFoundError: They are others, or trying does not show which they are.
    """
    start = blocks[0].call
    shape = tuple(start.y.shape)
    if start.x is None or start.x.shape != start.y.shape:
        return
    block = next((block for block in blocks if block.attentions), blocks[0])
    axes = _of_attention(network, inputs(2), block)
    if len(shape) == 3:
        _check_inputs_first(network, inputs, block, axes)
        axes = axes if len(axes) == 1 else _of_length(network, inputs(2), block) or _of_norms(start, recorded)
    # Where the usual axis shows as well, what does not change are places that a window was filled up with.
    if axes and axes[-1] == len(shape) - 1 and (0 if len(shape) == 2 else 1) not in axes:
        usual = "(input, channel, time)" if len(shape) < 4 else "(input, channel, row, column)"
        came = f"{shape} with the tokens along the last axis, as in {usual}"
        advice = "turn them inside of the blocks, so that these read and return (input, token, feature)"
        raise LayoutNotFoundError(start.name, _WANTED, came, advice)
    if not axes and len(shape) == 3 and shape[1] == shape[2]:
        came = f"{shape}, where trying does not show which axis is that of the tokens"
        raise LayoutNotFoundError(start.name, _WANTED, came, "make inputs of more tokens")


def check_one_sequence(
    network: nn.Module, inputs: Callable[[int], Mapping[str, Any]], blocks: Sequence[BlockCall]
) -> None:
    """Refuse blocks of which some read nothing of what those before them gave: two towers, or one that runs twice.

    Args:
        network: In evaluation mode.
        inputs: Makes the arguments of a forward pass for a given number of inputs.
        blocks: In the order in which they ran.

    Raises:
        LayoutNotFoundError: It names the first two sequences of blocks.
    """
    given, names = inputs(2), [block.call.name for block in blocks]
    joins = [place for place, joined in enumerate(joining([block.call for block in blocks])) if joined]
    ends = [place for place in joins if not _feeds(network, given, blocks, place)]
    if not ends:
        return
    end, after = ends[0], (*ends[1:], len(names))[0]
    first, second = names[:end], names[end:after]
    towers = [_owner(several) for several in (first, second)]
    twice = f"runs {_from_to(first)} again for other inputs"
    others = f"runs {_from_to(second)} on other inputs than {_from_to(first)}"
    which = " or ".join(dict.fromkeys(f"its module {tower}" for tower in towers if tower))
    advice = f"pass {which}, with inputs= of that" if which else "wrap it in a module that runs them once"
    came = f"one that {twice if second == first else others}"
    raise LayoutNotFoundError(type(network).__name__, "a network whose blocks read one sequence", came, advice)


def _from_to(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _owner(names: Sequence[str]) -> str:
    """Return the name of the module that holds the list of some blocks; empty where that is the network.

    >>> _owner(["left.blocks.0", "left.blocks.1"]), _owner(["blocks.0"])
    ('left', '')
    """
    around = [list(dict.fromkeys(parts)) for parts in zip(*(name.split(".")[:-1] for name in names), strict=False)]
    common = list(takewhile(lambda parts: len(parts) == 1, around))
    return ".".join(part for (part,) in common[:-1])


def _feeds(network: nn.Module, given: Mapping[str, Any], blocks: Sequence[BlockCall], place: int) -> bool:
    """Return whether what a block reads changes with what the one before it gave; True where that cannot be tried."""
    before, after = blocks[place - 1], blocks[place]

    def read(change: Callable[[Tensor], Tensor]) -> Tensor | None:
        entered: list[Tensor] = []
        left: list[Tensor] = []

        def enter(states: Tensor) -> None:
            entered.append(states.clone())
            if sum(block.call.name == after.call.name for block in blocks[: place + 1]) == len(entered):
                raise _EndedError

        def leave(states: Tensor) -> Tensor | None:
            left.append(states)
            last = sum(block.call.name == before.call.name for block in blocks[:place]) == len(left)
            return change(states) if last else None

        try:
            with Hooks() as hooks, without_cache(network), as_before(network):
                hooks.after_block(network.get_submodule(before.call.name), before.sites, leave)
                hooks.before_block(network.get_submodule(after.call.name), after.sites, enter)
                network(**copied(given))
        except _EndedError:
            return entered[-1]
        except Exception:  # it does not run with other states between its blocks
            return None
        return None

    usual, other = read(torch.clone), read(lambda states: _with_other_last(states, -1))
    return usual is None or other is None or usual.shape != other.shape or not torch.equal(usual, other)


def _check_inputs_first(
    network: nn.Module, inputs: Callable[[int], Mapping[str, Any]], block: BlockCall, axes: tuple[int, ...]
) -> None:
    """Refuse states with the tokens first, and those of a single token."""
    start, shape = block.call, tuple(block.call.y.shape)
    first = axes == (0,) or (shape[0] != 2 and shape[1] == 2)
    if shape[:2] == (2, 2):  # of three inputs the lengths differ
        states = _states_of(network, inputs(3), block)
        first = first or (states is not None and tuple(states.shape[:2]) == (2, 3))
    if not axes and not first:  # what acts on each other are tokens
        first = _spreads(network, inputs(2), block, 0) and not _spreads(network, inputs(2), block, 1)
    if first:
        advice = "build it with batch_first=True if its class has that; others of this layout are not read"
        raise LayoutNotFoundError(start.name, _WANTED, f"{shape} for 2 inputs, with tokens first", advice)
    if shape[1] < 2:
        raise LayoutNotFoundError(start.name, _WANTED, f"{shape}", "make inputs of at least two tokens")


def _of_attention(network: nn.Module, given: Mapping[str, Any], block: BlockCall) -> tuple[int, ...]:
    """Return the axes along which a changed place changes some queries of every input, and not all."""
    usual = _queries(network, given, block, lambda states: states)
    if usual is None or block.call.x is None:
        return ()
    axes: list[int] = []
    for axis in range(block.call.x.ndim):
        query = _queries(network, given, block, lambda states, axis=axis: _with_other_last(states, axis))
        if query is None or query.shape != usual.shape:
            return ()
        changed = (query - usual).abs().amax(dim=-1) > _CHANGED * usual.abs().max()
        of_inputs, of_places = changed.any(dim=1), changed.any(dim=0)
        by_row = block.call.x.ndim == 2  # a row is a token of one input
        if (bool(of_inputs.all()) or (by_row and bool(of_inputs.any()))) and not bool(of_places.all()):
            axes.append(axis)
    return tuple(axes)


def _spreads(network: nn.Module, given: Mapping[str, Any], block: BlockCall, axis: int) -> bool:
    """Return whether a block gives other states at further places along an axis where the first one is changed."""

    def changed(states: Tensor) -> Tensor:
        return _with_other_last(states.flip(axis), axis).flip(axis)

    usual, other = (_states_of(network, given, block, change) for change in (torch.clone, changed))
    if usual is None or other is None or usual.shape != other.shape or usual.shape[axis] < 2:
        return False
    return _differ(*(states.narrow(axis, 1, states.shape[axis] - 1) for states in (other, usual)))


def _with_other_last(states: Tensor, axis: int) -> Tensor:
    """Return states of which the last place along an axis holds other numbers."""
    generator = torch.Generator().manual_seed(_SEED)
    changed = states.clone()
    last = changed.select(axis, -1)
    last += states.std() * torch.randn(last.shape, generator=generator).to(last)
    return changed


def _of_length(network: nn.Module, given: Mapping[str, Any], block: BlockCall) -> tuple[int, ...]:
    """Return the one of the last two axes along which the block takes fewer places; empty if both or neither do."""
    taken = [
        axis
        for axis in (1, 2)
        if _states_of(network, given, block, lambda states, axis=axis: states.narrow(axis, 0, states.shape[axis] - 1))
        is not None
    ]
    return tuple(taken) if len(taken) == 1 else ()


def _of_norms(block: ModuleCall, recorded: Pass) -> tuple[int, ...]:
    """Return the axis of the tokens by the first norm that reads the states, or gives them; empty without one.

    Norms act on the features of the last axis, but those of channels, which PyTorch has along the second.
    """
    for call in recorded.calls:
        if call.start < block.start or call.end > block.end or call.x is None or call.x.ndim != 3:
            continue
        by_channel = isinstance(call.module, nn.GroupNorm | nn.BatchNorm1d | nn.InstanceNorm1d)
        if call.norm is None and not by_channel:
            continue
        for tensor, states in ((call.x, block.x), (call.y, block.y)):
            if states is not None and (_same(tensor, states) or _same(tensor, states.mT)):
                return (1,) if _same(tensor, states) is not by_channel else (2,)
    return ()


class _EndedError(Exception):
    """Ends a pass behind the block that was tried."""


def _queries(
    network: nn.Module, given: Mapping[str, Any], block: BlockCall, change: Callable[[Tensor], Tensor]
) -> Tensor | None:
    """Return the queries, (input, token, feature), of the first attention of a block that reads changed states."""
    queries: list[Tensor] = []
    _states_of(network, given, block, change, lambda call: queries.append(call.query.clone()))
    if not queries:
        return None
    count = len(queries[0])
    if count in block.call.y.shape[:2]:  # of all inputs, whichever axis is theirs
        return queries[0].transpose(1, 2).flatten(2)
    # Heads, or windows, may stand beside the inputs.
    return None if count % 2 else queries[0].unflatten(0, (2, -1)).permute(0, 3, 1, 2, 4).flatten(2)


def _states_of(
    network: nn.Module,
    given: Mapping[str, Any],
    block: BlockCall,
    change: Callable[[Tensor], Tensor] = torch.clone,
    watch: Callable[[AttentionCall], None] = lambda call: None,
) -> Tensor | None:
    """Return what a block gives where it reads changed states; None where it does not run on these."""
    outputs: list[Tensor] = []
    inside: list[bool] = []

    def enter(states: Tensor) -> Tensor:
        inside.append(True)
        return change(states)

    def leave(states: Tensor) -> None:
        outputs.append(states)
        raise _EndedError

    module = network.get_submodule(block.call.name)
    try:
        with Hooks() as hooks, without_cache(network), as_before(network):
            hooks.before_block(module, block.sites, enter)
            hooks.after_block(module, block.sites, leave)
            with watching(network, lambda call: watch(call) if inside else None, of_w=True):
                network(**copied(given))
    except Exception:  # also what a block says of a shape that it does not take
        return outputs[0] if outputs else None
    return outputs[0] if outputs else None
