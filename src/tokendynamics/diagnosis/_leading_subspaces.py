"""Leading subspaces of large matrices, and the angle between two of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

LEADING = 8
"""Directions of the leading subspaces that are compared; half of all in a narrow network."""

_STEPS = 4
"""Of the subspace iteration, each with the matrix and its transpose, on twice as many directions as are wanted."""

Apply = Callable[[Tensor], Tensor]


def leading_subspace(apply: Apply, transposed: Apply, rows: int) -> Float64[Tensor, "row direction"]:
    """Return the leading left singular vectors of a matrix, by iteration from the same start each time.

    Args:
        apply: y ↦ M y for several y side by side.
        transposed: x ↦ Mᵀ x likewise.
        rows: Of M.

    >>> matrix = torch.diag(torch.arange(20.0, 0.0, -1.0, dtype=torch.float64))
    >>> found = leading_subspace(lambda y: matrix @ y, lambda x: matrix.mT @ x, 20)
    >>> found.shape, bool(found[:8].norm(dim=0).min() > 0.99)
    (torch.Size([20, 8]), True)
    """
    count = max(1, min(LEADING, rows // 2))  # all directions together are the same in any two matrices
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(rows, min(2 * count, rows), generator=generator, dtype=torch.float64)
    for _ in range(_STEPS):
        basis = torch.linalg.qr(transposed(basis)).Q
        basis = torch.linalg.qr(apply(basis)).Q
    rotation = torch.linalg.svd(transposed(basis).mT, full_matrices=False)[0]
    return basis @ rotation[:, :count]


def squared_sine(one: Float64[Tensor, "row direction"], two: Float64[Tensor, "row direction"]) -> float:
    """Return the mean square of the sines between two subspaces."""
    # The sine from what one leaves of the other: one minus a cosine would lose half of the digits.
    beyond = two - one @ (one.mT @ two)
    return float(beyond.square().sum()) / two.shape[-1]


def degrees_of(square: float) -> float:
    """Return the angle of a squared sine in degrees.

    >>> round(degrees_of(0.25), 6)
    30.0
    """
    return float(np.degrees(np.arcsin(min(1.0, square) ** 0.5)))
