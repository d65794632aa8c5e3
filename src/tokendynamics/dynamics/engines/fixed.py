"""A fixed step for everyone: differentiable from end to end, and the measure of a method's order."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from tokendynamics.dynamics.engines.problem import Outcome, Problem
from tokendynamics.dynamics.engines.stages import Coefficients
from tokendynamics.dynamics.field import Field
from tokendynamics.dynamics.status import Status
from tokendynamics.numerics.errors import ArgumentValueError, expected


def run(problem: Problem, retraction: bool = True) -> Outcome:
    """Step from output time to output time in equal steps no longer than `problem.step`.

    Nothing is written in place, so gradients flow to the start and to the matrices. There are no events.

    Args:
        problem: With `step` set.
        retraction: Whether constrained states are retracted after each step, and not only where they are returned.
    """
    if problem.step is None or not problem.step > 0:
        raise ArgumentValueError(expected("step", "a positive time", problem.step))
    method = Coefficients.of(problem.tableau, problem.start)
    y, states, steps = problem.start, [problem.start], 0
    stops = sorted({*problem.times, *problem.field.attention.breaks(problem.times[0], problem.times[-1])})
    status = Status.HORIZON
    try:
        for left, right in pairwise(stops):
            field = problem.field.within(left, right)
            count = math.ceil((right - left) / problem.step * (1 - 1e-12))
            for number in range(count):
                y = _step(field, method, y, left + number * (right - left) / count, (right - left) / count)
                y = field.project(y) if retraction else y
            steps += count
            if right in problem.times:
                states.append(field.exactly_projected(y))
            problem.report((right - problem.times[0]) / (problem.times[-1] - problem.times[0]))
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    return _outcome(problem, states, steps, status)


def _step(field: Field, method: Coefficients, y: Tensor, t: float, h: float) -> Tensor:
    slopes: list[Tensor] = []
    for row, node in zip(method.stages, method.nodes, strict=True):
        state = y + h * sum((a * k for a, k in zip(row.tolist(), slopes, strict=True)), torch.zeros_like(y))
        slopes.append(field.velocity(state, t + node * h))
    return y + h * sum((b * k for b, k in zip(method.weights.tolist(), slopes, strict=True)), torch.zeros_like(y))


def _outcome(problem: Problem, states: list[Tensor], steps: int, status: Status) -> Outcome:
    outcome = Outcome.blank(problem)
    reached = len(states) - 1
    states = states + [states[-1]] * (len(problem.times) - len(states))
    found = torch.stack(states, dim=1)
    finite = torch.isfinite(found).flatten(start_dim=2).all(dim=-1).long().cumprod(dim=1).sum(dim=1) - 1
    held = torch.minimum(torch.arange(len(states), device=finite.device), finite.unsqueeze(-1))
    outcome.states = found[torch.arange(len(found), device=finite.device).unsqueeze(-1), held]
    outcome.status = [status if last == len(states) - 1 else Status.NOT_FINITE for last in finite.tolist()]
    outcome.end_times = torch.tensor(problem.times, dtype=torch.float64)[finite.clamp_max(reached).cpu()]
    outcome.counts["accepted"] += steps
    outcome.counts["right_hand_sides"] += steps * len(problem.tableau.stages)
    outcome.interrupted = status is Status.INTERRUPTED
    return outcome
