"""A space as vector fields and engines see it: on plain tensors (…, token, dim), without checks; and free space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_states, first_token, like
from tokendynamics.spaces.retraction import inner, normalized, refuse_zero, tangent_part
from tokendynamics.spaces.space import Space, check_same_shape

Time = float | Tensor
"""One for all systems, or (system,)."""


@runtime_checkable
class Geometry(Protocol):
    """What the flow asks of a space, for states of one dtype and device.

    Attributes:
        constrained: Whether tokens are held to a surface.
        bounded: Whether no token can grow without end.
        quadratic: Whether the surface is ``y^T metric y = 1``, every ray meeting it once: forms of the field that use
            this are taken only then.
        closed_form: Whether the field's Jacobian and its fused form are known: free space, and quadrics.
        metric: M, (dim, dim) or (*system, dim, dim); None for the identity, and without a metric.
        per_system: Whether systems differ in it.
        norm: The scheme by which a network normalizes its tokens; None for a space without one.
        has_radius: Whether attention reads directions alone, of tokens whose lengths count elsewhere.
        constant: Whether what it does with tokens does not depend on time.
        is_sampled: Whether it depends on time by a function that is known only where it is asked.
    """

    @property
    def constrained(self) -> bool:
        """Whether tokens are held to a surface."""
        ...

    @property
    def bounded(self) -> bool:
        """Whether no token can grow without end."""
        ...

    @property
    def quadratic(self) -> bool:
        """Whether the surface is ``y^T metric y = 1``."""
        ...

    @property
    def closed_form(self) -> bool:
        """Whether the field's Jacobian and its fused form are known."""
        ...

    @property
    def metric(self) -> Tensor | None:
        """M, or None for the identity and without a metric."""
        ...

    @property
    def per_system(self) -> bool:
        """Whether systems differ in the metric."""
        ...

    @property
    def norm(self) -> str | None:
        """The scheme by which tokens are normalised, if there is one."""
        ...

    @property
    def has_radius(self) -> bool:
        """Whether attention reads directions alone."""
        ...

    @property
    def constant(self) -> bool:
        """Whether what it does with tokens does not depend on time."""
        ...

    @property
    def is_sampled(self) -> bool:
        """Whether a function of time is asked."""
        ...

    def directions(self, y: Tensor) -> Tensor:
        """Return what attention reads of points of the space."""
        ...

    def velocity(self, y: Tensor, pull: Tensor, t: Time) -> Tensor:
        """Return the velocity at points of the space from what attention carries there."""
        ...

    def layer(self, y: Tensor, pull: Tensor, k: int, step: tuple[float, float]) -> Tensor:
        """Return points after layer k, from what attention carries; step has the factors of attention and of y."""
        ...

    def joints(self, start: float, end: float) -> list[float]:
        """Return the times strictly between start and end at which the velocity jumps."""
        ...

    def within(self, start: float, end: float) -> Geometry:
        """Return the same on an interval without joints."""
        ...

    def check(self, x: Tensor, argument: str) -> None:
        """Raise an `ArgumentValueError` for states that cannot be projected."""
        ...

    def rescaled(self, x: Tensor) -> Tensor:
        """Return other states with the same projections, of sizes that do not overflow, to the same last digit."""
        ...

    def project(self, x: Tensor) -> Tensor:
        """Return the points of the space; NaN for a token that has none."""
        ...

    def exactly_projected(self, x: Tensor) -> Tensor:
        """Return `project` to the last digit, for states that are handed out."""
        ...

    def tangent_part(self, y: Tensor, vectors: Tensor) -> Tensor:
        """Return the part of each vector that is tangent to the space at y."""
        ...

    def restricted(self, basis: Tensor) -> Geometry | None:
        """Return the same in coordinates of a subspace, basis (system, dim, rank); None where it has no such form."""
        ...

    def flattened(self) -> Geometry:
        """Return the geometry of systems along one axis."""
        ...

    def over_time(self) -> Geometry:
        """Return the geometry for states (system, time, token, dim)."""
        ...

    def select(self, systems: Tensor) -> Geometry:
        """Return the geometry of some systems."""
        ...

    def to(self, *, dtype: torch.dtype, device: torch.device) -> Geometry:
        """Return the same in another precision or place."""
        ...


class WithoutNorm:
    """What geometries share in which attention reads the tokens themselves, and nothing depends on time."""

    norm: str | None = None
    has_radius = False
    constant = True
    is_sampled = False

    def directions(self, y: Tensor) -> Tensor:
        """See `Geometry`."""
        return y

    def velocity(self: Geometry, y: Tensor, pull: Tensor, t: Time) -> Tensor:
        """See `Geometry`."""
        return self.tangent_part(y, pull)

    def layer(self: Geometry, y: Tensor, pull: Tensor, k: int, step: tuple[float, float]) -> Tensor:
        """See `Geometry`."""
        tau, residual = step
        return self.exactly_projected((y if residual == 1.0 else residual * y) + tau * pull)

    def joints(self, start: float, end: float) -> list[float]:
        """See `Geometry`."""
        return []

    def within(self, start: float, end: float) -> Geometry:
        """See `Geometry`."""
        return self  # pyright: ignore[reportReturnType]


