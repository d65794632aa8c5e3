"""Long horizons: SciPy's implicit multistep solvers with the analytic Jacobian, one system after the other.

Implicit steps grow as the motion slows down, so that the cost does not grow with the horizon: metastable clusters
are followed to times of 1e12. The work is done in float64 on the CPU whatever the start is. LSODA takes the whole
Jacobian, BDF products of it.
"""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from scipy.integrate import BDF, LSODA, DenseOutput, OdeSolver
from scipy.sparse import csc_matrix
from scipy.sparse.linalg import LinearOperator, gmres
from torch import Tensor

from tokendynamics.dynamics._field import Field
from tokendynamics.dynamics._jacobian import jacobian, jacobian_vector
from tokendynamics.dynamics._status import Status
from tokendynamics.dynamics.engines import _batched as batched
from tokendynamics.dynamics.engines._problem import Outcome, Problem
from tokendynamics.dynamics.events import Event
from tokendynamics.numerics._resources import limited_threads
from tokendynamics.provenance._progress import silent

LARGEST_DENSE = 1024
"""Up to this many numbers of state (token · dim) the Jacobian is formed and factorised."""

_SMALLEST_RTOL = 1e-13
_GMRES_RTOL, _GMRES_RESTART, _GMRES_RESTARTS = 1e-3, 40, 5


class StuckError(ArithmeticError):
    """The solver cannot go on. A field that is not finite is such a case: LSODA can loop without end on such values."""


@dataclasses.dataclass
class Equations:
    """The field of one system as functions of a flat array, which count how often they are called.

    Attributes:
        field: Of one system, in float64 on the CPU.
        shape: (token, dim).
        counts: Calls so far.
    """

    field: Field
    shape: tuple[int, int]
    counts: dict[str, int] = dataclasses.field(default_factory=lambda: {"right_hand_sides": 0, "jacobians": 0})

    def velocity(self, t: float, y: np.ndarray) -> np.ndarray:
        """Return the field, from differences where ov is a multiple of the identity: slow motion is then exact.

        Raises:
            StuckError: A velocity that is not finite.
        """
        self.counts["right_hand_sides"] += 1
        x, slow = self.states(y), self.field.has_differences
        velocity = self.field.velocity_from_differences(x, t) if slow else self.field.velocity(x, t)
        flat = velocity.reshape(-1).numpy()
        if not np.isfinite(flat).all():
            raise StuckError
        return flat

    def jacobian(self, t: float, y: np.ndarray) -> np.ndarray:
        """Return the dense derivative, (token · dim, token · dim)."""
        self.counts["jacobians"] += 1
        return jacobian(self.field, self.states(y), t).reshape(y.size, y.size).numpy()

    def jacobian_operator(self, t: float, y: np.ndarray) -> LinearOperator:
        """Return the derivative as products with directions."""
        self.counts["jacobians"] += 1
        x = self.states(y.copy())

        def product(direction: np.ndarray) -> np.ndarray:
            return jacobian_vector(self.field, x, t, self.states(direction)).reshape(-1).numpy()

        return LinearOperator((y.size, y.size), matvec=product, dtype=np.float64)  # pyright: ignore[reportCallIssue]

    def states(self, y: np.ndarray) -> Tensor:
        """Return (1, token, dim)."""
        return torch.from_numpy(np.ascontiguousarray(y)).view(1, *self.shape)


def solver_for(
    equations: Equations, y: np.ndarray, start: float, end: float, rtol: float, atol: np.ndarray
) -> OdeSolver:
    """Return a solver from `start` to `end`: LSODA for small systems, BDF with GMRES beyond `LARGEST_DENSE`.

    LSODA takes Adams methods up to order 12 where nothing is stiff and backward differences where something is.
    """
    rtol = max(rtol, _SMALLEST_RTOL)
    if y.size > LARGEST_DENSE:
        return KrylovBDF(equations.velocity, start, y, end, equations.jacobian_operator, rtol=rtol, atol=atol)
    return LSODA(equations.velocity, start, y, end, rtol=rtol, atol=cast(Any, atol), jac=equations.jacobian)


class KrylovBDF(BDF):
    """SciPy's backward differences with Newton's linear equations solved by GMRES: no matrix is ever formed.

    Tokens in clusters make ``1 − c J`` a multiple of the identity plus little, on which GMRES takes a few products.
    """

    def __init__(
        self,
        fun: Callable[[float, np.ndarray], np.ndarray],
        t0: float,
        y0: np.ndarray,
        t_bound: float,
        operator: Callable[[float, np.ndarray], LinearOperator],
        *,
        rtol: float,
        atol: np.ndarray,
    ) -> None:
        super().__init__(fun, t0, y0, t_bound, rtol=rtol, atol=cast(Any, atol), jac=csc_matrix((y0.size, y0.size)))
        # These four are all that BDF asks of its linear algebra: J = jac(t, y), solve_lu(lu(I − c J), b).
        self.jac, self.J = operator, operator(t0, y0)
        self.I = LinearOperator(self.J.shape, matvec=lambda vector: vector, dtype=np.float64)  # pyright: ignore[reportCallIssue]
        self.lu = lambda matrix: matrix
        self.solve_lu = _solved


def _solved(matrix: LinearOperator, right: np.ndarray) -> np.ndarray:
    options = {"restart": _GMRES_RESTART, "maxiter": _GMRES_RESTARTS}
    return gmres(matrix, right, rtol=_GMRES_RTOL, atol=0.0, **options)[0]


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
