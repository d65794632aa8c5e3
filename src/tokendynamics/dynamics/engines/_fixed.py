"""A fixed step for everyone: differentiable from end to end, and the measure of a method's order."""

from __future__ import annotations

import math
from itertools import pairwise

from torch import Tensor

from tokendynamics.dynamics._field import Field
from tokendynamics.dynamics.engines._endings import Lockstep
from tokendynamics.dynamics.engines._stages import Coefficients
from tokendynamics.dynamics.engines.problem import Outcome, Problem
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected


def run(problem: Problem, retraction: bool = True) -> Outcome:
    """Step from output time to output time in equal steps no longer than `problem.step`.

    Nothing is written in place, so gradients flow to the start and to the matrices. Events are looked for within each
    step, along the cubic through its ends: a system ends at the end of the step in which it meets one.

    Args:
        problem: With `step` set.
        retraction: Whether constrained states are retracted after each step, and not only where they are returned.
    """
    if problem.step is None or not problem.step > 0:
        raise ArgumentValueError(expected("step", "a positive time", problem.step))
    method = Coefficients.of(problem.tableau, problem.start)
    systems = Lockstep(problem, Outcome.blank(problem))
    first, last = problem.times[0], problem.times[-1]
    stops = sorted({*problem.times, *problem.field.joints(first, last)})
    try:
        systems.begin()
        for left, right in pairwise(stops):
            if not bool(systems.alive.any()):
                break
            _interval(systems, problem.field.within(left, right), method, (left, right), retraction)
            if right in problem.times:
                systems.keep(right)
            problem.report((right - first) / (last - first))
    except KeyboardInterrupt:
        pass
    return systems.finished(len(problem.tableau.stages), problem.field.exactly_projected)


def _interval(
    systems: Lockstep, field: Field, method: Coefficients, ends: tuple[float, float], retraction: bool
) -> None:
    left, right = ends
    count = math.ceil((right - left) / (systems.problem.step or right - left) * (1 - 1e-12))
    h = (right - left) / count
    for number in range(count):
        since = min(left + number * h, right)
        t = right if number == count - 1 else min(left + (number + 1) * h, right)
        y, tried = _step(field, method, systems.y, since, h, t)
        systems.moved(field.project(y) if retraction else y, t, field, tried, since)
        if not bool(systems.alive.any()):
            return


def _step(
    field: Field, method: Coefficients, y: Tensor, t: float, h: float, until: float
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Return the new states, and the states at which the field was evaluated with their slopes."""
    tried: list[tuple[Tensor, Tensor]] = []
    for row, node in zip(method.stages, method.nodes, strict=True):
        state = y + h * _combined(row, tried)
        tried.append((state, field.velocity(state, min(t + node * h, until))))
    return y + h * _combined(method.weights, tried), tried


def _combined(weights: Tensor, tried: list[tuple[Tensor, Tensor]]) -> Tensor | float:
    # Stages of weight zero are left out: they may have overflowed without mattering.
    return sum((weight * slope for weight, (_, slope) in zip(weights.tolist(), tried, strict=True) if weight), 0.0)
