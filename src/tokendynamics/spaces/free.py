"""Free space: tokens anywhere, as in `positional`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokendynamics.numerics.arguments import ArrayLike, as_states, like
from tokendynamics.numerics.seeding import generator
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.spaces.reflection import into_half_space
from tokendynamics.spaces.shapes import check_same_shape, check_sample


class Free:
    """R^dim without a constraint (`positional` (2)).

    >>> Free().project([[3.0, 4.0]])
    [[3.0, 4.0]]
    """

    name = "free"
    metric: Tensor | None = None

    def project(self, x: ArrayLike) -> Any:
        """`x` itself: nothing constrains a token."""
        return like(as_states(x), x)

    def tangent(self, y: ArrayLike, vectors: ArrayLike) -> Any:
        """`vectors` themselves: every direction is tangent."""
        points, given = as_states(y, "y"), as_states(vectors, "vectors")
        check_same_shape(given, points, "vectors", "y")
        return like(given, vectors)

    def distance(self, x: ArrayLike, y: ArrayLike) -> Any:
        """Euclidean distance of tokens with the same index, shape (…, token)."""
        first, second = as_states(x), as_states(y, "y")
        check_same_shape(second, first, "y", "x")
        return like(torch.linalg.vector_norm(first - second, dim=-1), x)

    def defect(self, y: ArrayLike) -> float:
        """0: there is no constraint to violate."""
        as_states(y, "y")
        return 0.0

    @typed_arguments
    def sample(self, tokens: int, dim: int, systems: tuple[int, ...] = (), *, seed: int) -> Tensor:
        """Independent standard normal tokens (*systems, token, dim), float64."""
        check_sample(systems, tokens, dim)
        return torch.randn(*systems, tokens, dim, dtype=torch.float64, generator=generator(seed))

    @typed_arguments
    def sample_hemisphere(
        self, tokens: int, direction: ArrayLike, systems: tuple[int, ...] = (), *, seed: int
    ) -> Tensor:
        """Standard normal tokens, those with ``direction · x < 0`` replaced by −x."""
        return into_half_space(direction, lambda dim: self.sample(tokens, dim, systems, seed=seed))

    def __repr__(self) -> str:
        return "Free()"
