"""Columns of numbers that `positional` prints as mean ± standard deviation, and which differences these separate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reproductions.record import Quantity

RUNS = 5
"""“Our results are averaged over 5 runs.”"""
ERROR = 0.05


@dataclass(frozen=True)
class Column:
    """A printed column.

    Attributes:
        name: Data, split and measure.
        rows: Mean and standard deviation by arm.
        digits: Printed behind the point.
        lower_is_better: Which direction of the measure is the better one.
        again: The same means as another table prints them.
    """

    name: str
    rows: Mapping[str, tuple[float, float]]
    digits: int
    lower_is_better: bool = True
    again: Mapping[str, float] = field(default_factory=dict)

    def difference(self, arm: str, other: str) -> float:
        """Return the printed mean of an arm less that of another one."""
        return self.rows[arm][0] - self.rows[other][0]


def welch(one: tuple[float, float], other: tuple[float, float], runs: int = RUNS) -> float:
    """Return the two-sided p-value of B. L. Welch's test (1947) that two means are one.

    Args:
        one: Mean and standard deviation over the runs.
        other: Likewise.
        runs: Of each.

    >>> round(welch((31.37, 0.14), (31.10, 0.16)), 4)
    0.0222
    """
    from scipy.special import stdtr

    parts = [deviation**2 / runs for _, deviation in (one, other)]
    error, gap = math.sqrt(sum(parts)), abs(one[0] - other[0])
    if error == 0:
        return 1.0 if gap == 0 else 0.0
    freedom = sum(parts) ** 2 * (runs - 1) / sum(part**2 for part in parts)
    return float(2 * stdtr(freedom, -gap / error))


def least_favourable(one: tuple[float, float], other: tuple[float, float], digits: int) -> float:
    """Return the largest p of `welch` for numbers that round to the printed ones.

    >>> round(least_favourable((31.37, 0.14), (31.10, 0.16), 2), 4)
    0.0298
    """
    half = 0.5 * 10.0**-digits
    gap = max(abs(one[0] - other[0]) - 2 * half, 0.0)
    return welch((gap, one[1] + half), (0.0, other[1] + half))


def as_printed(column: Column, better: str, worse: str, called: Mapping[str, str]) -> Quantity:
    """Hold a printed difference against the claim that one arm is better than another one.

    Args:
        column: Where both are printed.
        better: The arm that is claimed to be better.
        worse: The other one.
        called: Names of arms in words.
    """
    pair = column.rows[better], column.rows[worse]
    name = f"{column.name}, as printed: {less(called[better], called[worse])}"
    p, most = welch(*pair), least_favourable(*pair, column.digits)
    unsettled = ""
    if most >= ERROR:
        rounded = "" if p >= ERROR else f", but up to {most:.2g} for numbers that round to the printed ones"
        unsettled = f"p = {p:.2g} by the printed ± over {RUNS} runs (Welch){rounded}"
    relation = "≤" if column.lower_is_better else "≥"
    difference = round(column.difference(better, worse), column.digits)
    return Quantity(name, 0.0, difference, 0.0, relation, "paper", unsettled=unsettled)


def less(one: str, other: str) -> str:
    """Return a difference in words.

    >>> less("RoPE + λI", "RoPE")
    '(RoPE + λI) − RoPE'
    """
    return " − ".join(f"({name})" if " + " in name else name for name in (one, other))


def both_prints(columns: Sequence[Column]) -> Quantity:
    """Hold Tables 2 and 6 against each other: both are means of the same runs."""
    apart = [abs(mean - column.rows[arm][0]) for column in columns for arm, mean in column.again.items()]
    other = sum(gap > 0.001 for gap in apart)
    reason = f"{other} of {len(apart)} entries differ between the two prints" if other else ""
    return Quantity("Tables 2 and 6, the same means: largest difference (%)", 0.0, max(apart), 0.001, reason=reason)


def in_the_text(words: str, printed: float, given: float, tolerance: float = 0.0) -> Quantity:
    """Return a number of the paper's text beside what its tables give; rounding of the sum itself is allowed for."""
    return Quantity(words, printed, given, tolerance + 1e-9)
