"""Finds a network's layout by running it twice on random input: once to see who attends, once to see who does what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained._parameter_products import learning
from tokendynamics.pretrained._raw_projections import (
    RawProjection,
    follow,
    follow_like,
    followed,
    raw_projections,
)
from tokendynamics.pretrained._torch_attention import (
    InProjection,
    apart,
    hide_cross_attentions,
    seen_turned,
    turn_states,
)
from tokendynamics.pretrained.discovery._attention_layout import FoundAttention, with_mask_by_ids
from tokendynamics.pretrained.discovery._block_layout import Seen, block_layout, factor_after
from tokendynamics.pretrained.discovery._blocks import (
    BlockCall,
    block_calls,
    joining,
    leaves_out_cross_attention,
    streams_of,
)
from tokendynamics.pretrained.discovery._calls import ModuleCall, Pass, record
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError
from tokendynamics.pretrained.discovery._maps import Norm
from tokendynamics.pretrained.discovery._positional import embedded, first_token, positional_parts, with_one_token
from tokendynamics.pretrained.discovery._random_inputs import Comparisons, holding
from tokendynamics.pretrained.discovery._residual_search import residual_of
from tokendynamics.pretrained.discovery._rotation import TooFewInputsError
from tokendynamics.pretrained.discovery._sequence_checks import TokensFirstError, check_axes, check_one_sequence, turns
from tokendynamics.pretrained.discovery._trials import CHANGED, cross_attentions, scales_with_length, sees_order
from tokendynamics.pretrained.discovery.attention_call import as_features
from tokendynamics.pretrained.discovery.layout import (
    LOOKS_AHEAD,
    ROUNDING,
    AttentionLayout,
    BlockLayout,
    Layout,
    Positions,
)
from tokendynamics.pretrained.length_dependence import as_before
from tokendynamics.pretrained.network import copied, without_autocast, without_cache
from tokendynamics.pretrained.other_libraries import silenced

_SEED = 20


_INPUTS = 8


@dataclass(frozen=True)
class Discovery:
    """What was found.

    Attributes:
        layout: The record.
        seen: What each layer's attention was called with; None where the attention was not read.
        dim: Width of the state.
    """

    layout: Layout
    seen: tuple[Seen | None, ...]
    dim: int


def discover(
    network: nn.Module,
    inputs: Callable[[int], Mapping[str, Any]],
    *,
    found_on: str,
    decoder: bool = False,
    again: bool = False,
) -> Discovery:
    """Find the layout of a network.

    Args:
        network: In evaluation mode.
        inputs: Makes the arguments of a forward pass for a given number of inputs.
        found_on: What the network is, for the record.
        decoder: Whether it is the decoder of a network that has an encoder as well.
        again: Whether a layout of it was found just now, with other weights: its states are turned as they were then.

    Raises:
        LayoutNotFoundError: It has no list of blocks.
    """
    if not again:  # what a former call found need not hold here
        turn_states(network)
        hide_cross_attentions(network)
        follow_like(network)
    # What is found on a copy says nothing of how the blocks of the network itself run.
    itself = found_on == "the network itself"
    try:
        discovery = _discover(network, inputs, found_on, decoder=decoder)
    except TokensFirstError:
        if not itself or not _seen_turned(network, inputs):
            raise
        discovery = _discover(network, inputs, found_on, decoder=decoder)
    several = any("; one can be read" in layer.problem for layer in discovery.layout.layers)
    if itself and several and _hides_cross_attentions(network, inputs):
        discovery = _discover(network, inputs, found_on, decoder=decoder)
    return discovery


def _hides_cross_attentions(network: nn.Module, inputs: Callable[[int], Mapping[str, Any]]) -> bool:
    """Let modules with keys of another sequence not be noticed where one attention of their block remains."""
    names: list[str] = []
    with torch.no_grad(), as_before(network), apart(network), seen_turned(), silenced(), without_autocast():
        for block in _blocks(network, record(network, inputs(2))):
            modules = [seen.module for _, seen in block.attentions if seen.module is not None]
            crossing = cross_attentions(block.call, len(block.attentions))
            if len(modules) != len(crossing):
                continue
            between = {module for module, crosses in zip(modules, crossing, strict=True) if not crosses}
            if len(between) != 1:
                continue
            for name, module in block.call.module.named_modules():
                # A module around both attentions would hide both.
                if name and module in modules and not between & set(module.modules()):
                    names.append(f"{block.call.name}.{name}" if block.call.name else name)
    hide_cross_attentions(network, names)
    return bool(names)


def _seen_turned(network: nn.Module, inputs: Callable[[int], Mapping[str, Any]]) -> bool:
    """Let the states of blocks that run with the tokens first be seen inputs first; return whether they do.

    The arguments of the network itself must have the inputs first: their number is then that of the states.
    """
    counts = (2, 3)
    with torch.no_grad(), as_before(network), apart(network), seen_turned(), silenced(), without_autocast():
        passes = [record(network, inputs(count)) for count in counts]
        called = [list(recorded.calls) for recorded in passes]  # by names of the network's own
        blocks = [_blocks(network, recorded) for recorded in passes]
    tokens: set[int] = set()
    for several, count in zip(blocks, counts, strict=True):
        # Blocks of parts in several lists may read them tokens first and give them inputs first.
        if any(block.call.y.shape[1] != count for block in several if not turns(block.call)):
            return False
        shapes = [block.call.y.shape[:2] for block in several]
        tokens |= {shape[0] if shape[1] == count else shape[1] for shape in shapes}
    # Only lengths distinguish the axes of other modules.
    calls, count = next((one, count) for one, count in zip(called, counts, strict=True) if count not in tokens)
    axes: dict[str, set[Any]] = {}
    for call in calls:
        for tensor in (
            (call.x, call.y) if call.name and not isinstance(call.module, InProjection | RawProjection) else ()
        ):
            if tensor is not None and tensor.ndim == 3:
                axes.setdefault(call.name, set()).add(tuple(tensor.shape[:2]))
    first = {(length, count) for length in tokens}
    turn_states(network, [name for name, several in axes.items() if several <= first])
    return True


def _discover(
    network: nn.Module, inputs: Callable[[int], Mapping[str, Any]], found_on: str, *, decoder: bool
) -> Discovery:
    with ExitStack() as stack:
        for manager in (
            torch.no_grad(),
            as_before(network),
            apart(network),
            seen_turned(),
            silenced(),
            without_autocast(),
        ):
            stack.enter_context(manager)
        given = inputs(2)
        first = record(network, given)
        if found_on == "the network itself" and _follows_parameters(network, given, first):
            stack.enter_context(apart(network))
            first = record(network, given)
        with Comparisons(given) as seen:
            again = record(network, given)
        try:
            count = _enough_inputs(first)
            discovery = _discovered(network, inputs, first, count if count <= 2 * _INPUTS else _INPUTS, found_on, seen)
        except TooFewInputsError:
            discovery = _discovered(network, inputs, first, None, found_on, seen)
    varies = _differ(first, again, discovery.layout.blocks)
    decoder_alone = decoder or discovery.layout.decoder_alone
    return replace(discovery, layout=replace(discovery.layout, decoder_alone=decoder_alone, varies=varies))


def _follows_parameters(network: nn.Module, given: Mapping[str, Any], first: Pass) -> bool:
    """Follow the matrices that attentions hold in no module that runs; return whether any of them is a projection.

    Args:
        network: In evaluation mode.
        given: Arguments of its forward pass.
        first: A pass with them.
    """
    ran = {call.module for call in first.calls}
    for module in dict.fromkeys(call.module for _, call in first.attentions):
        if module is None or isinstance(module, nn.MultiheadAttention):
            continue
        inside = [("", module), *((f"{name}.", inner) for name, inner in module.named_modules() if inner not in ran)]
        tensors = {
            f"{prefix}{name}": tensor
            for prefix, inner in inside
            for name, tensor in (*inner.named_parameters(recurse=False), *inner.named_buffers(recurse=False))
        }
        if any(isinstance(tensor, nn.Parameter) and tensor.ndim > 1 for tensor in tensors.values()):
            follow(module, [name for name, tensor in tensors.items() if tensor.is_floating_point()])
    with_products = [module for module in network.modules() if followed(module) is not None]
    if with_products:
        with learning(), apart(network), without_cache(network):
            network(**copied(given))
    return any(raw_projections(module) for module in with_products)


def with_fixed_factors(
    discovery: Discovery, network: nn.Module, inputs: Callable[[int], Mapping[str, Any]]
) -> Discovery:
    """Return what was found without the factors of sums that are others with other weights: those are learned.

    Args:
        discovery: Of the network, with some weights.
        network: In evaluation mode, with other weights.
        inputs: Makes the arguments of a forward pass for a given number of inputs.
    """
    layers = list(discovery.layout.layers)
    residuals = ((place, layer.residual) for place, layer in enumerate(layers) if layer.residual is not None)
    several = [(place, known) for place, known in residuals if not set(known.factors.values()) <= {None, 1.0}]
    if not several:
        return discovery
    with torch.no_grad(), as_before(network), apart(network), seen_turned(), silenced(), without_autocast():
        recorded = record(network, inputs(2))
        blocks = _blocks(network, recorded)
        for place, known in several if len(blocks) == len(layers) else ():
            layer, block = layers[place], blocks[place]
            time = block.attentions[0][0] if block.attentions else None
            other, _ = residual_of(block.call, recorded, block.call.start if time is None else time, time)
            residual, attention = known.with_fixed_factors(other), layer.attention
            if attention is not None:
                attention = replace(attention, after_output=attention.after_output or factor_after(residual))
            layers[place] = replace(layer, residual=residual, attention=attention)
    return replace(discovery, layout=replace(discovery.layout, layers=tuple(layers)))


def _differ(first: Pass, second: Pass, blocks: Sequence[str]) -> bool:
    """Whether what blocks, or the modules of one that is no module itself, gave in two passes differs beyond rounding.

    Each token counts by itself, since some are far larger than others; so does what the last of all modules gave.
    """
    if len(first.calls) != len(second.calls):
        return True
    ran = {call.name for call in first.calls}
    inside = tuple(f"{name}." for name in blocks if name not in ran)
    for number, (call, other) in enumerate(zip(first.calls, second.calls, strict=True), 1):
        if call.name not in blocks and not call.name.startswith(inside) and number < len(first.calls):
            continue
        y, again = call.y.double(), other.y.double()
        if y.shape != again.shape or not torch.equal(y.isfinite(), again.isfinite()):
            return True
        if y.numel() == 0 or torch.equal(y, again):
            continue
        y, again = y.nan_to_num(0.0, 0.0, 0.0), again.nan_to_num(0.0, 0.0, 0.0)
        largest = y.abs().amax(dim=-1, keepdim=True) if y.ndim > 1 else y.abs().max()
        if bool(((y - again).abs() > ROUNDING * largest).any()):
            return True
    return False


def _enough_inputs(first: Pass) -> int:
    """Return how many inputs overdetermine the matrices of positions: with the heads, 1.5 times a head's width."""
    queries = [call.query.shape for _, call in first.attentions]
    return max([_INPUTS, *(2 + int(1.5 * shape[-1] / shape[1]) for shape in queries)])


