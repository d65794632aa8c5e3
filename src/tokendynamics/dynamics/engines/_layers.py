"""The discrete model: the map of a layer, again and again."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.dynamics._deviations import Deviations, can_follow
from tokendynamics.dynamics._field import Field
from tokendynamics.dynamics.engines._endings import Lockstep
from tokendynamics.dynamics.engines.problem import Outcome, Problem
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.words import number


def run(problem: Problem) -> Outcome:
    """Apply layers 0, 1, 2, …; `problem.times` count layers, and schedules are taken at the layer's index.

    Gradients pass through, and events are looked at after each layer. Where weights are a softmax without positions,
    and no gradient is wanted, tokens that nearly agree are followed by their deviations: see `deviations`.

    Raises:
        ArgumentValueError: A time that is not a whole number.
    """
    for time in problem.times:
        if time != int(time):
            advice = "the times of engine='layers' count layers"
            raise ArgumentValueError(expected("times", "whole numbers", time, advice))
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
            systems.moved(after, float(k + 1), problem.field, [(systems.y, after)])
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
