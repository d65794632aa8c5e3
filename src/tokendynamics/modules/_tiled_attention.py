"""Attention by products of tiles: faster than the fused kernel where queries and keys are wider than values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tokendynamics.modules._pairs import Pair, swapped

_ENTRIES = 2**18
"""Weights that a thread makes at once: a megabyte of float32, so that they stay in the cache."""
_TOKENS = 64
"""With fewer tokens, or fewer weights in all than a thread makes at once, the fused kernel costs less than tiles."""

Group = tuple[slice, slice]
"""Systems and heads whose weights are made at once."""


class _Part(NamedTuple):
    """Queries, keys or values of a pair, (system, head, token, column), with the cosines and sines that turn them."""

    columns: Tensor
    cosine: Tensor | None = None
    sine: Tensor | None = None


class _Tile(NamedTuple):
    """Rows of queries, the keys that they see, the mask of their own tokens, and whether their weights are kept."""

    rows: slice
    seen: slice
    mask: Tensor | None
    stays: bool


def suits_tiles(pairs: Sequence[Pair], value: Tensor) -> bool:
    """Return whether tiles serve, and cost less than PyTorch's own attention of one width."""
    tokens = value.shape[-2]
    large = tokens >= _TOKENS and math.prod(value.shape[:-1]) * tokens >= _ENTRIES
    dtypes = {value.dtype, *(part.dtype for pair in pairs for part in pair[:2])}
    full_precision = dtypes in ({torch.float32}, {torch.float64})
    plain = value.device.type == "cpu" and not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()
    return large and full_precision and plain


def tiled_attention(pairs: Sequence[Pair], value: Tensor, *, causal: bool, scale: float) -> Tensor:
    """Return ``Σ_j softmax_j(scale · Σ_p q_pi · k_pj) v_j``, in the shape of the values, (…, head, token, width)."""
    return _Tiled.apply(value, causal, scale, *itertools.chain(*pairs))[0]


class _Tiled(torch.autograd.Function):
    """Weights of some heads and rows at a time, most of them made again for the gradients instead of kept.

    Gives the attention and then, for the gradients, each group's queries and values as its products want them, and the
    weights of the tiles that are kept.
    """

    @staticmethod
    def forward(value: Tensor, causal: bool, scale: float, *parts: Any) -> tuple[Tensor, ...]:
        queries, keys = (_parts(parts[first::4], parts[2::4], parts[3::4]) for first in (0, 1))
        values, tiles, rooms = _by_system(value), _tiles(value, causal), _rooms(value)
        mixed, kept = _by_token(values), []
        for group in _groups(values):
            query, key, own = (_together(side, group) for side in (queries, keys, [_Part(values)]))
            kept += [query.mul_(scale), own]
            into = mixed[group]
            for rows, seen, mask, stays in tiles:
                weights = _weights(query[:, rows], key[:, seen], mask, rooms[0], None if stays else rooms[1])
                into[:, :, rows] = torch.bmm(weights, own[:, seen]).view(*into.shape[:2], -1, into.shape[-1])
                if stays:
                    kept.append(weights)
        return mixed.view(value.shape), *kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        value, ctx.causal, ctx.scale, *parts = inputs
        ctx.pairs, ctx.shape = len(parts) // 4, value.shape
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*parts[1::4], *parts[2::4], *parts[3::4], *output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_mixed: Tensor, *_: None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        pairs, saved = ctx.pairs, ctx.saved_tensors
        keys = _parts(saved[:pairs], saved[pairs : 2 * pairs], saved[2 * pairs : 3 * pairs])
        kept = iter(saved[3 * pairs :])
        of_value, *of_sides = _gradients(keys, kept, _by_system(of_mixed), ctx.causal, ctx.scale)
        of_pairs = zip(*(_turned_back(side, keys) for side in of_sides), strict=True)
        shaped = (part.view(*ctx.shape[:-1], -1) for pair in of_pairs for part in pair)
        of_parts = (each for part in zip(shaped, shaped, strict=True) for each in (*part, None, None))
        return of_value.view(ctx.shape), None, None, *of_parts


def _gradients(keys: list[_Part], kept: Iterator[Tensor], grads: Tensor, causal: bool, scale: float) -> list[Tensor]:
    """Return those by values, and by the queries and the keys of all parts, (system, head, token, column) each."""
    tiles, rooms, tokens = _tiles(grads, causal), _rooms(grads), grads.shape[2]
    widths = [grads.shape[-1], *[sum(_widths(keys))] * 2]
    made = [grads.new_empty(*grads.shape[:3], width) for width in widths]
    for group in _groups(grads):
        query, own = next(kept), next(kept)
        key, grad = (_together(side, group) for side in (keys, [_Part(grads)]))
        of_value, of_query, of_key = (each[group].view(-1, *each.shape[2:]) for each in made)
        for rows, seen, mask, stays in tiles:
            query_here, key_seen, grad_here = query[:, rows], key[:, seen], grad[:, rows]
            weights = next(kept) if stays else _weights(query_here, key_seen, mask, *rooms)
            slopes = torch.bmm(grad_here, own[:, seen].mT, out=_within(rooms[0], weights.shape)).mul_(weights)
            slopes.addcmul_(weights, slopes.sum(-1, keepdim=True), value=-1)  # of the logits
            torch.mul(torch.bmm(slopes, key_seen), scale, out=of_query[:, rows])
            if rows.stop == tokens:  # the first tile, which sees all keys
                torch.bmm(weights.mT, grad_here, out=of_value)
                torch.bmm(slopes.mT, query_here, out=of_key)
            else:
                of_value[:, seen].add_(torch.bmm(weights.mT, grad_here))
                of_key[:, seen].add_(torch.bmm(slopes.mT, query_here))
    return made


