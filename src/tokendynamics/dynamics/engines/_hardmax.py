"""Hardmax weights in free space: linear motion between two changes of the weights, and every change located.

While each receiver keeps its senders, weights are a constant matrix W_h and ``dx/dt = ω Σ_h W_h x ov_h^T`` is linear:
states are given by the exponential of a matrix, to rounding. What has to be found are the times at which a sender that
had not the largest logit catches up. The lead ``g = s_ij − s_ik`` of a sender j over another k is a quadratic form of
the states, so that with ``|g''| ≤ B`` within a step of length h it stays above zero if ``min(g(0), g(h)) > B h²/8`` or
``g(0) + g'(0) h > B h²/2``. Steps of which neither is known are shortened, down to the spacing of floats: no change
is stepped over, save one that floats do not resolve.

At a change, and at a start where logits are equal, the receiver takes the senders whose logits grow fastest under the
weights that follow from taking them. Where no choice agrees with itself (each sender loses the receiver as soon as it
has it) the hardmax has no solution, and the run ends with the status *held at a tie*.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tokendynamics.attention.mixing import equal_shares, hidden_senders
from tokendynamics.dynamics._field import Field
from tokendynamics.dynamics.engines._crossings import crossings, is_sampled
from tokendynamics.dynamics.engines.problem import Outcome, Problem
from tokendynamics.dynamics.events import Event, Status
from tokendynamics.dynamics.rescaled import Growing

_TIED = 2.0**-40
"""Leads below this share of the largest logit of their row are none: located changes are as exact as that."""

_ROUNDING = 16 * torch.finfo(torch.float64).eps
"""Of logits, relative to the largest that tokens of the largest norm could have."""

_MET = 4.0
"""Senders meet where their logits are as near as this many times the slack: steps end just beyond one of it."""

_STEEPEST = 700.0
"""The largest exponent that is a number."""

_RESOLVED = 4.0
"""Steps of this many rounding units of the time, or of the first step of a motion, are not halved."""


def run(problem: Problem) -> Outcome:
    """Run all systems of the problem, one after the other, in float64 on the CPU."""
    outcome = Outcome.blank(problem)
    systems = len(problem.start)
    outcome.counts = {name: torch.zeros(systems, dtype=torch.int64) for name in ("changes", "accepted", "rejected")}
    for row in range(systems):
        part = _System(problem, outcome, row)
        try:
            part.run()
        except KeyboardInterrupt:
            part.stop(Status.INTERRUPTED)
            outcome.status[row + 1 :] = [Status.INTERRUPTED] * (systems - row - 1)
            outcome.interrupted = True
            break
        problem.report((row + 1) / systems)
    if tied := outcome.status.count(Status.TIED):
        outcome.notes.append(
            f"{tied} of {systems} systems end where a receiver has several largest logits, and whichever of these "
            "senders it takes, another has the largest logit at once: no weights continue the run"
        )
    return outcome


@dataclass(frozen=True)
class Motion:
    """The motion of one system while its weights stay, ``dx/dt = A x``, as one of ``z = e^{−λt} x``.

    Logits of z have the order of those of x for any λ. With the largest growth rate for λ what leads in the limit
    leads by the same share at all times; leads of x itself would become small beside what bounds their change.

    Attributes:
        chosen: Which senders have the largest logit, (head, receiver, sender).
        generator: A − λ, (token, token) where every ov is a multiple of the identity, else (token · dim, token · dim).
        shift: λ, the largest real part of an eigenvalue of ``ω Σ_h ov_h``.
        speed: A bound of the rate at which norms of tokens change.
        growth: A bound of the rate at which the largest norm of a token, or of its velocity, grows.
    """

    chosen: Tensor
    generator: Tensor
    shift: float
    speed: float
    growth: float

    @classmethod
    def of(cls, field: Field, chosen: Tensor) -> Motion:
        """Return the motion of a field of one system under equal shares for the chosen senders."""
        weights, multiples = equal_shares(chosen.double()), field.multiples
        tokens = weights.shape[-1]
        if multiples is not None:
            speeds = field.factor * multiples.reshape(-1)
            generator, shift = torch.einsum("h,hij->ij", speeds, weights), float(speeds.sum())
            bound = 0.0
        else:
            ov = field.factor * field.attention.ov.matrix_at(0.0).reshape(len(weights), field.attention.dim, -1)
            generator = torch.einsum("hij,hab->iajb", weights, ov).reshape(tokens * ov.shape[-1], -1)
            shift = float(torch.linalg.eigvals(ov.sum(dim=0)).real.max())
            bound = float(torch.linalg.matrix_norm(ov, 2).sum())
        features = len(generator) // tokens
        for token in field.frozen:
            generator[token * features : (token + 1) * features] = 0.0
        generator = generator - shift * torch.eye(len(generator), dtype=torch.float64)
        if multiples is None:
            return cls(chosen, generator, shift, bound + abs(shift), max(0.0, bound - shift, -shift))
        # The logarithmic norm max_i (a_ii + Σ_j≠i |a_ij|).
        diagonal, rows = generator.diagonal(), generator.abs().sum(dim=-1)
        growth = max(0.0, float((diagonal - diagonal.abs() + rows).max()))
        return cls(chosen, generator, shift, float(rows.max()), growth)

    def velocity(self, z: Tensor) -> Tensor:
        """Return dz/dt, (token, dim)."""
        return self.along(self.generator, z)

    def after(self, z: Tensor, time: float) -> Tensor:
        """Return z a time later."""
        return self.along(torch.linalg.matrix_exp(time * self.generator), z)

    @staticmethod
    def along(matrix: Tensor, z: Tensor) -> Tensor:
        """Return what a matrix of the size of the generator makes of states (token, dim)."""
        return (matrix @ z.reshape(len(matrix), -1)).view(z.shape)


@dataclass(frozen=True)
class Logits:
    """The logits of one system as quadratic forms of its states.

    Attributes:
        qk: (head, dim, dim).
        hidden: Senders that are not seen, (receiver, sender); None where all are.
        size: The largest norm of a qk.
    """

    qk: Tensor
    hidden: Tensor | None
    size: float

    @classmethod
    def of(cls, field: Field, tokens: int) -> Logits:
        """Return the logits of a field; in the rescaled frame those of z, which order senders as those of x do."""
        schedule = field.attention.qk
        schedule = schedule.qk if isinstance(schedule, Growing) else schedule
        qk = schedule.matrix_at(0.0).reshape(-1, field.attention.dim, field.attention.dim)
        hidden = hidden_senders(field.attention.visible, torch.Size((tokens, tokens)), 0, qk.device)
        return cls(qk, hidden, float(torch.linalg.matrix_norm(qk, 2).max()))

    def at(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits, (head, receiver, sender), −inf for hidden senders; and what counts as no difference."""
        logits = x @ self.qk @ x.mT
        # A token that other tokens cancel at 0 is there up to their rounding, and so are its logits.
        rounding = _ROUNDING * self.size * x.square().sum(dim=-1).amax()
        return self._seen(logits), _TIED * logits.abs().amax(dim=-1, keepdim=True) + rounding

    def rates(self, x: Tensor, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Return the derivatives of the logits, and what counts as no difference of them, (receiver, 1)."""
        rates = self._seen(velocity @ self.qk @ x.mT + x @ self.qk @ velocity.mT)
        sizes, speeds = (part.norm(dim=-1, keepdim=True) for part in (x, velocity))
        return rates, 2 * _MET * _TIED * self.size * (sizes * speeds.max() + speeds * sizes.max())

    def bend(self, x: Tensor, velocity: Tensor, acceleration: Tensor) -> Tensor:
        """Return a bound of the second derivative of the difference of two logits, (receiver, 1)."""
        sizes, speeds, turns = (part.norm(dim=-1, keepdim=True) for part in (x, velocity, acceleration))
        return 2 * self.size * (turns * sizes.max() + 2 * speeds * speeds.max() + sizes * turns.max())

    def _seen(self, logits: Tensor) -> Tensor:
        return logits if self.hidden is None else logits.masked_fill(self.hidden, -torch.inf)


def settled(field: Field, logits: Logits, x: Tensor) -> Motion | None:
    """Return the motion that the states begin, or None where every choice of senders contradicts itself."""
    values, slack = logits.at(x)
    tied = values >= values.amax(dim=-1, keepdim=True) - _MET * slack
    chosen = tied
    for _ in range(int(tied.sum()) + 1):
        motion = Motion.of(field, chosen)
        rates, rate_slack = logits.rates(x, motion.velocity(x))
        rates = rates.masked_fill(~tied, -torch.inf)
        fastest = tied & (rates >= rates.amax(dim=-1, keepdim=True) - rate_slack)
        if torch.equal(fastest, chosen):
            return motion
        chosen = fastest
    return None


def _lead(values: Tensor, chosen: Tensor) -> Tensor:
    """Return the mean of the chosen senders less each other sender; +inf for chosen and hidden ones."""
    mean = values.masked_fill(~chosen, 0.0).sum(dim=-1, keepdim=True) / chosen.sum(dim=-1, keepdim=True)
    return (mean - values).masked_fill(chosen, torch.inf)


def _differ(values: Tensor, chosen: Tensor, slack: Tensor) -> bool:
    """Tell whether chosen senders of a receiver have different logits."""
    most = values.masked_fill(~chosen, -torch.inf).amax(dim=-1, keepdim=True)
    least = values.masked_fill(~chosen, torch.inf).amin(dim=-1, keepdim=True)
    return bool((most - least > 2 * _MET * slack).any())


@dataclass(frozen=True)
class Place:
    """States on the way of a motion, and what their leads can do within a step.

    Attributes:
        motion: The motion.
        logits: The logits.
        x: The states, (token, dim).
        lead: By how much chosen senders lead, (head, receiver, sender).
        rate: The derivatives of that.
        bend: A bound of its second derivatives, (receiver, 1).
        slack: Leads up to this count as none, (head, receiver, 1).
    """

    motion: Motion
    logits: Logits
    x: Tensor
    lead: Tensor
    rate: Tensor
    bend: Tensor
    slack: Tensor

    @classmethod
    def of(cls, motion: Motion, logits: Logits, x: Tensor) -> Place:
        """Return what is known at states."""
        velocity = motion.velocity(x)
        values, slack = logits.at(x)
        lead, rate = (_lead(part, motion.chosen) for part in (values, logits.rates(x, velocity)[0]))
        return cls(motion, logits, x, lead, rate, logits.bend(x, velocity, motion.velocity(velocity)), slack)

    def keeps_leads(self, after: Tensor, h: float) -> bool:
        """Tell whether within a step of length h to `after` no sender can catch up, and chosen ones stay equal."""
        values, slack = self.logits.at(after)
        chosen = self.motion.chosen
        if _differ(values, chosen, slack):
            return False
        # Tensors overflow to infinity, where h**2 would raise.
        bend = math.exp(min(2 * self.motion.growth * h, _STEEPEST)) * self.bend * h * h / 2
        chord = torch.minimum(self.lead, _lead(values, chosen)) - bend / 4
        tangent = torch.minimum(self.lead, self.lead + h * self.rate - bend)
        return bool((torch.maximum(chord, tangent) > -self.slack).all())

    @property
    def sure_step(self) -> float:
        """The longest step within which ``lead + rate h − bend h²/2`` shows that no sender can catch up.

        Towards a change such steps shorten what is left of the time to it to the order of its square.
        """
        room, bend = (self.lead + self.slack).clamp_min(0.0), math.e**2 * self.bend
        root = (self.rate.square() + 2 * bend * room).sqrt()
        # Two forms of one root, of which one subtracts nearly equal numbers.
        steps = torch.where(self.rate > 0, (self.rate + root) / bend, 2 * room / (root - self.rate))
        steps = torch.where(torch.isinf(room), torch.inf, steps)
        sure = float(steps.nan_to_num(torch.inf, torch.inf).min())
        return sure if self.motion.growth == 0 else min(sure, 1 / self.motion.growth)

    @property
    def is_tied(self) -> bool:
        """Whether another sender has caught up here, or the chosen ones differ."""
        values, slack = self.logits.at(self.x)
        return bool((self.lead <= slack).any()) or _differ(values, self.motion.chosen, slack)


class _System:
    """The run of one system, row `row` of the outcome; `t` and `x` are where it is."""

    def __init__(self, problem: Problem, outcome: Outcome, row: int) -> None:
        place = {"dtype": torch.float64, "device": torch.device("cpu")}
        field = problem.field.select(torch.tensor([row]))
        field = replace(field, attention=field.attention.to(**place), geometry=field.geometry.to(**place))
        self.problem, self.field, self.outcome, self.row = problem, field, outcome, row
        self.x = problem.start[row].detach().to(**place)
        self.t, self.cursor = problem.times[0], 1
        self.logits = Logits.of(field, len(self.x))
        self.events = (*problem.events, *problem.recorded)
        self.values = [self._value(event, self.t, self.x) for event in self.events]

    def run(self) -> None:
        """Run from change to change, up to the horizon or to what ends the run before."""
        met = zip(self.problem.events, self.values, strict=False)
        status = next((event.status for event, value in met if value <= 0), None)
        while status is None and self.t < self.problem.times[-1]:
            motion = settled(self.field, self.logits, self.x)
            if motion is None:
                status = Status.TIED
                break
            status = self._until_change(motion)
        self.stop(status or Status.HORIZON)

    def stop(self, status: Status) -> None:
        """End the run here: the last state is held at all later times."""
        self.outcome.status[self.row] = status
        self.outcome.end_times[self.row] = self.t
        self.outcome.states[self.row, self.cursor :] = self.x.to(self.outcome.states)

    def _until_change(self, motion: Motion) -> Status | None:
        """Run to the next change of the weights, or to the horizon; the status of an event on the way, if any."""
        end = self.problem.times[-1]
        # Where states can grow, a step ends before they overflow, and is looked at by the guard.
        growth = motion.growth + (0.0 if self.field.relative else motion.shift)
        fastest = max(motion.speed, growth, 1 / (end - self.t))
        longest = 1 / fastest if growth > 0 else end - self.t
        shortest = _RESOLVED * torch.finfo(torch.float64).eps * max(abs(self.t), 1 / fastest)
        place, h = Place.of(motion, self.logits, self.x), 1 / fastest
        while self.t < end:
            if self._count("accepted") + self._count("rejected") >= self.problem.max_steps:
                return Status.BUDGET
            if h > shortest and not place.keeps_leads(motion.after(self.x, h), h):
                self._count("rejected", 1)
                h = max(shortest, min(h / 2, place.sure_step))
                continue
            self._count("accepted", 1)
            if (status := self._accept(motion, h)) is not None:
                return status
            place = Place.of(motion, self.logits, self.x)
            if h <= shortest and place.is_tied:
                self._count("changes", 1)
                return None
            h = min(2 * h, longest)
        return None

    def _count(self, name: str, more: int = 0) -> int:
        self.outcome.counts[name][self.row] += more
        return int(self.outcome.counts[name][self.row])

    def _accept(self, motion: Motion, h: float) -> Status | None:
        """Hand out what the step passed, up to the first event in it; the status of that event, if any."""
        start, before, end = self.x, self.t, self.problem.times[-1]
        until, status = min(before + h, end), None
        length = until - before
        shift = 0.0 if self.field.relative else motion.shift

        def path(share: float) -> Tensor:
            time = share * length
            return math.exp(shift * time) * motion.after(start, time)

        state = path(1.0)
        values = [self._value(event, until, state) for event in self.events]
        ending = len(self.problem.events)
        first = 2.0
        for number, value in enumerate(values):
            for share in self._shares(number, value, path, length):
                if number >= ending:
                    place = (number - ending, self.row, before + share * length, path(share).to(self.outcome.states))
                    self.outcome.crossings.append(place)
                elif share < first:
                    first, status = share, self.problem.events[number].status
        if status is not None:
            until, state = before + first * length, path(first)
        while self.cursor < len(self.problem.times) and self.problem.times[self.cursor] <= until:
            time = self.problem.times[self.cursor]
            at = state if time == until else path((time - before) / length)
            self.outcome.states[self.row, self.cursor] = at.to(self.outcome.states)
            self.cursor += 1
        self.t, self.x, self.values = until, state, values
        return status

    def _shares(self, number: int, after: float, path: Callable[[float], Tensor], length: float) -> list[float]:
        """Return the shares of the step at which an event's value falls to zero."""
        event, before, start = self.events[number], self.values[number], self.t
        if not is_sampled(event):
            return [1.0] if before > 0 >= after else []

        def value(rows: Tensor, shares: Tensor) -> Tensor:
            values = [self._value(event, start + share * length, path(share)) for share in shares.tolist()]
            return torch.tensor(values, dtype=torch.float64)

        ends = [torch.tensor([end], dtype=torch.float64) for end in (before, after)]
        return crossings(value, *ends)[1].tolist()

    def _value(self, event: Event, t: float, x: Tensor) -> float:
        return float(event.value(self.field, x.unsqueeze(0), torch.tensor([t], dtype=torch.float64)))
