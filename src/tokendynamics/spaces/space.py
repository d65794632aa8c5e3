"""What every space of tokens can do; a user's own space inherits from `Space` or has the same members."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from tokendynamics.numerics.arguments import ArrayLike, as_states, like
from tokendynamics.numerics.seeding import generator
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.spaces.reflection import into_half_space
from tokendynamics.spaces.shapes import check_same_shape, check_sample


@runtime_checkable
class Space(Protocol):
    """A space of tokens; every function takes and returns states (…, token, dim) in the type that came in.

    A space of one's own gives `name`, `project` and `tangent`, and inherits the rest, which holds for tokens that are
    reached by projecting and whose distance is Euclidean. `project` and `tangent` are then called with tensors of any
    leading axes at every right-hand side; where no point belongs to a token they give NaN. Such a space is run by the
    engines "batched", "fixed" and "layers".

    Attributes:
        name: One word, for tables and files.
        constrained: Whether tokens are held to a surface.
        bounded: Whether no token can grow without end.

    >>> class Cylinder(Space):
    ...     name = "cylinder"  # the first two coordinates on a circle, the others free
    ...     def project(self, x):
    ...         return torch.cat([x[..., :2] / x[..., :2].norm(dim=-1, keepdim=True), x[..., 2:]], dim=-1)
    ...     def tangent(self, y, vectors):
    ...         round = y.clone()
    ...         round[..., 2:] = 0
    ...         return vectors - (vectors * round).sum(dim=-1, keepdim=True) * round
    >>> Cylinder().defect(torch.tensor([[0.6, 0.8, 7.0]], dtype=torch.float64)) < 1e-15
    True
    """

    name: str
    constrained: bool = True
    bounded: bool = False

    def project(self, x: ArrayLike) -> Any:
        """Return the point of the space that stands for each token."""
        ...

    def tangent(self, y: ArrayLike, vectors: ArrayLike) -> Any:
        """Return the part of each vector tangent to the space at y."""
        ...

    def distance(self, x: ArrayLike, y: ArrayLike) -> Any:
        """Return the Euclidean distance of tokens with the same index, shape (…, token)."""
        first, second = as_states(x), as_states(y, "y")
        check_same_shape(second, first, "y", "x")
        return like(torch.linalg.vector_norm(first - second, dim=-1), x)

    def defect(self, y: ArrayLike) -> float:
        """Return how far any token is off the space: the largest |y − project(y)|."""
        states = as_states(y, "y")
        return float((states - self.project(states)).norm(dim=-1).max()) if states.numel() else 0.0

    @typed_arguments
    def sample(self, tokens: int, dim: int, systems: tuple[int, ...] = (), *, seed: int) -> Tensor:
        """Draw normal tokens and project them, (*systems, token, dim), float64."""
        check_sample(systems, tokens, dim)
        return self.project(torch.randn(*systems, tokens, dim, dtype=torch.float64, generator=generator(seed)))

    @typed_arguments
    def sample_hemisphere(
        self, tokens: int, direction: ArrayLike, systems: tuple[int, ...] = (), *, seed: int
    ) -> Tensor:
        """Draw tokens of `sample`, those with ``direction · x < 0`` replaced by −x."""
        return into_half_space(direction, lambda dim: self.sample(tokens, dim, systems, seed=seed))
