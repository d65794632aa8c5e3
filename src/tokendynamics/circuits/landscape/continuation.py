"""Continues a descent from a point, to see whether it ends nearby or runs to infinity."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokendynamics.circuits.landscape.landscape import Landscape, flatten, one_point, unflatten
from tokendynamics.circuits.landscape.symmetries import balanced, scales_against
from tokendynamics.numerics.arguments import ArrayLike
from tokendynamics.numerics.signatures import typed_arguments

_EXPANSION = 1.3
# Far out on a valley, curvatures across and along it differ by the sixth power of the norm: what is smaller than this
# part of the highest one is rounding.
_ROUNDING = 1e-14
_HALVINGS = 30


@dataclass(frozen=True)
class Continuation:
    """Where a continued descent came from and went to (both balanced where the loss allows it).

    Attributes:
        attention: The attention it ended with.
        v: The v it ended with.
        loss: The loss it ended with.
        drop: By how much the loss fell.
        growth: The factor by which ``|(q, v)|`` grew.
    """

    attention: Tensor
    v: Tensor
    loss: float
    drop: float
    growth: float


@typed_arguments
def continue_descent(
    landscape: Landscape, attention: ArrayLike, v: ArrayLike, *, expansions: int = 4, steps: int = 40
) -> Continuation:
    """Descend by Newton's method to rest, then try to rest further out.

    An attempt multiplies (q, v) by 1.3 and descends again. It counts if it comes to rest further out and at a lower
    loss. From a minimum of finite norm the descent returns to where it came from; on a valley that runs to infinity
    every attempt succeeds, also where the slope along the valley has long fallen below what a stopping rule sees.

    Args:
        landscape: Any landscape.
        attention: One matrix, the paper's q.
        v: One matrix.
        expansions: How many attempts are made; the first that fails ends them.
        steps: The largest number of Newton steps in each.
    """
    start = flatten(*one_point(landscape, attention, v))
    balance = scales_against(landscape)
    start = _balanced(landscape, start) if balance else start
    before = _loss(landscape, start)
    point, loss = _to_rest(landscape, start, steps)
    point = _balanced(landscape, point) if balance else point
    for _ in range(expansions):
        further, lower = _to_rest(landscape, _EXPANSION * point, steps)
        further = _balanced(landscape, further) if balance else further
        if not lower < loss or further.norm() <= point.norm():
            break
        point, loss = further, lower
    length = float(start.norm())
    growth = float(point.norm()) / length if length > 0.0 else 1.0
    end_q, end_v = unflatten(landscape, point)
    return Continuation(end_q, end_v, loss, before - loss, growth)


def _to_rest(landscape: Landscape, point: Tensor, steps: int) -> tuple[Tensor, float]:
    loss = _loss(landscape, point)
    for _ in range(steps):
        step, slope = _newton(landscape, point)
        moved = _descended(landscape, point, step, slope, loss)
        if moved is None:
            break
        point, loss = moved
    return point, loss


def _newton(landscape: Landscape, point: Tensor) -> tuple[Tensor, float]:
    """Return the Newton step with all curvatures taken as positive, and the derivative of the loss along it."""
    at = unflatten(landscape, point)
    slopes = landscape.gradient(*at)
    gradient = flatten(slopes.attention, slopes.v)
    curvatures, axes = torch.linalg.eigh(landscape.hessian(*at))
    sizes = curvatures.abs()
    kept = sizes > _ROUNDING * sizes.max()
    along = axes.mT @ gradient
    step = axes @ torch.where(kept, -along / torch.where(kept, sizes, 1.0), 0.0)
    # A nearly flat direction asks for any length: no step doubles the point more than once.
    longest = 1.0 + float(point.norm())
    step = step * min(1.0, longest / max(float(step.norm()), 1e-300))
    return step, float(step.dot(gradient))


def _descended(
    landscape: Landscape, point: Tensor, step: Tensor, slope: float, loss: float
) -> tuple[Tensor, float] | None:
    fractions = 0.5 ** torch.arange(_HALVINGS, dtype=torch.float64)
    trials = point + fractions[:, None] * step
    losses = landscape.loss(*unflatten(landscape, trials))
    enough = losses < loss + 1e-4 * fractions * slope
    if not bool(enough.any()):
        return None
    first = int(enough.int().argmax())
    return trials[first], float(losses[first])


def _loss(landscape: Landscape, point: Tensor) -> float:
    return float(landscape.loss(*unflatten(landscape, point)))


def _balanced(landscape: Landscape, point: Tensor) -> Tensor:
    return flatten(*balanced(*unflatten(landscape, point)))
