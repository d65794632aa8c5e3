"""Matrices over tokens (category, position, scratch) from their blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.circuits.pair_task import PairTask
from tokendynamics.numerics.arguments import as_count
from tokendynamics.numerics.memory import check_fits
from tokendynamics.numerics.signatures import typed_arguments

_BYTES = 32
"""Of each entry of a matrix over tokens: a transformer holds four of them."""


@typed_arguments
def shift(positions: int) -> Tensor:
    """``D_{−1}``: ones where row = column − 1, `logical` (2.6); it is the superdiagonal.

    As a sender-first ``k^t q`` it makes position i attend to i − 1 alone. Its transpose S moves position i to i + 1.

    Args:
        positions: M.

    Returns:
        Shape (positions, positions), float64.

    >>> shift(3).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    """
    check_fits(_BYTES * as_count(positions, "positions") ** 2, "positions")
    return torch.diag_embed(torch.ones(positions - 1, dtype=torch.float64), offset=1)


def on_categories(task: PairTask, matrix: Tensor, scratch: int = 0) -> Tensor:
    """`matrix` (N, N) in the category–category block, zeros elsewhere, (width, width) with width = N + M + scratch."""
    return _placed(matrix, 0, 0, task.width + scratch)


def on_positions(task: PairTask, matrix: Tensor, scratch: int = 0) -> Tensor:
    """`matrix` (M, M) in the position–position block, zeros elsewhere, (width, width)."""
    return _placed(matrix, task.categories, task.categories, task.width + scratch)


def to_scratch(task: PairTask, matrix: Tensor) -> Tensor:
    """`matrix` (scratch, N) from the categories to a scratch block of its height, zeros elsewhere, (width, width)."""
    return _placed(matrix, task.width, 0, task.width + matrix.shape[0])


def _placed(matrix: Tensor, row: int, column: int, width: int) -> Tensor:
    check_fits(_BYTES * width**2, "task", "take fewer categories or positions")
    whole = torch.zeros(width, width, dtype=torch.float64)
    whole[row : row + matrix.shape[0], column : column + matrix.shape[1]] = matrix
    return whole
