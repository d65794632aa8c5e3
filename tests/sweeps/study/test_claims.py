"""Claims tested together: Holm's correction, decisions from both sides, and the error of all of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokendynamics.sweeps import study
from tokendynamics.sweeps.study import Claim
from tokendynamics.sweeps.study.paired import decided, holm

SPREAD = np.array([-0.02, -0.01, 0.0, 0.01, 0.02])
SEEDS = tuple(range(5))


def values(**means: float) -> dict[str, dict[int, float]]:
    """Arms whose differences have these means, and deviations that do not vanish."""
    return {
        arm: {seed: 7.0 * seed + mean + SPREAD[(seed * (place + 1)) % 5] for seed in SEEDS}
        for place, (arm, mean) in enumerate(means.items())
    }


def of_means(claims: list[Claim], lower_is_better: bool = True, **means: float) -> list[study.TestedClaim]:
    return decided(claims, values(**means), SEEDS, confidence=0.95, lower_is_better=lower_is_better)


def test_holm_by_hand() -> None:
    assert holm([0.02, 0.01, 0.04, 0.3]) == pytest.approx([0.06, 0.04, 0.08, 0.3])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_step_by_step(raw: list[float]) -> None:
    """Against the procedure as it was published: from the smallest on, until one is not below α/(m − k + 1)."""
    for alpha in (0.01, 0.05, 0.3):
        rejected: set[int] = set()
        for step, place in enumerate(sorted(range(len(raw)), key=raw.__getitem__)):
            if raw[place] * (len(raw) - step) >= alpha:
                break
            rejected.add(place)
        assert {place for place, p in enumerate(holm(raw)) if p < alpha} == rejected


@pytest.mark.parametrize(
    ("mean", "difference", "decision"),
    [
        (-0.1, None, "holds"),
        (+0.1, None, "does not hold"),
        (-0.001, None, "cannot be decided at this size"),
        (-0.1, 0.05, "holds"),  # separated, and as large as claimed
        (-0.1, 0.095, "cannot be decided at this size"),  # separated, and not shown to be as large as claimed
        (-0.1, 0.2, "does not hold"),  # in the claimed direction, but by less than claimed
        (-0.001, 0.2, "does not hold"),
        (-0.001, 0.01, "cannot be decided at this size"),
        (+0.1, 0.01, "does not hold"),
    ],
)
def test_decisions_in_both_directions(mean: float, difference: float | None, decision: str) -> None:
    (computed,) = of_means([Claim("b", "a", difference)], a=0.0, b=mean)
    assert computed.decision == decision
    (turned,) = of_means([Claim("b", "a", difference)], lower_is_better=False, a=0.0, b=-mean)
    assert turned.decision == decision


def test_a_difference_that_is_separated_by_itself_may_not_be_among_many_tests() -> None:
    claim, others = Claim("b", "a"), [Claim("b", "c"), Claim("c", "a"), Claim("d", "a"), Claim("d", "b")]
    means = {"a": 0.0, "b": -0.021, "c": -0.01, "d": -0.005}
    (alone,) = of_means([claim], **means)
    assert (alone.decision, alone.tests) == ("holds", 1)
    among = of_means([claim, *others], **means)[0]
    assert (among.decision, among.tests) == ("cannot be decided at this size", 5)
    assert among.comparison.verdict == "separated"
    assert among.comparison.p == alone.p
    assert among.p == pytest.approx(5 * alone.p)
    assert among.comparison.detectable > alone.comparison.detectable
    assert among.comparison.needed > alone.comparison.needed


def test_a_claim_without_pairs_counts_among_the_tests_and_is_not_decided() -> None:
    there = values(a=0.0, b=-0.1) | {"c": {0: 1.0}}
    result = decided([Claim("b", "a"), Claim("c", "a", 0.1)], there, SEEDS, confidence=0.95, lower_is_better=True)
    assert [entry.decision for entry in result] == ["holds", "cannot be decided at this size"]
    assert result[1].p is None
    assert result[1].p_size is None
    assert result[0].p == pytest.approx(3 * result[0].comparison.p)


@pytest.mark.long
def test_where_nothing_is_planted_one_study_in_twenty_decides_any_of_its_claims() -> None:
    source, studies, wrong = np.random.default_rng(11), 400, 0
    claims = [Claim("b", "a"), Claim("c", "a"), Claim("d", "c")]
    for _ in range(studies):
        draws = source.normal(0, 1, 5) + source.normal(0, 0.01, (4, 5))
        drawn = {arm: dict(enumerate(row)) for arm, row in zip("abcd", draws, strict=True)}
        result = decided(claims, drawn, SEEDS, confidence=0.95, lower_is_better=True)
        wrong += any(entry.decision != "cannot be decided at this size" for entry in result)
    assert wrong / studies < 0.05 + 3 * math.sqrt(0.05 * 0.95 / studies)
    assert wrong > 0  # of so many, some are
