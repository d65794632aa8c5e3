"""Free space: tokens anywhere, as in `positional`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokendynamics.numerics.arguments import ArrayLike, as_states, like
from tokendynamics.numerics.seeding import generator
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.spaces.reflection import into_half_space


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
        return like(as_states(vectors, "vectors"), vectors)

    def distance(self, x: ArrayLike, y: ArrayLike) -> Any:
        """Euclidean distance of tokens with the same index, shape (…, token)."""
        return like(torch.linalg.vector_norm(as_states(x) - as_states(y, "y"), dim=-1), x)

    def defect(self, y: ArrayLike) -> float:
        """0: there is no constraint to violate."""
        return 0.0

    @typed_arguments
    def sample(self, tokens: int, dim: int, systems: tuple[int, ...] = (), *, seed: int) -> Tensor:
        """Independent standard normal tokens (*systems, token, dim), float64."""
        return torch.randn(*systems, tokens, dim, dtype=torch.float64, generator=generator(seed))

    @typed_arguments
    def sample_hemisphere(
        self, tokens: int, direction: ArrayLike, systems: tuple[int, ...] = (), *, seed: int
    ) -> Tensor:
        """Standard normal tokens, those with ``direction · x < 0`` replaced by −x."""
        return into_half_space(direction, lambda dim: self.sample(tokens, dim, systems, seed=seed))

    def __repr__(self) -> str:
        return "Free()"
