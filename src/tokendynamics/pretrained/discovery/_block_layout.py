"""Finds one block's layout in a pass with noise, on which attentions are read, and one without, on which sums are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

import torch
from torch import Tensor, nn

from tokendynamics.pretrained._torch_attention import is_hidden, why_whole
from tokendynamics.pretrained.discovery._attention_layout import FoundAttention, attention_layout
from tokendynamics.pretrained.discovery._blocks import BlockCall
from tokendynamics.pretrained.discovery._calls import BlockSites, ModuleCall, Pass, state_of
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError
from tokendynamics.pretrained.discovery._output_projection import output_projection
from tokendynamics.pretrained.discovery._recomputed import TRUSTED, live_reader, recomputed_error
from tokendynamics.pretrained.discovery._residual_search import residual_of
from tokendynamics.pretrained.discovery._rotation import TooFewInputsError
from tokendynamics.pretrained.discovery._trials import (
    Mixing,
    attends_by_token,
    keys_of_another_sequence,
    mixing_of,
    takes_rows_apart,
)
from tokendynamics.pretrained.discovery.attention_call import AttentionCall, as_features, places_of
from tokendynamics.pretrained.discovery.layout import (
    ALL_CROSS,
    CROSSES,
    CROSSES_ALONE,
    HEADS_FIRST,
    IN_ONE_PIECE,
    NO_ATTENTION,
    NOT_READ,
    NOT_SHOWN,
    NOT_SIDE_BY_SIDE,
    OTHER_AXIS,
    OTHER_PLACES,
    SHARES_KEYS,
    TOO_FEW_ROWS,
    AfterOutput,
    AttentionLayout,
    BlockLayout,
    Residual,
)
from tokendynamics.words import plural


def _norms(
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
    state = as_features(block.y, *shape)
    norms: list[str] = []
    for call in calls:
        name = call.name_in(block.name)
        if not call.is_inside(block):
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


_KINDS = 2
"""How many kinds of attention in turn are known again: windows and whole texts, with and without rotation."""


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
        order: Of its heads; see `BlockLayout.order`.
    """

    shape: torch.Size
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    tables: Mapping[str, Tensor]
    angles: Tensor | None
    batch_first: bool | None = None
    channels_first: bool = False
    order: tuple[int, ...] = ()


def factor_after(residual: Residual) -> AfterOutput:
    """Return whether the factor of an attention is no positive number: the sign of what it adds may be another one."""
    positive = residual.attention_factor is not None and residual.attention_factor > 0
    return "" if positive else "a factor"


