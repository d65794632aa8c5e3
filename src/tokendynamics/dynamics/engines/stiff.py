"""Long horizons: SciPy's implicit multistep solvers with the analytic Jacobian, one system after the other.

Implicit steps grow as the motion slows down, so that the cost does not grow with the horizon: metastable clusters
are followed to times of 1e12. The work is done in float64 on the CPU whatever the start is.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace

import numpy as np
import torch
from scipy.integrate import DenseOutput, OdeSolver
from torch import Tensor

from tokendynamics.dynamics.engines import batched
from tokendynamics.dynamics.engines.problem import Outcome, Problem
from tokendynamics.dynamics.engines.stiff_solvers import LARGEST_DENSE, Equations, StuckError, solver_for
from tokendynamics.dynamics.events import Event
from tokendynamics.dynamics.field import Field
from tokendynamics.dynamics.status import Status
from tokendynamics.numerics.threads import limited_threads
from tokendynamics.provenance.progress import silent


def run(problem: Problem) -> Outcome:
    """Run all systems of the problem.

    Steps that LSODA rejects inside a step are not known: there is no count of them, but their right-hand sides count.
    """
    outcome, field = Outcome.blank(problem), _in_double(problem.field)
    (systems, tokens, dim) = problem.start.shape
    small = tokens * dim <= LARGEST_DENSE
    names = ("right_hand_sides", "jacobians", "accepted")
    outcome.counts = {name: torch.zeros(systems, dtype=torch.int64) for name in names}
    outcome.notes.append("LSODA" if small else f"BDF with GMRES: {tokens * dim} numbers of state")
    left: list[tuple[int, float]] = []
    with limited_threads(1 if small else None):
        for row in range(systems):
            part = _System(problem, field.select(torch.tensor([row])), outcome, row)
            try:
                part.run()
            except KeyboardInterrupt:
                part.stop(Status.INTERRUPTED)
                outcome.status[row + 1 :] = [Status.INTERRUPTED] * (systems - row - 1)
                outcome.interrupted = True
                break
            finally:
                part.record_counts()
            if part.explicit_from is not None:
                left.append((row, part.explicit_from))
    if left:
        where = f"the first is system {left[0][0]} at t = {left[0][1]:.6g}"
        outcome.notes.append(f"dopri5 went on where it could not, in {len(left)} of {systems} systems: {where}")
    return outcome


class _System:
    """The run of one system, row `row` of the outcome; `t` and `y` are where it is."""

    def __init__(self, problem: Problem, field: Field, outcome: Outcome, row: int) -> None:
        self.problem, self.field, self.outcome, self.row = problem, field, outcome, row
        start = problem.start[row].detach().to(device="cpu", dtype=torch.float64)
        self.equations = Equations(field, (start.shape[0], start.shape[1]))
        self.t, self.y = problem.times[0], start.numpy().reshape(-1).copy()
        self.cursor, self.steps = 1, 0
        self.extents = _extents(field, start.shape[0], start.shape[1])
        self.explicit_from: float | None = None

    def run(self) -> None:
        """Run from jump to jump of the schedules, up to the horizon or to what ends the run before."""
        end = self.problem.times[-1]
        joints = [self.t, *self.field.attention.breaks(self.t, end), end]
        status = next((event.status for event in self.problem.events if self._value(event, self.t, self.y) <= 0), None)
        for left, right in itertools.pairwise(joints):
            if status is not None:
                break
            self.equations.field = self.field.within(left, right)
            try:
                status = self._segment(left, right)
            except StuckError:
                self._run_on_explicitly()
                return
        self.stop(status or Status.HORIZON)

    def stop(self, status: Status) -> None:
        """End the run here: the last state is held at all later times."""
        self.outcome.status[self.row] = status
        self.outcome.end_times[self.row] = self.t
        self.outcome.states[self.row, self.cursor :] = self._states(self.y)

    def record_counts(self) -> None:
        """Write the counts of this system into the outcome."""
        for name, count in {**self.equations.counts, "accepted": self.steps}.items():
            self.outcome.counts[name][self.row] = count

    def _segment(self, left: float, right: float) -> Status | None:
        problem = self.problem
        atol = problem.atol * self.extents
        solver = solver_for(self.equations, self._retracted(self.y), left, right, problem.rtol, atol)
        while solver.status == "running":
            if self.steps >= problem.max_steps:
                return Status.BUDGET
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                solver.step()
            # LSODA does not fail where its step is lost in the rounding of the time: it stands there and steps on.
            if solver.status == "failed" or solver.t <= self.t:
                raise StuckError
            self.steps += 1
            status = self._accept(solver)
            if status is not None:
                return status
            self._report()
        return None

    def _run_on_explicitly(self) -> None:
        """Go on by explicit steps, which pass what is merely hard and name the end of a run as every engine does."""
        problem, outcome, row = self.problem, self.outcome, self.row
        self.explicit_from = self.t
        found = batched.run(
            replace(
                problem,
                field=self.field,
                start=self.equations.states(self._retracted(self.y)),
                times=(self.t, *problem.times[self.cursor :]),
                max_steps=problem.max_steps - self.steps,
                progress=silent,
            )
        )
        if found.interrupted:
            raise KeyboardInterrupt
        outcome.states[row, self.cursor :] = found.states[0, 1:].to(outcome.states)
        outcome.status[row], outcome.end_times[row] = found.status[0], found.end_times[0]
        outcome.crossings += [(number, row, time, state) for number, _, time, state in found.crossings]
        self.steps += int(found.counts["accepted"][0])
        self.equations.counts["right_hand_sides"] += int(found.counts["right_hand_sides"][0])

    def _accept(self, solver: OdeSolver) -> Status | None:
        """Hand out what the step passed, up to the first event in it; the status of that event, if any."""
        path, before = solver.dense_output(), self.t
        until, state, status = float(solver.t), solver.y, None
        for number, event in enumerate(self.problem.recorded):
            if self._value(event, before, self.y) > 0 >= self._value(event, until, state):
                moment = self._crossing(event, path, before, until)
                self.outcome.crossings.append((number, self.row, moment, self._states(path(moment))))
        for event in self.problem.events:
            if self._value(event, until, state) <= 0:
                until, status = self._crossing(event, path, before, until), event.status
                state = path(until)
        while self.cursor < len(self.problem.times) and self.problem.times[self.cursor] <= until:
            time = self.problem.times[self.cursor]
            self.outcome.states[self.row, self.cursor] = self._states(state if time == until else path(time))
            self.cursor += 1
        self.t, self.y = until, state.copy()
        return status

    def _crossing(self, event: Event, path: DenseOutput, low: float, high: float) -> float:
        """Return the time at which the event's value, above zero at `low`, is no longer so, to the last digit."""
        while low < (middle := low + (high - low) / 2) < high:
            low, high = (low, middle) if self._value(event, middle, path(middle)) <= 0 else (middle, high)
        return high

    def _value(self, event: Event, t: float, y: np.ndarray) -> float:
        field, states = self.equations.field, self.equations.states(y)
        return float(event.value(field, field.project(states), torch.tensor([t], dtype=torch.float64)))

    def _states(self, y: np.ndarray) -> Tensor:
        return self.equations.states(self._retracted(y))[0].to(self.outcome.states)

    def _retracted(self, y: np.ndarray) -> np.ndarray:
        return self.field.exactly_projected(self.equations.states(y)).reshape(-1).numpy()

    def _report(self) -> None:
        start, end, systems = self.problem.times[0], self.problem.times[-1], len(self.outcome.status)
        self.problem.report((self.row + (self.t - start) / (end - start)) / systems)


def _extents(field: Field, tokens: int, dim: int) -> np.ndarray:
    """Return how far the space reaches in each coordinate of the flat state: the unit of the absolute tolerance.

    The ellipsoid reaches ``√(M^(−1))_cc`` along axis c, the sphere 1; free space has no unit of its own.
    """
    if field.geometry.metric is None:
        return np.ones(tokens * dim)
    metric = field.geometry.metric.reshape(-1, dim, dim)[0]
    return np.tile(torch.linalg.inv(metric).diagonal().sqrt().numpy(), tokens)


def _in_double(field: Field) -> Field:
    place = {"dtype": torch.float64, "device": torch.device("cpu")}
    return replace(field, attention=field.attention.to(**place), geometry=field.geometry.to(**place))
