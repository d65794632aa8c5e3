"""The few numbers of a large dense spectrum that a summary needs, without the spectrum.

One LU factorisation serves the smallest singular value and the eigenvalues near zero, one Krylov space the outermost
eigenvalues. What does not settle (very non-normal or orthogonal matrices, many eigenvalues near zero, ones on a
threshold, a rank in doubt) is left to the dense way.

The Krylov space is Arnoldi's (1951) without restarts: it grows until the wanted values stand, since a restart would
throw away what the next one needs, and the basis is small beside the matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from tokendynamics.numerics.arguments import NEAR_ZERO, rounding_threshold

Apply: TypeAlias = Callable[[Float[Tensor, " dim"]], Float[Tensor, " dim"]]
"""Product of the matrix with a vector."""

_FIRST_LOOK = 32
_GROWTH = 1.2
"""Each look costs the eigenvalues of the small matrix: the steps between two looks grow with it."""

_BREAKDOWN = 1e-10
"""A next direction this much shorter than its product is rounding: the space is invariant, multiplicities are lost."""


class Ritz(NamedTuple):
    """Approximate eigenvalues.

    Attributes:
        values: θ.
        residuals: |B x − θ x| of each unit Ritz vector x.
        coordinates: Ritz vectors in the basis, one a column.
    """

    values: Complex[Tensor, " step"]
    residuals: Float[Tensor, " step"]
    coordinates: Complex[Tensor, "step step"]

    def errors(self, chosen: Tensor) -> Float[Tensor, " chosen"]:
        """Estimate |θ − λ| of some: the residual times the eigenvalue's condition |x||y|/|y·x| in the small matrix."""
        picked = torch.eye(len(self.values), dtype=self.values.dtype)[:, chosen]
        left = torch.linalg.solve(self.coordinates.mH, picked)  # columns y with y·x = 1
        return self.residuals[chosen] * torch.linalg.vector_norm(left, dim=0)


