"""Which systems of a run have ended, and why: one definition for every engine.

*Diverged*: in free space a state grew until numbers overflow, or grows so fast that its pole lies within what the time
can resolve. *Not finite*: the field itself is not finite, at a state of moderate size. *Step size underflow*: states
stay bounded, and yet no step that the time can resolve is accurate enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tokendynamics.dynamics._field import Field
from tokendynamics.dynamics._status import Status
from tokendynamics.dynamics.engines._problem import Outcome, Problem

_RESOLVED = 1e4
"""A state that grows by e within so many units in the last place of the time is at its pole: steps there are a
hundredth or a thousandth of what is left, and the last one is one unit long."""


def of_stuck(field: Field, y: Tensor, slope: Tensor, t: Tensor, finite: Tensor) -> dict[Status, Tensor]:
    """Say which systems whose step is too short for their time ended how.

    Args:
        field: The vector field.
        y: States (system, token, dim).
        slope: The field there.
        t: Times (system,), float64.
        finite: Whether the field was finite all over the last step tried, (system,).
    """
    diverged = overflowing(field, y) | _at_its_pole(field, y, slope, t)
    return {Status.DIVERGED: diverged, Status.NOT_FINITE: ~diverged & ~finite, Status.UNDERFLOW: ~diverged & finite}


def of_broken(field: Field, tried: Sequence[tuple[Tensor, Tensor]]) -> dict[Status, Tensor]:
    """Say which systems of a state that is not finite ended how: the first slope that is not finite counts.

    Args:
        field: The vector field.
        tried: States (system, token, dim) in the order of evaluation, each with its slope.
    """
    # Where all slopes are finite it was their sum that overflowed.
    diverged = torch.full((len(tried[0][0]),), not field.geometry.bounded, device=tried[0][0].device)
    for state, slope in reversed(tried):
        diverged = torch.where(_finite(slope), diverged, overflowing(field, state))
    return {Status.DIVERGED: diverged, Status.NOT_FINITE: ~diverged}


def overflowing(field: Field, x: Tensor) -> Tensor:
    """Tell whether states (system, token, dim) are so large, or not finite, that the field may overflow by it.

    It is at most cubic in x: below the fourth root of the largest number it is not x that makes it overflow.
    """
    largest = x.detach().abs().amax(dim=(-2, -1))
    if field.geometry.bounded:
        return torch.zeros_like(largest, dtype=torch.bool)
    return ~(largest < torch.finfo(x.dtype).max ** 0.25)


def _at_its_pole(field: Field, y: Tensor, slope: Tensor, t: Tensor) -> Tensor:
    if field.geometry.bounded:
        return torch.zeros_like(t, dtype=torch.bool)
    state, change = (part.detach().double().flatten(start_dim=1) for part in (y, slope))
    growth = (state * change).sum(dim=-1) / state.square().sum(dim=-1)
    unit = torch.nextafter(t.abs(), torch.full_like(t, torch.inf)) - t.abs()
    return growth * unit * _RESOLVED >= 1


def _finite(x: Tensor) -> Tensor:
    return torch.isfinite(x.detach()).flatten(start_dim=1).all(dim=-1)


class Lockstep:
    """Systems that all take the same steps: each ends by itself and is held from there.

    Attributes:
        y: States (system, token, dim) where each system is.
        alive: Which systems are under way.
    """

    def __init__(self, problem: Problem, outcome: Outcome) -> None:
        self.problem, self.outcome = problem, outcome
        self.y = problem.start
        self.alive = torch.ones(len(problem.start), dtype=torch.bool)
        self._values: list[Tensor] = []
        self.states: dict[float, Tensor] = {problem.times[0]: problem.start}

    def begin(self) -> None:
        """End the systems that meet an event at the start."""
        self._values = self._recorded_values(self.problem.field, self.problem.times[0])
        self._end_at_events(self.problem.field, self.problem.times[0])

    def moved(self, y: Tensor, t: float, field: Field, tried: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Take new states at time t where systems are alive and the states finite; then look at the events.

        Args:
            y: The new states.
            t: Their time.
            field: The vector field.
            tried: The states at which the step evaluated the field, in order, each with its slope.
        """
        broken = self.alive & ~torch.isfinite(y.detach()).flatten(start_dim=1).all(dim=-1).cpu()
        if bool(broken.any()):
            for status, which in of_broken(field, tried).items():
                self._end(broken & which.cpu(), status)
        self.y = torch.where(self.alive.to(y.device)[:, None, None], y, self.y)
        self.outcome.end_times[self.alive] = t
        self.outcome.counts["accepted"] += self.alive
        self._record(field, t)
        self._end_at_events(field, t)
        self._end(self.alive & (self.outcome.counts["accepted"] >= self.problem.max_steps), Status.BUDGET)

    def keep(self, t: float) -> None:
        """Hand out the present states as those of time t."""
        self.states[t] = self.y

    def finished(self, stages: int, handed_out: Callable[[Tensor], Tensor] = lambda y: y) -> Outcome:
        """Return the outcome; what was not reached holds the last state, and whoever is left was interrupted.

        Args:
            stages: Right-hand sides of a step.
            handed_out: What becomes of states, other than the start, before they are returned.
        """
        outcome, times = self.outcome, self.problem.times
        outcome.interrupted = len(self.states) < len(times) and bool(self.alive.any())
        if outcome.interrupted:
            self._end(self.alive, Status.INTERRUPTED)
        later = [handed_out(self.states.get(time, self.y)) for time in times[1:]]
        outcome.states = torch.stack([self.problem.start, *later], dim=1)
        outcome.counts["right_hand_sides"] = stages * outcome.counts["accepted"]
        last = outcome.end_times >= times[-1]
        outcome.status = [
            Status.HORIZON if reached and status is Status.BUDGET else status
            for reached, status in zip(last.tolist(), outcome.status, strict=True)
        ]
        return outcome

    def _recorded_values(self, field: Field, t: float) -> list[Tensor]:
        now = torch.full((len(self.y),), t, dtype=torch.float64, device=self.y.device)
        return [event.value(field, self.y.detach(), now).cpu() for event in self.problem.recorded]

    def _record(self, field: Field, t: float) -> None:
        """Write down the systems in which a recorded event's value fell to zero in this step, at its end."""
        before, self._values = self._values, self._recorded_values(field, t)
        for number, (former, value) in enumerate(zip(before, self._values, strict=True)):
            for row in (self.alive & (former > 0) & (value <= 0)).nonzero().squeeze(-1).tolist():
                self.outcome.crossings.append((number, row, t, self.y[row].detach().clone()))

    def _end_at_events(self, field: Field, t: float) -> None:
        now = torch.full((len(self.y),), t, dtype=torch.float64, device=self.y.device)
        for event in self.problem.events:
            if bool(self.alive.any()):
                self._end(self.alive & (event.value(field, self.y.detach(), now) <= 0).cpu(), event.status)

    def _end(self, which: Tensor, status: Status) -> None:
        for row in which.nonzero().squeeze(-1).tolist():
            self.outcome.status[row] = status
        self.alive = self.alive & ~which
