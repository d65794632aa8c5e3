"""How far the eigenvalues of a matrix with chosen signs stay from zero: a multiple of its rounding error."""

from __future__ import annotations

import torch
from torch import Tensor

MARGIN = 128
"""Least eigenvalue of a definite symmetric part, as a multiple of the rounding error of the matrix.

It leaves room for what products with other matrices and their inverses do to that error.
"""
_HALVINGS = 60


def eye_like(matrix: Tensor) -> Tensor:
    """Return the identity of the size, dtype and device of (…, size, size)."""
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def margin(symmetric: Tensor, skew: Tensor | None, eps: float) -> Tensor:
    """Return ``m = MARGIN·eps·|B|_F``, (block,), for a symmetric and a skew part (block, size, size)."""
    squares = symmetric.square().sum((-2, -1)) + (0 if skew is None else skew.square().sum((-2, -1)))
    return MARGIN * eps * squares.sqrt()


def definite_floor(definite: Tensor, skew: Tensor | None) -> Tensor:
    """Return ``f = max(0, 2m − 1/|(D + m I)^{-1}|_F)``, (block,): every eigenvalue of D + f I is at least m.

    ``1/|(D + m I)^{-1}|_F`` is at most the lowest eigenvalue of D + m I, and at least that by the root of the size.
    """
    least = margin(definite, skew, torch.finfo(definite.dtype).eps)
    # With m on its diagonal D can be inverted however small its pivots are.
    inverse = torch.linalg.inv_ex(definite + least[:, None, None] * eye_like(definite))[0]
    return (2 * least - 1 / torch.linalg.matrix_norm(inverse)).relu()


def before_floor(definite: Tensor, skew: Tensor, eps: float) -> Tensor | None:
    """Return what `definite_floor` adds to the matrix that becomes `definite`, (block,); None where none becomes that.

    Both are in float64, and `eps` is that of the dtype in which the matrix is built.
    """
    eigenvalues = torch.linalg.eigvalsh(definite)
    of_skew = skew.square().sum((-2, -1))

    def excess(floor: Tensor) -> Tensor:
        before = eigenvalues - floor.unsqueeze(-1)
        least = MARGIN * eps * (before.square().sum(-1) + of_skew).sqrt()
        return (2 * least - (before + least.unsqueeze(-1)).square().reciprocal().sum(-1).rsqrt()).relu() - floor

    low, high = torch.zeros_like(of_skew), eigenvalues[:, 0]
    if bool((excess(high) > 0).any()):
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        more = excess(middle) > 0
        low, high = torch.where(more, middle, low), torch.where(more, high, middle)
    return torch.where(excess(torch.zeros_like(low)) > 0, high, torch.zeros_like(high))
