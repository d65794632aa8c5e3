"""The ellipsoid y^T M y = 1, and the unit sphere, whose metric is the identity."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_square, as_states, check_positive_definite, like
from tokendynamics.spaces.geometry import Geometry, Quadric
from tokendynamics.spaces.retraction import inner, retract, tangent_part
from tokendynamics.spaces.space import Space, check_same_shape

_LARGEST = 1e100
"""Entries of a metric beyond this overflow in ``y^T M y``."""


class Ellipsoid(Space):
    """The points ``y^T M y = 1`` for a symmetric positive definite metric M (`asymptotic` section 2.1).

    Args:
        metric: M, (dim, dim), or (*system, dim, dim) with one for each system.

    Raises:
        ArgumentValueError: M is not square, not symmetric (to rounding), or not positive definite: its lowest
            eigenvalue is printed.

    >>> Ellipsoid([[4.0, 0.0], [0.0, 1.0]]).project([[3.0, 0.0], [0.0, -5.0]])
    [[0.5, 0.0], [0.0, -1.0]]
    """

    name = "ellipsoid"
    bounded = True

    def __init__(self, metric: ArrayLike) -> None:
        self.metric: Tensor | None = _checked_metric(as_square(metric, "metric"))

    @property
    def geometry(self) -> Geometry:
        """How flows see it."""
        return Quadric(self.metric)

    def project(self, x: ArrayLike) -> Any:
        """Return ``π_M(x) = x / |x|_M`` (`asymptotic` (2)).

        Raises:
            ArgumentValueError: A zero token (its index is printed).
        """
        states = as_states(x)
        return like(retract(states, self._metric_for(states), "x"), x)

    def tangent(self, y: ArrayLike, vectors: ArrayLike) -> Any:
        """Return ``v − (y^T M v) y`` at points y of the ellipsoid (`asymptotic` (3))."""
        states, given = as_states(y, "y"), as_states(vectors, "vectors")
        check_same_shape(given, states, "vectors", "y")
        return like(tangent_part(states, given.to(states), self._metric_for(states)), vectors)

    def distance(self, x: ArrayLike, y: ArrayLike) -> Any:
        """Return the angle ``2 atan2(|x − y|_M, |x + y|_M)`` of the metric M, shape (…, token), in radians."""
        first, second = as_states(x), as_states(y, "y")
        check_same_shape(second, first, "y", "x")
        metric = self._metric_for(first)
        one, other = retract(first, metric, "x"), retract(second.to(first), metric, "y")
        apart, together = one - other, one + other
        lengths = (inner(part, part, metric).squeeze(-1).sqrt() for part in (apart, together))
        return like(2 * torch.atan2(*lengths), x)

    def defect(self, y: ArrayLike) -> float:
        """Return the largest ``|y^T M y − 1|`` over all tokens."""
        states = as_states(y, "y")
        if states.numel() == 0:
            return 0.0
        return float((inner(states, states, self._metric_for(states)) - 1).abs().max())

    def image(self, normal: Tensor) -> Tensor:
        """Return the tokens of `sample` that standard normal ones (…, token, dim) become.

        They are uniform for the metric M: images under M^(−1/2) of uniform points of the sphere.
        """
        metric = self._metric_for(normal)
        if metric is not None:
            values, vectors = torch.linalg.eigh(metric)
            normal = normal @ (vectors * values.rsqrt().unsqueeze(-2)) @ vectors.mT
        return retract(normal, metric, "sample")

    def _metric_for(self, states: Tensor) -> Tensor | None:
        if self.metric is None:
            return None
        if self.metric.shape[-1] != states.shape[-1]:
            wanted = f"tokens of dim {self.metric.shape[-1]} to fit metric, shape {tuple(self.metric.shape)}"
            raise ArgumentValueError("x", wanted, f"shape {tuple(states.shape)}")
        if self.metric.ndim > 2 and self.metric.shape[:-2] != states.shape[:-2]:
            wanted = f"leading axes {tuple(self.metric.shape[:-2])}, those of metric"
            raise ArgumentValueError("x", wanted, f"shape {tuple(states.shape)}")
        return self.metric.to(states)

    def __repr__(self) -> str:
        return f"Ellipsoid(metric of shape {None if self.metric is None else tuple(self.metric.shape)})"


def _checked_metric(metric: Tensor) -> Tensor:
    if bool((metric.abs().amax(dim=(-2, -1)) > _LARGEST).any()):
        raise ArgumentValueError("metric", f"entries of at most {_LARGEST:g}", "larger ones", "rescale it")
    check_positive_definite(metric, "metric", metric.dtype)
    return metric / 2 + metric.mT / 2  # the sum itself may overflow


class Sphere(Ellipsoid):
    """The unit sphere ``|y| = 1`` of any dim.

    >>> Sphere().project([[3.0, 4.0]])
    [[0.6, 0.8]]
    """

    name = "sphere"

    def __init__(self) -> None:
        self.metric: Tensor | None = None

    def __repr__(self) -> str:
        return "Sphere()"
