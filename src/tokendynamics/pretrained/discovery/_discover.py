"""Finds a network's layout by running it twice on random input: once to see who attends, once to see who does what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

import torch
from torch import Tensor, nn

from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained._torch_attention import apart, why_whole
from tokendynamics.pretrained.discovery._attention_layout import (
    TRUSTED,
    FoundAttention,
    attention_layout,
    live_reader,
    output_projection,
    recomputed_error,
)
from tokendynamics.pretrained.discovery._blocks import block_calls, leaves_out_cross_attention, streams_of
from tokendynamics.pretrained.discovery._calls import BlockSites, ModuleCall, Pass, as_features, record
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError
from tokendynamics.pretrained.discovery._maps import Norm
from tokendynamics.pretrained.discovery._positional import embedded, positional_parts, with_one_token
from tokendynamics.pretrained.discovery._residual import Residual, residual_of
from tokendynamics.pretrained.discovery._rotation import TooFewInputsError
from tokendynamics.pretrained.discovery._spans import BlockCall, joining
from tokendynamics.pretrained.discovery._trials import (
    Mixing,
    attends_by_token,
    check_axes,
    check_one_sequence,
    keys_of_another_sequence,
    mixing_of,
    scales_with_length,
    sees_order,
    takes_rows_apart,
)
from tokendynamics.pretrained.discovery.attention_call import AttentionCall
from tokendynamics.pretrained.discovery.layout import (
    CROSSES,
    CROSSES_ALONE,
    IN_ONE_PIECE,
    NO_ATTENTION,
    NOT_READ,
    NOT_SHOWN,
    OTHER_AXIS,
    OTHER_PLACES,
    AfterOutput,
    AttentionLayout,
    BlockLayout,
    Layout,
    Positions,
)
from tokendynamics.pretrained.length_dependence import as_before
from tokendynamics.pretrained.other_libraries import silenced


def block_norms(
    block: ModuleCall, calls: Sequence[ModuleCall], attention: tuple[str, int] | None, shape: tuple[int, int]
) -> tuple[str, ...]:
    """Return the modules, within a block, that normalize all features of each token.

    Norms of queries and keys are none of them: they belong to the attention.

    Args:
        block: The block's call.
        calls: Of the whole pass.
        attention: The attention module within the block, and when its output projection ended: until then a norm is
            one of queries or keys. None where it was not found.
        shape: Batch and tokens.
    """
    prefix = f"{block.name}."
    state = as_features(block.y, *shape)
    norms: list[str] = []
    for call in calls:
        name = call.name.removeprefix(prefix)
        if not (block.start < call.start and call.end < block.end):
            continue
        if attention is not None and name.startswith(f"{attention[0]}.") and call.start < attention[1]:
            continue
        x = as_features(call.x, *shape)
        if x is None or state is None or x.shape != state.shape or call.y.shape != getattr(call.x, "shape", None):
            continue
        if call.norm is not None:
            norms.append(name)
    # A norm may hold another one whose output it scales.
    return tuple(name for name in dict.fromkeys(norms) if not any(name.startswith(f"{outer}.") for outer in norms))


_SEED = 20
_KINDS = 2
"""How many kinds of attention in turn are known again: windows and whole texts, with and without rotation."""

_INPUTS = 8


@dataclass(frozen=True)
class Seen:
    """What a layer's attention was called with where its layout was found, to call another copy of it likewise.

    Attributes:
        shape: Of what it read.
        arguments: Everything it was given, positional and by name.
        tables: Its own tables by name, where they are no parameters.
        angles: Of its rotation, (token, pair).
        batch_first: What an `nn.MultiheadAttention` took for the first axis; None of any other.
        channels_first: Whether what it read has the features before the tokens.
    """

    shape: torch.Size
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    tables: Mapping[str, Tensor]
    angles: Tensor | None
    batch_first: bool | None = None
    channels_first: bool = False


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
    network: nn.Module, inputs: Callable[[int], Mapping[str, Any]], *, found_on: str, decoder: bool = False
) -> Discovery:
    """Find the layout of a network.

    Args:
        network: In evaluation mode.
        inputs: Makes the arguments of a forward pass for a given number of inputs.
        found_on: What the network is, for the record.
        decoder: Whether it is the decoder of a network that has an encoder as well.

    Raises:
        LayoutNotFoundError: It has no list of blocks.
    """
    with torch.no_grad(), as_before(network), apart(network), silenced():
        given = inputs(2)
        first = record(network, given)
        again = record(network, given)
        try:
            count = _enough_inputs(first)
            discovery = _discovered(network, inputs, first, count if count <= 2 * _INPUTS else _INPUTS, found_on)
        except TooFewInputsError:
            discovery = _discovered(network, inputs, first, None, found_on)
    varies = _differ(first, again, discovery.layout.blocks)
    decoder_alone = decoder or discovery.layout.decoder_alone
    return replace(discovery, layout=replace(discovery.layout, decoder_alone=decoder_alone, varies=varies))


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
    numbers = [place for place, layer in enumerate(layers) if _has_factor(layer.residual)]
    if not numbers:
        return discovery
    with torch.no_grad(), as_before(network), apart(network), silenced():
        recorded = record(network, inputs(2))
        blocks = _blocks(network, recorded)
        for place in numbers if len(blocks) == len(layers) else ():
            layer, block = layers[place], blocks[place]
            time = block.attentions[0][0] if block.attentions else None
            other, _ = _residual(block.call, recorded, block.call.start if time is None else time, time)
            if layer.residual is None:
                continue
            residual, attention = _with_known_factors(layer.residual, other), layer.attention
            if attention is not None:
                attention = replace(attention, after_output=attention.after_output or _factor_after(residual))
            layers[place] = replace(layer, residual=residual, attention=attention)
    return replace(discovery, layout=replace(discovery.layout, layers=tuple(layers)))


def _has_factor(residual: Residual | None) -> bool:
    if residual is None:
        return False
    return any(factor not in (None, 1.0) for factor in _factors_of(residual).values())


def _factors_of(residual: Residual) -> dict[str, float | None]:
    """Return every factor of a sum, by what it multiplies."""
    factors = {name: getattr(residual, name) for name in _FACTORS}
    return factors | dict(residual.further)


_FACTORS = ("attention_factor", "feed_forward_factor", "attention_skip", "feed_forward_skip")


def _factor_after(residual: Residual) -> AfterOutput:
    """Return whether the factor of an attention is no positive number: the sign of what it adds may be another one."""
    positive = residual.attention_factor is not None and residual.attention_factor > 0
    return "" if positive else "a factor"


def _with_known_factors(residual: Residual, other: Residual | None) -> Residual:
    """Return a sum with None for each factor that is another one in a second pass with other weights."""
    others = {} if other is None else _factors_of(other)

    def known(name: str, one: float | None) -> float | None:
        two = others.get(name)
        same = one is not None and two is not None and abs(one - two) <= _ROUNDING * abs(one)
        return one if same or one == 1.0 else None

    factors: dict[str, Any] = {name: known(name, getattr(residual, name)) for name in _FACTORS}
    further = tuple((name, known(name, factor)) for name, factor in residual.further)
    return replace(residual, further=further, **factors)


_ROUNDING = 1e-3
"""How much of the largest entry of a token two passes may differ by where sums are taken in another order."""


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
        if bool(((y - again).abs() > _ROUNDING * largest).any()):
            return True
    return False


def _enough_inputs(first: Pass) -> int:
    """Return how many inputs overdetermine the matrices of positions: with the heads, 1.5 times a head's width."""
    queries = [call.query.shape for _, call in first.attentions]
    return max([_INPUTS, *(2 + int(1.5 * shape[-1] / shape[1]) for shape in queries)])


