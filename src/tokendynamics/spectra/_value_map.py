"""What the audit reports of a layer's value map: its rank, conditioning and eigenvalues."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from tokendynamics.numerics._arguments import ArrayLike, as_square
from tokendynamics.numerics._signatures import typed_arguments
from tokendynamics.numerics._tolerances import NEAR_ZERO, rounding_threshold
from tokendynamics.spectra._inertia import product_eigenvalues


@dataclass(frozen=True)
class ValueSpectrum:
    """Spectrum of one dim × dim value map (V and ov = V^T have the same).

    Attributes:
        dim: Size of the matrix.
        rank: Number of singular values above dim · eps · σ_max, with the eps of the dtype that came in.
        condition: σ_max/σ_min; infinite when the rank is below dim.
        near_zero: Number of eigenvalues with |λ| < 1e-3 (absolute, as in `positional` Table 7).
        near_zero_relative: Number of eigenvalues with |λ| < 1e-3 · ρ, ρ the spectral radius.
        max_real: max Re λ.
        min_real: min Re λ.
        radius: Spectral radius ρ = max |λ|.
    """

    dim: int
    rank: int
    condition: float
    near_zero: int
    near_zero_relative: int
    max_real: float
    min_real: float
    radius: float

    @property
    def invertible(self) -> bool:
        """Whether the rank is full, so that A = qk · ov^{-1} exists."""
        return self.rank == self.dim


def value_spectrum(matrix: ArrayLike) -> ValueSpectrum:
    """Measure rank, conditioning and eigenvalue counts of a dense value map.

    Args:
        matrix: V or ov, shape (dim, dim), real floating; computed in float64.

    Raises:
        ArgumentValueError: Not square, or not finite.

    Source: `positional` Table 7 (near-zero eigenvalues of V) and Theorem 3.6 (Re λ of V).

    >>> spectrum = value_spectrum([[2.0, 0.0], [0.0, 0.0]])
    >>> spectrum.rank, spectrum.condition, spectrum.near_zero, spectrum.max_real
    (1, inf, 1, 2.0)
    """
    given = as_square(matrix, "matrix")
    dense = given.double()
    return _summarize(dense.shape[-1], torch.linalg.svdvals(dense), torch.linalg.eigvals(dense), given.dtype)


@typed_arguments
def value_spectrum_of_factors(left: Float[Tensor, "dim rank"], right: Float[Tensor, "dim rank"]) -> ValueSpectrum:
    """Return `value_spectrum` of ``left @ right^T``, solving rank × rank problems when rank < dim.

    Args:
        left: Shape (dim, rank).
        right: Shape (dim, rank).

    >>> value_spectrum_of_factors(torch.tensor([[2.0], [0.0]]), torch.tensor([[1.0], [0.0]])).rank
    1
    """
    left, right = left.double(), right.double()
    if left.shape[-1] >= left.shape[-2]:
        return value_spectrum(left @ right.mT)
    triangles = torch.linalg.qr(left, mode="r").R @ torch.linalg.qr(right, mode="r").R.mT
    return _summarize(left.shape[-2], torch.linalg.svdvals(triangles), product_eigenvalues(left, right), torch.float64)


def _summarize(
    dim: int,
    singular: Float[Tensor, " some"],
    eigenvalues: Complex[Tensor, " other"],
    dtype: torch.dtype,
) -> ValueSpectrum:
    threshold = rounding_threshold(singular[0], dim, dtype)
    rank = int((singular > threshold).sum())
    exact_zeros = torch.zeros(dim - len(eigenvalues), dtype=eigenvalues.dtype)
    eigenvalues = torch.cat([eigenvalues, exact_zeros])
    sizes, reals = eigenvalues.abs(), eigenvalues.real
    radius = float(sizes.max())
    return ValueSpectrum(
        dim=dim,
        rank=rank,
        condition=float(singular[0] / singular[-1]) if rank == dim else float("inf"),
        near_zero=int((sizes < NEAR_ZERO).sum()),
        near_zero_relative=int((sizes < NEAR_ZERO * radius).sum()),
        max_real=float(reals.max()),
        min_real=float(reals.min()),
        radius=radius,
    )
