"""A few eigenvalues of a large matrix, from products with vectors alone: Arnoldi's method without restarts.

Source: Arnoldi (1951); the space grows until the wanted values stand, since a restart would throw away what the next
one needs, and the basis is small beside the matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Complex, Float
from torch import Tensor

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
