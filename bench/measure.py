"""Times two pieces of work in alternation, so that a machine that slows down slows both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

NO_TARGET = "no target"
"""Stands for the target of a row that is not judged."""

NOTHING_COMPARED = "no numbers are compared"
"""Stands for the error of rows on time or memory alone."""


@dataclass(frozen=True)
class Comparison:
    """One line of the table.

    Attributes:
        workload: What was measured.
        ours: Median of our time in seconds (or bytes for memory).
        other: The same of what it is compared with.
        ratio: Median over the alternations of the quotient that the target is about.
        spread: Lowest and highest of these quotients.
        target: The target in words.
        met: Whether the median meets it.
        error: Largest difference of the two results, in words.
        unit: Of `ours` and `other`: "s", "MB" and the like.
    """

    workload: str
    ours: float
    other: float
    ratio: float
    spread: tuple[float, float]
    target: str
    met: bool
    error: str
    unit: str = "s"


@dataclass(frozen=True)
class Cost:
    """What one solver costs on one workload, at the error asked for.

    Attributes:
        workload: By name.
        solver: By name.
        systems: How many it was timed on.
        rtol: Tolerance at which it met the error.
        error: Its largest difference to the reference.
        right: Whether it met the error and arrived.
        milliseconds: Processor time for a system, median.
        spread: Lowest and highest of them.
        right_hand_sides: For a system; NaN where nobody counts them.
        peak: MB that the run adds to the resident memory of a process in which it has run with few systems.
        first: Seconds of processor time that a first call takes more than a second one, its imports included.
        cached: The same with what was compiled before on the disk; None where nothing is kept there.
    """

    workload: str
    solver: str
    systems: int
    rtol: float
    error: float
    right: bool
    milliseconds: float
    spread: tuple[float, float]
    right_hand_sides: float
    peak: float
    first: float
    cached: float | None


@dataclass(frozen=True)
class Curve:
    """How a cost grows.

    Attributes:
        title: What is drawn.
        along: What grows, and its unit in words.
        at: Where it was measured.
        costs: For each line its name and the costs there, median of the rounds.
        unit: Of the costs.
    """

    title: str
    along: str
    at: list[float]
    costs: dict[str, list[float]]
    unit: str


Row = Comparison | Cost | Curve


def alternate(ours: Callable[[], object], other: Callable[[], object], rounds: int) -> list[tuple[float, float]]:
    """Seconds of (ours, other) per round, after one round that is not counted."""
    return [(taken["ours"], taken["other"]) for taken in rounds_of({"ours": ours, "other": other}, rounds)]


def rounds_of(
    works: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    uncounted: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> list[dict[str, float]]:
    """Seconds of each piece of work per round, all in turn, after `uncounted` rounds that warm up."""
    for _ in range(uncounted):
        for work in works.values():
            work()
    return [{name: _seconds(work, clock) for name, work in works.items()} for _ in range(rounds)]


def speedup(workload: str, pairs: list[tuple[float, float]], *, at_least: float, error: str) -> Comparison:
    """How many times faster ours is."""
    ratios = [other / ours for ours, other in pairs]
    ratio = statistics.median(ratios)
    return _comparison(workload, pairs, ratios, f"≥ {at_least:g} × faster", ratio >= at_least, error)


def overhead(workload: str, pairs: list[tuple[float, float]], *, at_most: float, error: str) -> Comparison:
    """How many times the other's time ours takes."""
    ratios = [ours / other for ours, other in pairs]
    ratio = statistics.median(ratios)
    return _comparison(workload, pairs, ratios, f"≤ {at_most:g} × the time", ratio <= at_most, error)


def share(
    workload: str, pairs: list[tuple[float, float]], *, at_least: float, error: str, unit: str = "Gflop/s"
) -> Comparison:
    """What share of another's rate ours reaches; the pairs are rates (ours, other) and not seconds."""
    ratios = [ours / other for ours, other in pairs]
    ratio = statistics.median(ratios)
    return _comparison(workload, pairs, ratios, f"≥ {at_least:g} of the rate", ratio >= at_least, error, unit)


def _comparison(
    workload: str,
    pairs: list[tuple[float, float]],
    ratios: list[float],
    target: str,
    met: bool,
    error: str,
    unit: str = "s",
) -> Comparison:
    ours, other = (statistics.median(times) for times in zip(*pairs, strict=True))
    spread = (min(ratios), max(ratios))
    return Comparison(workload, ours, other, statistics.median(ratios), spread, target, met, error, unit)


def _seconds(work: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    work()
    return clock() - start
