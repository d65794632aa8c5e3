"""Which systems of a run that moves in lockstep have ended, and why; gradients pass through."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tokendynamics.dynamics.engines.endings import of_broken
from tokendynamics.dynamics.engines.problem import Outcome, Problem
from tokendynamics.dynamics.field import Field
from tokendynamics.dynamics.status import Status


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
