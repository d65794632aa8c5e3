"""The part of a matrix over pairs of one-hots that no sum of a row and a column function gives."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.circuits.task import PairTask
from tokendynamics.circuits.transformer import Block

QK_BLOCKS: tuple[tuple[Block, Block], ...] = (
    ("category", "category"),
    ("position", "category"),
    ("category", "position"),
    ("position", "position"),
)
"""Blocks of qk, (receiver, sender), in the order in which those of the paper's ``k^t q`` are printed."""


def block_name(block: tuple[Block, Block]) -> str:
    """Return a block (receiver, sender) in words, as it stands in the paper's ``k^t q``: the sender first.

    >>> block_name(("position", "category"))
    'category–position'
    """
    receiver, sender = block
    return f"{sender}–{receiver}"


def weights_of(task: PairTask, block: Block) -> Tensor:
    """Return how often each one-hot of a kind occurs: categories by the law, positions uniformly."""
    if block == "category":
        return task.law
    return torch.full((task.positions,), 1.0 / task.positions, dtype=torch.float64)


def row_centred(matrix: Tensor, columns: Tensor) -> Tensor:
    """Return each row less its mean over the columns, with weights `columns` (…, column) that sum to one.

    Of a qk it takes off what is the same for all senders, and of an ov what is written for every sender alike.
    """
    return matrix - (matrix * columns[..., None, :]).sum(dim=-1, keepdim=True)


def double_centred(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the interaction ``m_rc − m_r· − m_·c + m_··`` under weights of rows and columns that sum to one.

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
    return row_centred(row_centred(matrix, columns).mT, rows).mT


def mean_square(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return ``Σ_rc rows_r columns_c m_rc²``, shape (…)."""
    return (matrix.square() * columns[..., None, :] * rows[..., :, None]).sum(dim=(-2, -1))
