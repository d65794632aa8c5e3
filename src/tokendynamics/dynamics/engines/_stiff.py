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
from typing import Any

import numpy as np
import torch
from scipy.integrate import BDF, LSODA, DenseOutput, OdeSolver
from scipy.sparse import csc_matrix
from scipy.sparse.linalg import LinearOperator, gmres
from torch import Tensor

from tokendynamics.dynamics._field import Field, jacobian, jacobian_vector
from tokendynamics.dynamics.engines import _batched as batched
from tokendynamics.dynamics.engines._crossings import crossings, is_sampled, within_reach
from tokendynamics.dynamics.engines.problem import Outcome, Problem
from tokendynamics.dynamics.events import Consensus, Event, NormAbove, Status
from tokendynamics.dynamics.rescaled import resolved
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.provenance.progress import silent

LARGEST_DENSE = 1024
"""Up to this many numbers of state (token · dim) the Jacobian is formed and factorised."""

_SMALLEST_RTOL = 1e-13
_SHARE = 0.1
"""Of the tolerances, for each step: errors of a multistep method's many short steps add up to more than one of them."""

_RESOLVED = 1e-10
"""A share of the step: where the solver's time is spaced more coarsely it begins anew at 0."""
_GMRES_RTOL, _GMRES_RESTART, _GMRES_RESTARTS = 1e-3, 40, 5


class StuckError(ArithmeticError):
    """The solver cannot go on. A field that is not finite is such a case: LSODA can loop without end on such values."""


@dataclasses.dataclass
class Equations:
    """The field of one system as functions of a flat array, which count how often they are called.

    Attributes:
        field: Of one system, in float64 on the CPU.
        shape: (token, dim).
        base: The time at which the solver's time is 0: steps are then not rounded to the spacing of floats at large
            times.
        end: Times are not asked beyond it.
        counts: Calls so far.
    """

    field: Field
    shape: tuple[int, int]
    base: float = 0.0
    end: float = np.inf
    counts: dict[str, int] = dataclasses.field(default_factory=lambda: {"right_hand_sides": 0, "jacobians": 0})

    def velocity(self, t: float, y: np.ndarray) -> np.ndarray:
        """Return the field, from differences where ov is a multiple of the identity: slow motion is then exact.

        Raises:
            StuckError: A velocity that is not finite.
        """
        self.counts["right_hand_sides"] += 1
        x, slow, t = self.states(y), self.field.has_differences, self.time(t)
        velocity = self.field.velocity_from_differences(x, t) if slow else self.field.velocity(x, t)
        flat = velocity.reshape(-1).numpy()
        if not np.isfinite(flat).all():
            raise StuckError
        return flat

    def jacobian(self, t: float, y: np.ndarray) -> np.ndarray:
        """Return the dense derivative, (token · dim, token · dim)."""
        self.counts["jacobians"] += 1
        x = self.states(y)
        return jacobian(resolved(self.field, x), x, self.time(t)).reshape(y.size, y.size).numpy()

    def jacobian_operator(self, t: float, y: np.ndarray) -> LinearOperator:
        """Return the derivative as products with directions."""
        self.counts["jacobians"] += 1
        x, t = self.states(y.copy()), self.time(t)
        field = resolved(self.field, x)

        def product(direction: np.ndarray) -> np.ndarray:
            return jacobian_vector(field, x, t, self.states(direction)).reshape(-1).numpy()

        return LinearOperator((y.size, y.size), matvec=product, dtype=np.float64)  # pyright: ignore[reportCallIssue]

    def time(self, t: float) -> float:
        """Return the time of the flow at a time of the solver."""
        return min(self.base + t, self.end)

    def states(self, y: np.ndarray) -> Tensor:
        """Return (1, token, dim)."""
        return torch.from_numpy(np.ascontiguousarray(y)).view(1, *self.shape)