def _discovered(
    network: nn.Module,
    inputs: Callable[[int], Mapping[str, Any]],
    first: Pass,
    count: int | None,
    found_on: str,
    comparisons: Comparisons,
) -> Discovery:
    """Find the layout from a first pass and one of a number of inputs, or of as many as any rotation may need."""
    attending = {call.module for _, call in first.attentions if call.module is not None}
    if count is None:
        count = _enough_inputs(first)
    if first.attentions and first.attentions[0][1].query.shape[2] == count:
        count += 1  # only their lengths distinguish the axes of inputs and tokens
    generator = torch.Generator().manual_seed(_SEED)
    recorded = record(network, inputs(count), attending, generator) if attending else first
    blocks, quiet_blocks = _blocks(network, recorded), _blocks(network, first)
    _check_same_blocks(network, quiet_blocks, blocks)
    _check_one_sequence(network, quiet_blocks)
    _check_sums(network, quiet_blocks, first)
    start = quiet_blocks[0].call
    check_one_sequence(network, inputs, quiet_blocks)
    check_axes(network, inputs, quiet_blocks, first)
    tables = [(name, table) for name, table in network.named_buffers() if table.ndim == 1]
    read: list[FoundAttention] = []
    layers = [
        block_layout(block, quiet, recorded, first, tables, read)
        for block, quiet in zip(blocks, quiet_blocks, strict=True)
    ]
    layers = _with_masks_by_ids(_with_lengths(layers, blocks), quiet_blocks, first, network, inputs, comparisons)
    attentions = [layer.attention for layer, _ in layers]
    if any(call.writes_into_states for call in first.calls if call.x is not None and call.x.shape == start.y.shape):
        layers = [(replace(layer, sites=replace(layer.sites, in_place=True)), seen) for layer, seen in layers]
    names, streams = tuple(block.call.name for block in blocks), streams_of(quiet_blocks)
    joins = joining([block.call for block in quiet_blocks]) if streams == 1 else [False] * len(layers)
    layers = [(replace(layer, joins=other), seen) for (layer, seen), other in zip(layers, joins, strict=True)]
    if streams > 1:
        several = f"its blocks hand on {streams} streams of states"
        for place, (layer, seen) in enumerate(layers):
            known = [problem for problem in layer.problem.split("; ") if problem and "output" not in problem]
            layers[place] = replace(layer, residual=None, problem="; ".join([*known, several])), seen
    enter = ".".join(filter(None, (names[0], quiet_blocks[0].sites.enter)))
    positions = _positions(attentions, network, inputs, first, start, enter)
    layout = Layout(
        blocks=names,
        layers=tuple(layer for layer, _ in layers),
        final_norm=_final_norm(quiet_blocks[-1].call, first),
        positions=positions,
        positional=positional_parts(network, inputs, positions, names, enter, first),
        packing=None,
        found_on=found_on,
        decoder_alone=any(leaves_out_cross_attention(block, first) for block in quiet_blocks),
        streams=streams,
        outside=_outside(network, quiet_blocks, first),
        # A small copy may put other numbers of its own tokens beside those of an input.
        first_token=first_token(network, enter, inputs(2))
        if found_on == "the network itself" and start.x is not None
        else None,
    )
    return Discovery(layout, tuple(seen for _, seen in layers), quiet_blocks[0].call.y.shape[-1])


