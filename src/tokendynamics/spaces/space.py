"""What every space of tokens can do; a user's own space inherits from `Space` or has the same members."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_count, as_states, as_tensor, generator, like
from tokendynamics.numerics.resources import check_fits
from tokendynamics.numerics.signatures import typed_arguments

_BYTES = 24
"""Of each number of a sample: as drawn, projected, and once in between."""

_MOST_AXES = 60
"""Of systems: NumPy has at most 64 axes in all."""


def check_same_shape(given: Tensor, other: Tensor, argument: str, name: str) -> None:
    """Refuse states that do not stand for the same tokens.

    Raises:
        ArgumentValueError: Shapes that differ in token or dim, or system axes that do not broadcast; both are printed.
    """
    leading = zip(reversed(given.shape[:-2]), reversed(other.shape[:-2]), strict=False)
    if given.shape[-2:] != other.shape[-2:] or any(one != two and 1 not in (one, two) for one, two in leading):
        raise ArgumentValueError(argument, f"the shape of {name}, {tuple(other.shape)}", f"shape {tuple(given.shape)}")


def check_sample(systems: Sequence[int], tokens: int, dim: int) -> None:
    """Refuse a sample of no tokens, or of more than fit into memory.

    Raises:
        ArgumentTypeError, ArgumentValueError: A count that is no integer or below 1 (systems: below 0).
        MemoryLimitError: Too many numbers.
    """
    if len(systems) > _MOST_AXES:
        raise ArgumentValueError("systems", f"at most {_MOST_AXES} axes", len(systems))
    numbers = as_count(tokens, "tokens") * as_count(dim, "dim")
    check_fits(_BYTES * numbers * math.prod(as_count(size, "systems", at_least=0) for size in systems), "tokens")


def into_half_space(direction: ArrayLike, draw: Callable[[int], Tensor]) -> Tensor:
    """Draw tokens of the right dim and replace those with ``direction · x < 0`` by −x.

    Of a law symmetric under x → −x this gives the law conditioned on the half space. A token on the boundary (of
    probability zero) moves by nothing and stays there.
    """
    normal = as_tensor(direction, "direction").to(torch.float64)
    if normal.ndim != 1 or not bool((normal != 0).any()):
        raise ArgumentValueError("direction", "a vector (dim,) that is not zero", f"{normal.tolist()}")
    tokens = draw(len(normal))
    side = (tokens * normal).sum(dim=-1, keepdim=True)
    return torch.where(side < 0, -tokens, tokens)


@runtime_checkable
class Space(Protocol):
    """A space of tokens; every function takes and returns states (…, token, dim) in the type that came in.

    A custom space gives `name`, `project` and `tangent`, and inherits the rest, which holds for tokens that are
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
        """Draw normal tokens and return their `image`, (*systems, token, dim), float64."""
        check_sample(systems, tokens, dim)
        return self.image(torch.randn(*systems, tokens, dim, dtype=torch.float64, generator=generator(seed)))

    def image(self, normal: Tensor) -> Tensor:
        """Return what standard normal tokens (…, token, dim) become in `sample`: their projections."""
        return self.project(normal)

    @typed_arguments
    def sample_hemisphere(
        self, tokens: int, direction: ArrayLike, systems: tuple[int, ...] = (), *, seed: int
    ) -> Tensor:
        """Draw tokens of `sample`, those with ``direction · x < 0`` replaced by −x."""
        return into_half_space(direction, lambda dim: self.sample(tokens, dim, systems, seed=seed))
