"""The part of a matrix over pairs of one-hots that no sum of a row and a column function gives."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.circuits.task import PairTask
from tokendynamics.circuits.transformer import Block

QK_BLOCKS: tuple[tuple[Block, Block], ...] = (
    ("category", "category"),
    ("category", "position"),
    ("position", "category"),
    ("position", "position"),
)
"""Blocks of ``k^t q``, sender first."""


def block_name(block: tuple[Block, Block]) -> str:
    """A block in words, sender first.

    >>> block_name(("category", "position"))
    'category–position'
    """
    return "–".join(block)


def weights_of(task: PairTask, block: Block) -> Tensor:
    """How often each one-hot of a kind occurs: categories by the law, positions uniformly."""
    if block == "category":
        return task.law
    return torch.full((task.positions,), 1.0 / task.positions, dtype=torch.float64)


def column_centred(matrix: Tensor, rows: Tensor) -> Tensor:
    """Each column less its mean over the rows, with weights `rows` (…, row) that sum to one."""
    return matrix - (rows[..., None] * matrix).sum(dim=-2, keepdim=True)


def double_centred(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The interaction ``m_rc − m_r· − m_·c + m_··`` under weights of rows and columns that sum to one.

    Args:
        matrix: (…, row, column).
        rows: (…, row).
        columns: (…, column).

    >>> import torch
    >>> half = torch.tensor([0.5, 0.5])
    >>> double_centred(torch.tensor([[1.0, 2.0], [3.0, 8.0]]), half, half)
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    return column_centred(column_centred(matrix, rows).mT, columns).mT


def mean_square(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """``Σ_rc rows_r columns_c m_rc²``, shape (…)."""
    return (matrix.square() * rows[..., :, None] * columns[..., None, :]).sum(dim=(-2, -1))
