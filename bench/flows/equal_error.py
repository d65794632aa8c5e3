"""A race at equal error: every solver runs at the loosest tolerance at which it is right enough, and is then timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from bench.flows.peers import Solver
from bench.measure import Comparison, rounds_of

RUNG = 10**0.25
TIGHTEST = 1e-13


@dataclass(frozen=True)
class Contender:
    """A solver and how many systems it is timed on.

    Attributes:
        name: In the table.
        solver: None where the package is not installed.
        systems: Enough for a steady time per system; solvers that step systems together get them in such batches.
        at_least: How many times faster ours must be; None where this is only told.
    """

    name: str
    solver: Solver | None
    systems: int
    at_least: float | None = None


@dataclass(frozen=True)
class Race:
    """What is integrated.

    Attributes:
        workload: In words.
        starts: (system, token, dim).
        checked: Time at which errors are measured.
        exact: The states of the first systems then.
        horizon: Time to which the runs that are timed go.
        arrived: Whether the states at the horizon are what the run was for, and that in words.
    """

    workload: str
    starts: Tensor
    checked: float
    exact: Tensor
    horizon: float
    arrived: Callable[[Tensor], tuple[bool, str]] = lambda states: (True, "")

    def error(self, states: Tensor) -> float:
        """The largest difference to the reference, in any entry."""
        count = min(len(states), len(self.exact))
        return float((states[:count] - self.exact[:count]).abs().max())


@dataclass(frozen=True)
class Tuned:
    """The tolerance at which a solver met the error asked for, and its error there."""

    rtol: float
    error: float


def tuned(race: Race, solver: Solver, systems: int, wanted: float) -> Tuned:
    """The loosest of tolerances a quarter of a decade apart whose error is at most `wanted`."""

    def at(rtol: float) -> Tuned:
        return Tuned(rtol, race.error(solver(race.starts[:systems], race.checked, rtol)))

    best = at(wanted)
    if best.error <= wanted:
        while best.rtol < 0.1 and (looser := at(best.rtol * RUNG)).error <= wanted:
            best = looser
        return best
    while not best.error <= wanted and best.rtol > TIGHTEST:
        best = at(best.rtol / RUNG)
    return best


def run(race: Race, ours: Contender, others: list[Contender], wanted: float, rounds: int) -> Iterator[Comparison]:
    """Time all solvers in turn and compare CPU time per system; ``at_least`` targets need the error met as well.

    CPU time and not the clock's, so that threads are paid for: the comparison is per core.
    """
    solvers = {one: one.solver for one in (ours, *others) if one.solver is not None}
    settings = {one.name: tuned(race, solver, _tuning(one, race), wanted) for one, solver in solvers.items()}
    ends: dict[str, Tensor] = {}

    def work(one: Contender, solver: Solver) -> Callable[[], object]:
        def solve() -> None:
            ends[one.name] = solver(race.starts[: one.systems], race.horizon, settings[one.name].rtol)

        return solve

    works = {one.name: work(one, solver) for one, solver in solvers.items()}
    # Tuning has warmed up every solver at the shapes that are timed.
    seconds = rounds_of(works, rounds, uncounted=0, clock=time.process_time)
    per_system = {one.name: [taken[one.name] / one.systems for taken in seconds] for one in solvers}
    for other in others:
        workload = f"{race.workload}, to error {wanted:.0e}, {ours.name} against {other.name}"
        if other.solver is None:
            yield _skipped(workload)
            continue
        ratings = [_rated(race, settings[one.name], ends[one.name], one, wanted) for one in (ours, other)]
        right, words = all(good for good, _ in ratings), "; ".join(said for _, said in ratings)
        yield _compared(workload, per_system[ours.name], per_system[other.name], other.at_least, right, words)


def _tuning(one: Contender, race: Race) -> int:
    # Ours steps every system by itself: how many there are changes no tolerance.
    return len(race.exact) if one.name == "ours" else one.systems


def _rated(race: Race, setting: Tuned, ends: Tensor, one: Contender, wanted: float) -> tuple[bool, str]:
    """Whether a solver is right enough, and its error in words."""
    error = race.error(ends) if race.horizon == race.checked else setting.error
    arrived, words = race.arrived(ends)
    said = f"{one.name} {error:.1e} at rtol {setting.rtol:.1e}, {one.systems} systems"
    return arrived and error <= wanted, f"{said}, {words}" if words else said


def _compared(
    workload: str, ours: list[float], other: list[float], at_least: float | None, right: bool, error: str
) -> Comparison:
    ratios = [theirs / mine for mine, theirs in zip(ours, other, strict=True)]
    ratio, scale = statistics.median(ratios), 1e3
    target = "none: told" if at_least is None else f"≥ {at_least:g} × faster"
    met = at_least is None or (right and ratio >= at_least)
    mine, theirs = (scale * statistics.median(times) for times in (ours, other))
    spread = (min(ratios), max(ratios))
    return Comparison(workload, mine, theirs, ratio, spread, target, met, error, "ms/system")


def _skipped(workload: str) -> Comparison:
    nothing = float("nan")
    return Comparison(
        workload, nothing, nothing, nothing, (nothing, nothing), "none: skipped", True,
        "not installed: it comes with the extra `bench`", "ms/system",
    )  # fmt: skip
