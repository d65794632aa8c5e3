"""What the audit reports of a layer's value map: its rank, conditioning and eigenvalues."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import NEAR_ZERO, ArrayLike, as_square, rounding_threshold
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.spectra.extremes import extremes_of
from tokendynamics.spectra.signs import as_factors, product_eigenvalues

Wanted: TypeAlias = Literal["extremes", "whole"]

_DENSE_BELOW = 1024
"""Smaller matrices have their whole spectrum in less time than its extremes take alone."""


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
        route: "whole spectrum", or "Krylov spaces" where only the extremes were computed.
        eigenvalues: All of them by falling |λ|, where the whole spectrum was asked for.

    >>> value_spectrum([[2.0, 0.0], [0.0, 1.0]]).invertible
    True
    """

    dim: int
    rank: int
    condition: float
    near_zero: int
    near_zero_relative: int
    max_real: float
    min_real: float
    radius: float
    route: Literal["whole spectrum", "Krylov spaces"] = "whole spectrum"
    eigenvalues: Complex[Tensor, " dim"] | None = field(default=None, compare=False, repr=False)

    @property
    def invertible(self) -> bool:
        """Whether the rank is full, so that A = qk · ov^{-1} exists."""
        return self.rank == self.dim


@typed_arguments
def value_spectrum(matrix: ArrayLike, *, wanted: Wanted = "extremes") -> ValueSpectrum:
    """Measure rank, conditioning and eigenvalue counts of a dense value map.

    From dim 1024 on the extremes come from Krylov spaces and one LU factorisation where these settle to 1e-11 by their
    own estimate, which costs a fourth of the whole spectrum at dim 4096; otherwise from the whole spectrum.

    Args:
        matrix: V or ov, shape (dim, dim), real floating; computed in float64.
        wanted: "extremes" for the numbers alone, "whole" for every eigenvalue as well.

    Raises:
        ArgumentTypeError: No real matrix.
        ArgumentValueError: Not square, not finite, or another word for `wanted`.

    Source: `positional` Table 7 (near-zero eigenvalues of V) and Theorem 3.6 (Re λ of V).

    >>> spectrum = value_spectrum([[2.0, 0.0], [0.0, 0.0]])
    >>> spectrum.rank, spectrum.condition, spectrum.near_zero, spectrum.max_real
    (1, inf, 1, 2.0)
    """
    _check(wanted)
    given = as_square(matrix, "matrix")
    dense, dim = given.double(), given.shape[-1]
    extremes = extremes_of(dense, given.dtype) if wanted == "extremes" and dim >= _DENSE_BELOW else None
    if extremes is not None:
        return ValueSpectrum(dim=dim, rank=dim, route="Krylov spaces", **asdict(extremes))
    return _summarize(dim, torch.linalg.svdvals(dense), torch.linalg.eigvals(dense), given.dtype, wanted)


@typed_arguments
def value_spectrum_of_factors(left: ArrayLike, right: ArrayLike, *, wanted: Wanted = "extremes") -> ValueSpectrum:
    """Return `value_spectrum` of ``left @ right^T``, solving rank × rank problems when rank < dim.

    Args:
        left: Shape (dim, rank), real floating; computed in float64.
        right: Likewise.
        wanted: See `value_spectrum`.

    Raises:
        ArgumentTypeError: No real matrix.
        ArgumentValueError: Other shapes, not finite, or another word for `wanted`.

    >>> value_spectrum_of_factors(torch.tensor([[2.0], [0.0]]), torch.tensor([[1.0], [0.0]])).rank
    1
    """
    _check(wanted)
    left, right = as_factors(left, right)
    if left.ndim != 2:
        raise ArgumentValueError("left", "shape (dim, rank)", f"shape {tuple(left.shape)}")
    if left.shape[-1] >= left.shape[-2]:
        return value_spectrum(left @ right.mT, wanted=wanted)
    triangles = torch.linalg.qr(left, mode="r").R @ torch.linalg.qr(right, mode="r").R.mT
    eigenvalues = product_eigenvalues(left, right)
    return _summarize(left.shape[-2], torch.linalg.svdvals(triangles), eigenvalues, torch.float64, wanted)


def _check(wanted: str) -> None:
    if wanted not in get_args(Wanted):
        raise ArgumentValueError("wanted", "'extremes' or 'whole'", shown(wanted))


def _summarize(
    dim: int,
    singular: Float[Tensor, " some"],
    eigenvalues: Complex[Tensor, " other"],
    dtype: torch.dtype,
    wanted: Wanted,
) -> ValueSpectrum:
    threshold = rounding_threshold(singular[0], dim, dtype)
    rank = int((singular > threshold).sum())
    exact_zeros = torch.zeros(dim - len(eigenvalues), dtype=eigenvalues.dtype)
    eigenvalues = torch.cat([eigenvalues, exact_zeros])
    sizes, reals = eigenvalues.abs(), eigenvalues.real
    radius = float(sizes.max())
    falling = eigenvalues[sizes.argsort(descending=True, stable=True)]
    return ValueSpectrum(
        dim=dim,
        rank=rank,
        condition=float(singular[0] / singular[-1]) if rank == dim else float("inf"),
        near_zero=int((sizes < NEAR_ZERO).sum()),
        near_zero_relative=int((sizes < NEAR_ZERO * radius).sum()),
        max_real=float(reals.max()),
        min_real=float(reals.min()),
        radius=radius,
        eigenvalues=falling if wanted == "whole" else None,
    )