def block_layout(
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
    shape = first.shape_of(quiet.call)
    shows = block.attentions or recorded.lost_in(block.call) or _in_one_piece(block.call.module)
    if recorded.attentions and not shows:
        return _without_attention(quiet, first, shape), None
    rows = len(quiet.attentions[0][1].query) if quiet.attentions else 0
    attention, seen, projected, problem = _attention(block, recorded, tables, read, rows)
    time = quiet.attentions[0][0] if quiet.attentions else None
    residual, other = residual_of(quiet.call, first, quiet.call.start if projected is None else projected, time)
    if attention is not None and projected is not None and residual is not None:
        after, constant = _after_output(block.call, projected, residual, recorded)
        attention = replace(attention, after_output=after or factor_after(residual), constant_after=constant)
    if attention is not None and attention.output[1] == "heads" and (residual is None or attention.after_output):
        attention, seen, problem = None, None, NOT_SIDE_BY_SIDE  # something reads them that was not found
    inside = None if attention is None or projected is None else (attention.module, projected)
    norms = _norms(quiet.call, first.calls, inside, shape)
    if attention is not None and attention.norm is not None and attention.norm[0] not in norms:
        norms = (attention.norm[0], *norms)
    crosses = CROSSES if block.attentions and _crosses(block, recorded) else ""
    problems = "; ".join(filter(None, (problem, other, crosses)))
    # Of a network whose attention does not show, tokens may also act on each other between the blocks.
    mixing: Mixing = mixing_of(quiet.call) if attention is None and quiet.attentions else "all tokens"
    runs = quiet.attentions[0][1].runs if len(quiet.attentions) == 1 else 1
    layout = BlockLayout(
        attention=attention, residual=residual, norms=norms, problem=problems, mixing=mixing, runs=runs
    )
    if len(block.attentions) == 1:
        layout = replace(layout, order=block.attentions[0][1].order)
    return replace(layout, sites=quiet.sites), seen


def _after_output(block: ModuleCall, projected: int, residual: Residual, recorded: Pass) -> tuple[AfterOutput, bool]:
    """Return what happens to the output of an attention's projection until the block adds it up, but for a norm.

    The second value tells whether a constant is added.

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
        return "", False
    shape = recorded.shape_of(block)
    given = as_features(projection.y, *shape)
    made = as_features(part.x if normed else part.y, *shape)
    if given is None or made is None or given.shape != made.shape:
        return "", False
    given, made = (states.flatten(0, 1).double() for states in (given, made))
    # Factor and constant by which each feature comes nearest, over its rows.
    centred = given - given.mean(dim=0)
    factor = (centred * made).sum(dim=0) / centred.square().sum(dim=0).clamp_min(1e-300)
    shift = made.mean(dim=0) - factor * given.mean(dim=0)
    if float((factor * given + shift - made).norm()) > _FITS * float(made.norm()):
        return "a function", False
    constant = float(shift.abs().max()) > _ADDED * float(made.abs().max())
    return "" if bool(((factor - 1).abs() < _FITS).all()) else "a factor", constant


_FITS = 1e-4
"""Relative misfit below which each feature is another one times a factor, plus a constant."""

_ADDED = 1e-6
"""Share of the largest entry above which a constant counts: what is smaller may be rounding."""


def _without_attention(quiet: BlockCall, recorded: Pass, shape: tuple[int, int]) -> BlockLayout:
    """Return the layout of a block without attention among others that have one."""
    block = quiet.call
    residual, problem = residual_of(block, recorded, block.start)
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
    norms = _norms(block, recorded.calls, None, shape)
    layout = BlockLayout(attention=None, residual=residual, norms=norms, problem=words, attends=False, mixing=mixing)
    return replace(layout, sites=quiet.sites)


def _attention(
    block_call: BlockCall, recorded: Pass, tables: list[tuple[str, Tensor]], read: list[FoundAttention], rows: int
) -> tuple[AttentionLayout | None, Seen | None, int | None, str]:
    """Return a block's attention, what it was called with, when its output projection ended, and what is wrong.

    Args:
        block_call: The call of the block.
        recorded: The pass.
        tables: The network's tables.
        read: See `block_layout`.
        rows: In which the attention of two inputs runs.
    """
    if not block_call.attentions:
        lost = recorded.lost_in(block_call.call)
        words = f"{NOT_READ} ({lost})" if lost else _all_cross(block_call, recorded) or NOT_SHOWN
        return None, None, None, _in_one_piece(block_call.call.module) or words
    other_axis = _other_axis(block_call, recorded)
    if other_axis:
        return None, None, None, other_axis
    if len(block_call.attentions) > 1:
        by_module = {seen.module: seen for _, seen in reversed(block_call.attentions)}
        names = [_several_in_words(block_call.call.module, seen) for seen in reversed(by_module.values())]
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
    except LayoutNotFoundError as problem:
        if isinstance(problem, TooFewInputsError):
            if len(call.query) > rows:
                raise  # more inputs have more rows
            return None, None, projected, f"all inputs share {plural(rows, 'row')} of tokens, {TOO_FEW_ROWS}"
        crossing = keys_of_another_sequence(block) and (_shared_keys(call, block, recorded) or CROSSES_ALONE)
        return None, None, projected, crossing or _other_places(call, block) or str(problem)
    attending = seen.call
    read_states = state_of(*attending.arguments)
    shape = torch.Size(()) if read_states is None else read_states.shape
    first = attending.module.batch_first if isinstance(attending.module, nn.MultiheadAttention) else None
    buffers = dict(attending.module.named_buffers())
    kept = Seen(shape, attending.arguments, buffers, seen.angles, first, seen.channels_first, call.order)
    return replace(seen.layout, error=error), kept, projected, _other_places(call, block) if seen.layout.changed else ""


def _several_in_words(block: nn.Module, attention: AttentionCall) -> str:
    """Name one of several attentions of a block; with its queries and keys where these are not both the tokens'."""
    name = _name_in(block, attention.module) or "the block itself"
    queries, keys = attention.query.shape[2], attention.key.shape[2]
    return name if queries == keys else f"{name} of {plural(queries, 'query', 'queries')} and {plural(keys, 'key')}"


def _other_places(attention: AttentionCall, block: ModuleCall) -> str:
    """Say that the queries and keys of an attention are not those of the tokens in their order; empty if they are."""
    queries, keys = attention.query.shape[2], attention.key.shape[2]
    if queries != keys:
        return f"{OTHER_PLACES} ({queries} queries, {keys} keys)"
    stand = attends_by_token(block)
    return "" if stand == "yes" else HEADS_FIRST if stand == "heads first" else OTHER_PLACES


def _shared_keys(attention: AttentionCall, block: ModuleCall, recorded: Pass) -> str:
    """Say whose keys a block takes over from an attention that ran before it; empty where it does not."""
    for time, other in recorded.attentions:
        if time < block.start and other.key.shape == attention.key.shape and torch.equal(other.key, attention.key):
            inside = max((call for call in recorded.calls if call.is_open(time)), key=lambda call: call.start)
            return f"{SHARES_KEYS} ({inside.name})"
    return ""


def _in_one_piece(block: nn.Module) -> str:
    """Say which attention of PyTorch inside a block cannot be taken apart, and why; empty without one."""
    whole = ((name, why) for name, module in block.named_modules() if (why := why_whole(module)))
    return next((f"{name} {IN_ONE_PIECE}: {why}" for name, why in whole), "")


def _crosses(block: BlockCall, recorded: Pass) -> list[str]:
    """Return the attentions in a block with keys from another tensor, beside those that were seen.

    They are PyTorch's, or known to be such.
    """
    seen = {attention.module for _, attention in block.attentions}
    inside = (call for call in recorded.calls if call.is_inside(block.call))
    crossing = (call.module for call in inside if call.reads_several or is_hidden(call.module))
    return [_name_in(block.call.module, module) for module in crossing if module not in seen]


def _all_cross(block: BlockCall, recorded: Pass) -> str:
    """Say that each attention of a block in which none was seen compares two sequences; empty where that is not so."""
    names = _crosses(block, recorded)
    return f"{ALL_CROSS} ({', '.join(names)}): their queries and keys come from different tensors" if names else ""


def _other_axis(block: BlockCall, recorded: Pass) -> str:
    """Say over what the attentions of a block run that are not its tokens; empty where they run over these."""
    y, shapes = block.call.y, [call.query.shape for _, call in block.attentions]
    fits = y.ndim < 3 or any(places_of(shape, y) is not None or _on_grid(shape, block.call) for shape in shapes)
    if fits and not (y.ndim == 3 and _as_many_channels(block, recorded)):
        return ""
    inputs, tokens, width = y.shape[0], prod(y.shape[1:-1]), y.shape[-1]
    (rows, heads, places, _), keys = shapes[0], block.attentions[0][1].key.shape[2]
    if keys == tokens != places:
        return f"{OTHER_PLACES} ({places} queries, {keys} keys)"
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