class KrylovSpace:
    """An orthonormal basis of span{q, B q, B² q, …} and B in it.

    Args:
        apply: Product with B.
        dim: Size of B.
        most: Largest number of steps.
        seed: Of the random start q.
    """

    def __init__(self, apply: Apply, dim: int, most: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(dim, generator=generator, dtype=torch.float64)
        self.apply = apply
        self.steps = 0
        self.most = min(most, dim - 1)
        self.basis = torch.empty(self.most + 1, dim, dtype=torch.float64)
        self.basis[0] = start / torch.linalg.vector_norm(start)
        self._small = torch.zeros(self.most + 1, self.most, dtype=torch.float64)

    def grow(self, steps: int) -> bool:
        """Add steps; False where the space cannot grow any more."""
        for _ in range(min(steps, self.most) - self.steps):
            place, known = self.steps, self.basis[: self.steps + 1]
            product = self.apply(self.basis[place])
            size = torch.linalg.vector_norm(product)
            for _ in range(2):  # once is not orthogonal to rounding
                inner = known @ product
                product = product - known.mT @ inner
                self._small[: place + 1, place] += inner
            length = torch.linalg.vector_norm(product)
            if not float(length) > _BREAKDOWN * float(size):
                return False
            self._small[place + 1, place] = length
            self.basis[place + 1] = product / length
            self.steps += 1
        return True

    def ritz(self) -> Ritz:
        """Return the eigenvalues of B in this space."""
        values, coordinates = torch.linalg.eig(self._small[: self.steps, : self.steps])
        last = self._small[self.steps, self.steps - 1]
        return Ritz(values, last * coordinates[-1].abs(), coordinates)

    def vectors(self, ritz: Ritz, chosen: Tensor) -> Complex[Tensor, "dim chosen"]:
        """Return Ritz vectors themselves."""
        return self.basis[: self.steps].mT.to(ritz.values.dtype) @ ritz.coordinates[:, chosen]


def grown_until(space: KrylovSpace, settled: Callable[[Ritz], bool]) -> Ritz | None:
    """Grow a space until what is wanted of it has settled; None where it does not."""
    steps = _FIRST_LOOK
    while space.grow(steps):
        ritz = space.ritz()
        if settled(ritz):
            return ritz
        if space.steps == space.most:
            return None
        steps = int(_GROWTH * steps)
    return None


_ACCURACY = 1e-11
"""Estimated relative error of every number at which it has settled; of the largest modulus for eigenvalues."""

_MOST_NEAR_ZERO = 250
"""With more eigenvalues near zero than this the dense way is as fast."""

_STEPS_PER_ROOT = 14
"""Steps allowed for each √dim: the outermost eigenvalues of a matrix of independent entries settle after about eleven,
which costs a fifth of the dense way at dim 4096."""

_DENSE_BELOW = 1024
"""Smaller matrices have all singular values in less time than the largest takes alone."""

_SAFE = 1e100
_RANK_MARGIN = 100.0


@dataclass(frozen=True)
class Extremes:
    """Of one matrix of full rank; see `ValueSpectrum` for each."""

    condition: float
    near_zero: int
    near_zero_relative: int
    max_real: float
    min_real: float
    radius: float


def extremes_of(matrix: Float[Tensor, "dim dim"], precision: torch.dtype) -> Extremes | None:
    """Return the extremes of a spectrum; None where they need the whole of it.

    Args:
        matrix: In float64.
        precision: The dtype that it came in, which sets when a singular value counts as zero.

    >>> extremes_of(torch.zeros(9, 9).double(), torch.float64) is None
    True
    """
    largest_entry = float(matrix.abs().amax())
    if not 1 / _SAFE < largest_entry < _SAFE:
        return None
    most = int(_STEPS_PER_ROOT * len(matrix) ** 0.5)
    outer = _outermost(matrix, most)
    if outer is None:
        return None
    factors, pivots, info = torch.linalg.lu_factor_ex(matrix)
    if int(info):
        return None

    def inverse(x: Tensor) -> Tensor:
        return torch.linalg.lu_solve(factors, pivots, x[:, None])[:, 0]

    def inverse_transposed(x: Tensor) -> Tensor:
        return torch.linalg.lu_solve(factors, pivots, x[:, None], adjoint=True)[:, 0]

    largest = _largest_singular(lambda x: matrix.mT @ (matrix @ x), len(matrix), most)
    inverse_largest = _largest_singular(lambda x: inverse(inverse_transposed(x)), len(matrix), most)
    if largest is None or inverse_largest is None:
        return None
    threshold = rounding_threshold(torch.tensor(largest), len(matrix), precision)
    if not 1 / inverse_largest > _RANK_MARGIN * float(threshold):
        return None
    radius, max_real, min_real = outer
    counts = _near_zero(inverse, len(matrix), (NEAR_ZERO, NEAR_ZERO * radius))
    if counts is None:
        return None
    return Extremes(largest * inverse_largest, *counts, max_real, min_real, radius)


def spectral_norm(matrix: Float[Tensor, "dim dim"]) -> float:
    """Return the largest singular value, of a large matrix from a Krylov space where it settles to 1e-11.

    Args:
        matrix: In float64.

    >>> spectral_norm(torch.diag(torch.tensor([3.0, -4.0]).double()))
    4.0
    """
    if len(matrix) >= _DENSE_BELOW and bool(matrix.any()):
        most = int(_STEPS_PER_ROOT * len(matrix) ** 0.5)
        largest = _largest_singular(lambda x: matrix.mT @ (matrix @ x), len(matrix), most)
        if largest is not None:
            return largest
    return float(torch.linalg.svdvals(matrix)[0])


def _outermost(matrix: Float[Tensor, "dim dim"], most: int) -> tuple[float, float, float] | None:
    """Return max |λ|, max Re λ and min Re λ."""

    def wanted(ritz: Ritz) -> Tensor:
        keys = (ritz.values.abs(), ritz.values.real, -ritz.values.real)
        return torch.stack([key.argmax() for key in keys])

    def settled(ritz: Ritz) -> bool:
        chosen, radius = wanted(ritz), ritz.values.abs().amax()
        rough = bool((ritz.residuals[chosen] <= _ACCURACY * radius).all())
        return rough and bool((ritz.errors(chosen) <= _ACCURACY * radius).all())

    ritz = grown_until(KrylovSpace(matrix.mv, len(matrix), most), settled)
    if ritz is None:
        return None
    largest, right, left = wanted(ritz).tolist()
    return float(ritz.values[largest].abs()), float(ritz.values[right].real), float(ritz.values[left].real)


def _largest_singular(gram: Apply, dim: int, most: int) -> float | None:
    """Return the root of the largest eigenvalue of a symmetric positive definite map; its residual bounds its error."""

    def settled(ritz: Ritz) -> bool:
        top = int(ritz.values.real.argmax())
        return float(ritz.residuals[top]) <= _ACCURACY * float(ritz.values[top].real)

    ritz = grown_until(KrylovSpace(gram, dim, most), settled)
    return None if ritz is None else float(ritz.values.real.amax()) ** 0.5


def _near_zero(inverse: Apply, dim: int, thresholds: tuple[float, float]) -> tuple[int, int] | None:
    """Count eigenvalues smaller than each threshold, as the largest of the inverse."""
    limit = 1 / max(thresholds)

    def settled(ritz: Ritz) -> bool:
        sizes, order = ritz.values.abs().sort(descending=True)
        inside = int((sizes >= limit).sum())
        if inside >= len(sizes):
            return False
        chosen = order[: inside + 1]  # those inside, and the first one outside, which says that they are all
        allowed = torch.full((inside + 1,), _ACCURACY, dtype=torch.float64)
        allowed[-1] = _ACCURACY**0.5
        if bool((ritz.residuals[chosen] > allowed * sizes[: inside + 1]).any()):
            return False
        return bool((ritz.errors(chosen) <= allowed * sizes[: inside + 1]).all())

    space = KrylovSpace(inverse, dim, 2 * _MOST_NEAR_ZERO)
    ritz = grown_until(space, settled)
    if ritz is None:
        return None
    sizes = ritz.values.abs()
    doubtful = [bool(((sizes * threshold - 1).abs() < _ACCURACY**0.5).any()) for threshold in thresholds]
    inside = (sizes >= limit).nonzero()[:, 0]
    if any(doubtful) or len(inside) > _MOST_NEAR_ZERO or _more_than(space, ritz, inside, limit):
        return None
    first, second = (int((sizes > 1 / threshold).sum()) for threshold in thresholds)
    return first, second


def _more_than(space: KrylovSpace, ritz: Ritz, indices: Tensor, limit: float) -> bool:
    """Tell whether the inverse has more eigenvalues beyond the limit than those found.

    One Krylov space holds a single vector of each eigenspace; the second start is random and sees what is left.
    """
    if not len(indices):
        return False
    vectors = space.vectors(ritz, indices)
    known = torch.linalg.qr(torch.cat([vectors.real, vectors.imag], dim=-1)).Q

    def deflated(x: Tensor) -> Tensor:
        product = space.apply(x - known @ (known.mT @ x))
        return product - known @ (known.mT @ product)

    def settled(rest: Ritz) -> bool:
        top = rest.values.abs().argmax()[None]
        return bool(rest.errors(top) <= 0.01 * rest.values[top].abs())

    rest = grown_until(KrylovSpace(deflated, len(vectors), 2 * _MOST_NEAR_ZERO, seed=1), settled)
    return rest is None or float(rest.values.abs().amax()) >= 0.98 * limit
