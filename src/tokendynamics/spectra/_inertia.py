"""Numbers of positive, negative and zero eigenvalues of a symmetric part, without computing an eigenvalue.

Sylvester's law of inertia: if ``B_sym = L D L^T`` then B_sym and D have the same signs. The Bunch–Kaufman
factorisation costs a third of n³ operations; a symmetric eigenvalue solver costs at least four times as much.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokendynamics.numerics._arguments import ArrayLike, as_square
from tokendynamics.numerics._errors import ArgumentValueError, expected
from tokendynamics.numerics._signatures import typed_arguments
from tokendynamics.numerics._tolerances import rounding_threshold

_PROBES = 4
_PROBE_STEPS = 2
_PROBE_MARGIN = 100.0
_SCALE_STEPS = 4
_SMALLEST_SAFE, _LARGEST_SAFE = 1e-140, 1e140


class Inertia(NamedTuple):
    """Counts of eigenvalues by sign; int for one matrix, int64 tensors of shape (…) for a batch."""

    positive: int | Tensor
    negative: int | Tensor
    zero: int | Tensor


@typed_arguments
def inertia(matrix: ArrayLike, *, tolerance: float | None = None) -> Inertia:
    """Count the signs (n₊, n₋, n₀) of the symmetric part ``B_sym = (B + B^T)/2``, its inertia.

    An eigenvalue counts as zero when ``|λ| ≤ tolerance``. One factorisation of B_sym gives the signs; only when an
    inverse iteration finds an eigenvalue near the threshold are ``B_sym ∓ tolerance·I`` factorised as well, which
    counts the eigenvalues above and below it exactly.

    Args:
        matrix: B, shape (…, dim, dim), real floating.
        tolerance: Absolute threshold, at least 0. Default: dim · eps · max|λ|, with the eps of
            the dtype that came in.

    Returns:
        Inertia: three ints for one matrix, three int64 tensors of shape (…) for a batch.

    Raises:
        ArgumentValueError: Not square, not finite, or an impossible tolerance.
        ArgumentTypeError: Not real floating numbers.

    Source: Sylvester's law; the signs of W_sym and A_sym decide the regime (`positional` Remark 3.5).

    >>> inertia([[2.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 0.0]])
    Inertia(positive=1, negative=1, zero=1)
    """
    if tolerance is not None and not 0 <= tolerance < float("inf"):
        raise ArgumentValueError(expected("tolerance", "a number from 0", tolerance))
    given = as_square(matrix, "matrix")
    divisor = _safe_divisor(given)
    symmetric = symmetric_part(given.double() if divisor == 1.0 else given.double() / divisor)
    flat = symmetric.reshape(-1, *symmetric.shape[-2:])
    size = flat.shape[-1]
    threshold = rounding_threshold(_largest_eigenvalue(flat), size, given.dtype)
    if tolerance is not None:
        threshold = torch.full_like(threshold, tolerance / divisor)
    positive, negative = _count_signs(flat, threshold)
    counts = (positive, negative, size - positive - negative)
    if given.ndim == 2:
        return Inertia(*(int(count) for count in counts))
    return Inertia(*(count.reshape(given.shape[:-2]) for count in counts))


def symmetric_part(matrix: Float[Tensor, "*batch dim dim"]) -> Float[Tensor, "*batch dim dim"]:
    """Return ``(B + B^T)/2``.

    >>> symmetric_part(torch.tensor([[0.0, 2.0], [0.0, 0.0]])).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    return (matrix + matrix.mT).div_(2)


def _safe_divisor(matrix: Float[Tensor, "*batch dim dim"]) -> float:
    """1, or the largest entry where squares of the entries would overflow or vanish: signs do not depend on it."""
    largest = float(matrix.abs().amax())
    return 1.0 if largest == 0 or _SMALLEST_SAFE < largest < _LARGEST_SAFE else largest


def _largest_eigenvalue(matrices: Float[Tensor, "batch dim dim"]) -> Float[Tensor, " batch"]:
    """Max |λ| to some percent, by power iteration on seeded probes: the scale of a threshold needs no more."""
    probes = _probes(matrices)
    growth = torch.zeros(len(matrices), dtype=matrices.dtype, device=matrices.device)
    for _ in range(_SCALE_STEPS):
        size = torch.linalg.vector_norm(probes, dim=-2, keepdim=True)
        probes = matrices @ (probes / torch.where(size == 0, 1.0, size))
        growth = torch.linalg.vector_norm(probes, dim=-2).amax(-1)
    return growth


def _probes(matrices: Float[Tensor, "batch dim dim"]) -> Float[Tensor, "batch dim probe"]:
    generator = torch.Generator().manual_seed(0)
    shape = (*matrices.shape[:-1], _PROBES)
    return torch.randn(shape, generator=generator, dtype=matrices.dtype).to(matrices.device)


def _count_signs(
    matrices: Float[Tensor, "batch dim dim"], threshold: Float[Tensor, " batch"]
) -> tuple[Int[Tensor, " batch"], Int[Tensor, " batch"]]:
    """Numbers of eigenvalues above +threshold and below −threshold."""
    factors, pivots, _ = torch.linalg.ldl_factor_ex(matrices)
    positive, negative = _signs_of_pivots(factors, pivots)
    for index in torch.nonzero(~_clear_of_zero(factors, pivots, threshold)).flatten().tolist():
        positive[index] = _signs_of_shifted(matrices[index], -threshold[index])[0]
        negative[index] = _signs_of_shifted(matrices[index], threshold[index])[1]
    return positive, negative


def _signs_of_shifted(
    matrix: Float[Tensor, "dim dim"], shift: Float[Tensor, ""]
) -> tuple[Int[Tensor, ""], Int[Tensor, ""]]:
    shifted = matrix.clone()
    shifted.diagonal().add_(shift)
    factors, pivots, _ = torch.linalg.ldl_factor_ex(shifted)
    return _signs_of_pivots(factors, pivots)


def _signs_of_pivots(
    factors: Float[Tensor, "*batch dim dim"], pivots: Int[Tensor, "*batch dim"]
) -> tuple[Int[Tensor, "*batch"], Int[Tensor, "*batch"]]:
    """Signs of the block-diagonal D. A 2 × 2 pivot (marked by negative indices) always has one sign of each."""
    diagonal = factors.diagonal(dim1=-2, dim2=-1)
    single = pivots > 0
    blocks = (~single).sum(-1) // 2
    return (single & (diagonal > 0)).sum(-1) + blocks, (single & (diagonal < 0)).sum(-1) + blocks


def _clear_of_zero(
    factors: Float[Tensor, "batch dim dim"], pivots: Int[Tensor, "batch dim"], threshold: Float[Tensor, " batch"]
) -> Bool[Tensor, " batch"]:
    """Tell whether the smallest |λ| lies far above the threshold, by inverse iteration on random probes.

    The estimate of ‖B^{-1}‖ is a lower bound; that four Gaussian probes all miss it by the margin of 100 after two
    steps has a probability below 1e-12. The probes are seeded: the same matrix gives the same answer.
    """
    probes = _probes(factors)
    growth = torch.zeros_like(threshold)
    for _ in range(_PROBE_STEPS):
        probes = probes / torch.linalg.vector_norm(probes, dim=-2, keepdim=True)
        probes = torch.linalg.ldl_solve(factors, pivots, probes)
        growth = torch.linalg.vector_norm(probes, dim=-2).amax(-1)
    return torch.isfinite(growth) & (growth * threshold * _PROBE_MARGIN < 1)
