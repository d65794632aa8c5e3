"""Times two pieces of work in alternation, so that a machine that slows down slows both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


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