def solver_for(
    equations: Equations, y: np.ndarray, length: float, rtol: float, atol: np.ndarray, max_step: float = np.inf
) -> OdeSolver:
    """Return a solver over a time from 0 to `length`: LSODA for small systems, BDF with GMRES beyond `LARGEST_DENSE`.

    LSODA takes Adams methods up to order 12 where nothing is stiff and backward differences where something is. Times
    of the solver begin at 0, see `Equations`.
    """
    options: dict[str, Any] = {"rtol": max(_SHARE * rtol, _SMALLEST_RTOL), "atol": _SHARE * atol, "max_step": max_step}
    if y.size > LARGEST_DENSE:
        return KrylovBDF(equations.velocity, 0.0, y, length, equations.jacobian_operator, **options)
    return LSODA(equations.velocity, 0.0, y, length, jac=equations.jacobian, **options)


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
        max_step: float,
    ) -> None:
        options: dict[str, Any] = {"rtol": rtol, "atol": atol, "max_step": max_step}
        super().__init__(fun, t0, y0, t_bound, jac=csc_matrix((y0.size, y0.size)), **options)
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
    outcome, field, place = (
        Outcome.blank(problem),
        problem.field,
        {"dtype": torch.float64, "device": torch.device("cpu")},
    )
    field = replace(field, attention=field.attention.to(**place), geometry=field.geometry.to(**place))
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
        outcome.notes.append(
            f"{problem.tableau.name} continued where it could not, in {len(left)} of {systems} systems: {where}"
        )
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
        self.events = (*problem.events, *problem.recorded)
        self.values: list[float] = []

    def run(self) -> None:
        """Run from jump to jump of the schedules, up to the horizon or to what ends the run before."""
        end = self.problem.times[-1]
        joints = [self.t, *self.field.attention.breaks(self.t, end), end]
        self.values = [self._value(event, self.t, self.y) for event in self.events]
        met = zip(self.problem.events, self.values, strict=False)
        status = next((event.status for event, value in met if value <= 0), None)
        for left, right in itertools.pairwise(joints):
            if status is not None:
                break
            self.equations.field = self.field.within(left, right)
            self.values = [self._value(event, left, self.y) for event in self.events]
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
        """Run between two jumps, in parts within which the longest step is one number."""
        for end, longest in self._parts(left, right):
            while self.t < end:
                if (status := self._solve(end, longest)) is not None:
                    return status
        return None

    def _parts(self, left: float, right: float) -> list[tuple[float, float]]:
        """Return ends of parts, each with its longest step: half the distance of the times no step may pass."""
        bound = self.problem.max_step or np.inf
        stops = np.array([left, *(time for time in self.problem.stops if left < time < right), right])
        if len(self.problem.stops) == 0:
            return [(right, bound)]
        parts: list[tuple[float, float]] = []
        for gap, end in zip(np.diff(stops).tolist(), stops[1:].tolist(), strict=True):
            if parts and 0.5 <= gap / (2 * parts[-1][1]) <= 2:
                parts[-1] = (end, parts[-1][1])
            else:
                parts.append((end, gap / 2))
        return [(end, min(longest, bound)) for end, longest in parts]

    def _solve(self, end: float, longest: float) -> Status | None:
        """Run on to `end`, or to where steps have become so short that the solver's time has to begin anew."""
        problem, equations = self.problem, self.equations
        equations.base, equations.end = self.t, end
        solver = solver_for(
            equations, self._retracted(self.y), end - self.t, problem.rtol, problem.atol * self.extents, longest
        )
        while solver.status == "running":
            if self.steps >= problem.max_steps:
                return Status.BUDGET
            before = solver.t
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                solver.step()
            # LSODA does not fail where its step is lost in the rounding of the time: it stands there and steps on.
            if solver.status == "failed" or solver.t <= before:
                raise StuckError
            self.steps += 1
            if problem.stops:
                self.outcome.longest_step = max(self.outcome.longest_step, solver.t - before)
            status = self._accept(solver, end)
            if status is not None:
                return status
            self._report()
            if solver.status == "running" and np.spacing(solver.t) > _RESOLVED * (solver.t - before):
                return None
        return None

    def _run_on_explicitly(self) -> None:
        """Go on by explicit steps, which pass what is merely hard and name the end of a run as every engine does."""
        problem, outcome, row = self.problem, self.outcome, self.row
        self.explicit_from = self.t
        explicit = batched.run(
            replace(
                problem,
                field=self.field,
                start=self.equations.states(self._retracted(self.y)),
                times=(self.t, *problem.times[self.cursor :]),
                stops=(self.t, *(stop for stop in problem.stops if stop > self.t)) if problem.stops else (),
                max_steps=problem.max_steps - self.steps,
                progress=silent,
            )
        )
        if explicit.interrupted:
            raise KeyboardInterrupt
        outcome.states[row, self.cursor :] = explicit.states[0, 1:].to(outcome.states)
        outcome.status[row], outcome.end_times[row] = explicit.status[0], explicit.end_times[0]
        outcome.crossings += [(number, row, time, state) for number, _, time, state in explicit.crossings]
        outcome.longest_step = max(outcome.longest_step, explicit.longest_step)
        self.steps += int(explicit.counts["accepted"][0])
        self.equations.counts["right_hand_sides"] += int(explicit.counts["right_hand_sides"][0])

    def _accept(self, solver: OdeSolver, end: float) -> Status | None:
        """Hand out what the step passed, up to the first event in it; the status of that event, if any."""
        dense, base, before = solver.dense_output(), self.equations.base, self.t
        until = end if solver.status == "finished" else min(base + float(solver.t), end)
        length, state, status = until - before, solver.y, None

        def path(share: float) -> np.ndarray:
            return dense(min(before - base + share * length, float(solver.t)))

        values = [self._value(event, until, state) for event in self.events]
        change = _largest_change(dense, solver.y, length, self.equations.shape) if self.events else np.inf
        shares = [self._shares(number, value, path, length, change) for number, value in enumerate(values)]
        ending = len(self.problem.events)
        for number, of_event in enumerate(shares[ending:]):
            for share in of_event:
                self.outcome.crossings.append((number, self.row, before + share * length, self._states(path(share))))
        share = min((min(of_event) for of_event in shares[:ending] if of_event), default=np.inf)
        if share <= 1:
            first = next(number for number, of_event in enumerate(shares[:ending]) if share in of_event)
            until, state, status = before + share * length, path(share), self.problem.events[first].status
        while self.cursor < len(self.problem.times) and self.problem.times[self.cursor] <= until:
            time = self.problem.times[self.cursor]
            at = state if time == until else path((time - before) / length)
            self.outcome.states[self.row, self.cursor] = self._states(at)
            self.cursor += 1
        self.t, self.y, self.values = until, state.copy(), values
        return status

    def _shares(
        self, number: int, after: float, path: Callable[[float], np.ndarray], length: float, change: float
    ) -> list[float]:
        """Return the shares of the step at which an event's value falls to zero."""
        event, before, start = self.events[number], self.values[number], self.t
        if number < len(self.problem.events) and before <= 0:
            return [0.0]  # A value of the caller's own may have jumped with the circuits.
        if not is_sampled(event) and not before > 0 >= after:
            return []
        ends = [torch.tensor([end], dtype=torch.float64) for end in (before, after)]
        farthest = torch.tensor([change], dtype=torch.float64)
        if type(event) in (Consensus, NormAbove) and not within_reach(ends[0], ends[1], farthest):
            return []

        def value(rows: Tensor, shares: Tensor) -> Tensor:
            values = [self._value(event, start + share * length, path(share)) for share in shares.tolist()]
            return torch.tensor(values, dtype=torch.float64)

        return crossings(value, *ends)[1].tolist()

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


