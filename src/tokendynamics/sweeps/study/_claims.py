"""What a study is to test, and what becomes of each claim when all are tested together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tokendynamics.sweeps.study.paired import PairedComparison, compared, p_value

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
        p: p-value of no difference, corrected for all tests of the study's claims; None with fewer than two pairs.
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
    raw = [_p_values(claim, pair, sign) for claim, pair in zip(claims, pairs, strict=True)]
    corrected = iter(holm([p for each in raw for p in each]))
    found: list[TestedClaim] = []
    for claim, pair in zip(claims, pairs, strict=True):
        p, *further = [next(corrected) for _ in claim.sizes]
        decision = _decision(claim, pair, p, further, sign, 1 - confidence)
        told = (None, None) if pair.p is None else (p, further[0] if further else None)
        found.append(TestedClaim(claim, pair, *told, decision, tests))
    return found


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


def _p_values(claim: Claim, pair: PairedComparison, sign: float) -> list[float]:
    """Return the p-value of each of a claim's tests.

    Without pairs it is 1: such a test counts as well, since which tests there are was fixed before the runs.
    """
    gains = sign * np.array(pair.differences)
    return [1.0 if pair.p is None else p_value(gains, size) for size in claim.sizes]


def _decision(
    claim: Claim, pair: PairedComparison, p: float, p_of_size: Sequence[float], sign: float, error: float
) -> Decision:
    gain, separated = sign * (pair.mean or 0.0), (p_of_size[0] if p_of_size else p) < error
    if separated:
        return "holds" if gain > claim.sizes[-1] else "does not hold"
    return "does not hold" if p < error and gain < 0 else "cannot be decided at this size"
