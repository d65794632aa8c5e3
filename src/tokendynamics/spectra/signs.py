"""Signs and spectra: numbers of positive, negative and zero eigenvalues, of matrices and of products of factors.

Sylvester's law of inertia: if ``B_sym = L D L^T`` then B_sym and D have the same signs. The Bunch–Kaufman
factorisation costs a third of n³ operations; a symmetric eigenvalue solver costs at least four times as much. The
spectrum of a dim × dim circuit follows from its two dim × rank factors, and the product is never formed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_finite, as_square, as_tensor, rounding_threshold
from tokendynamics.numerics.signatures import typed_arguments

_PROBES = 4
_PROBE_STEPS = 2
_PROBE_MARGIN = 100.0
_SCALE_STEPS = 4
_SMALLEST_SAFE, _LARGEST_SAFE = 1e-140, 1e140


class Inertia(NamedTuple):
    """Counts of eigenvalues by sign; int for one matrix, int64 tensors of shape (…) for a batch.

    >>> inertia([[2.0, 0.0], [0.0, -1.0]])
    Inertia(positive=1, negative=1, zero=0)
    """

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
        raise ArgumentValueError("tolerance", "a number from 0", tolerance)
    given = as_square(matrix, "matrix")
    # 1, or the largest entry where squares of the entries would overflow or vanish: signs do not depend on it.
    largest = float(given.abs().amax())
    divisor = 1.0 if largest == 0 or _SMALLEST_SAFE < largest < _LARGEST_SAFE else largest
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


def low_rank_eigenvalues(left: ArrayLike, right: ArrayLike) -> Float[Tensor, "*batch count"]:
    """Return the eigenvalues of ``sym(left @ right^T)``, ascending, without the exact zeros beyond the factors' span.

    With ``[left right] = Q [T_l T_r]`` (QR), the symmetric part is ``Q · sym(T_l T_r^T) · Q^T``: its eigenvalues are
    those of the 2·rank × 2·rank matrix in the middle, and dim − 2·rank zeros. Cost dim·rank² instead of dim³.

    Args:
        left: Shape (…, dim, rank), real floating; for a head's QK circuit, W_Q.
        right: Shape (…, dim, rank); for a head's QK circuit, W_K.

    Returns:
        float64 tensor of shape (…, min(2·rank, dim)).

    Raises:
        ArgumentValueError: The factors' shapes do not fit each other, or a number is not finite.
        ArgumentTypeError: Not real floating numbers.

    >>> low_rank_eigenvalues([[1.0], [0.0], [0.0]], [[0.0], [2.0], [0.0]]).tolist()
    [-1.0..., 1.0...]
    """
    left, right = compress(*as_factors(left, right))
    return torch.linalg.eigvalsh(symmetric_part(_finite(left @ right.mT)))


@typed_arguments
def compress(
    left: Float[Tensor, "*batch dim rank"], right: Float[Tensor, "*batch dim rank"]
) -> tuple[Float[Tensor, "*batch rows rank"], Float[Tensor, "*batch rows rank"]]:
    """Return factors with min(2·rank, dim) rows whose product has the same spectrum and symmetric spectrum.

    Whatever acts on the factors' columns (a rotation of the queries, say) can be applied after the compression.

    >>> left, right = compress(torch.eye(5)[:, :1], 2 * torch.eye(5)[:, :1])
    >>> (left @ right.mT).trace().item()
    2.0
    """
    if left.ndim < 2 or left.shape != right.shape:
        wanted = f"the shape of left, {tuple(left.shape)}, (…, dim, rank)"
        raise ArgumentValueError("right", wanted, f"shape {tuple(right.shape)}")
    rank = left.shape[-1]
    triangle = torch.linalg.qr(torch.cat([left, right], dim=-1), mode="r").R
    return triangle[..., :rank], triangle[..., rank:]


def count_signs(
    values: Float[Tensor, "*batch count"],
    dim: int,
    *,
    dtype: torch.dtype = torch.float64,
    tolerance: float | None = None,
) -> Inertia:
    """Return the inertia of a dim × dim symmetric matrix from its eigenvalues, missing ones being exact zeros.

    Args:
        values: Shape (…, count), count ≤ dim.
        dim: Size of the matrix.
        dtype: The precision the matrix came in, which sets the default threshold.
        tolerance: Absolute threshold of zero; default dim · eps(dtype) · max|λ|.

    >>> count_signs(torch.tensor([-1.0, 0.0, 2.0]), 5)
    Inertia(positive=1, negative=1, zero=3)
    """
    threshold = rounding_threshold(values.abs().amax(-1, keepdim=True), dim, dtype)
    if tolerance is not None:
        threshold = torch.full_like(threshold, as_finite(tolerance, "tolerance"))
    positive, negative = (values > threshold).sum(-1), (values < -threshold).sum(-1)
    counts = (positive, negative, dim - positive - negative)
    return Inertia(*(int(count) if values.ndim == 1 else count for count in counts))


def product_eigenvalues(left: ArrayLike, right: ArrayLike) -> Complex[Tensor, "*batch rank"]:
    """Return the eigenvalues of ``left @ right^T`` (not of its symmetric part), without dim − rank exact zeros.

    ``left @ right^T`` and the rank × rank matrix ``right^T @ left`` have the same nonzero eigenvalues.

    Args:
        left: Shape (…, dim, rank); for a head's OV circuit ``ov = (W_V W_O)^T``, the transpose of W_O.
        right: Shape (…, dim, rank); for a head's OV circuit, W_V.

    Returns:
        complex128 tensor of shape (…, rank), in LAPACK's order.

    Raises:
        ArgumentValueError: See `low_rank_eigenvalues`.

    >>> product_eigenvalues([[1.0], [1.0]], [[2.0], [1.0]]).real.tolist()
    [3.0]
    """
    left, right = as_factors(left, right)
    return torch.linalg.eigvals(_finite(right.mT @ left))


def _finite(product: Tensor) -> Tensor:
    if not bool(torch.isfinite(product).all()):
        raise ArgumentValueError("left", "factors whose product does not overflow", "one beyond float64")
    return product


def as_factors(left: ArrayLike, right: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return two factors of one shape (…, dim, rank) in float64; refuse others by name."""
    first = as_tensor(left, "left", ndim_at_least=2, axes="(…, dim, rank)").double()
    second = as_tensor(right, "right", ndim_at_least=2, axes="(…, dim, rank)").double()
    if first.numel() == 0:
        raise ArgumentValueError("left", "at least one row and one column", f"shape {tuple(first.shape)}")
    if first.shape != second.shape:
        raise ArgumentValueError("right", f"the shape of left, {tuple(first.shape)}", f"shape {tuple(second.shape)}")
    return first, second
