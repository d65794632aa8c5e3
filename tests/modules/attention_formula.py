"""Attention of queries and keys that stand beside each other, by its formula, and parts of it that are drawn."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.modules.positions import Pair, angles

SCALE = 0.3
BASE = 50.0
"""Of the frequencies by which pairs are turned."""


def drawn(
    leading: tuple[int, ...], tokens: int, columns: tuple[int, ...] = (32, 8, 32), width: int = 32
) -> tuple[list[Pair], Tensor]:
    """Queries and keys, of which an even number of columns below 32 are turned, and values, as a network has them."""
    generator = torch.Generator().manual_seed(0)

    def part(width: int) -> Tensor:
        shape = (*leading, tokens, 3, width)
        return torch.randn(shape, generator=generator, dtype=torch.float64).transpose(-2, -3).requires_grad_()

    def pair(width: int) -> Pair:
        query, key = part(width), part(width)
        return Pair(query, key, *angles(query, BASE)) if width < 32 and width % 2 == 0 else Pair(query, key)

    return [pair(column) for column in columns], part(width)


def turned(columns: Tensor) -> Tensor:
    """As complex numbers, times those of their angles."""
    half = columns.shape[-1] // 2
    position = torch.arange(columns.shape[-2], dtype=torch.float64).unsqueeze(-1)
    angle = position * BASE ** (-torch.arange(half, dtype=torch.float64) / half)
    both = torch.complex(columns[..., :half], columns[..., half:]) * torch.exp(1j * angle)
    return torch.cat([both.real, both.imag], -1)


def by_the_formula(pairs: list[Pair], value: Tensor, causal: bool) -> Tensor:
    plain = [(query, key) if cosine is None else (turned(query), turned(key)) for query, key, cosine, _ in pairs]
    logits = sum(torch.einsum("...ic,...jc->...ij", query, key) for query, key in plain) * SCALE
    seen = torch.ones_like(logits).tril() if causal else torch.ones_like(logits)
    logits = logits.masked_fill(seen == 0, -torch.inf)
    shares = torch.exp(logits - logits.amax(-1, keepdim=True))
    return torch.einsum("...ij,...jc->...ic", shares / shares.sum(-1, keepdim=True), value)


def flat(pairs: list[Pair], value: Tensor) -> list[Tensor]:
    return [value, *(part for pair in pairs for part in pair[:2])]
