"""Attention whose logits are a sum of products: of queries and keys, and of the columns that terms add beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

Pair = tuple[Tensor, Tensor]
"""Queries and keys, or columns beside them, (…, head, token, column) each."""
Span = tuple[slice, slice]
"""Systems and heads, or rows of queries and the keys that they see."""

_ENTRIES = 2**18
"""Weights that a thread makes at once: a megabyte of float32, so that they stay in the cache."""
_TOKENS = 64
"""With fewer tokens, or fewer weights in all than a thread makes at once, the fused kernel costs less than tiles."""


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
    tokens = value.shape[-2]
    large = tokens >= _TOKENS and math.prod(value.shape[:-1]) * tokens >= _ENTRIES
    full_precision = value.dtype in (torch.float32, torch.float64) and len({part.dtype for part in parts}) == 1
    plain = value.device.type == "cpu" and not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()
    return large and full_precision and plain


class _Tiled(torch.autograd.Function):
    """Weights of some heads and rows at a time, made again for the gradients instead of kept."""

    @staticmethod
    def forward(value: Tensor, causal: bool, scale: float, *parts: Tensor) -> Tensor:
        values, queries, keys = _by_system(value), *_sides(parts)
        # A token's heads are side by side in memory, as what follows reads them.
        mixed = torch.empty_like(values.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)
        mask = _mask(values, causal)
        for group in _groups(values):
            query, key, own = (_together(each, group) for each in (queries, keys, [values]))
            query.mul_(scale)
            into = mixed[group]
            for rows, seen in _tiles(values, causal):
                weights = _weights(query[:, rows], key[:, seen], mask)
                into[:, :, rows] = torch.bmm(weights, own[:, seen]).unflatten(0, into.shape[:2])
        return mixed.view(value.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        value, ctx.causal, ctx.scale, *parts = inputs
        ctx.save_for_backward(value, *parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        value, *parts = ctx.saved_tensors
        values, queries, keys, grads = _by_system(value), *_sides(parts), _by_system(*grad_outputs)
        widths = [part.shape[-1] for part in queries]
        made = [values.new_empty(*values.shape[:3], width) for width in (values.shape[-1], sum(widths), sum(widths))]
        mask = _mask(values, ctx.causal)
        for group in _groups(values):
            query, key, own, grad = (_together(each, group) for each in (queries, keys, [values], [grads]))
            query.mul_(ctx.scale)
            of_value, of_query, of_key = (each[group].view(-1, *each.shape[2:]) for each in made)
            for rows, seen in _tiles(values, ctx.causal):
                query_here, key_seen, grad_here = query[:, rows], key[:, seen], grad[:, rows]
                weights = _weights(query_here, key_seen, mask)
                slopes = torch.bmm(grad_here, own[:, seen].mT).mul_(weights)
                slopes.addcmul_(weights, slopes.sum(-1, keepdim=True), value=-1)  # of the logits
                torch.mul(torch.bmm(slopes, key_seen), ctx.scale, out=of_query[:, rows])
                if rows.stop == values.shape[2]:  # the first tile, which sees all keys
                    torch.bmm(weights.mT, grad_here, out=of_value)
                    torch.bmm(slopes.mT, query_here, out=of_key)
                else:
                    of_value[:, seen].add_(torch.bmm(weights.mT, grad_here))
                    of_key[:, seen].add_(torch.bmm(slopes.mT, query_here))
        of_values, of_queries, of_keys = made
        of_pairs = zip(of_queries.split(widths, -1), of_keys.split(widths, -1), strict=True)
        of_parts = zip((each for pair in of_pairs for each in pair), parts, strict=True)
        return of_values.view(value.shape), None, None, *(each.view(part.shape) for each, part in of_parts)


def _groups(values: Tensor) -> Iterator[Span]:
    """Yield the systems and heads whose weights are made at once: all heads of some systems, or some heads of one."""
    systems, heads, tokens, _ = values.shape
    many = max(1, _ENTRIES * torch.get_num_threads() // (_height(tokens) * tokens))
    together = max(1, many // heads)
    for system in range(0, systems, together):
        for head in range(0, heads, many):
            yield slice(system, system + together), slice(head, head + many)


def _tiles(values: Tensor, causal: bool) -> Iterator[Span]:
    """Yield rows of queries and the keys that they see, the last rows first."""
    tokens = values.shape[2]
    height = _height(tokens)
    for row in reversed(range(0, tokens, height)):
        end = min(row + height, tokens)
        yield slice(row, end), slice(0, end if causal else tokens)


def _height(tokens: int) -> int:
    """Return the rows of a tile: the more, the more weights that causal attention does not want are made too."""
    return 32 if tokens < 256 else 64


def _mask(values: Tensor, causal: bool) -> Tensor | None:
    """Return what is added to the logits of a tile's own tokens."""
    height = _height(values.shape[2])
    return values.new_full((height, height), -math.inf).triu_(1) if causal else None


def _weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """Return the softmax over the keys, (head, row, key)."""
    logits, rows = torch.bmm(query, key.mT), query.shape[1]
    if mask is not None:  # the last keys are the rows themselves
        logits[..., -rows:].add_(mask[:rows, :rows])
    return logits.softmax(-1)


def _by_system(part: Tensor) -> Tensor:
    """Return (…, head, token, column) with one axis of systems."""
    return part.reshape(-1, *part.shape[-3:])


def _sides(parts: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the queries and the keys of pairs that stand one after the other, with one axis of systems."""
    by_system = [_by_system(part) for part in parts]
    return by_system[::2], by_system[1::2]


def _together(parts: Sequence[Tensor], group: Span) -> Tensor:
    """Return the columns of all parts side by side, (system · head, token, column), in memory of their own."""
    return torch.cat([part[group] for part in parts], -1).flatten(0, 1)
