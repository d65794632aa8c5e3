"""How fast a positive quantity falls from step to step: its half-life, and when it is below a bound, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokendynamics.numerics.intervals import student_quantile

CONFIDENCE = 0.9
_BATCHES = 10
_FEWEST = 3


@dataclass(frozen=True)
class DeclineEstimate:
    """A number with the ends of its interval; NaN where undefined, infinite where it is never reached."""

    value: float
    low: float
    high: float


NOTHING = DeclineEstimate(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Decline:
    """How a quantity falls.

    Attributes:
        half_life: In steps; infinite where it does not fall, with an infinite end where that is not excluded.
        reached: The step at which it is below the bound: seen (both ends are it), or extrapolated from the last.
        first: Where the fit begins.
        last: Where it ends.
    """

    half_life: DeclineEstimate
    reached: DeclineEstimate
    first: int
    last: int


def decline_of(values: Sequence[float], bound: float, floor: float) -> Decline:
    """Fit v_k ≈ c·2^(−k/h) to the values behind the first halving.

    The mean of log v_{k+1} − log v_k, its error from the means of up to ten batches of successive steps (which are
    nearly independent where single steps are not), and Student's t: a 90 % interval. What comes before the value has
    halved is another regime; where it never does, all steps but the first count.

    Args:
        values: v_0, v_1, …; NaN ends them.
        bound: What `reached` is about.
        floor: Values below it are rounding, and are left out.

    >>> decline = decline_of([0.5**(k / 4) for k in range(41)], bound=1e-4, floor=1e-12)
    >>> round(decline.half_life.value, 6), round(decline.reached.value, 3)
    (4.0, 53.151)
    """
    known = _known(values, floor)
    below = next((place for place, value in enumerate(known) if value < bound), None)
    seen = None if below is None else DeclineEstimate(float(below), float(below), float(below))
    first = next((place for place, value in enumerate(known) if value <= known[0] / 2), min(1, len(known) - 1))
    if len(known) - first <= _FEWEST:
        first = min(1, len(known) - 1)
    steps = np.diff(np.log(known[first:]))
    last = first + len(steps)
    if len(steps) < _FEWEST:
        return Decline(NOTHING, seen or NOTHING, first, last)
    rate = _rate(steps)
    half = DeclineEstimate(*(_half_life(end) for end in (rate.value, rate.low, rate.high)))
    ahead = math.log(known[-1] / bound) if known else math.nan
    reached = seen or DeclineEstimate(
        *(last + ahead * _half_life(end) / math.log(2) for end in (rate.value, rate.low, rate.high))
    )
    return Decline(half, reached, first, last)


def _known(values: Sequence[float], floor: float) -> list[float]:
    numbers: list[float] = []
    for value in values:
        if not value > floor:  # NaN as well
            break
        numbers.append(float(value))
    return numbers or [math.nan]


def _rate(steps: np.ndarray) -> DeclineEstimate:
    """Return the mean step with its interval, by the means of batches."""
    count = min(_BATCHES, len(steps))
    means = np.array([batch.mean() for batch in np.array_split(steps, count)])
    half = student_quantile(CONFIDENCE, count - 1) * means.std(ddof=1) / math.sqrt(count)
    middle = float(steps.mean())
    return DeclineEstimate(middle, float(middle - half), float(middle + half))


def _half_life(rate: float) -> float:
    return math.log(2) / -rate if rate < 0 else math.inf
