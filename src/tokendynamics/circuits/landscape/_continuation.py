"""Continues a descent to see whether it ends nearby or at infinity; and the moves that change no loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokendynamics.circuits.landscape.landscape import Landscape, flatten, one_point, unflatten
from tokendynamics.numerics.arguments import ArrayLike
from tokendynamics.numerics.seeding import generator
from tokendynamics.numerics.signatures import typed_arguments

_FACTOR = 1.25
_TOLERANCE = 1e-11


@dataclass(frozen=True)
class Symmetries:
    """The symmetries of a landscape, as directions at one point.

    Attributes:
        names: Which were found, of "scaling q against v", "scaling q", "scaling v", "constant on a column of q",
            "constant on a column of v" and "entries without influence".
        directions: An orthonormal basis of all their directions at the point, shape (n, count) over the flattened
            (q, v).
    """

    names: tuple[str, ...]
    directions: Tensor


@typed_arguments
def find_symmetries(landscape: Landscape, attention: ArrayLike, v: ArrayLike) -> Symmetries:
    """Find the symmetries that hold at a point in general position, and their directions at (attention, v).

    Args:
        landscape: Any landscape.
        attention: One matrix, the paper's q.
        v: One matrix.

    >>> from tokendynamics.circuits.landscape import PositionsOnly
    >>> found = find_symmetries(PositionsOnly([0.5, 0.5], 2), [[0.0, 1.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]])
    >>> found.names
    ('scaling q against v', 'constant on a column of q', 'entries without influence')
    """
    point = flatten(*one_point(landscape, attention, v))
    # Tried elsewhere, since at the point itself a move may change nothing by accident (any v where q = 0).
    general = _general_point(landscape)
    names, moves, directions = _candidates(landscape, general, point)
    losses = landscape.loss(*unflatten(landscape, torch.stack([general, *moves])))
    kept = (losses[1:] - losses[0]).abs() <= _TOLERANCE * losses[0].abs()
    found = tuple(dict.fromkeys(name for name, keep in zip(names, kept.tolist(), strict=True) if keep))
    return Symmetries(found, _orthonormal(torch.stack(directions, dim=-1)[:, kept]))


def scales_against(landscape: Landscape) -> bool:
    """Return whether ``(q, v) → (q/λ, λv)`` changes no loss, tried at a point in general position."""
    return "scaling q against v" in find_symmetries(landscape, *unflatten(landscape, _general_point(landscape))).names


def balanced(attention: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the point ``(q/λ, λv)`` with ``|q| = |v|``; where one of them is zero the other gets norm 1.

    >>> attention, v = balanced(torch.tensor([[4.0]]), torch.tensor([[1.0]]))
    >>> attention.item(), v.item()
    (2.0, 2.0)
    """
    q_norm, v_norm = float(attention.norm()), float(v.norm())
    if q_norm == 0.0 or v_norm == 0.0:
        return attention / (q_norm or 1.0), v / (v_norm or 1.0)
    factor = (q_norm / v_norm) ** 0.5
    return attention / factor, v * factor


def _general_point(landscape: Landscape) -> Tensor:
    size = sum(rows * columns for rows, columns in (landscape.attention_shape, landscape.v_shape))
    return torch.randn(size, generator=generator(0), dtype=torch.float64)


def _candidates(landscape: Landscape, general: Tensor, point: Tensor) -> tuple[list[str], list[Tensor], list[Tensor]]:
    (q, v), (q_here, v_here) = unflatten(landscape, general), unflatten(landscape, point)
    names = ["scaling q against v", "scaling q", "scaling v"]
    moves = [flatten(q / _FACTOR, v * _FACTOR), flatten(q * _FACTOR, v), flatten(q, v * _FACTOR)]
    none_q, none_v = torch.zeros_like(q), torch.zeros_like(v)
    directions = [flatten(-q_here, v_here), flatten(q_here, none_v), flatten(none_q, v_here)]
    for name, step in _shifts(landscape):
        names.append(name)
        moves.append(general + step)
        directions.append(step)
    return names, moves, directions


def _shifts(landscape: Landscape) -> list[tuple[str, Tensor]]:
    attention, v = torch.zeros(landscape.attention_shape).double(), torch.zeros(landscape.v_shape).double()
    shifts = []
    for column in range(landscape.attention_shape[1]):
        step = attention.clone()
        step[:, column] = 1.0
        shifts.append(("constant on a column of q", flatten(step, v)))
    for column in range(landscape.v_shape[1]):
        step = v.clone()
        step[:, column] = 1.0
        shifts.append(("constant on a column of v", flatten(attention, step)))
    entries = torch.eye(attention.numel() + v.numel(), dtype=torch.float64)
    return shifts + [("entries without influence", entry) for entry in entries]


def _orthonormal(directions: Tensor) -> Tensor:
    lengths = directions.norm(dim=0)
    unit = directions[:, lengths > 0] / lengths[lengths > 0]
    left, values, _ = torch.linalg.svd(unit, full_matrices=False)
    return left[:, values > 1e-9]


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