def _with_lengths(
    layers: list[tuple[BlockLayout, Seen | None]], blocks: Sequence[BlockCall]
) -> list[tuple[BlockLayout, Seen | None]]:
    """Return layers with a word on factors of their logits that depend on the number of tokens.

    Of blocks with the same classes and switches one is tried.
    """
    tried: dict[Any, bool] = {}
    for place, ((layer, seen), block) in enumerate(zip(layers, blocks, strict=True)):
        if layer.attention is None or not block.attentions:
            continue
        inside = block.call.module.modules()
        kind = tuple((type(module), tuple(_switches(module))) for module in inside)
        if kind not in tried:
            tried[kind] = scales_with_length(block.call)
        if tried[kind]:
            tokens = block.attentions[0][1].query.shape[2]
            layers[place] = replace(layer, attention=replace(layer.attention, scaled_for=tokens)), seen
    return layers


def _with_masks_by_ids(
    layers: list[tuple[BlockLayout, Seen | None]],
    blocks: Sequence[BlockCall],
    first: Pass,
    network: nn.Module,
    inputs: Callable[[int], Mapping[str, Any]],
    comparisons: Comparisons,
) -> list[tuple[BlockLayout, Seen | None]]:
    """Return layers with the masks that they have for token ids which the network tells from others.

    Args:
        layers: As found with the usual inputs.
        blocks: Their calls in the pass of two inputs.
        first: That pass.
        network: In evaluation mode.
        inputs: Makes the arguments of a forward pass for a given number of inputs.
        comparisons: What the network compared its token ids with.
    """
    given = dict(inputs(2))
    name, special = comparisons.argument, comparisons.special
    if name is None or not special:
        return layers
    with suppress(Exception):  # a network need not run with any ids, such as those that stand for images
        rows, pairs = holding(special, given[name][0], comparisons.vocabulary)
        # Prompts that begin alike must have the same arguments beside their ids, such as numbers of segments.
        recorded = record(network, {**_repeated(given, len(rows)), name: rows})
        times = [time for time, _ in first.attentions]
        if len(recorded.attentions) != len(times):
            return layers
        ahead = _looks_ahead(_blocks(network, recorded)[-1].call.y, rows, pairs)
        tried = list(layers)
        for place, ((layer, seen), block) in enumerate(zip(layers, blocks, strict=True)):
            if layer.attention is not None and block.attentions:
                call = recorded.attentions[times.index(block.attentions[0][0])][1].of_inputs(len(rows))
                layer = replace(layer, attention=with_mask_by_ids(layer.attention, call, looks_ahead=ahead))
            elif ahead and layer.attention is None:
                problem = "; ".join(filter(None, (layer.problem, LOOKS_AHEAD if layer.attends else "")))
                layer = replace(layer, mixing="all tokens", problem=problem)
            tried[place] = layer, seen
        return tried
    return layers


