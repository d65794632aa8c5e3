"""Many systems at once in PyTorch: an embedded Runge–Kutta pair with step control for every system by itself.

On the sphere and ellipsoids each accepted step is retracted, ``y / |y|_M``. The field is evaluated at projections,
so the last stage, taken before the retraction, is the first stage of the next step unchanged. Systems that have
ended are compacted away. A step ends exactly where a schedule
jumps or has a kink.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from tokendynamics.dynamics._field import Field
from tokendynamics.dynamics.engines._crossings import RadiusGuard, crossings, is_sampled, may_cross
from tokendynamics.dynamics.engines._endings import of_stuck
from tokendynamics.dynamics.engines.problem import Outcome, Problem
from tokendynamics.dynamics.engines.tableau import Attempt, Coefficients, take_step
from tokendynamics.dynamics.events import Event, Status
from tokendynamics.spaces.retraction import inner

_BLOCK_ENTRIES = 2**18
"""Systems are run in blocks of about this many numbers of state or weights, so that their stages stay in cache."""

_SAFETY, _SLOWEST, _FASTEST = 0.9, 0.2, 10.0


def run(problem: Problem) -> Outcome:
    """Run all systems of the problem, block by block."""
    outcome = Outcome.blank(problem)
    systems, tokens, dim = problem.start.shape
    weights = problem.field.attention.heads * min(tokens, 128) * tokens
    size = max(1, _BLOCK_ENTRIES // max(tokens * dim, weights, problem.footprint))
    blocks = torch.arange(systems, device=problem.start.device).split(size)
    coefficients = Coefficients.of(problem.tableau, problem.start)
    for number, ids in enumerate(blocks):
        block = _Block(
            problem, coefficients, problem.field.select(ids), outcome, ids, number / len(blocks), len(blocks)
        )
        try:
            block.run()
        except KeyboardInterrupt:
            for remaining in blocks[number + 1 :]:
                block.mark(remaining, Status.INTERRUPTED)
            outcome.interrupted = True
            break
    return outcome


@dataclass
class _Moving:
    """The systems of a block that are under way, compacted: everything has one row per system.

    `values` are those of the events that end runs and of the recorded ones, (system, event), at the states y.
    """

    ids: Tensor
    y: Tensor
    t: Tensor
    h: Tensor
    slope: Tensor
    last_ratio: Tensor
    tried: Tensor
    values: Tensor
    field: Field

    def kept(self, keep: Tensor) -> _Moving:
        index = keep.nonzero().squeeze(-1)
        names = ("ids", "y", "t", "h", "slope", "last_ratio", "tried", "values")
        rows = {name: getattr(self, name)[index] for name in names}
        return _Moving(**rows, field=self.field.select(index))


class _Block:
    """The run of one block of systems; `ids` are their rows in the outcome."""

    def __init__(
        self,
        problem: Problem,
        coefficients: Coefficients,
        field: Field,
        outcome: Outcome,
        ids: Tensor,
        done: float,
        blocks: int,
    ) -> None:
        self.problem, self.coefficients, self.field, self.outcome, self.ids = problem, coefficients, field, outcome, ids
        self.done, self.blocks = done, blocks
        self.times = torch.tensor(problem.times, dtype=torch.float64, device=ids.device)
        self.stops = torch.tensor(problem.stops, dtype=torch.float64, device=ids.device)
        self.events = (*problem.events, *problem.recorded)
        self.y = problem.start[ids]
        self.h = torch.zeros(len(ids), dtype=torch.float64, device=ids.device)
        self.tried = torch.zeros(len(ids), dtype=torch.int64, device=ids.device)
        self.cursor = torch.ones(len(ids), dtype=torch.int64, device=ids.device)
        self.alive = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
        self.moving: _Moving | None = None

    def run(self) -> None:
        start, end = self.problem.times[0], self.problem.times[-1]
        joints = [start, *self.field.joints(start, end), end]
        try:
            self._end_where_events_hold(start)
            for left, right in pairwise(joints):
                self._segment(left, right)
        except KeyboardInterrupt:
            if self.moving is not None:
                self._finish(self.moving, torch.ones_like(self.moving.ids, dtype=torch.bool), Status.INTERRUPTED)
            # The others that are not done stand at the end of a segment.
            ends = self.outcome.end_times[self.ids.cpu()].to(self.ids.device)
            waiting = (self.alive & (ends < end)).nonzero().squeeze(-1)
            self._stop(waiting, self.y[waiting], ends[waiting], Status.INTERRUPTED)
            raise

    def mark(self, ids: Tensor, status: Status) -> None:
        for i in ids.tolist():
            self.outcome.status[i] = status

    def _segment(self, left: float, right: float) -> None:
        local = self.alive.nonzero().squeeze(-1)
        if len(local) == 0 or right <= left:
            return
        moving = self._set_off(local, self.field.within(left, right).select(local), left, right)
        while len(moving.ids):
            self.moving = moving
            moving = self.moving = self._advance(moving, right)
            share = float(moving.t.mean()) if len(moving.ids) else right
            self._report(share)
        self.moving = None

    def _set_off(self, local: Tensor, field: Field, left: float, right: float) -> _Moving:
        y, t = self.y[local], torch.full_like(self.h[local], left)
        slope = field.velocity(y, field_time(field, t))
        self._count("right_hand_sides", local, 1)
        h = self.h[local]
        if bool((h == 0).any()):
            h = torch.where(h == 0, self._first_step(field, y, t, slope, right - left), h)
            self._count("right_hand_sides", local, 1)
        h = self._bounded(h).clamp_min(math.nextafter(left, math.inf) - left)
        return _Moving(local, y, t, h, slope, torch.ones_like(h), self.tried[local], self._values(field, y, t), field)

    def _first_step(self, field: Field, y: Tensor, t: Tensor, slope: Tensor, length: float) -> Tensor:
        """Guess the step whose error is a hundredth of what the tolerances allow, from the sizes of y, y' and y''.

        The slope changes by itself in a time ``τ = |y'| / |y''|``, and a step h of order p errs by about
        ``h |y'| (h / τ)^p``. Unlike the guess in Hairer, Nørsett and Wanner, Solving Ordinary Differential Equations I,
        II.4, it is half as long in a flow that is twice as fast.
        """
        size, speed = (self._in_tolerances(field, part, y) for part in (y, slope))
        tiny = (size < 1e-5) | (speed < 1e-5)
        guess = torch.where(tiny, torch.full_like(size, 1e-6), 0.01 * size / speed.clamp_min(1e-300)).clamp_max(length)
        # A field that is not finite at the start leaves no step, and no function of time is asked at NaN.
        guess = torch.where(torch.isfinite(guess), guess, torch.zeros_like(guess))
        ahead = field.velocity(y + guess[:, None, None].to(y) * slope, field_time(field, t + guess))
        bend = self._in_tolerances(field, ahead - slope, y) / guess
        turning = speed / bend
        better = turning * (0.01 / (speed * turning)) ** (1.0 / (self.problem.tableau.order + 1))
        # Tokens that go straight ahead, or stand still, go no farther than a change of their own size.
        step = torch.minimum(100 * guess, better.nan_to_num(torch.inf))
        return torch.where(torch.isfinite(bend), step, guess).clamp_max(length)

    def _in_tolerances(self, field: Field, part: Tensor, *states: Tensor) -> Tensor:
        """Return the size (system,) of a change of states, in units of what the tolerances allow there.

        On a quadric lengths are those of its metric, in which every state has length 1: what is accurate
        does not depend on the coordinates.
        """
        rtol, atol, change = self.problem.rtol, self.problem.atol, part.detach()
        if field.geometry.quadratic:
            squares = inner(change, change, field.geometry.metric).flatten(start_dim=1)
            return squares.mean(dim=-1).sqrt().to(torch.float64) / (atol + rtol)
        sizes = [state.detach().abs() for state in states]
        size = sizes[0] if len(sizes) == 1 else torch.maximum(*sizes)
        return (change / (atol + rtol * size)).flatten(start_dim=1).square().mean(dim=-1).sqrt().to(torch.float64)

    def _error_ratio(self, moving: _Moving, attempt: Attempt) -> Tensor:
        """Return the estimated error (system,) of a step, in units of what the tolerances allow."""
        ratio, *coarse = (
            self._in_tolerances(moving.field, error, moving.y, attempt.y) for error in attempt.errors.unbind(0)
        )
        if not coarse:
            return ratio
        # An estimate that is not finite stays so.
        return torch.where(ratio > 0, ratio * ratio / (ratio.square() + 0.01 * coarse[0].square()).sqrt(), ratio)

    def _bounded(self, h: Tensor) -> Tensor:
        return h if self.problem.max_step is None else h.clamp_max(self.problem.max_step)

    def _values(self, field: Field, y: Tensor, t: Tensor) -> Tensor:
        """Return the values of all events, (system, event)."""
        if not self.events:
            return torch.empty(len(y), 0, dtype=torch.float64, device=y.device)
        return torch.stack([event.value(field, y, t).to(torch.float64) for event in self.events], dim=-1)

    def _limit(self, t: Tensor, right: float) -> Tensor | float:
        """Return the time that no step from t passes."""
        if len(self.stops) == 0:
            return right
        following = torch.searchsorted(self.stops, t, right=True).clamp_max(len(self.stops) - 1)
        return torch.where(self.stops[following] > t, self.stops[following], right).clamp_max(right)

    def _advance(self, moving: _Moving, right: float) -> _Moving:
        limit = self._limit(moving.t, right)
        last = moving.t + 1.0001 * moving.h >= limit
        # The step that is taken is the one by which the time, a float, advances.
        until = torch.where(last, limit, moving.t + moving.h)
        h = until - moving.t
        attempt = take_step(moving.field, self.coefficients, moving.y, moving.t, h, moving.slope, until)
        ratio = self._error_ratio(moving, attempt)
        accepted = ratio <= 1.0
        self._count("right_hand_sides", moving.ids, self.coefficients.new_stages)
        self._count("accepted", moving.ids, accepted)
        self._count("rejected", moving.ids, ~accepted)
        t = torch.where(accepted, until, moving.t)
        values, ended = moving.values, torch.zeros_like(accepted)
        if self.events:
            values = self._values(moving.field, moving.field.project(attempt.y), t)
        looked_into = [
            self._looked_into(number, moving, attempt, values, accepted) for number in range(len(self.events))
        ]
        self._extend(moving, attempt, looked_into, accepted)
        if self.events:
            ended = self._end_at_events(moving, attempt, values, accepted, looked_into)
            self._record(moving, attempt, values, looked_into)
            values = torch.where(accepted[:, None], values, moving.values)
        if len(self.stops):
            self.outcome.longest_step = max(self.outcome.longest_step, float((accepted * h).max()))
        self._emit(moving, attempt, t, h, accepted & ~ended)
        y = torch.where(accepted[:, None, None], moving.field.project(attempt.y), moving.y)
        slope = torch.where(accepted[:, None, None], attempt.last_slope, moving.slope)
        proposal = self._proposed(h, ratio, moving.last_ratio, accepted)
        # A step cut short by the end of the interval says nothing against a longer one.
        proposal = torch.where(last & accepted, torch.maximum(proposal, moving.h), proposal)
        last_ratio = torch.where(accepted, ratio.clamp_min(1e-4), moving.last_ratio)
        # A step that is rejected and would round to the same times again cannot be shortened.
        proposal = torch.where(~accepted & (moving.t + proposal >= until), 0.0, self._bounded(proposal))
        after = _Moving(moving.ids, y, t, proposal, slope, last_ratio, moving.tried + 1, values, moving.field)
        return self._retire(after, ended, torch.isfinite(ratio), right)

    def _proposed(self, h: Tensor, ratio: Tensor, last_ratio: Tensor, accepted: Tensor) -> Tensor:
        order = self.problem.tableau.order
        factor = _SAFETY * ratio.clamp_min(1e-10) ** (-0.7 / order) * last_ratio ** (0.4 / order)
        factor = torch.where(torch.isfinite(ratio), factor, torch.full_like(factor, _SLOWEST))
        return h * factor.clamp(_SLOWEST, _FASTEST).where(accepted, factor.clamp(_SLOWEST, 1.0))

    def _retire(self, moving: _Moving, ended: Tensor, finite: Tensor, right: float) -> _Moving:
        arrived = ~ended & (moving.t >= right)
        # A field that is not finite at the start leaves no step size at all.
        underflow = ~ended & ~arrived & ~(moving.t + moving.h > moving.t)
        spent = ~ended & ~arrived & ~underflow & (moving.tried >= self.problem.max_steps)
        leaving = ended | arrived | underflow | spent
        if not bool(leaving.any()):
            return moving
        if bool(underflow.any()):
            for status, which in of_stuck(moving.field, moving.y, moving.slope, moving.t, finite).items():
                self._finish(moving, underflow & which, status)
        self._finish(moving, spent, Status.BUDGET)
        rows = moving.ids[arrived]
        self.y[rows], self.h[rows], self.tried[rows] = moving.y[arrived], moving.h[arrived], moving.tried[arrived]
        self.outcome.end_times[self.ids[rows].cpu()] = right
        return moving.kept(~leaving)

    def _end_at_events(
        self, moving: _Moving, attempt: Attempt, values: Tensor, accepted: Tensor, looked_into: list[Tensor]
    ) -> Tensor:
        """End the systems that met an event in this step, at the earliest one."""
        events = self.problem.events
        if not events:
            return torch.zeros_like(accepted)
        shares = torch.full((len(events), len(accepted)), torch.inf, dtype=torch.float64, device=accepted.device)
        for number in range(len(events)):
            rows, shares_met = self._crossings(number, moving, attempt, values, looked_into[number])
            shares[number].scatter_reduce_(0, rows, shares_met, "amin")
            # A value of the caller's own may have jumped with the circuits.
            shares[number][accepted & (moving.values[:, number] <= 0)] = 0.0
        ended = shares.amin(dim=0) <= 1
        if bool(ended.any()):
            first = shares.argmin(dim=0)
            for number, event in enumerate(events):
                rows = (ended & (first == number)).nonzero().squeeze(-1)
                self._end_at(event, rows, shares[number], moving, attempt)
        return ended

    def _looked_into(self, number: int, moving: _Moving, attempt: Attempt, values: Tensor, accepted: Tensor) -> Tensor:
        """Return the systems, by index, in whose step the value of an event may be zero somewhere."""
        event, before, after = self.events[number], moving.values[:, number], values[:, number]
        reach = self.problem.tableau.reach * attempt.h
        if is_sampled(event):
            which = accepted & may_cross(event, before, after, attempt.start, attempt.stages, reach)
        elif isinstance(event, RadiusGuard):
            which = accepted & event.may_be_passed(attempt.start, attempt.stages, reach)
        else:
            which = accepted & (before > 0) & (after <= 0)
        return which.nonzero().squeeze(-1)

    def _extend(self, moving: _Moving, attempt: Attempt, looked_into: list[Tensor], accepted: Tensor) -> None:
        """Evaluate what the continuous extension needs beyond the step, for the systems that are asked within it."""
        extra = len(self.coefficients.extra_stages)
        if extra == 0:
            return
        cursor = self.cursor[moving.ids]
        wanted = self.times[cursor.clamp_max(len(self.times) - 1)]
        which = accepted & (cursor < len(self.times)) & (wanted < attempt.until)
        for rows in looked_into:
            which[rows] = True
        rows = which.nonzero().squeeze(-1)
        if len(rows):
            attempt.extend(moving.field, rows)
            self._count("right_hand_sides", moving.ids[rows], extra)

    def _crossings(
        self, number: int, moving: _Moving, attempt: Attempt, values: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return those of some systems in which an event's value falls to zero, and at what share of the step."""
        event, before, after = self.events[number], moving.values[:, number], values[:, number]
        if len(rows) == 0:
            return rows, attempt.h[:0]
        t, h, field = moving.t[rows], attempt.h[rows], moving.field.select(rows)
        part = attempt.taken(rows)

        def value(index: Tensor, share: Tensor) -> Tensor:
            chosen = field.select(index)
            x = chosen.project(part.taken(index).at(share))
            return event.value(chosen, x, t[index] + share * h[index]).to(torch.float64)

        if isinstance(event, RadiusGuard):
            crossed, shares = event.passages(lambda index, share: part.taken(index).at(share), before[rows])
        else:
            crossed, shares = crossings(value, before[rows], after[rows])
        return rows[crossed], shares

    def _record(self, moving: _Moving, attempt: Attempt, values: Tensor, looked_into: list[Tensor]) -> None:
        """Write down where the values of recorded events fell to zero in this step."""
        for number in range(len(self.problem.recorded)):
            place = len(self.problem.events) + number
            rows, shares = self._crossings(place, moving, attempt, values, looked_into[place])
            if len(rows) == 0:
                continue
            states = moving.field.select(rows).exactly_projected(attempt.taken(rows).at(shares))
            times = (moving.t[rows] + shares * attempt.h[rows]).tolist()
            systems = self.ids[moving.ids[rows]].tolist()
            self.outcome.crossings += [
                (number, system, time, state) for system, time, state in zip(systems, times, states, strict=True)
            ]

    def _end_at(self, event: Event, rows: Tensor, shares: Tensor, moving: _Moving, attempt: Attempt) -> None:
        if len(rows) == 0:
            return
        until = moving.t[rows] + shares[rows] * attempt.h[rows]
        self._emit_until(rows, moving, attempt, until, attempt.h)
        state = moving.field.select(rows).exactly_projected(attempt.rows(rows).at(shares[rows]))
        self._stop(moving.ids[rows], state, until, event.status)

    def _end_where_events_hold(self, start: float) -> None:
        now = torch.full_like(self.h, start)
        for event in self.problem.events:
            hit = (self.alive & (event.value(self.field, self.y, now) <= 0)).nonzero().squeeze(-1)
            self._stop(hit, self.y[hit], now[hit], event.status)

    def _emit(self, moving: _Moving, attempt, t: Tensor, h: Tensor, which: Tensor) -> None:
        rows = which.nonzero().squeeze(-1)
        self._emit_until(rows, moving, attempt, t[rows], h)

    def _emit_until(self, rows: Tensor, moving: _Moving, attempt, until: Tensor, h: Tensor) -> None:
        """Write the states at all output times up to `until` into the outcome, through the continuous extension."""
        while len(rows):
            cursor = self.cursor[moving.ids[rows]]
            wanted = self.times[cursor.clamp_max(len(self.times) - 1)]
            due = (cursor < len(self.times)) & (wanted <= until)
            rows, until, cursor, wanted = rows[due], until[due], cursor[due], wanted[due]
            if len(rows) == 0:
                return
            share = ((wanted - moving.t[rows]) / h[rows]).clamp(0.0, 1.0)
            state = moving.field.select(rows).exactly_projected(attempt.rows(rows).at(share))
            self.outcome.states[self.ids[moving.ids[rows]], cursor] = state
            self.cursor[moving.ids[rows]] += 1

    def _finish(self, moving: _Moving, which: Tensor, status: Status) -> None:
        rows = which.nonzero().squeeze(-1)
        self._stop(moving.ids[rows], moving.y[rows], moving.t[rows], status)

    def _stop(self, local: Tensor, state: Tensor, t: Tensor, status: Status) -> None:
        """End the run of some systems: their last state is held at all later times."""
        if len(local) == 0:
            return
        self.alive[local] = False
        self.mark(self.ids[local], status)
        self.outcome.end_times[self.ids[local].cpu()] = t.cpu()
        for row, cursor, last in zip(self.ids[local].tolist(), self.cursor[local].tolist(), state, strict=True):
            self.outcome.states[row, cursor:] = last

    def _count(self, name: str, local: Tensor, amount: int | Tensor) -> None:
        self.outcome.counts[name][self.ids[local].cpu()] += amount if isinstance(amount, int) else amount.cpu()

    def _report(self, t: float) -> None:
        start, end = self.problem.times[0], self.problem.times[-1]
        self.problem.report(self.done + (t - start) / (end - start) / self.blocks)


def field_time(field: Field, t: Tensor) -> Tensor | float:
    """Return the times as the field wants them: a field that does not depend on time takes any number."""
    return 0.0 if field.constant else t