class Shared(WithoutNorm):
    """What geometries that are the same for all systems share."""

    metric: Tensor | None = None
    per_system = False
    quadratic = False

    def flattened(self) -> Geometry:
        """See `Geometry`."""
        return self  # pyright: ignore[reportReturnType]

    def over_time(self) -> Geometry:
        """See `Geometry`."""
        return self  # pyright: ignore[reportReturnType]

    def select(self, systems: Tensor) -> Geometry:
        """See `Geometry`."""
        return self  # pyright: ignore[reportReturnType]

    def to(self, *, dtype: torch.dtype, device: torch.device) -> Geometry:
        """See `Geometry`."""
        return self  # pyright: ignore[reportReturnType]

    def rescaled(self, x: Tensor) -> Tensor:
        """See `Geometry`."""
        return x


@dataclass(frozen=True)
class Flat(Shared):
    """No constraint."""

    constrained = False
    bounded = False
    closed_form = True

    def check(self, x: Tensor, argument: str) -> None:
        """See `Geometry`."""

    def project(self, x: Tensor) -> Tensor:
        """See `Geometry`."""
        return x

    def exactly_projected(self, x: Tensor) -> Tensor:
        """See `Geometry`."""
        return x

    def tangent_part(self, y: Tensor, vectors: Tensor) -> Tensor:
        """See `Geometry`."""
        return vectors

    def restricted(self, basis: Tensor) -> Geometry | None:
        """See `Geometry`."""
        return self


@dataclass(frozen=True)
class Quadric(WithoutNorm):
    """The surface ``y^T metric y = 1``."""

    metric: Tensor | None
    constrained = True
    bounded = True
    quadratic = True
    closed_form = True

    @property
    def per_system(self) -> bool:
        """See `Geometry`."""
        return self.metric is not None and self.metric.ndim > 2

    def check(self, x: Tensor, argument: str) -> None:
        """See `Geometry`."""
        refuse_zero(x, argument)

    def rescaled(self, x: Tensor) -> Tensor:
        """See `Geometry`."""
        # By powers of two, which is exact: the differences of nearly coincident tokens keep their digits. In two
        # halves, since 2¹⁰⁷⁴ is no number; as factors, since PyTorch's ldexp by a negative exponent has gradient 0.
        exponent = -torch.frexp(x.detach().abs().amax(dim=-1, keepdim=True)).exponent
        half = exponent // 2
        one = torch.ones_like(exponent, dtype=x.dtype)
        return x * torch.ldexp(one, half) * torch.ldexp(one, exponent - half)

    def project(self, x: Tensor) -> Tensor:
        """See `Geometry`."""
        return x * inner(x, x, self.metric).rsqrt()

    def exactly_projected(self, x: Tensor) -> Tensor:
        """See `Geometry`."""
        return normalized(x, self.metric)

    def tangent_part(self, y: Tensor, vectors: Tensor) -> Tensor:
        """See `Geometry`."""
        return tangent_part(y, vectors, self.metric)

    def restricted(self, basis: Tensor) -> Geometry | None:
        """See `Geometry`."""
        return self if self.metric is None else Quadric(basis.mT @ self.metric @ basis)

    def flattened(self) -> Geometry:
        """See `Geometry`."""
        return Quadric(self.metric.flatten(0, -3)) if self.metric is not None and self.per_system else self

    def over_time(self) -> Geometry:
        """See `Geometry`."""
        return Quadric(self.metric.unsqueeze(1)) if self.metric is not None and self.per_system else self

    def select(self, systems: Tensor) -> Geometry:
        """See `Geometry`."""
        return Quadric(self.metric[systems]) if self.metric is not None and self.per_system else self

    def to(self, *, dtype: torch.dtype, device: torch.device) -> Geometry:
        """See `Geometry`."""
        return self if self.metric is None else Quadric(self.metric.to(dtype=dtype, device=device))


@dataclass(frozen=True)
class Own(Shared):
    """A user's space, by its own `project` and `tangent`; the same for all systems."""

    space: Space
    closed_form = False

    @property
    def constrained(self) -> bool:
        """See `Geometry`."""
        return self.space.constrained

    @property
    def bounded(self) -> bool:
        """See `Geometry`."""
        return self.space.bounded

    def check(self, x: Tensor, argument: str) -> None:
        """See `Geometry`."""
        projected = self.space.project(x)
        if not isinstance(projected, Tensor) or projected.shape != x.shape:
            came = f"{type(projected).__name__} of shape {tuple(getattr(projected, 'shape', ()))}"
            wanted = f"a tensor of shape {tuple(x.shape)}"
            raise ArgumentValueError(f"{self.space.name}.project({argument})", wanted, came)
        if not bool(torch.isfinite(projected).all()):
            came = f"none for {first_token(~torch.isfinite(projected).all(dim=-1))}"
            raise ArgumentValueError(argument, f"tokens with a point of space {self.space.name}", came)

    def project(self, x: Tensor) -> Tensor:
        """See `Geometry`."""
        return self.space.project(x)

    def exactly_projected(self, x: Tensor) -> Tensor:
        """See `Geometry`."""
        return self.project(x)

    def tangent_part(self, y: Tensor, vectors: Tensor) -> Tensor:
        """See `Geometry`."""
        return self.space.tangent(y, vectors)

    def restricted(self, basis: Tensor) -> Geometry | None:
        """See `Geometry`."""
        return None


def geometry_of(space: Space) -> Geometry:
    """Return how the flow sees a space: its own `geometry`, if it has one, else `Own`."""
    geometry = getattr(space, "geometry", None)
    return Own(space) if geometry is None else geometry


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
