"""Exact spectra of a dim × dim circuit from its two dim × rank factors, never forming the product."""

from __future__ import annotations

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from tokendynamics.numerics._arguments import ArrayLike, as_finite, as_tensor
from tokendynamics.numerics._errors import ArgumentValueError, expected
from tokendynamics.numerics._signatures import typed_arguments
from tokendynamics.numerics._tolerances import rounding_threshold
from tokendynamics.spectra._inertia import Inertia, symmetric_part


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
    left, right = compress(*_as_factors(left, right))
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
        raise ArgumentValueError(expected("right", wanted, f"shape {tuple(right.shape)}"))
    rank = left.shape[-1]
    triangle = torch.linalg.qr(torch.cat([left, right], dim=-1), mode="r").R
    return triangle[..., :rank], triangle[..., rank:]


@typed_arguments
def low_rank_inertia(left: ArrayLike, right: ArrayLike, *, tolerance: float | None = None) -> Inertia:
    """Return the inertia of ``sym(left @ right^T)``, dim × dim, with the zeros beyond the factors' span.

    Args:
        left: Shape (…, dim, rank).
        right: Shape (…, dim, rank).
        tolerance: Absolute threshold of zero; default dim · eps · max|λ|.

    Returns:
        Inertia: three ints for one pair of factors, three int64 tensors of shape (…) for a batch.

    Raises:
        ArgumentValueError: See `low_rank_eigenvalues`.

    >>> low_rank_inertia([[1.0], [0.0], [0.0]], [[0.0], [2.0], [0.0]])
    Inertia(positive=1, negative=1, zero=1)
    """
    given = as_tensor(left, "left", ndim_at_least=2, axes="(…, dim, rank)")
    values = low_rank_eigenvalues(left, right)
    return count_signs(values, given.shape[-2], dtype=given.dtype, tolerance=tolerance)


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
    left, right = _as_factors(left, right)
    return torch.linalg.eigvals(_finite(right.mT @ left))


def _finite(product: Tensor) -> Tensor:
    if not bool(torch.isfinite(product).all()):
        raise ArgumentValueError(expected("left", "factors whose product does not overflow", "one beyond float64"))
    return product


def _as_factors(left: ArrayLike, right: ArrayLike) -> tuple[Tensor, Tensor]:
    first = as_tensor(left, "left", ndim_at_least=2, axes="(…, dim, rank)").double()
    second = as_tensor(right, "right", ndim_at_least=2, axes="(…, dim, rank)").double()
    if first.numel() == 0:
        raise ArgumentValueError(expected("left", "at least one row and one column", f"shape {tuple(first.shape)}"))
    if first.shape != second.shape:
        wanted = f"the shape of left, {tuple(first.shape)}"
        raise ArgumentValueError(expected("right", wanted, f"shape {tuple(second.shape)}"))
    return first, second
