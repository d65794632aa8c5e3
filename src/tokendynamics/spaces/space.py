"""What every space of tokens can do."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from tokendynamics.numerics.arguments import ArrayLike


@runtime_checkable
class Space(Protocol):
    """A space of tokens; every function takes and returns states (…, token, dim) in the type that came in.

    Attributes:
        name: "free", "sphere" or "ellipsoid".
        metric: M of ``y^T M y = 1``; None for the free space, and for the sphere, where it is the identity.
    """

    name: str
    metric: Tensor | None

    def project(self, x: ArrayLike) -> Any:
        """The point of the space on the ray of each token."""
        ...

    def tangent(self, y: ArrayLike, vectors: ArrayLike) -> Any:
        """The part of each vector tangent to the space at y."""
        ...

    def distance(self, x: ArrayLike, y: ArrayLike) -> Any:
        """Distance of tokens with the same index, shape (…, token)."""
        ...

    def defect(self, y: ArrayLike) -> float:
        """The largest |y^T M y − 1| over all tokens; 0 in free space."""
        ...

    def sample(self, tokens: int, dim: int, systems: tuple[int, ...] = (), *, seed: int) -> Tensor:
        """Random tokens (*systems, token, dim), float64."""
        ...

    def sample_hemisphere(
        self, tokens: int, direction: ArrayLike, systems: tuple[int, ...] = (), *, seed: int
    ) -> Tensor:
        """Random tokens with ``direction · y > 0``, (*systems, token, dim), float64."""
        ...
