"""Steps of one size for everyone: of the flow, differentiable from end to end and with noise, or layers."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from tokendynamics.dynamics._deviations import Deviations, can_follow
from tokendynamics.dynamics._field import Field
from tokendynamics.dynamics._noise import BrownianMotion
from tokendynamics.dynamics.engines._endings import Lockstep
from tokendynamics.dynamics.engines.problem import Outcome, Problem
from tokendynamics.dynamics.engines.tableau import Coefficients
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.words import number


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
        raise ArgumentValueError("step", "a positive time", problem.step)
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
    for step in range(count):
        since = min(left + step * h, right)
        t = right if step == count - 1 else min(left + (step + 1) * h, right)
        y, halves = systems.y, None
        if noise is not None:
            halves = noise.of_step(before + step, y)
            y = noise.displaced(y, halves[0], h / 2)
        tried: list[tuple[Tensor, Tensor]] = []  # the states at which the field was evaluated, with their slopes
        for row, node in zip(method.stages, method.nodes, strict=True):
            state = y + h * _combined(row, tried)
            tried.append((state, field.velocity(state, min(since + node * h, t))))
        y = y + h * _combined(method.weights, tried)
        y = field.project(y) if retraction else y
        if noise is not None and halves is not None:
            y = noise.displaced(y, halves[1], h / 2)
        systems.advance(y, t, field, tried, since if halves is None else None)
        if not bool(systems.alive.any()):
            return step + 1
    return count


def _combined(weights: Tensor, tried: list[tuple[Tensor, Tensor]]) -> Tensor | float:
    # Stages of weight zero are left out: they may have overflowed without mattering.
    return sum((weight * slope for weight, (_, slope) in zip(weights.tolist(), tried, strict=True) if weight), 0.0)


def run_layers(problem: Problem) -> Outcome:
    """Apply layers 0, 1, 2, …; `problem.times` count layers, and schedules are taken at the layer's index.

    Gradients pass through, and events are looked at after each layer. Where weights are a softmax without positions,
    and no gradient is wanted, tokens that nearly agree are followed by their deviations: see `deviations`.

    Raises:
        ArgumentValueError: A time that is not a whole number.
    """
    for time in problem.times:
        if time != int(time):
            raise ArgumentValueError("times", "whole numbers", time, "the times of engine='layers' count layers")
    systems = Lockstep(problem, Outcome.blank(problem))
    apart = _start(problem)
    kept = {problem.times[0]: apart}
    first, last = int(problem.times[0]), int(problem.times[-1])
    try:
        systems.begin()
        for k in range(first, last):
            if not bool(systems.alive.any()):
                break
            after, apart_after = _layer(problem, systems.y, apart, k)
            systems.advance(after, float(k + 1), problem.field, [(systems.y, after)])
            if apart is not None and apart_after is not None:
                apart = apart_after.where(systems.outcome.end_times == float(k + 1), apart)
            if k + 1 in problem.times:
                systems.keep(float(k + 1))
                kept[float(k + 1)] = apart
            problem.report((k + 1 - first) / (last - first))
    except KeyboardInterrupt:
        pass
    outcome = systems.finished(stages=1)
    if apart is not None and (begun := kept[problem.times[0]]) is not None:
        outcome.deviations = begun.over_time([kept.get(time) or apart for time in problem.times[1:]])
    if problem.residual != 1.0:
        factor, step = number(problem.residual), number(problem.tau)
        outcome.notes.append(f"the residual connection of each layer has the factor {factor}, attention {step}")
    return outcome


def _start(problem: Problem) -> Deviations | None:
    if problem.wants_gradients or not can_follow(problem.field, problem.start):
        return None
    return Deviations.of(problem.start) if problem.deviations is None else problem.deviations


def _layer(problem: Problem, x: Tensor, apart: Deviations | None, k: int) -> tuple[Tensor, Deviations | None]:
    """Return states after layer k, and their deviations where these were known before."""
    field: Field = problem.field
    after = field.layer(x, k, problem.tau, problem.residual)
    if apart is None:
        return after, None
    differences = Deviations.of(after)
    # Only tokens that came near lost digits of their differences; the others need no second layer.
    if not bool(differences.near.any()):
        return after, differences
    followed = apart.after_layer(field, k, problem.tau, problem.residual)
    near = followed.near
    after_near = field.exactly_projected(followed.states())
    return torch.where(near[:, None, None], after_near, after), followed.where(near, differences)
