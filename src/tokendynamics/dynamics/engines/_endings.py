"""Which systems of a run have ended, and why: one definition for every engine.

*Diverged*: in free space a state grew until numbers overflow, or grows so fast that its pole lies within what the time
can resolve. *Not finite*: the field itself is not finite, at a state of moderate size. *Step size underflow*: states
stay bounded, and yet no step that the time can resolve is accurate enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tokendynamics.dynamics._field import Field
from tokendynamics.dynamics.engines._crossings import RadiusGuard, crossings, is_sampled
from tokendynamics.dynamics.engines.problem import Outcome, Problem
from tokendynamics.dynamics.events import Event, Status

_RESOLVED = 1e4
"""A state that grows by e within this number of units in the last place of the time is at its pole: steps there are a
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
    diverged = overflowing(field, y, t) | _at_its_pole(field, y, slope, t)
    if field.attention.weights == "exponential" and bool(diverged.any()):
        diverged = _leading_to_overflow(field, y, t, diverged)
    if field.attention.weights == "exponential" and not bool((diverged | finite).all()):
        # A stage goes as far as its slope is steep: exponentials of it overflow where the field itself is finite.
        finite = finite | _finite(field.velocity(_small_multiple(y), t + 4 * _unit(t)))
    return {Status.DIVERGED: diverged, Status.NOT_FINITE: ~diverged & ~finite, Status.UNDERFLOW: ~diverged & finite}


def of_broken(field: Field, tried: Sequence[tuple[Tensor, Tensor]], t: float) -> dict[Status, Tensor]:
    """Say which systems of a state that is not finite ended how: the first slope that is not finite counts.

    Args:
        field: The vector field.
        tried: States (system, token, dim) in the order of evaluation, each with its slope.
        t: The time at the end of the step.
    """
    # Where all slopes are finite it was their sum that overflowed.
    diverged = torch.full((len(tried[0][0]),), not field.geometry.bounded, device=tried[0][0].device)
    for state, slope in reversed(tried):
        diverged = torch.where(_finite(slope), diverged, overflowing(field, state, t))
    return {Status.DIVERGED: diverged, Status.NOT_FINITE: ~diverged}


def overflowing(field: Field, x: Tensor, t: Tensor | float) -> Tensor:
    """Tell whether states (system, token, dim) are so large, or not finite, that the field may overflow by it.

    It is at most cubic in x: below the fourth root of the largest number it is not x that makes it overflow. With
    exponential weights it is x wherever the field is finite at a small multiple.
    """
    largest = x.detach().abs().amax(dim=(-2, -1))
    if field.geometry.bounded:
        return torch.zeros_like(largest, dtype=torch.bool)
    large = ~(largest < torch.finfo(x.dtype).max ** 0.25)
    if field.attention.weights == "exponential":
        large |= ~_finite(field.velocity(x.detach(), t)) & _finite(field.velocity(_small_multiple(x), t))
    return large


_SMALL = 1e-3
"""Size of a state at which exponentials of its products are near 1."""


def _small_multiple(x: Tensor) -> Tensor:
    return x.detach() * (_SMALL / x.detach().abs().amax(dim=(-2, -1), keepdim=True))


def _unit(t: Tensor) -> Tensor:
    """Return the distance of a time from the next larger float."""
    return torch.nextafter(t.abs(), torch.full_like(t, torch.inf)) - t.abs()


def _at_its_pole(field: Field, y: Tensor, slope: Tensor, t: Tensor) -> Tensor:
    if field.geometry.bounded:
        return torch.zeros_like(t, dtype=torch.bool)
    state, change = (part.detach().double().flatten(start_dim=1) for part in (y, slope))
    growth = (state * change).sum(dim=-1) / state.square().sum(dim=-1)
    return growth * _unit(t) * _RESOLVED >= 1


_STRIDE, _STRIDES = 0.02, 400
"""Steps along a path, relative to the size of a state: 400 of them let it grow by three thousand."""


