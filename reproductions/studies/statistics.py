"""Numbers from draws with their 95 % intervals: shares, differences of shares, areas under ROC curves, powers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from reproductions.studies.record import Estimate
from tokendynamics.numerics.intervals import wilson

RESAMPLES = 1000
_TAILS = (0.025, 0.975)

Direction = Literal["more", "fewer", "not decided"]


def share(mask: np.ndarray) -> Estimate:
    """Return the share of True with its Wilson interval; NaN of nothing.

    >>> str(share(np.arange(100) < 92))
    '0.92 (0.85 … 0.96)'
    """
    return share_of(int(np.count_nonzero(mask)), int(np.size(mask)))


def share_of(count: int, total: int) -> Estimate:
    """Return `count` of `total` as a share with its Wilson interval."""
    return Estimate(count / total, *wilson(count, total)) if total else Estimate(math.nan, math.nan, math.nan)


def change(before: Estimate, after: Estimate) -> Direction:
    """Tell whether a share has changed between two independent samples: 0 is outside the interval of the difference.

    The interval is Newcombe's (1998, method 10), from both Wilson intervals.

    >>> change(share_of(90, 100), share_of(60, 100)), change(share_of(9, 10), share_of(6, 10))
    ('fewer', 'not decided')
    """
    difference = after.value - before.value
    low = difference - math.hypot(after.value - after.low, before.high - before.value)
    high = difference + math.hypot(after.high - after.value, before.value - before.low)
    return "more" if low > 0 else "fewer" if high < 0 else "not decided"


def bootstrap(statistic: Callable[[np.ndarray], float], size: int, seed: int, resamples: int = RESAMPLES) -> Estimate:
    """Return a statistic of systems and its percentile interval over resamples of them.

    Args:
        statistic: Of the indices of the systems, with repetition.
        size: How many systems.
        seed: Of the resamples.
        resamples: How many.

    >>> str(bootstrap(lambda chosen: float(chosen.mean()), 101, seed=1))
    '50 (44 … 56)'
    """
    if size == 0:
        return Estimate(math.nan, math.nan, math.nan)
    source = np.random.default_rng(seed)
    resampled = np.array([statistic(source.integers(size, size=size)) for _ in range(resamples)])
    resampled = resampled[np.isfinite(resampled)]
    ends = np.quantile(resampled, _TAILS) if len(resampled) else (math.nan, math.nan)
    return Estimate(statistic(np.arange(size)), float(ends[0]), float(ends[1]))


def area(score: np.ndarray, positive: np.ndarray) -> float:
    """Return the area under the ROC curve: how often a positive's score is above a negative's, ties counting half.

    >>> area(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]))
    0.75
    """
    from scipy.stats import rankdata

    count = int(np.count_nonzero(positive))
    others = len(positive) - count
    if not count or not others:
        return math.nan
    ranks = rankdata(score)
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * others))


def sensitivity(score: np.ndarray, positive: np.ndarray, false_positives: float) -> float:
    """Return the share of positives above the threshold that lets that share of negatives pass: a point of the curve.

    >>> sensitivity(np.array([1.0, 2.0, 3.0, 4.0]), np.array([False, True, False, True]), 0.5)
    1.0
    """
    negatives, positives = np.sort(score[~positive])[::-1], score[positive]
    if not len(negatives) or not len(positives):
        return math.nan
    passing = math.floor(false_positives * len(negatives) + 1e-9)
    threshold = negatives[passing] if passing < len(negatives) else -math.inf
    return float((positives > threshold).mean())


def power(x: np.ndarray, y: np.ndarray) -> float:
    """Return the exponent p of y ∝ x^p: the slope of least squares of log y against log x.

    >>> round(power(np.array([1.0, 2.0, 4.0]), np.array([3.0, 12.0, 48.0])), 12)
    2.0
    """
    return slope(np.log(x), np.log(y))


def slope(x: np.ndarray, y: np.ndarray) -> float:
    """Return the slope of the line of least squares; NaN where x does not vary."""
    deviation = x - x.mean()
    spread = float((deviation**2).sum())
    return float((deviation * y).sum() / spread) if spread > 0 else math.nan


def bootstrap_groups(
    statistic: Callable[[list[np.ndarray]], float], groups: list[np.ndarray], seed: int, resamples: int = RESAMPLES
) -> Estimate:
    """Return a statistic of several samples and its percentile interval, each sample being resampled within itself.

    >>> found = bootstrap_groups(lambda both: float(both[1].mean() - both[0].mean()), [np.zeros(9), np.ones(9)], 1)
    >>> (found.value, found.low, found.high)
    (1.0, 1.0, 1.0)
    """
    source = np.random.default_rng(seed)
    drawn = (
        statistic([group[source.integers(len(group), size=len(group))] for group in groups]) for _ in range(resamples)
    )
    finite = np.array([value for value in drawn if math.isfinite(value)])
    ends = np.quantile(finite, _TAILS) if len(finite) else (math.nan, math.nan)
    return Estimate(statistic(groups), float(ends[0]), float(ends[1]))
