"""Runs a problem in the compiled loop: interval by interval between the jumps of its circuits, on all threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention import AbsolutePositions, RotaryPositions
from tokendynamics.attention.schedules import Constant, Schedule, Sinusoidal
from tokendynamics.attention.schedules.conversion import PerHead
from tokendynamics.dynamics._field import Field
from tokendynamics.dynamics._status import Status
from tokendynamics.dynamics.engines._endings import of_stuck
from tokendynamics.dynamics.engines.compiled._events import ends_of
from tokendynamics.dynamics.engines.compiled._integrate import integrate
from tokendynamics.dynamics.engines.compiled._lane_traffic import (
    ARRIVED,
    MET,
    SPENT,
    STOPPED,
    STUCK,
    Interval,
    LaneRun,
)
from tokendynamics.dynamics.engines.compiled._model import (
    ABSOLUTE,
    EXPONENTIAL,
    GROWING,
    LINEAR,
    SOFTMAX,
    WAVE,
    Circuit,
    Options,
    Systems,
)
from tokendynamics.dynamics.engines.compiled._steps import Method
from tokendynamics.dynamics.engines.problem import Outcome, Problem
from tokendynamics.dynamics.rescaled import Growing

_LOOK = 0.05
"""Seconds between two looks at how far the threads are."""


def run(problem: Problem) -> Outcome:
    """Run all systems of the problem, in float64 whatever the start is."""
    place = {"dtype": torch.float64, "device": torch.device("cpu")}
    field = problem.field
    field = replace(field, attention=field.attention.to(**place), geometry=field.geometry.to(**place))
    loop = _Loop(replace(problem, field=field, start=problem.start.detach().to(**place)))
    loop.run()
    outcome = loop.finished()
    outcome.states = outcome.states.to(problem.start.dtype)
    outcome.states[:, 0] = problem.start.detach()
    return outcome


class _Loop:
    """The run of all systems of a problem in float64."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.outcome = problem, Outcome.blank(problem)
        systems = len(problem.start)
        counts = {name: np.zeros(systems, dtype=np.int64) for name in ("tried", "accepted", "evaluations", "code")}
        self.systems = LaneRun(
            y=problem.start.numpy().copy(),
            step=np.zeros(systems),
            cursor=np.ones(systems, dtype=np.int64),
            end=np.full(systems, problem.times[0]),
            finite=np.ones(systems, dtype=np.bool_),
            states=self.outcome.states.numpy(),
            **counts,
        )
        self.ends = ends_of(problem)
        self.method = Method.of(problem.tableau, problem.rtol, problem.atol)
        self.interrupted = False

    def run(self) -> None:
        """Run all intervals; Ctrl-C ends the one under way."""
        first, *_, last = self.problem.times
        joints = [first, *self.problem.field.attention.joints(first, last), last]
        self._end_where_events_hold(first)
        for number, (left, right) in enumerate(pairwise(joints)):
            queue = np.flatnonzero(self.systems.code == ARRIVED)
            if len(queue) == 0 or self.interrupted:
                break
            self._interval(queue, left, right, number, len(joints) - 1)
        self.systems.code[(self.systems.code == ARRIVED) & (self.systems.end < last)] = STOPPED

    def _interval(self, queue: np.ndarray, left: float, right: float, number: int, count: int) -> None:
        problem = self.problem
        field, (_, tokens, dim) = problem.field.within(left, right), problem.start.shape
        spacing, longest = math.nextafter(left, math.inf) - left, problem.max_step or math.inf
        interval = Interval(left, right, np.array(problem.times), problem.max_steps, longest, spacing)
        # Every thread takes every so manieth system: long runs are spread over all.
        threads = min(torch.get_num_threads(), len(queue))
        signals = np.zeros((threads, 3), dtype=np.int64)
        parts = [
            ((0,) * dim, _options_of(field, tokens), _systems_of(field, tokens), self.method, self.ends, self.systems,
             interval, np.ascontiguousarray(queue[thread::threads]), signals[thread])
            for thread in range(threads)
        ]  # fmt: skip
        with ThreadPoolExecutor(threads) as pool:
            runs: list[Future] = []
            try:
                problem.report(number / count)
                runs = [pool.submit(integrate, *part) for part in parts]
                while wait(runs, _LOOK).not_done:
                    problem.report((number + float(signals[:, 1].sum()) / len(queue)) / count)
            except KeyboardInterrupt:
                signals[:, 0], self.interrupted = 1, True
                runs = runs or [pool.submit(integrate, *part) for part in parts]
        for number, one in enumerate(runs):
            rows, width = one.result()[0], 3 + tokens * dim
            self._note(rows[: len(rows) // width * width].reshape(-1, width)[: signals[number, 2]])

    def _note(self, crossings: np.ndarray) -> None:
        """Keep rows of event, system, time and state of recorded events."""
        shape = self.problem.start.shape[1:]
        for event, system, time, *state in crossings.tolist():
            field = self.problem.field.select(torch.tensor([int(system)]))
            exact = field.exactly_projected(torch.tensor(state, dtype=torch.float64).view(1, *shape))[0]
            self.outcome.crossings.append((int(event) - self.ends.ending, int(system), time, exact))

    def _end_where_events_hold(self, start: float) -> None:
        problem = self.problem
        now = torch.full((len(problem.start),), start, dtype=torch.float64)
        for number, event in reversed(list(enumerate(problem.events))):
            holds = (event.value(problem.field, problem.start, now) <= 0).numpy()
            self.systems.code[holds] = MET + number

    def finished(self) -> Outcome:
        """Return the outcome: from the end of a system's run on its last state is held."""
        systems, outcome, problem = self.systems, self.outcome, self.problem
        for row in np.flatnonzero(systems.cursor < len(problem.times)):
            systems.states[row, systems.cursor[row] :] = systems.y[row]
        outcome.states[:, 1:] = problem.field.projected_over_time(outcome.states[:, 1:])
        outcome.end_times = torch.from_numpy(systems.end)
        outcome.counts = {
            "right_hand_sides": torch.from_numpy(systems.evaluations * (len(self.method.nodes) - 1)),
            "accepted": torch.from_numpy(systems.accepted),
            "rejected": torch.from_numpy(systems.tried - systems.accepted),
        }
        named = {ARRIVED: Status.HORIZON, SPENT: Status.BUDGET, STOPPED: Status.INTERRUPTED, STUCK: Status.UNDERFLOW}
        named |= {MET + number: event.status for number, event in enumerate(problem.events)}
        outcome.status = [named[code] for code in systems.code.tolist()]
        self._name_stuck()
        outcome.interrupted = self.interrupted
        return outcome

    def _name_stuck(self) -> None:
        """Say of systems without a step whether they diverged, are not finite, or are too rough for their tolerance."""
        rows = np.flatnonzero(self.systems.code == STUCK)
        if len(rows) == 0:
            return
        for row in rows:
            # One at a time: the circuits may be others at each one's time.
            t, finite = (torch.from_numpy(numbers[[row]]) for numbers in (self.systems.end, self.systems.finite))
            field, y = self.problem.field.select(torch.tensor([row])), torch.from_numpy(self.systems.y[[row]])
            statuses = of_stuck(field, y, field.velocity(y, float(t)), t, finite)
            self.outcome.status[row] = next(status for status, which in statuses.items() if bool(which))


def _options_of(field: Field, tokens: int) -> Options:
    """Return what all systems of the field share."""
    attention, positions = field.attention, field.attention.positions
    return Options(
        tokens=tokens,
        heads=attention.heads,
        rotary=positions.rank if isinstance(positions, RotaryPositions) else 0,
        causal=attention.causal,
        weights={"softmax": SOFTMAX, "exponential": EXPONENTIAL, "linear": LINEAR}[attention.weights],
        offset=attention.offset,
        constrained=field.geometry.constrained,
        has_metric=field.geometry.metric is not None,
        has_table=isinstance(positions, AbsolutePositions),
        turning=not attention.constant,
        multiple=field.has_differences,
        relative=field.relative,
    )


def _systems_of(field: Field, tokens: int) -> Systems:
    """Return the matrices of a field of constant and sinusoidal circuits."""
    attention, positions = field.attention, field.attention.positions
    heads, dim = attention.heads, attention.dim
    identity = torch.eye(dim, dtype=torch.float64)
    rotary = positions if isinstance(positions, RotaryPositions) else None
    scale = rotary.scale if rotary else 1.0
    none = Circuit(np.zeros((1, 0)), np.zeros((0, 0)), 0, 0)
    metric, table = field.geometry.metric, np.zeros(0)
    if isinstance(positions, AbsolutePositions):
        table = _rows(positions.table[:tokens], 2)[0]
    values = Constant(identity.expand(heads, dim, dim)) if field.identity_values else attention.ov
    return Systems(
        qk=_circuit(attention.qk, scale, heads),
        ov=_circuit(values, field.factor, heads),
        query=_circuit(rotary.query, scale, heads) if rotary else none,
        key=_circuit(rotary.key, 1.0, heads) if rotary else none,
        metric=_rows(identity if metric is None else metric, 2),
        table=table,
        turns=_turns(rotary, tokens) if rotary else np.zeros(0),
    )


def _circuit(schedule: Schedule, factor: float, heads: int) -> Circuit:
    """Return a circuit whose matrices are multiplied by `factor`; one head may stand for all."""
    parts = [_gated(one) for one in (schedule.heads if isinstance(schedule, PerHead) else (schedule,))]
    matrix, gates = (_side_by_side([part[number] for part in parts], heads) for number in (0, 1))
    rows, columns = matrix.shape[-2:]
    turning = not schedule.constant
    return Circuit(_rows(factor * matrix, 3), _rows(gates, 3) if turning else np.zeros((0, 0)), heads * rows, columns)


def _gated(schedule: Schedule) -> tuple[Tensor, Tensor]:
    """Return matrices (*system, head, row, column) and their gates (*system, head, row, 4)."""
    if isinstance(schedule, Sinusoidal):
        numbers = torch.broadcast_tensors(schedule.amplitude, schedule.frequency, schedule.phase)
        kind = torch.full_like(numbers[0], ABSOLUTE if schedule.absolute else WAVE)
        return schedule.matrix, torch.stack([*numbers, kind], dim=-1)
    if isinstance(schedule, Growing):
        matrix, rate = schedule.qk.matrix_at(0.0), 2 * schedule.rate
        fixed = torch.tensor([1.0, 0.0, schedule.largest, GROWING], dtype=torch.float64)
        gate = fixed + torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64) * rate[..., None]
        return matrix, gate[..., None, None, :].expand(*gate.shape[:-1], *matrix.shape[-3:-1], 4)
    matrix = schedule.matrix_at(0.0)
    # A gate that stands still at sin(π/2) = 1.
    gate = torch.tensor([1.0, 0.0, math.pi / 2, WAVE], dtype=torch.float64)
    return matrix, gate.expand(*matrix.shape[-3:-1], 4)


def _side_by_side(parts: Sequence[Tensor], heads: int) -> Tensor:
    """Return all heads of parts that have one each, or that are one for all heads."""
    systems = max((part.shape[:-3] for part in parts), key=len)
    wide = [part.expand(*systems, *part.shape[-3:]) for part in parts]
    return _of_all(torch.cat(wide, dim=-3), heads)


def _of_all(tensor: Tensor, heads: int) -> Tensor:
    return tensor.expand(*tensor.shape[:-3], heads, *tensor.shape[-2:])


def _rows(tensor: Tensor, axes: int) -> np.ndarray:
    """Return (system or 1, number) of a tensor with this number of axes for each system."""
    numbers = tensor.detach().to(torch.float64)
    return np.ascontiguousarray((numbers if numbers.ndim > axes else numbers.unsqueeze(0)).flatten(1).numpy())


def _turns(rotary: RotaryPositions, tokens: int) -> np.ndarray:
    angles = np.arange(tokens)[:, None] * rotary.frequencies.numpy()
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(-1)
