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
    return MARGIN * eps * _size(symmetric, skew)


def _size(symmetric: Tensor, skew: Tensor | None) -> Tensor:
    """Return ``|B|_F``, (block,), or the root of the root of the least normal number where B is smaller.

    Pivots that are too small to be told from zero would leave nothing that a floor could be relative to.
    """
    squares = symmetric.square().sum((-2, -1)) + (0 if skew is None else skew.square().sum((-2, -1)))
    return squares.clamp(min=torch.finfo(symmetric.dtype).tiny ** 0.5).sqrt()


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


def product_floors(first: Tensor, second: Tensor, skew: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return what to add to the diagonals of P and D, (block,) each, for every Re λ of ``P (D + T)`` to be positive.

    With ``p = |P|_F`` and ``n = |D + T|_F`` both get the same share of their size, ``P + a p I`` and ``D + a n I``: the
    least a ≥ 0 with ``(λ_P/p + a)(λ_D/n + a) ≥ MARGIN·eps``, λ_P and λ_D the lowest eigenvalues. Where
    ``λ_P λ_D ≥ MARGIN·eps·p n`` by the bounds below, a is exactly 0. It is at most ``2 √(MARGIN·eps)``.

    Why that is enough: a product V = P N, N = D + T, that is computed with an error E (rounding of the product, and of
    P to a matrix that is not quite symmetric) is ``P (N + P^{-1} E)``. The eigenvalues of the symmetric part of the
    second factor are at least ``λ_D − |E|/λ_P``, so that it is positive definite while ``|E| < λ_P λ_D``; V is similar
    to ``P^{1/2} (N + P^{-1} E) P^{1/2}``, whose symmetric part is then positive definite too: every Re λ(V) > 0. The
    rounding of a product has ``|E|_F ≤ (size/2)·eps·p n``, and about ``eps·p n`` where single roundings are
    independent. MARGIN·eps is enough up to a size of 250 whatever the roundings are, and far beyond where they are
    independent. Floors of each factor by itself would have to be √(MARGIN·eps) of its size, and would act on matrices
    whose product is far from this.

    λ_P and λ_D relative to p and n are bounded from below by ``(Σ (λ + r)^{-8})^{-1/8} − r``, ``r = √(MARGIN·eps)``:
    exact for one eigenvalue that is much smaller than others, and else (λ + r) is less by size^{1/8} at most.

    Args:
        first: P, symmetric and positive semidefinite, (block, size, size).
        second: D, likewise.
        skew: T, with the opposite transpose; None without one.
    """
    room = MARGIN * torch.finfo(first.dtype).eps
    sizes = _size(first, None), _size(second, skew)
    relative = (part / size[:, None, None] for part, size in zip((first, second), sizes, strict=True))
    lowest, other = (_lowest(part, room**0.5) for part in relative)
    share = (((lowest - other).square() + 4 * room).sqrt() - (lowest + other)).relu() / 2
    return share * sizes[0], share * sizes[1]


def _lowest(definite: Tensor, shift: float) -> Tensor:
    """Return a lower bound of the eigenvalues of blocks whose norm is at most 1, (block,), from −shift on."""
    inverse = shift * torch.linalg.inv_ex(definite + shift * eye_like(definite))[0]  # at most I: its powers are small
    square = inverse @ inverse
    return shift * torch.linalg.matrix_norm(square @ square) ** -0.25 - shift


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
