"""The discrete model: the map of a layer, again and again."""

from __future__ import annotations

import torch

from tokendynamics.dynamics.engines.problem import Outcome, Problem
from tokendynamics.dynamics.status import Status
from tokendynamics.numerics.errors import ArgumentValueError, expected


def run(problem: Problem) -> Outcome:
    """Apply layers 0, 1, 2, …; `problem.times` count layers, and schedules are taken at the layer's index.

    Raises:
        ArgumentValueError: A time that is not a whole number.
    """
    for time in problem.times:
        if time != int(time):
            advice = "the times of engine='layers' count layers"
            raise ArgumentValueError(expected("times", "whole numbers", time, advice))
    outcome = Outcome.blank(problem)
    y, alive, (first, last) = problem.start, torch.ones(len(problem.start), dtype=torch.bool), _span(problem)
    place = {int(time): index for index, time in enumerate(problem.times)}
    try:
        for k in range(first, last):
            alive = _end_at_events(problem, outcome, y, float(k), alive)
            moved = problem.field.layer(y, k, problem.tau)
            finite = torch.isfinite(moved).flatten(start_dim=1).all(dim=-1).cpu()
            _end(outcome, alive & ~finite, Status.NOT_FINITE, float(k))
            alive = alive & finite
            y = torch.where(alive.to(y.device)[:, None, None], moved, y)
            outcome.counts["accepted"] += alive
            outcome.counts["right_hand_sides"] += alive
            outcome.end_times[alive] = float(k + 1)
            if k + 1 in place:
                outcome.states[:, place[k + 1]] = y.detach()
            problem.report((k + 1 - first) / (last - first))
            if not bool(alive.any()):
                break
    except KeyboardInterrupt:
        _end(outcome, alive, Status.INTERRUPTED, None)
        outcome.interrupted = True
    _hold(problem, outcome, y)
    return outcome


def _span(problem: Problem) -> tuple[int, int]:
    return int(problem.times[0]), int(problem.times[-1])


def _end_at_events(problem: Problem, outcome: Outcome, y: torch.Tensor, k: float, alive: torch.Tensor) -> torch.Tensor:
    now = torch.full((len(y),), k, dtype=torch.float64, device=y.device)
    for event in problem.events:
        hit = alive & (event.value(problem.field, y, now) <= 0).cpu()
        _end(outcome, hit, event.status, k)
        alive = alive & ~hit
    return alive


def _end(outcome: Outcome, which: torch.Tensor, status: Status, k: float | None) -> None:
    for row in which.nonzero().squeeze(-1).tolist():
        outcome.status[row] = status
        if k is not None:
            outcome.end_times[row] = k


def _hold(problem: Problem, outcome: Outcome, y: torch.Tensor) -> None:
    times = torch.tensor(problem.times, dtype=torch.float64)
    for row in range(len(y)):
        outcome.states[row, times > outcome.end_times[row]] = y[row].detach()