def _discovered(
    network: nn.Module, inputs: Callable[[int], Mapping[str, Any]], first: Pass, count: int | None, found_on: str
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
    names = [", ".join(block.call.name for block in several) for several in (quiet_blocks, blocks)]
    if names[0] != names[1]:
        wanted, advice = "a network that runs the same blocks for all inputs", "switch off what ends a pass early"
        raise LayoutNotFoundError(expected(type(network).__name__, wanted, " and then ".join(names), advice))
    _check_one_sequence(quiet_blocks)
    _check_sums(quiet_blocks, first)
    start = quiet_blocks[0].call
    check_one_sequence(network, inputs, quiet_blocks)
    check_axes(network, inputs, quiet_blocks, first)
    tables = [(name, table) for name, table in network.named_buffers() if table.ndim == 1]
    read: list[FoundAttention] = []
    layers = [
        _layer(block, quiet, recorded, first, tables, read) for block, quiet in zip(blocks, quiet_blocks, strict=True)
    ]
    layers = _with_lengths(layers, blocks)
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


def _switches(module: nn.Module) -> list[tuple[str, Any]]:
    """Return what a module of the same class may do otherwise by; whole numbers may be those of the layers."""
    return [(name, value) for name, value in vars(module).items() if isinstance(value, bool | float | str)]


def _outside(network: nn.Module, blocks: Sequence[BlockCall], recorded: Pass) -> tuple[str, ...]:
    """Return the modules of attentions that ran outside of the blocks, each once."""
    inside = {time for block in blocks for time, _ in block.attentions}
    names: list[str] = []
    for time, _ in recorded.attentions:
        around = [call for call in recorded.calls if call.start < time < call.end]
        if time not in inside:
            innermost = max(around, key=lambda call: call.start, default=None)
            names.append(type(network).__name__ if innermost is None or not innermost.name else innermost.name)
    return tuple(dict.fromkeys(names))


def _check_sums(blocks: Sequence[BlockCall], recorded: Pass) -> None:
    """Refuse a single block whose input is added to its output outside of it: what it gives is then no state."""
    block = blocks[0].call
    if len(blocks) > 1 or block.x is None or block.x.shape != block.y.shape:
        return
    total = block.x + block.y
    near = _ROUNDING * float(total.abs().max())
    later = (call.x for call in recorded.calls if call.start > block.end and call.x is not None)
    if any(x.shape == total.shape and float((x - total).abs().max()) <= near for x in later):
        came = f"{block.name}, to whose output the network adds the input outside of it"
        advice = "put the sum into one module with it"
        raise LayoutNotFoundError(expected("spec", "a network whose blocks give its states", came, advice))


def _check_one_sequence(blocks: Sequence[BlockCall]) -> None:
    """Refuse blocks of which some are those of PyTorch's decoders and others are not: they are of two sequences."""
    decoding = [isinstance(block.call.module, nn.TransformerDecoderLayer) for block in blocks]
    if any(decoding) and not all(decoding):
        names = (blocks[decoding.index(decodes)].call.name for decodes in (False, True))
        came = "those of an encoder ({}) and of a decoder ({})".format(*names)
        advice = "load one of them, the module itself, with inputs= of its own forward pass"
        raise LayoutNotFoundError(expected("spec", "a network with blocks over one sequence", came, advice))


def _layer(
    block: BlockCall,
    quiet: BlockCall,
    recorded: Pass,
    first: Pass,
    tables: list[tuple[str, Tensor]],
    read: list[FoundAttention],
) -> tuple[BlockLayout, Seen | None]:
    """Return the layout of one block.

    Args:
        block: Its call in the pass with noise, on which its attention is read.
        quiet: Its call in the pass without, on which its sum is.
        recorded: The pass with noise.
        first: The pass without.
        tables: The network's tables.
        read: The attentions that were found by a search in a block before, to which this one's is added.
    """
    shape = _shape(first, quiet.call)
    shows = block.attentions or recorded.lost_in(block.call) or _in_one_piece(block.call.module)
    if recorded.attentions and not shows:
        return _without_attention(quiet, first, shape), None
    attention, seen, projected, problem = _attention(block, recorded, tables, read)
    time = quiet.attentions[0][0] if quiet.attentions else None
    residual, other = _residual(quiet.call, first, quiet.call.start if projected is None else projected, time)
    if attention is not None and projected is not None and residual is not None:
        after = _after_output(block.call, projected, residual, recorded)
        attention = replace(attention, after_output=after or _factor_after(residual))
    inside = None if attention is None or projected is None else (attention.module, projected)
    norms = block_norms(quiet.call, first.calls, inside, shape)
    if attention is not None and attention.norm is not None and attention.norm[0] not in norms:
        norms = (attention.norm[0], *norms)
    crosses = CROSSES if block.attentions and _crosses(block, recorded) else ""
    problems = "; ".join(filter(None, (problem, other, crosses)))
    # Of a network whose attention does not show, tokens may also act on each other between the blocks.
    mixing: Mixing = mixing_of(quiet.call) if attention is None and quiet.attentions else "all tokens"
    return BlockLayout(
        attention=attention, residual=residual, norms=norms, problem=problems, mixing=mixing, sites=quiet.sites
    ), seen


def _after_output(block: ModuleCall, projected: int, residual: Residual, recorded: Pass) -> AfterOutput:
    """Return what happens to the output of an attention's projection until the block adds it up, but for a norm.

    Args:
        block: The call of the block.
        projected: When the projection ended.
        residual: How the block adds its parts.
        recorded: The pass.
    """
    prefix = f"{block.name}." if block.name else ""
    inside = [call for call in recorded.calls if block.start < call.start and projected <= call.end < block.end]
    normed = residual.kind == "added" and residual.attention_norm is not None
    name = residual.attention_norm if normed else residual.attention
    part = next((call for call in inside if call.name == f"{prefix}{name}"), None)
    projection = next((call for call in inside if call.end == projected), None)
    if part is None or projection is None or part is projection:
        return ""
    shape = _shape(recorded, block)
    given = as_features(projection.y, *shape)
    made = as_features(part.x if normed else part.y, *shape)
    if given is None or made is None or given.shape != made.shape:
        return ""
    given, made = (states.flatten(0, 1).double() for states in (given, made))
    factor, shift = _affine_by_feature(given, made)
    if float((factor * given + shift - made).norm()) > _FITS * float(made.norm()):
        return "a function"
    return "" if bool(((factor - 1).abs() < _FITS).all()) else "a factor"


_FITS = 1e-4
"""Relative misfit below which each feature is another one times a factor, plus a constant."""


def _affine_by_feature(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return factor and constant by which each feature of x, over its rows, comes nearest to that of y."""
    centred = x - x.mean(dim=0)
    factor = (centred * y).sum(dim=0) / centred.square().sum(dim=0).clamp_min(1e-300)
    return factor, y.mean(dim=0) - factor * x.mean(dim=0)


def _without_attention(quiet: BlockCall, recorded: Pass, shape: tuple[int, int]) -> BlockLayout:
    """Return the layout of a block without attention among others that have one."""
    block = quiet.call
    residual, problem = _residual(block, recorded, block.start)
    running = block
    if residual is not None and (quiet.sites != BlockSites()):  # it is no module that can run alone
        part = f"{block.name}.{residual.attention}"
        running = next((call for call in recorded.calls if call.name == part and call.start > block.start), block)
    mixing = mixing_of(running)
    if residual is not None and mixing == "none" and residual.feed_forward is None:
        residual = replace(residual, attention=None, feed_forward=residual.attention,
                           feed_forward_factor=residual.attention_factor,
                           attention_norm=None, feed_forward_norm=residual.attention_norm)  # fmt: skip
    words = NO_ATTENTION if not problem else f"{NO_ATTENTION}; {problem}"
    norms = block_norms(block, recorded.calls, None, shape)
    layout = BlockLayout(attention=None, residual=residual, norms=norms, problem=words, attends=False, mixing=mixing)
    return replace(layout, sites=quiet.sites)


def _blocks(network: nn.Module, recorded: Pass) -> list[BlockCall]:
    """Return the calls of the blocks, in the order in which they ran."""
    return block_calls(network, recorded, lambda call: _residual(call, recorded, call.start)[0] is not None)


def _shape(recorded: Pass, block: ModuleCall) -> tuple[int, int]:
    shapes = (call.query.shape for _, call in recorded.attentions[:1])
    places = next((places for shape in shapes if (places := _places(shape, block.y)) is not None), None)
    return places or (block.y.shape[0], block.y.shape[1])


def _attention(
    block_call: BlockCall, recorded: Pass, tables: list[tuple[str, Tensor]], read: list[FoundAttention]
) -> tuple[AttentionLayout | None, Seen | None, int | None, str]:
    """Return a block's attention, what it was called with, when its output projection ended, and what is wrong."""
    if not block_call.attentions:
        lost = recorded.lost_in(block_call.call)
        words = f"{NOT_READ} ({lost})" if lost else NOT_SHOWN
        return None, None, None, _in_one_piece(block_call.call.module) or words
    other_axis = _other_axis(block_call, recorded)
    if other_axis:
        return None, None, None, other_axis
    if len(block_call.attentions) > 1:
        modules = list(dict.fromkeys(seen.module for _, seen in block_call.attentions))
        names = [_name_in(block_call.call.module, module) or "the block itself" for module in modules]
        several = f"it has {len(names)} attentions ({', '.join(names)}); one can be read"
        runs = f"its attention runs {len(block_call.attentions)} times"
        return None, None, None, several if names[1:] else runs
    (time, call), block, projected = next(iter(block_call.attentions)), block_call.call, None
    seen, error = None, inf
    try:
        projection = output_projection(call, time, block, recorded.calls)
        projected = None if projection is None else projection.call.end
        # Most blocks are alike, or of two kinds: what was found in others is tried before this one is searched.
        for like in (*reversed(read[-_KINDS:]), None):
            seen = attention_layout(time, call, block, recorded.calls, tables, projection, like)
            shared = call.sharing(seen.layout.kv_heads)
            error = recomputed_error(seen.layout, seen.start, seen.angles, live_reader(block.module), shared)
            if error <= TRUSTED:
                read += [seen] if like is None else []
                break
        if seen is None or not error <= TRUSTED:
            raise LayoutNotFoundError(f"the attention recomputed from its factors misses by {error:.1g}")
    except TooFewInputsError:
        raise
    except LayoutNotFoundError as problem:
        crossing = CROSSES_ALONE if keys_of_another_sequence(block) else ""
        return None, None, projected, crossing or _other_places(call, block) or str(problem)
    attending = seen.call
    shape = torch.Size(()) if attending.x is None else attending.x.shape
    first = attending.module.batch_first if isinstance(attending.module, nn.MultiheadAttention) else None
    buffers = dict(attending.module.named_buffers())
    kept = Seen(shape, attending.arguments, buffers, seen.angles, first, seen.channels_first)
    return replace(seen.layout, error=error), kept, projected, _other_places(call, block) if seen.layout.changed else ""


def _other_places(attention: AttentionCall, block: ModuleCall) -> str:
    """Say that the queries and keys of an attention are not those of the tokens in their order; empty if they are."""
    queries, keys = attention.query.shape[2], attention.key.shape[2]
    if queries != keys:
        return f"{OTHER_PLACES} ({queries} queries, {keys} keys)"
    return "" if attends_by_token(block) else OTHER_PLACES


def _in_one_piece(block: nn.Module) -> str:
    """Say which attention of PyTorch inside a block cannot be taken apart, and why; empty without one."""
    whole = ((name, why) for name, module in block.named_modules() if (why := why_whole(module)))
    return next((f"{name} {IN_ONE_PIECE}: {why}" for name, why in whole), "")


def _crosses(block: BlockCall, recorded: Pass) -> bool:
    """Whether a block has, beside the attention that was seen, one of PyTorch's with keys from another tensor."""
    seen = {attention.module for _, attention in block.attentions}
    inside = (call for call in recorded.calls if block.call.start < call.start and call.end < block.call.end)
    return any(call.reads_several and call.module not in seen for call in inside)


def _other_axis(block: BlockCall, recorded: Pass) -> str:
    """Say over what the attentions of a block run that are not its tokens; empty where they run over these."""
    y, shapes = block.call.y, [call.query.shape for _, call in block.attentions]
    fits = y.ndim < 3 or any(_places(shape, y) is not None or _on_grid(shape, block.call) for shape in shapes)
    if fits and not (y.ndim == 3 and _as_many_channels(block, recorded)):
        return ""
    inputs, tokens, width = y.shape[0], prod(y.shape[1:-1]), y.shape[-1]
    rows, heads, places, _ = shapes[0]
    if rows == inputs and places in (width, width // heads):
        return (
            f"{OTHER_AXIS} {places} channels{'' if places == width else ' of each head'}, not over the {tokens} tokens"
        )
    if rows * places == inputs * tokens:
        return f"{OTHER_AXIS} groups of {places} of the {tokens} tokens, as in windows, or over time or space alone"
    return f"{OTHER_AXIS} {places} places that are not the {tokens} tokens"


def _on_grid(shape: Sequence[int], block: ModuleCall) -> bool:
    """Whether queries (input, head, token, feature) have all places of a block's states of four axes or more.

    Those are all tokens of a grid (input, row, column, feature), the tokens of each of several streams, or of channels
    that pass through the block side by side.
    """
    inputs, *axes = block.y.shape[:-1]
    counts = shape[0], shape[2]
    if len(axes) < 2:
        return False
    if counts == (inputs, prod(axes)) or not Counter(counts) - Counter((inputs, *axes)):
        return True
    return counts == (inputs * prod(axes[:-1]), axes[-1]) and takes_rows_apart(block)


def _as_many_channels(block: BlockCall, recorded: Pass) -> bool:
    """Whether an attention whose queries have as many places as features has channels for its places."""
    time, query = block.attentions[0][0], block.attentions[0][1].query
    if query.shape[2] != query.shape[3]:
        return False
    by_channel = nn.functional.normalize(query[0].flatten(0, 1), dim=-1)
    for call in recorded.calls:
        y = as_features(call.y, len(query), query.shape[2]) if block.call.start < call.start < time else None
        if y is not None and call.end < time:
            cosines = by_channel @ nn.functional.normalize(y[0], dim=0)
            if float(cosines.abs().amax(dim=-1).min()) > 1 - _SAME_DIRECTION:
                return True
    return False


_SAME_DIRECTION = 1e-5
"""By how much the cosine of a channel, over the tokens, with that which a module gave may miss 1."""


def _name_in(block: nn.Module, module: nn.Module | None) -> str:
    return next((name for name, inner in block.named_modules() if inner is module), type(module).__name__)


def _places(shape: Sequence[int], y: Tensor) -> tuple[int, int] | None:
    """Return inputs and tokens of an attention's queries (input, head, token, feature), if states are of as many."""
    return None if as_features(y, shape[0], shape[2]) is None else (shape[0], shape[2])


def _residual(
    block: ModuleCall, recorded: Pass, projected: int, time: int | None = None
) -> tuple[Residual | None, str]:
    try:
        return residual_of(block, recorded.calls, projected, _shape(recorded, block), time), ""
    except LayoutNotFoundError as problem:
        return None, str(problem)


def _final_norm(last: ModuleCall, recorded: Pass) -> tuple[str, Norm] | None:
    shape = _shape(recorded, last)
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
    if states is None or not float((states[:, -1] - states[:, -2]).abs().max()) > 0.0:  # nor where it is NaN
        return "none" if known or not sees_order(block) else "in the blocks"
    normed = any(
        block.x is not None and call.y.shape == block.x.shape and torch.equal(call.y, block.x) and call.norm
        for call in recorded.calls
        if call.end < block.start
    )
    return "absolute" if normed else "learned"
