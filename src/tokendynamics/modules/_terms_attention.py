"""Attention whose logits are a sum of products: of queries and keys, and of the columns that terms add beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

Pair = tuple[Tensor, Tensor]
"""Queries and keys, or columns beside them, (…, head, token, column) each."""

_ROWS = 64
_ENTRIES = 2**18
"""Weights that are formed at once: a megabyte of float32, so that they stay in the cache."""
_TOKENS, _WIDTH = 256, 32
"""From these sizes on products of tiles cost less than the fused kernel, which wants values as wide as queries."""


def terms_attention(pairs: Sequence[Pair], value: Tensor, *, causal: bool, scale: float, dropout: float) -> Tensor:
    """Return ``Σ_j softmax_j(scale · Σ_p q_pi · k_pj) v_j`` in a form that trains fast, in memory linear in the tokens.

    Args:
        pairs: What the logits are the products of.
        value: Values, (…, head, token, width); the result has their shape.
        causal: Whether token i sees only tokens j ≤ i.
        scale: Factor of the logits.
        dropout: Of the weights.
    """
    if len(pairs) > 1 and not dropout and _suits_tiles(pairs, value):
        return _Tiled.apply(value, causal, scale, *(part for pair in pairs for part in pair))
    query, key = joined(pairs)
    further = query.shape[-1] - value.shape[-1]
    # The fused kernels want all of one width: without these zeros training would cost half as much again.
    padded = functional.pad(value, (0, further)) if further else value
    mixed = joined_attention([(query, key)], padded, causal=causal, scale=scale, dropout=dropout)
    return mixed[..., : value.shape[-1]] if further else mixed


def joined_attention(pairs: Sequence[Pair], value: Tensor, *, causal: bool, scale: float, dropout: float) -> Tensor:
    """Return the same of PyTorch's own attention, which gets all columns side by side and the values as they are."""
    query, key = joined(pairs)
    return functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=causal, scale=scale)


def joined(pairs: Sequence[Pair]) -> Pair:
    """Return one pair with the columns of all."""
    if len(pairs) == 1:
        return pairs[0]
    queries, keys = zip(*pairs, strict=True)
    return torch.cat(queries, -1), torch.cat(keys, -1)


def _suits_tiles(pairs: Sequence[Pair], value: Tensor) -> bool:
    parts = [value, *(part for pair in pairs for part in pair)]
    large = value.shape[-2] >= _TOKENS and value.shape[-1] >= _WIDTH
    full_precision = value.dtype in (torch.float32, torch.float64) and len({part.dtype for part in parts}) == 1
    plain = value.device.type == "cpu" and not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()
    return large and full_precision and plain


class _Tiled(torch.autograd.Function):
    """Weights of some heads and rows at a time, made again for the gradients instead of kept."""

    @staticmethod
    def forward(value: Tensor, causal: bool, scale: float, *parts: Tensor) -> Tensor:
        values, pairs = _by_system(value), _paired([_by_system(part) for part in parts])
        mixed = _like(values)
        spaces = _spaces(values)
        for tile in _tiles(values, causal):
            weights = _weights(pairs, tile, causal, scale, spaces)
            mixed[tile.rows] = weights @ values[tile.seen]
        return mixed.view(value.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        value, ctx.causal, ctx.scale, *parts = inputs
        ctx.save_for_backward(output, value, *parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        output, value, *parts = ctx.saved_tensors
        values, mixed, grad = (_by_system(each) for each in (value, output, *grad_outputs))
        pairs = _paired([_by_system(part) for part in parts])
        of_value, of_parts = _like(values).zero_(), [_like(part).zero_() for pair in pairs for part in pair]
        spaces = _spaces(values)
        for tile in _tiles(values, ctx.causal):
            weights, rows = _weights(pairs, tile, ctx.causal, ctx.scale, spaces), grad[tile.rows]
            of_value[tile.seen].baddbmm_(weights.mT, rows)
            slopes = torch.bmm(rows, values[tile.seen].mT, out=_shaped(spaces[0], weights.shape))
            slopes.sub_((rows * mixed[tile.rows]).sum(-1, keepdim=True)).mul_(weights)
            for (query, key), (of_query, of_key) in zip(pairs, _paired(of_parts), strict=True):
                of_query[tile.rows].baddbmm_(slopes, key[tile.seen], alpha=ctx.scale)
                of_key[tile.seen].baddbmm_(slopes.mT, query[tile.rows], alpha=ctx.scale)
        of_parts = [own.view(part.shape) for own, part in zip(of_parts, parts, strict=True)]
        return of_value.view(value.shape), None, None, *of_parts


class _Tile(NamedTuple):
    """Indices of rows of queries, and of the keys that they see, in (system, head, token, column)."""

    rows: tuple[int, slice, slice]
    seen: tuple[int, slice, slice]


def _tiles(values: Tensor, causal: bool) -> Iterator[_Tile]:
    systems, heads, tokens, _ = values.shape
    together = max(1, _ENTRIES // (_ROWS * tokens))
    for system in range(systems):
        for head in range(0, heads, together):
            for row in range(0, tokens, _ROWS):
                some, end = slice(head, head + together), min(row + _ROWS, tokens)
                seen = slice(0, end if causal else tokens)
                yield _Tile((system, some, slice(row, end)), (system, some, seen))


def _weights(pairs: Sequence[Pair], tile: _Tile, causal: bool, scale: float, spaces: tuple[Tensor, Tensor]) -> Tensor:
    """Return the softmax over the keys, (head, row, key), in the memory of the second space."""
    first = pairs[0][0][tile.rows]
    shape = (*first.shape[:2], tile.seen[-1].stop)
    logits = _shaped(spaces[0], shape)
    for position, (query, key) in enumerate(pairs):
        kept = 0 if position == 0 else 1  # of what the memory held before
        torch.baddbmm(logits, query[tile.rows], key[tile.seen].mT, beta=kept, alpha=scale, out=logits)
    if causal:  # the last keys are the rows themselves
        rows = shape[1]
        logits[..., -rows:].masked_fill_(torch.ones(rows, rows, dtype=torch.bool).triu_(1), -math.inf)
    return torch.softmax(logits, -1, out=_shaped(spaces[1], shape))


def _spaces(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return memory for a tile of logits and one of weights."""
    entries = min(values.shape[1] * values.shape[2] * _ROWS, max(_ENTRIES, _ROWS * values.shape[2]))
    return values.new_empty(entries), values.new_empty(entries)


def _shaped(space: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
    return space[: math.prod(shape)].view(shape)


def _by_system(part: Tensor) -> Tensor:
    """Return (…, head, token, column) with one axis of systems."""
    return part.reshape(-1, *part.shape[-3:])


def _like(part: Tensor) -> Tensor:
    """Return memory of that shape in which a token's heads are side by side, as what follows reads them."""
    return part.new_empty(part.transpose(1, 2).shape).transpose(1, 2)


def _paired(parts: Sequence[Tensor]) -> list[Pair]:
    return list(zip(parts[::2], parts[1::2], strict=True))
