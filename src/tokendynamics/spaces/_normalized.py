"""Tokens of a network that normalizes them: a radius and a direction, of which attention reads the direction.

With ``x_i = r_i u_i``, ``|u_i| = 1``, and ``A_i = Σ_h ov_h Σ_j w^h_ij u_j`` of weights at the directions, each scheme
of `norms` is one vector field in x, with the part P of a vector that is tangent to the sphere at u_i:

    post     x' = P A                    r = 1, a norm after each layer: the flow on the sphere
    pre      x' = A                      a norm before attention: u' = P A / r, r' = u · A
    mix      x' = r P A, then x' = A     post up to a time, where r stays as it is, and pre from there on
    peri     x' = A / |A|                norms before and after attention
    ngpt     x' = α(t) P A / |A|         r = 1, a step of size α of a normalized output
    scaled   x' = P A / √(1 + t)         r = 1, an output that is divided by the root of the depth
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_choice, as_finite, as_positive, as_states, as_tensor, like
from tokendynamics.numerics.errors import shown
from tokendynamics.spaces._ellipsoid import Sphere
from tokendynamics.spaces.geometry import Free, Geometry, Quadric, Shared, Time
from tokendynamics.spaces.retraction import normalized, refuse_zero, retract, tangent_part
from tokendynamics.spaces.space import Space

Scheme = Literal["post", "pre", "mix", "peri", "ngpt", "scaled"]
Rate = float | Callable[[float], float]

SCHEMES: tuple[Scheme, ...] = ("post", "pre", "mix", "peri", "ngpt", "scaled")
WITH_RADIUS: tuple[Scheme, ...] = ("pre", "mix", "peri")


class Normalized(Space):
    """Tokens as a network with a norm has them, ``x = r u``: attention reads the directions u alone (`norms`).

    With "pre", "mix" and "peri" a token has a radius, and a large one slows its direction down. The radius at the start
    is the length of the token there. A run in which a radius falls to zero ends with the status "radius reached zero".
    With "post", "ngpt" and "scaled" tokens are on the unit sphere. Weights are not divided by √dim unless the attention
    says ``normalization="paper"``.

    Args:
        scheme: "post" (`Sphere`), "pre", "mix", "peri", "ngpt", or "scaled" for an output divided by √(1 + t).
        switch: For "mix" alone: the time from which on the scheme is "pre"; the radius is constant up to there.
        rate: For "ngpt" alone: α, a number above 0 or a function of time; 1 if None.
        radius: The length of the tokens that `sample` draws, 1 on the sphere.

    Raises:
        ArgumentTypeError, ArgumentValueError: Another scheme, an argument that it does not have, or no `switch` for
            "mix".

    >>> import tokendynamics as td
    >>> flow = td.Flow(td.Attention([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]), td.Normalized("pre"))
    >>> run = td.simulate(flow, [[2.0, 0.0], [2.0, 0.0]], [0.0, 3.0])  # equal tokens: r' = 1
    >>> [[round(number, 9) for number in token] for token in run.states[-1]]
    [[5.0, 0.0], [5.0, 0.0]]
    """

    def __init__(
        self, scheme: Scheme, *, switch: float | None = None, rate: Rate | None = None, radius: float = 1.0
    ) -> None:
        as_choice(scheme, "scheme", SCHEMES)
        if (switch is None) is (scheme == "mix"):
            came = "none" if switch is None else f"{shown(switch)} for {scheme!r}"
            raise ArgumentValueError("switch", "a time for 'mix', and for no other scheme", came)
        if rate is not None and scheme != "ngpt":
            raise ArgumentValueError("rate", "none but for 'ngpt'", f"{shown(rate)} for {scheme!r}")
        self.scheme: Scheme = scheme
        self.switch = None if switch is None else as_finite(switch, "switch")
        self.rate: Rate = 1.0 if rate is None else rate if callable(rate) else as_positive(rate, "rate")
        self.radius = as_positive(radius, "radius")
        if self.radius != 1.0 and not self.has_radius:
            raise ArgumentValueError("radius", f"1, that of the sphere, for {scheme!r}", shown(radius))
        self.name = {"post": "sphere", "ngpt": "nGPT"}.get(scheme, f"{scheme}-norm")
        self.constrained = self.bounded = not self.has_radius

    @property
    def has_radius(self) -> bool:
        """Whether a token has a radius beside its direction."""
        return self.scheme in WITH_RADIUS

    @property
    def geometry(self) -> Geometry:
        """How flows see it."""
        return Quadric(None) if self.scheme == "post" else Normed(self.scheme, self.rate, self.switch)

    def project(self, x: ArrayLike) -> Any:
        """Return tokens of length 1 where the scheme has no radius, and `x` itself where it has.

        Raises:
            ArgumentValueError: A zero token (its index is printed).
        """
        return self._underlying.project(self._not_zero(x))

    def tangent(self, y: ArrayLike, vectors: ArrayLike) -> Any:
        """Return the part of each vector tangent to the sphere, or all of it for a scheme with a radius."""
        return self._underlying.tangent(y, vectors)

    def distance(self, x: ArrayLike, y: ArrayLike) -> Any:
        """Return the angle of tokens with the same index, (…, token), or for a scheme with a radius the distance."""
        return self._underlying.distance(x, y)

    def defect(self, y: ArrayLike) -> float:
        """Return how far any token is off the space."""
        return self._underlying.defect(y)

    def image(self, normal: Tensor) -> Tensor:
        """Return tokens of length `radius` in the directions of standard normal ones (…, token, dim)."""
        return self.radius * retract(normal, None, "sample")

    def at_radius(self, x: ArrayLike, radius: ArrayLike) -> Any:
        """Return tokens in the directions of x, of given lengths: a start with the initial radii that you choose.

        Args:
            x: Tokens (…, token, dim), not zero.
            radius: Above 0: one number, or one for each token, (…, token).

        >>> Normalized("pre").at_radius([[3.0, 4.0], [1.0, 0.0]], [10.0, 2.0])
        [[6.0, 8.0], [2.0, 0.0]]
        """
        states = as_states(x)
        lengths = as_tensor(radius, "radius").to(states)
        if lengths.shape not in ((), states.shape[:-1]):
            wanted = f"a number, or shape {tuple(states.shape[:-1])}"
            raise ArgumentValueError("radius", wanted, f"shape {tuple(lengths.shape)}")
        if not bool((lengths > 0).all()):
            raise ArgumentValueError("radius", "lengths above 0", shown(radius))
        return like(retract(states, None, "x") * lengths.unsqueeze(-1), x)

    @property
    def _underlying(self) -> Free | Sphere:
        return Free() if self.has_radius else Sphere()

    def _not_zero(self, x: ArrayLike) -> ArrayLike:
        refuse_zero(as_states(x), "x")
        return x

    def __repr__(self) -> str:
        switch = "" if self.switch is None else f", switch={self.switch:g}"
        rate = ""
        if self.scheme == "ngpt":
            rate = ", rate=a function" if callable(self.rate) else f", rate={self.rate:g}"
        return f"Normalized({self.scheme!r}{switch}{rate})"


@dataclass(frozen=True)
class Normed(Shared):
    """A scheme as flows see it, but for "post", which is the sphere.

    Attributes:
        norm: The scheme.
        rate: α of "ngpt".
        switch: The time from which on "mix" is "pre"; on an interval it is one of both, see `within`.
    """

    norm: str  # pyright: ignore[reportIncompatibleVariableOverride]
    rate: Rate = 1.0
    switch: float | None = None

    # The derivative of the field is not known as a formula, nor its form from differences.
    closed_form = False

    @property
    def has_radius(self) -> bool:
        """See `Geometry`."""
        return self.norm in WITH_RADIUS

    @property
    def constrained(self) -> bool:
        """See `Geometry`."""
        return not self.has_radius

    @property
    def bounded(self) -> bool:
        """See `Geometry`."""
        return not self.has_radius

    @property
    def constant(self) -> bool:
        """See `Geometry`."""
        return not callable(self.rate) and self.norm != "scaled" and self.switch in (None, -math.inf, math.inf)

    @property
    def is_sampled(self) -> bool:
        """See `Geometry`."""
        return callable(self.rate)

    def check(self, x: Tensor, argument: str) -> None:
        """See `Geometry`."""
        refuse_zero(x, argument)

    def rescaled(self, x: Tensor) -> Tensor:
        """See `Geometry`."""
        return x if self.has_radius else _SPHERE.rescaled(x)

    def project(self, x: Tensor) -> Tensor:
        """See `Geometry`."""
        return x if self.has_radius else _SPHERE.project(x)

    def exactly_projected(self, x: Tensor) -> Tensor:
        """See `Geometry`."""
        return x if self.has_radius else _SPHERE.exactly_projected(x)

    def tangent_part(self, y: Tensor, vectors: Tensor) -> Tensor:
        """See `Geometry`."""
        return vectors if self.has_radius else tangent_part(y, vectors, None)

    def directions(self, y: Tensor) -> Tensor:
        """See `Geometry`."""
        return normalized(y, None) if self.has_radius else y

    def velocity(self, y: Tensor, pull: Tensor, t: Time) -> Tensor:
        """See `Geometry`."""
        if self.norm == "mix":
            direction = normalized(y, None)
            turning = y.norm(dim=-1, keepdim=True) * tangent_part(direction, pull, None)
            return torch.where(_beside(torch.as_tensor(t) < self._until, pull), turning, pull)
        return self.tangent_part(y, self._update(pull, t))

    def layer(self, y: Tensor, pull: Tensor, k: int, step: tuple[float, float]) -> Tensor:
        """See `Geometry`."""
        tau, residual = step
        if self.norm == "mix" and k < self._until:
            after = residual * normalized(y, None) + tau * pull
            return y.norm(dim=-1, keepdim=True) * normalized(after, None)
        after = (y if residual == 1.0 else residual * y) + tau * self._update(pull, float(k))
        return self.exactly_projected(after)

    def joints(self, start: float, end: float) -> list[float]:
        """See `Geometry`."""
        return [self._until] if self.norm == "mix" and start < self._until < end else []

    def within(self, start: float, end: float) -> Geometry:
        """See `Geometry`."""
        if self.norm != "mix":
            return self
        # At its ends the interval goes by what holds inside it.
        return Normed("mix", switch=math.inf if (start + end) / 2 < self._until else -math.inf)

    def restricted(self, basis: Tensor) -> Geometry | None:
        """See `Geometry`."""
        return self

    @property
    def _until(self) -> float:
        return math.inf if self.switch is None else self.switch

    def _update(self, pull: Tensor, t: Time) -> Tensor:
        """Return what a layer adds, before any projection."""
        if self.norm in ("peri", "ngpt"):
            pull = pull / pull.norm(dim=-1, keepdim=True)
        if self.norm == "scaled":
            return pull * _beside((1 + torch.as_tensor(t, dtype=torch.float64)).rsqrt(), pull)
        if self.norm != "ngpt":
            return pull
        rate = self.rate
        if not callable(rate):
            return pull if rate == 1.0 else rate * pull
        moments = torch.as_tensor(t, dtype=torch.float64)
        values = [_number(rate(moment)) for moment in moments.flatten().tolist()]
        return pull * _beside(torch.tensor(values, dtype=torch.float64).reshape(moments.shape), pull)


_SPHERE = Quadric(None)


def _beside(factor: Tensor, states: Tensor) -> Tensor:
    """Return one number for all systems, or (system,), as a factor of states (system, token, dim)."""
    chosen = factor.to(states.device) if factor.dtype == torch.bool else factor.to(states)
    return chosen[:, None, None] if chosen.ndim else chosen


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError("rate", "a function that returns a number for a time", shown(value)) from error
