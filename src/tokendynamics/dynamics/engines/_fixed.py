"""A fixed step for everyone: differentiable from end to end, the measure of a method's order, and how noise is run."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from tokendynamics.dynamics._field import Field
from tokendynamics.dynamics._noise import BrownianMotion
from tokendynamics.dynamics.engines._endings import Lockstep
from tokendynamics.dynamics.engines.problem import Outcome, Problem
from tokendynamics.dynamics.engines.tableau import Coefficients
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected


def run(problem: Problem, retraction: bool = True) -> Outcome:
    """Step from output time to output time in equal steps no longer than `problem.step`.

    Nothing is written in place, so gradients flow to the start and to the matrices. Events are looked for within each
    step, along the cubic through its ends: a system ends at the end of the step in which it meets one. With noise, of
    which a step of the flow stands between two halves, they are looked for at the ends of steps only.

    Args:
        problem: With `step` set.
        retraction: Whether constrained states are retracted after each step, and not only where they are returned.
    """
    if problem.step is None or not problem.step > 0:
        raise ArgumentValueError(expected("step", "a positive time", problem.step))
    method = Coefficients.of(problem.tableau, problem.start)
    systems, noise = Lockstep(problem, Outcome.blank(problem)), BrownianMotion.of(problem.field, problem.draws)
    first, last = problem.times[0], problem.times[-1]
    stops, steps = sorted({*problem.times, *problem.field.joints(first, last)}), 0
    try:
        systems.begin()
        for left, right in pairwise(stops):
            if not bool(systems.alive.any()):
                break
            field = problem.field.within(left, right)
            steps += _interval(systems, field, method, (left, right), retraction, noise, steps)
            if right in problem.times:
                systems.keep(right)
            problem.report((right - first) / (last - first))
    except KeyboardInterrupt:
        pass
    outcome = systems.finished(len(problem.tableau.stages), problem.field.exactly_projected)
    if problem.draws is not None:
        outcome.counts["drawn"] = torch.as_tensor(problem.draws.taken) + outcome.counts["accepted"]
    return outcome


def _interval(
    systems: Lockstep,
    field: Field,
    method: Coefficients,
    ends: tuple[float, float],
    retraction: bool,
    noise: BrownianMotion | None,
    before: int,
) -> int:
    """Step from one end to the other, after `before` steps, and return the number of steps."""
    left, right = ends
    count = math.ceil((right - left) / (systems.problem.step or right - left) * (1 - 1e-12))
    h = (right - left) / count
    for number in range(count):
        since = min(left + number * h, right)
        t = right if number == count - 1 else min(left + (number + 1) * h, right)
        y, halves = systems.y, None
        if noise is not None:
            halves = noise.of_step(before + number, y)
            y = noise.moved(y, halves[0], h / 2)
        y, tried = _step(field, method, y, since, h, t)
        y = field.project(y) if retraction else y
        if noise is not None and halves is not None:
            y = noise.moved(y, halves[1], h / 2)
        systems.moved(y, t, field, tried, since if halves is None else None)
        if not bool(systems.alive.any()):
            return number + 1
    return count


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