def _leading_to_overflow(field: Field, y: Tensor, t: Tensor, growing: Tensor) -> Tensor:
    """Tell which growing systems grow until the field overflows; the others come to rest, or turn, before that.

    Exponential weights let a state of a few units move as fast towards a point of rest as others towards their pole.
    Its path is followed with the time held, at one speed.
    """
    states, times, leads = y.detach().double(), t, growing
    on_its_way = growing
    for _ in range(_STRIDES):
        if not bool(on_its_way.any()):
            break
        slope = field.velocity(states.to(y), times).double()
        broken = ~_finite(slope)
        on_its_way = on_its_way & ~broken
        rest = on_its_way & ~_at_its_pole(field, states, slope, times)
        leads, on_its_way = leads & ~rest, on_its_way & ~rest
        # Largest entries: the sum of squares of a speed overflows before the speed does.
        size, speed = (part.abs().amax(dim=(-2, -1), keepdim=True) for part in (states, slope))
        stride = _STRIDE * size * (slope / speed)
        states = states + torch.where(on_its_way[:, None, None], stride, 0.0)
    return leads & ~on_its_way


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
        self._events = (*problem.events, *problem.recorded)
        self._sampled = any(map(is_sampled, self._events))
        self._values: list[Tensor] = []
        self.states: dict[float, Tensor] = {problem.times[0]: problem.start}

    def begin(self) -> None:
        """End the systems that meet an event at the start."""
        self._values = self._values_at(self.problem.field, self.problem.times[0])
        for event, value in zip(self.problem.events, self._values, strict=False):
            self._end(self.alive & (value <= 0), event.status)

    def advance(
        self, y: Tensor, t: float, field: Field, tried: Sequence[tuple[Tensor, Tensor]], since: float | None = None
    ) -> None:
        """Take new states at time t where systems are alive and the states finite; then look at the events.

        Args:
            y: The new states.
            t: Their time.
            field: The vector field.
            tried: The states at which the step evaluated the field, in order, each with its slope; the first at the
                start of the step.
            since: The time at the start of a step of the flow, within which events are looked for; None for a map.
        """
        broken = self.alive & ~torch.isfinite(y.detach()).flatten(start_dim=1).all(dim=-1).cpu()
        if bool(broken.any()):
            for status, which in of_broken(field, tried, t).items():
                self._end(broken & which.cpu(), status)
        path = None if since is None or not self._sampled else _Cubic.of(field, self.y, y, tried[0][1], since, t)
        left, self.y = self.y, torch.where(self.alive.to(y.device)[:, None, None], y, self.y)
        self.outcome.end_times[self.alive] = t
        self.outcome.counts["accepted"] += self.alive
        self._look(field, t, path)
        # A layer may well jump over zero; no stage of a step of the flow may.
        for event in self.problem.events if since is not None else ():
            if isinstance(event, RadiusGuard):
                passed = [event.is_passed(left.detach(), state.detach()) for state in (*(x for x, _ in tried), self.y)]
                self._end(self.alive & torch.stack(passed).any(dim=0).cpu(), event.status)
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

    def _values_at(self, field: Field, t: float) -> list[Tensor]:
        now = torch.full((len(self.y),), t, dtype=torch.float64, device=self.y.device)
        return [event.value(field, self.y.detach(), now).double().cpu() for event in self._events]

    def _look(self, field: Field, t: float, path: _Cubic | None) -> None:
        """Record what fell to zero in this step, and end the systems that met an event in it, at its end."""
        if not self._events or not bool(self.alive.any()):
            return
        before, self._values = self._values, self._values_at(field, t)
        ending, alive = len(self.problem.events), self.alive
        for number, (event, former, value) in enumerate(zip(self._events, before, self._values, strict=True)):
            rows, times, states = self._falls(event, former, value, t, path)
            if number >= ending:
                self.outcome.crossings += [
                    (number - ending, row, time, state)
                    for row, time, state in zip(rows.tolist(), times, states, strict=True)
                    if bool(alive[row])
                ]
                continue
            met = value <= 0
            met[rows] = True
            self._end(self.alive & met, event.status)

    def _falls(
        self, event: Event, before: Tensor, after: Tensor, t: float, path: _Cubic | None
    ) -> tuple[Tensor, list[float], list[Tensor]]:
        """Return the systems in which a value falls to zero, with times and states there; of a map, at its end."""
        if path is None or not is_sampled(event):
            rows = ((before > 0) & (after <= 0)).nonzero().squeeze(-1)
            return rows, [t] * len(rows), list(self.y[rows].detach().clone())
        rows, shares = crossings(lambda index, share: path.value(event, index, share), before, after)
        return rows, (path.since + shares * (t - path.since)).tolist(), list(path.at(rows, shares))

    def _end(self, which: Tensor, status: Status) -> None:
        for row in which.nonzero().squeeze(-1).tolist():
            self.outcome.status[row] = status
        self.alive = self.alive & ~which


@dataclass(frozen=True)
class _Cubic:
    """States within a step, by the cubic through states and slopes at both ends (Hermite).

    Attributes:
        field: The vector field.
        ends: States at both ends, (system, token, dim), not followed by gradients.
        slopes: The field there, times the length of the step.
        since: The time at the start.
        until: The time at the end.
    """

    field: Field
    ends: tuple[Tensor, Tensor]
    slopes: tuple[Tensor, Tensor]
    since: float
    until: float

    @classmethod
    def of(cls, field: Field, before: Tensor, after: Tensor, slope: Tensor, since: float, until: float) -> _Cubic:
        before, after, slope = before.detach(), after.detach(), slope.detach()
        with torch.no_grad():
            last = field.velocity(after, until)
        return cls(field, (before, after), ((until - since) * slope, (until - since) * last), since, until)

    def at(self, rows: Tensor, shares: Tensor) -> Tensor:
        """Return states of some systems at shares of the step."""
        place = rows.to(self.ends[0].device)
        s = shares.to(self.ends[0])[:, None, None]
        (left, right), (first, last) = (tuple(part[place] for part in pair) for pair in (self.ends, self.slopes))
        x = (1 + 2 * s) * (1 - s) ** 2 * left + s**2 * (3 - 2 * s) * right
        x = x + s * (1 - s) ** 2 * first - s**2 * (1 - s) * last
        return self.field.select(place).exactly_projected(x)

    def value(self, event: Event, rows: Tensor, shares: Tensor) -> Tensor:
        """Return an event's values of some systems at shares of the step."""
        x = self.at(rows, shares)
        times = (self.since + shares * (self.until - self.since)).to(x.device)
        return event.value(self.field.select(rows.to(x.device)), x, times).double().cpu()
