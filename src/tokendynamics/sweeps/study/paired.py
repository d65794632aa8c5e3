"""Arms, and differences of two over seeds that both have run: intervals, verdicts, claims tested together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.intervals import student_quantile

Verdict = Literal["separated", "not separated", "undecided"]
Decision = Literal["holds", "does not hold", "cannot be decided at this size"]

POWER = 0.8
"""Probability with which a difference is to be separated where a smallest one is given."""

End = Literal["largest", "smallest"]

_MOST_SEEDS = 100_000

_ROUNDING = 1e-12
"""Spread of differences, of the largest measure, that is rounding: 0.93 − 0.91 is not 0.95 − 0.93."""


@dataclass(frozen=True)
class Arm:
    """One arm by itself.

    Attributes:
        name: In the file.
        runs: How many seeds it was to have.
        finished: How many of them it has.
        learning_rate: The highest of its schedule; None where tuning found none.
        mean: Of the measure over the finished seeds; None without one.
        low: Lower end of the t-interval of the mean; None with fewer than two, or where all are equal.
        high: Upper end; likewise.
        learning_rate_at_end: Whether the learning rate is the largest or the smallest that tuning tried, so that a
            better one may lie beyond; None where it is neither, or was not tuned.
    """

    name: str
    runs: int
    finished: int
    learning_rate: float | None
    mean: float | None
    low: float | None
    high: float | None
    learning_rate_at_end: End | None = None


@dataclass(frozen=True)
class PairedComparison:
    """An arm beside another one over the seeds that both have finished.

    Attributes:
        arm: The arm.
        reference: What it is compared with.
        seeds: Those of the pairs, in order.
        left_out: Seeds that one of the two has not finished.
        differences: Measure of the arm minus that of the reference, one a seed.
        mean: Of the differences; None without a pair.
        low: Lower end of the t-interval of the mean; None with fewer than two pairs, or where all differences are
            equal: so are those of a coarse measure by chance, and their spread is not known.
        high: Upper end; likewise.
        p: Two-sided p-value of a mean of zero; None likewise.
        verdict: "separated" where the interval leaves out zero; "undecided" without an interval, but "not separated"
            where all differences are zero.
        better: Whether the arm is the better one; None unless separated.
        detectable: The smallest true difference that would be significant with 80 % probability, given the number of
            pairs and their standard deviation; None without an interval.
        needed: Pairs that would separate a true difference as large as the mean, with the deviation of these, with
            that probability; None where it would take more than 100,000, or without an interval.

    >>> values = {"a": {1: 2.0, 2: 3.0}, "b": {1: 1.0, 2: 2.2}}
    >>> found = compared("b", "a", values, (1, 2), confidence=0.95, lower_is_better=True)
    >>> found.seeds, found.verdict, round(found.mean, 4)
    ((1, 2), 'not separated', -0.9)
    """

    arm: str
    reference: str
    seeds: tuple[int, ...]
    left_out: tuple[int, ...]
    differences: tuple[float, ...]
    mean: float | None
    low: float | None
    high: float | None
    p: float | None
    verdict: Verdict
    better: bool | None
    detectable: float | None
    needed: int | None


def at_end(learning_rate: float, tried: Sequence[float]) -> End | None:
    """Return at which end of the learning rates that were tried one is; None for none of the two.

    >>> at_end(0.4, [0.1, 0.2, 0.4]), at_end(0.2, [0.1, 0.2, 0.4]), at_end(0.2, [])
    ('largest', None, None)
    """
    if len(tried) and learning_rate == max(tried):
        return "largest"
    return "smallest" if len(tried) and learning_rate == min(tried) else None


def arm_of(
    name: str,
    values: Mapping[int, float],
    runs: int,
    learning_rate: float,
    confidence: float,
    tried: Sequence[float] = (),
) -> Arm:
    """Return an arm by itself.

    Args:
        name: In the file.
        values: Measures of the finished runs by seed.
        runs: How many it was to have.
        learning_rate: NaN where tuning found none.
        confidence: Of the interval.
        tried: Learning rates of the tuning; none without it.
    """
    rate = learning_rate if math.isfinite(learning_rate) else None
    numbers = np.array(list(values.values()), dtype=np.float64)
    mean = float(numbers[0]) if len(numbers) else None
    ends = interval(numbers, confidence) if _vary(numbers, numbers) else (mean, None, None)
    return Arm(name, runs, len(numbers), rate, *ends, learning_rate_at_end=at_end(learning_rate, tried))


def compared(
    arm: str,
    reference: str,
    values: Mapping[str, Mapping[int, float]],
    seeds: tuple[int, ...],
    *,
    confidence: float,
    lower_is_better: bool,
    tests: int = 1,
) -> PairedComparison:
    """Compare two arms over the seeds that both have.

    Args:
        arm: A key of `values`.
        reference: Another one.
        values: Measures of the finished runs by arm and seed.
        seeds: All that were to be run.
        confidence: Of the interval, such as 0.95.
        lower_is_better: Which direction of the measure is the better one.
        tests: How many tests share the error: `detectable` and `needed` are those of the strictest of them.

    >>> found = compared("b", "a", {"a": {1: 2.0, 2: 3.0}, "b": {1: 1.0, 2: 2.2}}, (1, 2, 3), confidence=0.95,
    ...     lower_is_better=True)
    >>> found.verdict, found.left_out, [round(number, 4) for number in (found.mean, found.low, found.high)]
    ('not separated', (3,), [-0.9, -2.1706, 0.3706])
    """
    pairs = tuple(seed for seed in seeds if seed in values[arm] and seed in values[reference])
    differences = np.array([values[arm][seed] - values[reference][seed] for seed in pairs], dtype=np.float64)
    left_out = tuple(seed for seed in seeds if seed not in pairs)
    of_whom = (arm, reference, pairs, left_out, tuple(differences.tolist()))
    measures = np.array([values[one][seed] for one in (arm, reference) for seed in pairs])
    if not _vary(differences, measures):
        mean = float(differences[0]) if len(pairs) else None
        equal = len(pairs) > 1 and not _vary(np.array([0.0, differences[0]]), measures)
        verdict = "not separated" if equal else "undecided"
        return PairedComparison(*of_whom, mean, None, None, None, verdict, None, None, None)
    mean, low, high = interval(differences, confidence)
    separated = low > 0 or high < 0
    deviation, strictest = float(differences.std(ddof=1)), 1 - (1 - confidence) / tests
    return PairedComparison(
        *of_whom,
        mean=mean,
        low=low,
        high=high,
        p=p_value(differences),
        verdict="separated" if separated else "not separated",
        better=(mean < 0) == lower_is_better if separated else None,
        detectable=deviation * detectable(len(pairs), strictest),
        needed=pairs_needed(abs(mean), deviation, strictest),
    )


def _vary(values: np.ndarray, measures: np.ndarray) -> bool:
    """Return whether values computed from measures differ from each other by more than rounding."""
    return len(values) > 1 and float(np.ptp(values)) > _ROUNDING * float(np.abs(measures).max())


def interval(values: np.ndarray, confidence: float) -> tuple[float, float, float]:
    """Return the mean of independent values and the ends of its t-interval.

    Raises:
        ArgumentValueError: Fewer than two values.

    >>> [round(number, 4) for number in interval(np.array([1.0, 2.0, 6.0]), 0.9)]
    [3.0, -1.4604, 7.4604]
    """
    if len(values) < 2:
        raise ArgumentValueError("values", "two or more", len(values))
    mean = float(values.mean())
    half = student_quantile(confidence, len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def p_value(values: np.ndarray, mean: float = 0.0) -> float:
    """Return the two-sided p-value of the t-test of a mean; 1 where all values are that mean itself.

    >>> round(p_value(np.array([1.0, 2.0, 6.0])), 4)
    0.1885
    """
    from scipy.special import stdtr

    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    distance = abs(float(values.mean()) - mean)
    if error == 0:
        return 1.0 if distance == 0 else 0.0
    return float(2 * stdtr(len(values) - 1, -distance / error))


def power(effect: float, pairs: int, confidence: float) -> float:
    """Return the probability that the t-interval of that many normal differences excludes zero.

    With n pairs, t has n − 1 degrees of freedom and the noncentrality ``effect·√n``.

    Args:
        effect: True mean in standard deviations.
        pairs: At least 2.
        confidence: Of the interval.

    >>> round(power(0.0, 5, 0.95), 4), round(power(1.0, 10, 0.95), 4)
    (0.05, 0.8031)
    """
    from scipy.special import nctdtr

    freedom, shift = pairs - 1, effect * math.sqrt(pairs)
    quantile = student_quantile(confidence, freedom)
    # SciPy has no number for the far side where it is small: from here on it is below Φ(−5) = 3e-7.
    far = float(nctdtr(freedom, shift, -quantile)) if shift < 5 else 0.0
    return 1 - float(nctdtr(freedom, shift, quantile)) + far


def detectable(pairs: int, confidence: float) -> float:
    """Return the smallest true mean, in standard deviations, that is separated with a probability of 80 %.

    >>> round(detectable(5, 0.95), 3)
    1.682
    """
    from scipy.optimize import brentq

    highest = 1.0
    while power(highest, pairs, confidence) < POWER:
        highest *= 2
    root: Any = brentq(lambda effect: power(effect, pairs, confidence) - POWER, 0.0, highest)
    return float(root)


def pairs_needed(mean: float, deviation: float, confidence: float) -> int | None:
    """Return how many pairs separate a true mean with a probability of 80 %; None where 100,000 do not.

    >>> pairs_needed(1.0, 1.0, 0.95), pairs_needed(0.0, 1.0, 0.95)
    (10, None)
    """
    if deviation == 0:
        return 2 if mean > 0 else None
    effect = mean / deviation
    enough, short = 2, 1
    while power(effect, enough, confidence) < POWER:
        if enough == _MOST_SEEDS:
            return None
        enough, short = min(2 * enough, _MOST_SEEDS), enough
    while enough - short > 1:
        middle = (enough + short) // 2
        short, enough = (short, middle) if power(effect, middle, confidence) >= POWER else (middle, enough)
    return enough


@dataclass(frozen=True)
class Claim:
    """That one arm is better than another one.

    Attributes:
        better: The arm that is claimed to be better.
        worse: The other one.
        difference: By how much at least; None for by anything.

    >>> Claim("remedy", "baseline").difference is None
    True
    """

    better: str
    worse: str
    difference: float | None = None

    @property
    def sizes(self) -> tuple[float, ...]:
        """The differences that are tested: none at all, and the claimed one."""
        return (0.0,) if self.difference is None else (0.0, self.difference)


@dataclass(frozen=True)
class TestedClaim:
    """A claim and what the runs say of it.

    Attributes:
        claim: The claim.
        comparison: Of the better arm with the worse; its interval is that of this claim by itself, and `detectable`
            and `needed` are those of the strictest of the tests.
        p: p-value of no difference, corrected for all tests of the study's claims; None where the comparison has none.
        p_size: Likewise of a difference as large as the claimed one; None also where none is claimed.
        decision: "holds": separated in the claimed direction, from the claimed difference where there is one; "does
            not hold": separated in the other direction, or from all differences as large as the claimed one; both
            after the correction.
        tests: How many tests the correction is for.
    """

    claim: Claim
    comparison: PairedComparison
    p: float | None
    p_size: float | None
    decision: Decision
    tests: int


def decided(
    claims: Sequence[Claim],
    values: Mapping[str, Mapping[int, float]],
    seeds: tuple[int, ...],
    *,
    confidence: float,
    lower_is_better: bool,
) -> list[TestedClaim]:
    """Test claims together: all their errors taken together have the probability 1 − `confidence` (Holm, 1979).

    A claim of some difference is two tests: of no difference, and of one as large as the claimed one.

    Args:
        claims: What is claimed.
        values: Measures of the finished runs by arm and seed.
        seeds: All that were to be run.
        confidence: Such as 0.95.
        lower_is_better: Which direction of the measure is the better one.
    """
    tests = sum(len(claim.sizes) for claim in claims)
    settings: dict[str, Any] = {"confidence": confidence, "lower_is_better": lower_is_better, "tests": tests}
    pairs = [compared(claim.better, claim.worse, values, seeds, **settings) for claim in claims]
    sign = -1.0 if lower_is_better else 1.0
    # Without pairs a p-value is 1: such a test counts as well, since which tests there are was fixed before the runs.
    raw = [
        1.0 if pair.p is None else p_value(sign * np.array(pair.differences), size)
        for claim, pair in zip(claims, pairs, strict=True)
        for size in claim.sizes
    ]
    corrected = iter(holm(raw))
    tested: list[TestedClaim] = []
    for claim, pair in zip(claims, pairs, strict=True):
        p, *further = [next(corrected) for _ in claim.sizes]
        decision = _decision(claim, sign * (pair.mean or 0.0), p, further, 1 - confidence)
        reported = (None, None) if pair.p is None else (p, further[0] if further else None)
        tested.append(TestedClaim(claim, pair, *reported, decision, tests))
    return tested


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values corrected for being several (S. Holm, 1979): the k-th smallest of m times m − k + 1, rising.

    >>> [round(value, 3) for value in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(values), 0, -1)
    rising = np.maximum.accumulate(np.minimum(1.0, np.asarray(values, dtype=np.float64)[order] * factors))
    corrected = np.empty(len(values))
    corrected[order] = rising
    return corrected.tolist()


def _decision(claim: Claim, gain: float, p: float, p_of_size: Sequence[float], error: float) -> Decision:
    if (p_of_size[0] if p_of_size else p) < error:
        return "holds" if gain > claim.sizes[-1] else "does not hold"
    return "does not hold" if p < error and gain < 0 else "cannot be decided at this size"
