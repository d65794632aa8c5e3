"""Queries and keys whose products add up to the logits, as they are or turned by angles, and their attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Pair(NamedTuple):
    """Queries and keys, or columns beside them, (…, head, token, column) each, and what turns them.

    `cosine` and `sine` are of `angles`, (token, column), in the dtype of the columns; None leaves both as they are.
    """

    query: Tensor
    key: Tensor
    cosine: Tensor | None = None
    sine: Tensor | None = None


def angles(columns: Tensor, base: float) -> tuple[Tensor, Tensor]:
    """Return the cosines that `turned` wants for columns (…, token, width), and sines, negative in the first half.

    >>> cosine, sine = angles(torch.ones(2, 2), 10000.0)
    >>> cosine[1], sine[1]
    (tensor([0.5403, 0.5403]), tensor([-0.8415,  0.8415]))
    """
    tokens, width = columns.shape[-2:]
    half = width // 2
    place = {"dtype": torch.float64, "device": columns.device}
    angle = torch.arange(tokens, **place).unsqueeze(-1) * base ** (-2 * torch.arange(half, **place) / width)
    cosine, sine = angle.cos().to(columns.dtype), angle.sin().to(columns.dtype)
    return torch.cat([cosine, cosine], -1), torch.cat([-sine, sine], -1)


def turned(columns: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn the pairs (c, c + width/2) of rows l = 0, 1, … of (…, token, width) by the angle ``l · base^(−2c/width)``.

    >>> rows = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> turned(rows, *angles(rows, 10000.0))[1]
    tensor([0.5403, 0.8415])
    """
    return columns * cosine + swapped(columns) * sine


def swapped(columns: Tensor) -> Tensor:
    """Return the columns with both halves of them in each other's place."""
    return columns.roll(columns.shape[-1] // 2, -1)


def joined(pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    """Return the queries and the keys of all pairs side by side, turned."""
    queries, keys = zip(*(_plain(pair) for pair in pairs), strict=True)
    return (queries[0], keys[0]) if len(pairs) == 1 else (_side_by_side(queries), _side_by_side(keys))


def by_token(columns: Tensor) -> Tensor:
    """Return (…, token, head, column) of (…, head, token, column), or the other way round.

    A token's heads are side by side in memory: copies and gradients in that order cost the least.
    """
    return columns.transpose(-2, -3)


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    return by_token(torch.cat([by_token(part) for part in parts], -1))


def _plain(pair: Pair) -> tuple[Tensor, Tensor]:
    query, key, cosine, sine = pair
    if cosine is None or sine is None:
        return query, key
    return turned(query, cosine, sine), turned(key, cosine, sine)


def terms_attention(pairs: Sequence[Pair], value: Tensor, *, causal: bool, scale: float, dropout: float) -> Tensor:
    """Return ``Σ_j softmax_j(scale · Σ_p q_pi · k_pj) v_j`` in the form that is fast, in memory linear in the tokens.

    Args:
        pairs: What the logits are the products of.
        value: Values, (…, head, token, width); the result has their shape.
        causal: Whether token i sees only tokens j ≤ i.
        scale: Factor of the logits.
        dropout: Of the weights.
    """
    further = sum(pair.query.shape[-1] for pair in pairs) - value.shape[-1]
    if further <= 0:
        return joined_attention(pairs, value, causal=causal, scale=scale, dropout=dropout)
    # The fused kernels want all of one width: without these zeros training would cost half as much again.
    padded = by_token(functional.pad(by_token(value), (0, further)))
    mixed = joined_attention(pairs, padded, causal=causal, scale=scale, dropout=dropout)
    return by_token(by_token(mixed)[..., : value.shape[-1]])


def joined_attention(pairs: Sequence[Pair], value: Tensor, *, causal: bool, scale: float, dropout: float) -> Tensor:
    """Return the same of PyTorch's own attention, which gets all columns side by side and the values as they are."""
    query, key = joined(pairs)
    return functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=causal, scale=scale)
