"""The order in which hidden units stand for pairs of categories."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.numerics.arguments import as_count, as_square
from tokendynamics.numerics.memory import check_fits
from tokendynamics.numerics.signatures import typed_arguments

_BYTES = 48
"""Of each pair: two integers, three times while they are put in order."""


@typed_arguments
def pair_order(categories: int) -> Tensor:
    """All pairs (previous, current): (1,1) … (N,N) first, then the others row by row, `logical` (2.11).

    Args:
        categories: N.

    Returns:
        Shape (N², 2), int64, values 1..N.

    >>> pair_order(2).tolist()
    [[1, 1], [2, 2], [1, 2], [2, 1]]
    """
    check_fits(_BYTES * as_count(categories, "categories") ** 2, "categories")
    numbers = torch.arange(1, categories + 1)
    pairs = torch.cartesian_prod(numbers, numbers)
    equal = pairs[:, 0] == pairs[:, 1]
    return torch.cat([pairs[equal], pairs[~equal]])


@typed_arguments
def by_pair(functional: Tensor) -> Tensor:
    """The entries of `functional` (previous, current) in the order of `pair_order`, shape (N²,)."""
    functional = as_square(functional, "functional")
    previous, current = (pair_order(functional.shape[0]) - 1).unbind(-1)
    return functional[previous, current]
