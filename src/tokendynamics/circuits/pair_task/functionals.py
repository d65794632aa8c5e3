"""Functions of a pair of categories that a transformer may be asked for."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tokendynamics.numerics.arguments import as_count, as_number
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.numerics.seeding import generator
from tokendynamics.numerics.signatures import typed_arguments


@typed_arguments
def random_functional(categories: int, seed: int) -> Tensor:
    """Independent standard normal values for every pair, as in `logical` 4.1.

    Args:
        categories: N, at least 1.
        seed: Of the draw.

    Returns:
        Shape (previous, current) = (N, N), float64.

    Raises:
        ArgumentTypeError: No integer.
        ArgumentValueError: No category.

    >>> random_functional(3, seed=0).shape
    torch.Size([3, 3])
    """
    as_count(categories, "categories")
    return torch.randn(categories, categories, generator=generator(seed), dtype=torch.float64)


@typed_arguments
def pair_numbers(categories: int, base: float = 10.0) -> Tensor:
    """``base·a + b`` for the pair (a, b): its two digits read as one number, `logical` (2.15).

    It is additive in the two categories, so no part of a network has to decide anything (`logical` (2.13)).

    Args:
        categories: N, at least 1.
        base: 10 in the paper.

    Returns:
        Shape (previous, current) = (N, N), float64.

    Raises:
        ArgumentTypeError: No integer, or a base that is no number.
        ArgumentValueError: No category, or a base that is not finite.

    >>> pair_numbers(2).tolist()
    [[11.0, 12.0], [21.0, 22.0]]
    """
    factor = as_number(base, "base")
    if not math.isfinite(factor):
        raise ArgumentValueError(expected("base", "a finite number", factor))
    digits = torch.arange(1, as_count(categories, "categories") + 1, dtype=torch.float64)
    return factor * digits[:, None] + digits
