"""How far the eigenvalues of a matrix with chosen signs stay from zero: a multiple of its rounding error."""

from __future__ import annotations

import torch
from torch import Tensor

MARGIN = 128
"""Least size of an eigenvalue of a symmetric part, as a multiple of the rounding error of the matrix.

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


def above_floor(symmetric: Tensor, skew: Tensor | None, negative: Tensor) -> Tensor:
    """Return ``S + f sgn(S)``, whose eigenvalues have sizes of at least 2m; f = 0 where those of S have.

    ``sgn(S) = U diag(s) U^T`` has the eigenvectors of S and s = −1 for its lowest eigenvalues, as many as are negative
    by construction: rounding may have hidden their signs. The first derivatives are those of the formula.

    Args:
        symmetric: S, (block, size, size).
        skew: The skew part of the same matrix; None without one.
        negative: Number of negative eigenvalues of each block, (block,).
    """
    constant = symmetric.detach().nan_to_num(0.0, 0.0, 0.0)  # what is not finite stays so in the sum below
    eigenvalues, vectors = torch.linalg.eigh(constant)
    place = torch.arange(symmetric.shape[-1], device=symmetric.device)
    signs = torch.where(place < negative.unsqueeze(-1), -1.0, 1.0).to(symmetric.dtype)
    # The eigenvectors are constants: derivatives of single ones do not exist where eigenvalues are equal.
    within = vectors.mT @ symmetric @ vectors
    least, eps = margin(symmetric, skew, torch.finfo(symmetric.dtype).eps), torch.finfo(symmetric.dtype).eps
    floor = (2 * least - (signs * within.diagonal(dim1=-2, dim2=-1)).amin(-1)).relu()
    smallest = (eps * torch.linalg.matrix_norm(constant))[:, None, None].clamp(min=torch.finfo(symmetric.dtype).tiny)
    gaps = (eigenvalues.unsqueeze(-1) - eigenvalues.unsqueeze(-2)).abs().maximum(smallest)
    slopes = (signs.unsqueeze(-1) - signs.unsqueeze(-2)).abs() / gaps
    sign = vectors @ (torch.diag_embed(signs) + slopes * (within - within.detach())) @ vectors.mT
    return symmetric + floor[:, None, None] * sign


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
