"""Runs a problem in the compiled loop: interval by interval between the jumps of its circuits, on all threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention import AbsolutePositions, RotaryPositions
from tokendynamics.attention.schedules import Constant, Schedule, Sinusoidal
from tokendynamics.attention.schedules.conversion import PerHead
from tokendynamics.dynamics._field import Field
from tokendynamics.dynamics.engines._endings import of_stuck
from tokendynamics.dynamics.engines.compiled._events import ends_of
from tokendynamics.dynamics.engines.compiled._integrate import (
    ARRIVED,
    MET,
    RUN_CODE,
    RUN_COUNTS,
    RUN_DUE,
    RUN_END,
    RUN_FINITE,
    RUN_TIMES,
    SPENT,
    STOPPED,
    STUCK,
    Interval,
    LaneRun,
    Queue,
    integrate,
    room_of_scratch,
)
from tokendynamics.dynamics.engines.compiled._known import Known
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
    room_of_eight,
)
from tokendynamics.dynamics.engines.compiled._steps import Method
from tokendynamics.dynamics.engines.compiled.lanes import WIDTH, room
from tokendynamics.dynamics.engines.problem import Outcome, Problem
from tokendynamics.dynamics.events import Status
from tokendynamics.dynamics.rescaled import Growing

_LOOK = 0.05
"""Seconds between two looks at how far the threads are."""

_SHORT = 1e9
"""Fused products of eight systems, at most, of a run that takes no thread: half a second with AVX-512."""

_EXPONENTIAL = 20
"""Fused products that take as long as an exponential and its place in memory."""


def run(problem: Problem) -> Outcome:
    """Run all systems of the problem, in float64 whatever the start is."""
    loop = _Loop(_in_float64(problem))
    loop.run()
    outcome = loop.finished()
    outcome.states = outcome.states.to(problem.start.dtype)
    outcome.states[:, 0] = problem.start.detach()
    return outcome


def _in_float64(problem: Problem) -> Problem:
    start = problem.start
    # The field is of the dtype of the start. To convert what needs none takes longer than to run one small system.
    if start.dtype == torch.float64:
        return problem
    attention, geometry = (
        part.to(dtype=torch.float64, device=start.device) for part in (problem.field.attention, problem.field.geometry)
    )
    return replace(
        problem, field=replace(problem.field, attention=attention, geometry=geometry), start=start.detach().double()
    )


class _Loop:
    """The run of all systems of a problem in float64."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.outcome = problem, Outcome.blank(problem)
        systems = len(problem.start)
        self.y, self.states = problem.start.detach().numpy().copy(), self.outcome.states.numpy()
        self.counts = np.zeros((systems, RUN_COUNTS), dtype=np.int64)
        self.counts[:, RUN_DUE] = self.counts[:, RUN_FINITE] = 1
        self.times = np.zeros((systems, RUN_TIMES))
        self.times[:, RUN_END] = problem.times[0]
        self.outputs = np.array(problem.times)
        self.ends, self.events = ends_of(problem)
        self.method = Method.of(problem.tableau, problem.rtol, problem.atol)
        self.interrupted = False

    def run(self) -> None:
        """Run all intervals; Ctrl-C ends the one under way."""
        first, *_, last = self.problem.times
        joints = [first, *self.problem.field.attention.joints(first, last), last]
        self._end_where_events_hold(first)
        codes, ends = self.counts[:, RUN_CODE], self.times[:, RUN_END]
        for number, (left, right) in enumerate(pairwise(joints)):
            queue = np.flatnonzero(codes == ARRIVED)
            if len(queue) == 0 or self.interrupted:
                break
            self._interval(queue, left, right, number, len(joints) - 1)
        codes[(codes == ARRIVED) & (ends < last)] = STOPPED

    def _interval(self, queue: np.ndarray, left: float, right: float, number: int, count: int) -> None:
        problem = self.problem
        field, (_, tokens, dim) = problem.field.within(left, right), problem.start.shape
        spacing, longest = math.nextafter(left, math.inf) - left, problem.max_step or math.inf
        outputs = self.outputs.ctypes.data, len(self.outputs)
        interval = Interval(left, right, *outputs, problem.max_steps, longest, spacing)
        options, (systems, matrices) = _options_of(field, tokens), _systems_of(field, tokens)
        run = LaneRun(*(array.ctypes.data for array in (self.y, self.counts, self.times, self.states)))
        # Every thread takes every so manieth system: long runs are spread over all. Less than eight fill no lanes.
        threads = min(torch.get_num_threads(), -(-len(queue) // WIDTH))
        rows = [np.ascontiguousarray(queue[thread::threads]) for thread in range(threads)]
        lanes = room_of_scratch(options, self.method, self.ends, dim) + room_of_eight(options, systems, dim)
        memory = [room(lanes) for _ in rows]
        inside, signals = np.full((threads, WIDTH), -1, dtype=np.int64), np.zeros((threads, 3), dtype=np.int64)
        parts = [
            ((0,) * dim, options, systems, self.method, self.ends, run, interval,
             Queue(row.ctypes.data, len(row), place, inside[thread].ctypes.data, signals[thread].ctypes.data),
             np.empty(0) if problem.recorded else 0)
            for thread, (row, (_, place)) in enumerate(zip(rows, memory, strict=True))
        ]  # fmt: skip
        if threads == 1 and self._is_short(options, len(queue), dim):
            self._run_here(parts[0], number / count)
        else:
            self._run_in_threads(parts, signals, len(queue), (number, count))
        del matrices  # the loops read them until here

    def _is_short(self, options: Options, systems: int, dim: int) -> bool:
        """Tell whether a run ends soon even if all systems spend their whole budget of steps."""
        if self.problem.recorded or self.ends.within.value or options.turning.value:
            return False
        features = dim + options.rotary
        of_token = options.tokens * (2 * features + _EXPONENTIAL) + 2 * dim * features
        of_step = len(self.method.nodes) * options.tokens * (options.heads * of_token + len(self.method.nodes) * dim)
        of_outputs = len(self.outputs) * options.tokens * dim * len(self.method.nodes)
        return -(-systems // WIDTH) * (self.problem.max_steps * of_step + WIDTH * of_outputs) <= _SHORT

    def _run_here(self, part: tuple[Any, ...], share: float) -> None:
        """Run a part that is short: Ctrl-C comes before it, where it changes nothing, or after it."""
        try:
            self.problem.report(share)
            integrate(*part)
        except KeyboardInterrupt:
            self.interrupted = True

    def _run_in_threads(
        self, parts: list[tuple[Any, ...]], signals: np.ndarray, systems: int, place: tuple[int, int]
    ) -> None:
        """Run each part in a thread, and look now and then how far they are; Ctrl-C stops all of them."""
        number, count = place
        with ThreadPoolExecutor(len(parts)) as pool:
            runs: list[Future] = []
            try:
                self.problem.report(number / count)
                runs = [pool.submit(integrate, *part) for part in parts]
                while wait(runs, _LOOK).not_done:
                    self.problem.report((number + float(signals[:, 1].sum()) / systems) / count)
            except KeyboardInterrupt:
                signals[:, 0], self.interrupted = 1, True
                runs = runs or [pool.submit(integrate, *part) for part in parts]
        results = [one.result()[0] for one in runs]
        width = 3 + math.prod(self.problem.start.shape[1:])
        for thread, crossings in enumerate(results if self.problem.recorded else ()):
            self._note(crossings[: len(crossings) // width * width].reshape(-1, width)[: signals[thread, 2]])

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
            self.counts[holds, RUN_CODE] = MET + number

    def finished(self) -> Outcome:
        """Return the outcome: from the end of a system's run on its last state is held."""
        outcome, problem = self.outcome, self.problem
        tried, accepted, evaluated, extended, due, codes, _ = self.counts.T
        for row in np.flatnonzero(due < len(problem.times)):
            self.states[row, due[row] :] = self.y[row]
        outcome.states[:, 1:] = problem.field.projected_over_time(outcome.states[:, 1:])
        outcome.end_times = torch.from_numpy(self.times[:, RUN_END].copy())
        right_hand_sides = evaluated * self.method.last.value + extended * self.method.extra.value
        outcome.counts = {
            "right_hand_sides": torch.from_numpy(right_hand_sides),
            "accepted": torch.from_numpy(accepted.copy()),
            "rejected": torch.from_numpy(tried - accepted),
        }
        named = {ARRIVED: Status.HORIZON, SPENT: Status.BUDGET, STOPPED: Status.INTERRUPTED, STUCK: Status.UNDERFLOW}
        named |= {MET + number: event.status for number, event in enumerate(problem.events)}
        outcome.status = [named[code] for code in codes.tolist()]
        self._name_stuck()
        outcome.interrupted = self.interrupted
        return outcome

    def _name_stuck(self) -> None:
        """Say of systems without a step whether they diverged, are not finite, or are too rough for their tolerance."""
        rows = np.flatnonzero(self.counts[:, RUN_CODE] == STUCK)
        for row in rows:
            # One at a time: the circuits may be others at each one's time.
            t, finite = torch.from_numpy(self.times[[row], RUN_END]), torch.tensor([bool(self.counts[row, RUN_FINITE])])
            field, y = self.problem.field.select(torch.tensor([row])), torch.from_numpy(self.y[[row]])
            statuses = of_stuck(field, y, field.velocity(y, float(t)), t, finite)
            self.outcome.status[row] = next(status for status, which in statuses.items() if bool(which))


def _options_of(field: Field, tokens: int) -> Options:
    """Return what all systems of the field share."""
    attention, positions = field.attention, field.attention.positions
    return Options(
        tokens=tokens,
        heads=attention.heads,
        rotary=positions.rank if isinstance(positions, RotaryPositions) else 0,
        rotates=Known(isinstance(positions, RotaryPositions)),
        causal=attention.causal,
        weights={"softmax": SOFTMAX, "exponential": EXPONENTIAL, "linear": LINEAR}[attention.weights],
        offset=attention.offset,
        constrained=field.geometry.constrained,
        has_metric=field.geometry.metric is not None,
        has_table=isinstance(positions, AbsolutePositions),
        turning=Known(not attention.constant),
        multiple=field.has_differences,
        relative=field.relative,
    )


def _systems_of(field: Field, tokens: int) -> tuple[Systems, list[np.ndarray]]:
    """Return the matrices of a field of constant and sinusoidal circuits, and the arrays that hold them."""
    attention, positions, arrays = field.attention, field.attention.positions, []
    heads, dim = attention.heads, attention.dim
    identity = torch.eye(dim, dtype=torch.float64)
    rotary = positions if isinstance(positions, RotaryPositions) else None
    scale = rotary.scale if rotary else 1.0

    def kept(array: np.ndarray) -> int:
        arrays.append(array)
        return array.ctypes.data

    def circuit(schedule: Schedule, factor: float) -> Circuit:
        """Return a circuit whose matrices are multiplied by `factor`; one head may stand for all."""
        if schedule.constant:
            matrix, gates = _of_all(schedule.matrix_at(0.0), heads), np.zeros((0, 0))
        else:
            parts = [_gated(one) for one in (schedule.heads if isinstance(schedule, PerHead) else (schedule,))]
            matrix, gating = (_side_by_side([part[number] for part in parts], heads) for number in (0, 1))
            gates = _rows(gating, 3)
        rows, columns = matrix.shape[-2:]
        numbers = _rows(factor * matrix, 3)
        return Circuit(kept(numbers), len(numbers), kept(gates), len(gates), heads * rows, columns)

    metric, values = field.geometry.metric, attention.ov
    metrics = _rows(identity if metric is None else metric, 2)
    table = _rows(positions.table[:tokens], 2)[0] if isinstance(positions, AbsolutePositions) else np.zeros(0)
    systems = Systems(
        qk=circuit(attention.qk, scale),
        ov=circuit(Constant(identity.expand(heads, dim, dim)) if field.identity_values else values, field.factor),
        query=circuit(rotary.query, scale) if rotary else Circuit(0, 1, 0, 0, 0, 0),
        key=circuit(rotary.key, 1.0) if rotary else Circuit(0, 1, 0, 0, 0, 0),
        metric=kept(metrics),
        metrics=len(metrics),
        table=kept(table),
        turns=kept(_turns(rotary, tokens) if rotary else np.zeros(0)),
    )
    return systems, arrays


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