def _weights(query: Tensor, key: Tensor, mask: Tensor | None, room: Tensor, into: Tensor | None) -> Tensor:
    """Return the softmax over the keys, (head, row, key), in memory that is given or, with None, its own."""
    shape = (*query.shape[:2], key.shape[1])
    logits = torch.bmm(query, key.mT, out=_within(room, shape))
    if mask is not None:  # the last keys are the rows themselves
        logits[..., -len(mask) :].add_(mask)
    return torch.softmax(logits, -1, out=None if into is None else _within(into, shape))


def _groups(values: Tensor) -> Iterator[Group]:
    """Yield the systems and heads whose weights are made at once: all heads of some systems, or some heads of one."""
    systems, heads, tokens, _ = values.shape
    many = _heads_at_once(tokens)
    together = max(1, many // heads)
    for system in range(0, systems, together):
        for head in range(0, heads, many):
            yield slice(system, system + together), slice(head, head + many)


def _heads_at_once(tokens: int) -> int:
    return max(1, _ENTRIES * torch.get_num_threads() // (_height(tokens) * tokens))


def _tiles(values: Tensor, causal: bool) -> list[_Tile]:
    """Return the tiles, the last rows first.

    The weights of the first rows, which see the fewest keys, are kept: as many as the values have entries, at most.
    """
    tokens, width = values.shape[-2:]
    height, left, tiles = _height(tokens), tokens * width, []
    mask = values.new_full((height, height), -math.inf).triu_(1) if causal else None
    for row in range(0, tokens, height):
        end = min(row + height, tokens)
        many, seen = end - row, end if causal else tokens
        left -= many * seen
        own = None if mask is None else mask[:many, :many]
        tiles.append(_Tile(slice(row, end), slice(0, seen), own, stays=left >= 0))
    return tiles[::-1]


def _height(tokens: int) -> int:
    """Return the rows of a tile: the more, the more weights that causal attention does not want are made too."""
    return 32 if tokens < 256 else 64


def _rooms(values: Tensor) -> Tensor:
    """Return memory for the logits of the largest tile and for its weights."""
    tokens = values.shape[-2]
    heads = min(_heads_at_once(tokens), math.prod(values.shape[:-2]))
    return values.new_empty(2, heads * min(_height(tokens), tokens) * tokens)


def _within(room: Tensor, shape: Sequence[int]) -> Tensor:
    _, rows, keys = shape
    return room.as_strided(shape, (rows * keys, keys, 1))


def _by_system(part: Tensor) -> Tensor:
    """Return (…, head, token, column) with one axis of systems."""
    return part.reshape(-1, *part.shape[-3:])


def _by_token(like: Tensor) -> Tensor:
    """Return memory for (system, head, token, column) in which a token's heads are side by side, as others read it."""
    systems, heads, tokens, width = like.shape
    return like.new_empty(systems, tokens, heads, width).transpose(1, 2)


def _parts(columns: Sequence[Tensor], cosines: Sequence[Tensor | None], sines: Sequence[Tensor | None]) -> list[_Part]:
    return [_Part(_by_system(own), *turn) for own, *turn in zip(columns, cosines, sines, strict=True)]


def _widths(side: list[_Part]) -> list[int]:
    return [part.columns.shape[-1] for part in side]


def _together(side: list[_Part], group: Group) -> Tensor:
    """Return the columns of all parts side by side, turned, (system · head, token, column), in memory of their own."""
    widths, first = _widths(side), side[0].columns[group]
    room = first.new_empty(*first.shape[:-1], sum(widths))
    for own, (columns, cosine, sine) in zip(room.split(widths, -1), side, strict=True):
        if cosine is None or sine is None:
            own.copy_(columns[group])
        else:
            torch.mul(columns[group], cosine, out=own).addcmul_(swapped(columns[group]), sine)
    return room.flatten(0, 1)


def _turned_back(columns: Tensor, side: list[_Part]) -> list[Tensor]:
    """Return the gradients by the columns of each part, of those by what `_together` makes of them."""
    backs = []
    for own, (_, cosine, sine) in zip(columns.split(_widths(side), -1), side, strict=True):
        if cosine is None or sine is None:
            backs.append(own)
        else:
            backs.append(torch.mul(own, cosine, out=_by_token(own)).addcmul_(swapped(own), sine, value=-1))
    return backs