def _largest_change(dense: DenseOutput, end: np.ndarray, length: float, shape: tuple[int, int]) -> float:
    """Bound how far a token is within a step from where it ends, relative to its norm there; infinite if not known.

    LSODA's path is a polynomial about the end, in shares of the step: with its coefficients a_k no coordinate moves by
    more than ``Σ_k≥1 |a_k|``. Other paths are sampled whatever they are.
    """
    coefficients, unit = getattr(dense, "yh", None), getattr(dense, "h", None)
    if coefficients is None or unit is None:
        return np.inf
    distances = np.abs(coefficients[:, 1:]) @ abs(length / unit) ** np.arange(1, coefficients.shape[1])
    sizes = np.linalg.norm(end.reshape(shape), axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        change = (np.linalg.norm(distances.reshape(shape), axis=-1) / sizes).max()
    return float(change) if np.isfinite(change) else np.inf


def _extents(field: Field, tokens: int, dim: int) -> np.ndarray:
    """Return how far the space reaches in each coordinate of the flat state: the unit of the absolute tolerance.

    The ellipsoid reaches ``√(M^(−1))_cc`` along axis c, the sphere 1; free space has no unit of its own.
    """
    if field.geometry.metric is None:
        return np.ones(tokens * dim)
    metric = field.geometry.metric.reshape(-1, dim, dim)[0]
    return np.tile(torch.linalg.inv(metric).diagonal().sqrt().numpy(), tokens)
