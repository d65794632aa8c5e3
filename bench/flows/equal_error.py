"""A race at equal error: every solver runs at the loosest tolerance at which it is right enough, and is then timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from bench.flows.peers import Solved, Solver
from bench.measure import NO_TARGET, Comparison, rounds_of

RUNG = 10**0.25
TIGHTEST = 1e-13


@dataclass(frozen=True)
class Contender:
    """A solver and how many systems it is timed on.

    Attributes:
        name: In the tables.
        make: Imports and builds the solver; None where the package is not installed.
        systems: Enough for a steady time per system; solvers that step systems together get them in such batches.
        alone: Whether what it does to a system hangs on that system alone, so that a few say what tolerance it needs.
    """

    name: str
    make: Callable[[], Solver] | None
    systems: int
    alone: bool = False


@dataclass(frozen=True)
class Entry:
    """What takes part in a race, as a process of its own can build it too.

    Attributes:
        starts: (system, token, dim).
        horizon: Time to which the runs that are timed go.
        contenders: The solvers.
    """

    starts: Tensor
    horizon: float
    contenders: list[Contender]


@dataclass(frozen=True)
class Race:
    """What is integrated.

    Attributes:
        workload: In words.
        entry: Who takes part.
        checked: Time at which errors are measured.
        exact: The states of the first systems then.
        arrived: Whether the states at the horizon are what the run was for, and that in words.
        loosest: Tolerance from which on no looser one is tried.
    """

    workload: str
    entry: Entry
    checked: float
    exact: Tensor
    arrived: Callable[[Tensor], tuple[bool, str]] = lambda states: (True, "")
    loosest: float = 0.1

    def error(self, states: Tensor) -> float:
        """The largest difference to the reference, in any entry."""
        count = min(len(states), len(self.exact))
        return float((states[:count] - self.exact[:count]).abs().max())


@dataclass(frozen=True)
class Tuned:
    """The tolerance at which a solver met the error asked for, and its error there."""

    rtol: float
    error: float


@dataclass(frozen=True)
class Timed:
    """A solver's run at equal error.

    Attributes:
        contender: Whose.
        setting: The tolerance at which it was run, and the error there.
        seconds: Processor time for a system, of each round.
        solved: What it found at the horizon.
        right: Whether it met the error and arrived.
        words: That in words.
    """

    contender: Contender
    setting: Tuned
    seconds: list[float]
    solved: Solved
    right: bool
    words: str


def tuned(race: Race, solver: Solver, systems: int, wanted: float) -> Tuned:
    """The loosest of tolerances a quarter of a decade apart whose error is at most `wanted`."""

    def at(rtol: float) -> Tuned:
        return Tuned(rtol, race.error(solver(race.entry.starts[:systems], race.checked, rtol).states))

    best = at(wanted)
    if best.error <= wanted:
        while best.rtol < race.loosest and (looser := at(best.rtol * RUNG)).error <= wanted:
            best = looser
        return best
    while not best.error <= wanted and best.rtol > TIGHTEST:
        best = at(best.rtol / RUNG)
    return best


def run(race: Race, wanted: float, rounds: int) -> dict[str, Timed]:
    """Time all solvers that are installed, in turn, each at the loosest tolerance at which it is right enough.

    CPU time and not the clock's, so that threads are paid for: the comparison is per core.
    """
    entry = race.entry
    solvers = {one.name: (one, one.make()) for one in entry.contenders if one.make is not None}
    settings = {name: tuned(race, solver, _tuning(one, race), wanted) for name, (one, solver) in solvers.items()}
    solutions: dict[str, Solved] = {}

    def work(one: Contender, solver: Solver) -> Callable[[], object]:
        def solve() -> None:
            solutions[one.name] = solver(entry.starts[: one.systems], entry.horizon, settings[one.name].rtol)

        return solve

    works = {name: work(one, solver) for name, (one, solver) in solvers.items()}
    # Tuning has warmed up every solver, those that are compiled for a number of systems at that number.
    seconds = rounds_of(works, rounds, uncounted=0, clock=time.process_time)
    return {
        name: _timed(
            race, one, settings[name], [taken[name] / one.systems for taken in seconds], solutions[name], wanted
        )
        for name, (one, _) in solvers.items()
    }


def against(
    race: Race, timed: dict[str, Timed], wanted: float, one: str, other: str, at_least: float | None
) -> Comparison:
    """Compare processor time for a system; an ``at_least`` target needs both to have met the error."""
    workload = f"{race.workload}, to error {wanted:.0e}, {one} against {other}"
    if one not in timed or other not in timed:
        return _skipped(workload)
    mine, theirs = timed[one], timed[other]
    ratios = [slow / fast for fast, slow in zip(mine.seconds, theirs.seconds, strict=True)]
    ratio = statistics.median(ratios)
    target = NO_TARGET if at_least is None else f"≥ {at_least:g} × faster"
    met = at_least is None or (mine.right and theirs.right and ratio >= at_least)
    ours, others = (1e3 * statistics.median(solver.seconds) for solver in (mine, theirs))
    words = f"{mine.words}; {theirs.words}"
    return Comparison(workload, ours, others, ratio, (min(ratios), max(ratios)), target, met, words, "ms/system")


def _tuning(one: Contender, race: Race) -> int:
    return min(len(race.exact), one.systems) if one.alone else one.systems


def _timed(race: Race, one: Contender, setting: Tuned, seconds: list[float], solved: Solved, wanted: float) -> Timed:
    """Whether a solver is right enough, and its error in words."""
    error = race.error(solved.states) if race.entry.horizon == race.checked else setting.error
    arrived, words = race.arrived(solved.states)
    sentence = f"{one.name} {error:.1e} at rtol {setting.rtol:.1e}, {one.systems} systems"
    sentence = f"{sentence}, {words}" if words else sentence
    return Timed(one, Tuned(setting.rtol, error), seconds, solved, arrived and error <= wanted, sentence)


def _skipped(workload: str) -> Comparison:
    nothing = float("nan")
    return Comparison(
        workload, nothing, nothing, nothing, (nothing, nothing), NO_TARGET, True,
        "not installed: it comes with the extra `bench`", "ms/system",
    )  # fmt: skip