def _repeated(given: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return arguments for two inputs with those of the first one as often as asked for."""
    return {
        name: value[:1].expand(count, *value.shape[1:])
        if isinstance(value, Tensor) and value.ndim and len(value) == 2
        else value
        for name, value in given.items()
    }


def _looks_ahead(states: Tensor, rows: Tensor, pairs: Sequence[tuple[int, int, int]]) -> bool:
    """Whether ordinary tokens of prompts that begin alike have other states there after the last block."""
    if states.shape[:2] != rows.shape:
        return False
    for one, other, begin in pairs:
        ordinary = torch.isin(rows[one, :begin], rows[0])
        before, after = states[one, :begin][ordinary], states[other, :begin][ordinary]
        if bool(((before - after).abs() > CHANGED * before.abs().amax(dim=-1, keepdim=True)).any()):
            return True
    return False


def _switches(module: nn.Module) -> list[tuple[str, Any]]:
    """Return what a module of the same class may do otherwise by; whole numbers may be those of the layers."""
    return [(name, value) for name, value in vars(module).items() if isinstance(value, bool | float | str)]


def _outside(network: nn.Module, blocks: Sequence[BlockCall], recorded: Pass) -> tuple[str, ...]:
    """Return the modules of attentions that ran outside of the blocks, each once."""
    inside = {time for block in blocks for time, _ in block.attentions}
    names: list[str] = []
    for time, _ in recorded.attentions:
        around = [call for call in recorded.calls if call.is_open(time)]
        if time not in inside:
            innermost = max(around, key=lambda call: call.start, default=None)
            names.append(type(network).__name__ if innermost is None or not innermost.name else innermost.name)
    return tuple(dict.fromkeys(names))


def _check_same_blocks(network: nn.Module, first: Sequence[BlockCall], second: Sequence[BlockCall]) -> None:
    """Refuse a network of which other blocks ran in the second pass."""
    names = [", ".join(block.call.name for block in several) for several in (first, second)]
    if names[0] != names[1]:
        wanted, advice = "a network that runs the same blocks for all inputs", "switch off what ends a pass early"
        raise LayoutNotFoundError(expected(type(network).__name__, wanted, " and then ".join(names), advice))


def _check_sums(network: nn.Module, blocks: Sequence[BlockCall], recorded: Pass) -> None:
    """Refuse a single block to whose output a state before it is added outside of it: what it gives is then no state.

    That is what it reads or, where it adds nothing itself, what a norm before it reads.
    """
    block = blocks[0].call
    if len(blocks) > 1 or block.x is None or block.x.shape != block.y.shape:
        return
    before = {"the input": [block.x]}
    if residual_of(block, recorded, block.start)[0] is None:
        ran = [call for call in recorded.calls if call.end < block.start]
        before["an earlier state"] = [states for call in ran for states in (call.x, call.y) if states is not None]
    later = [call.x for call in recorded.calls if call.start > block.end]
    later += [call.y for call in recorded.calls if call.start < block.start and call.end > block.end]
    alike = [states for states in later if states is not None and states.shape == block.y.shape]
    for words, states in ((words, state) for words, several in before.items() for state in several):
        total = states + block.y if states.shape == block.y.shape else None
        if total is not None and any(_near(total, other) for other in alike):
            came = f"{block.name}, to whose output the network adds {words} outside of it"
            advice = "put the sum into one module with it"
            raise LayoutNotFoundError(expected(type(network).__name__, "blocks that give the states", came, advice))


def _near(states: Tensor, other: Tensor) -> bool:
    return float((states - other).abs().max()) <= ROUNDING * float(states.abs().max())


def _check_one_sequence(network: nn.Module, blocks: Sequence[BlockCall]) -> None:
    """Refuse blocks of which some are those of PyTorch's decoders and others are not: they are of two sequences."""
    decoding = [isinstance(block.call.module, nn.TransformerDecoderLayer) for block in blocks]
    if any(decoding) and not all(decoding):
        names = (blocks[decoding.index(decodes)].call.name for decodes in (False, True))
        came = "those of an encoder ({}) and of a decoder ({})".format(*names)
        advice = "load one of them, the module itself, with inputs= of its own forward pass"
        raise LayoutNotFoundError(expected(type(network).__name__, "blocks over one sequence", came, advice))


def _blocks(network: nn.Module, recorded: Pass) -> list[BlockCall]:
    """Return the calls of the blocks, in the order in which they ran."""
    return block_calls(network, recorded, lambda call: residual_of(call, recorded, call.start)[0] is not None)


def _final_norm(last: ModuleCall, recorded: Pass) -> tuple[str, Norm] | None:
    shape = recorded.shape_of(last)
    y = as_features(last.y, *shape)
    for call in sorted(recorded.calls, key=lambda call: call.start):  # one that holds another one before that
        x = as_features(call.x, *shape) if call.start > last.end else None
        if x is not None and y is not None and x.shape == y.shape and torch.equal(x, y):
            norm = call.norm
            if norm is not None:
                return call.name, norm
    return None


def _positions(
    attentions: list[AttentionLayout | None],
    network: nn.Module,
    inputs: Callable[[int], Mapping[str, Any]],
    recorded: Pass,
    block: ModuleCall,
    enter: str,
) -> Positions:
    """Return what tells a network the order of its tokens.

    Args:
        attentions: Of its layers.
        network: In evaluation mode.
        inputs: Makes the arguments of a forward pass for a given number of inputs.
        recorded: A pass of two inputs.
        block: The call of its first block in that.
        enter: The module that reads the states before this block.
    """
    known = [attention for attention in attentions if attention is not None]
    if any(attention.rotation is not None for attention in known):
        return "rotary"
    if any(attention.relative_bias for attention in known):
        return "relative bias"
    if not known and recorded.rotations:
        return "rotary"
    # The same token everywhere: what differs between its states can only come from where it stands.
    states = None if block.x is None else embedded(network, enter, with_one_token(inputs(1)))
    last = None if states is None or states.shape[-2] < 2 else states[..., -1, :] - states[..., -2, :]
    if last is None or not float(last.abs().max()) > 0.0:  # nor where it is NaN
        # Masks, and what a block is given for pairs of its tokens, tell their order by themselves.
        masked = any(attention.window is not None or attention.other_mask for attention in known)
        by_itself = not known or not (masked or block.further)
        return "in the blocks" if by_itself and sees_order(block) else "none"
    normed = any(
        block.x is not None and call.y.shape == block.x.shape and torch.equal(call.y, block.x) and call.norm
        for call in recorded.calls
        if call.end < block.start
    )
    return "absolute" if normed else "learned"
