"""Free space: tokens anywhere, as in `positional`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tokendynamics.numerics.arguments import ArrayLike, as_states, like
from tokendynamics.spaces.geometry import Flat, Geometry
from tokendynamics.spaces.space import Space, check_same_shape


class Free(Space):
    """R^dim without a constraint (`positional` (2)).

    >>> Free().project([[3.0, 4.0]])
    [[3.0, 4.0]]
    """

    name = "free"
    constrained = False
    metric: Tensor | None = None
    geometry: Geometry = Flat()

    def project(self, x: ArrayLike) -> Any:
        """Return `x` itself: nothing constrains a token."""
        return like(as_states(x), x)

    def tangent(self, y: ArrayLike, vectors: ArrayLike) -> Any:
        """Return `vectors` themselves: every direction is tangent."""
        points, given = as_states(y, "y"), as_states(vectors, "vectors")
        check_same_shape(given, points, "vectors", "y")
        return like(given, vectors)

    def defect(self, y: ArrayLike) -> float:
        """Return 0: there is no constraint to violate."""
        as_states(y, "y")
        return 0.0

    def __repr__(self) -> str:
        return "Free()"
