"""What a study is to test, and what becomes of each claim when all are tested together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tokendynamics.sweeps.study._paired import Comparison, compared, p_value

Decision = Literal["holds", "does not hold", "cannot be decided at this size"]


@dataclass(frozen=True)
class Claim:
    """That one arm is better than another one.

    Attributes:
        better: The arm that is claimed to be better.
        worse: The other one.
        difference: By how much at least; None for by anything.
    """

    better: str
    worse: str
    difference: float | None = None


@dataclass(frozen=True)
class TestedClaim:
    """A claim and what the runs say of it.

    Attributes:
        claim: The claim.
        comparison: Of the better arm with the worse; its interval is that of this claim by itself, and `detectable`
            and `needed` are those of the strictest of the tests.
        p: p-value of no difference, corrected for all tests of the study's claims; None with fewer than two pairs.
        p_size: Likewise of a difference as large as the claimed one; None also where none is claimed.
        decision: "holds": separated in the claimed direction; "does not hold": separated in the other one, or from
            all differences as large as the claimed one; both after the correction.
        tests: How many tests the correction is for.
    """

    claim: Claim
    comparison: Comparison
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
    tests = len(claims) + sum(claim.difference is not None for claim in claims)
    pairs = [
        compared(
            claim.better,
            claim.worse,
            values,
            seeds,
            confidence=confidence,
            lower_is_better=lower_is_better,
            tests=tests,
        )
        for claim in claims
    ]
    sign = -1.0 if lower_is_better else 1.0
    sizes = [_size(claim, pair, sign) for claim, pair in zip(claims, pairs, strict=True)]
    planned = [claim.difference is not None for claim in claims]
    # What could not be tested for want of pairs still counts: which tests there are was fixed before the runs.
    raw = [1.0 if pair.p is None else pair.p for pair in pairs]
    raw += [1.0 if p is None else p for p, there in zip(sizes, planned, strict=True) if there]
    corrected = iter(holm(raw))
    by_zero = [next(corrected) for _ in claims]
    by_size = [next(corrected) if there else None for there in planned]
    return [
        TestedClaim(
            claim,
            pair,
            None if pair.p is None else p,
            None if size is None else p_size,
            _decision(claim, pair, p, p_size, sign, 1 - confidence),
            tests,
        )
        for claim, pair, size, p, p_size in zip(claims, pairs, sizes, by_zero, by_size, strict=True)
    ]


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


def _size(claim: Claim, pair: Comparison, sign: float) -> float | None:
    if claim.difference is None or pair.p is None:
        return None
    return p_value(sign * np.array(pair.differences), claim.difference)


def _decision(claim: Claim, pair: Comparison, p: float, p_size: float | None, sign: float, error: float) -> Decision:
    if pair.mean is None:
        return "cannot be decided at this size"
    gain = sign * pair.mean
    if claim.difference is not None and p_size is not None and p_size < error and gain < claim.difference:
        return "does not hold"
    if p < error:
        return "holds" if gain > 0 else "does not hold"
    return "cannot be decided at this size"
