"""Paired differences: intervals by hand and by simulation, power by simulation, verdicts from both sides."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.sweeps.study import PairedComparison
from tokendynamics.sweeps.study.paired import arm_of, compared, detectable, interval, p_value, pairs_needed, power

FIVE = (0.1, 0.2, 0.3, 0.4, 0.5)
Values = dict[str, dict[int, float]]


def of(differences: tuple[float, ...], *, confidence: float = 0.95, lower_is_better: bool = True) -> PairedComparison:
    """Arms b and a with these differences, over a measure that varies far more between seeds."""
    seeds = tuple(range(len(differences)))
    base = {seed: 100.0 * seed for seed in seeds}
    values = {"a": base, "b": {seed: base[seed] + differences[seed] for seed in seeds}}
    return compared("b", "a", values, seeds, confidence=confidence, lower_is_better=lower_is_better)


def test_the_interval_is_the_table_s() -> None:
    mean, low, high = interval(np.array(FIVE), 0.95)
    half = 2.776445105 * math.sqrt(0.025) / math.sqrt(5)  # t of 4 degrees of freedom, variance 0.1/4
    assert (mean, low, high) == pytest.approx((0.3, 0.3 - half, 0.3 + half), rel=1e-9)


def distribution(t: float, freedom: int) -> float:
    """P(T ≤ t) in closed form for 2 and 4 degrees of freedom."""
    if freedom == 2:
        return 0.5 + t / (2 * math.sqrt(2 + t * t))
    scaled = t * t / 4
    return 0.5 + 3 / 8 * t / math.sqrt(1 + scaled) * (1 - scaled / (1 + scaled) / 3)


@pytest.mark.parametrize("values", [(1.0, 2.0, 6.0), (-1.0, 0.5, 0.2), FIVE, (0.1, -0.2, 0.3, 0.0, 0.15)])
def test_the_p_value_is_the_closed_form(values: tuple[float, ...]) -> None:
    array = np.array(values)
    t = abs(array.mean()) / (math.sqrt(((array - array.mean()) ** 2).sum() / (len(array) - 1) / len(array)))
    assert p_value(array) == pytest.approx(2 * (1 - distribution(t, len(array) - 1)), rel=1e-9)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, (None, None, None)),
        ({3: 2.5}, (2.5, None, None)),
        ({3: 0.97, 5: 0.97, 6: 0.97}, (0.97, None, None)),
        ({3: 1.0, 5: 3.0}, (2.0, 2.0 - 12.706204736, 2.0 + 12.706204736)),  # Student's t with one degree of freedom
    ],
)
def test_an_arm_has_an_interval_from_two_runs_on(
    values: dict[int, float], expected: tuple[float | None, float | None, float | None]
) -> None:
    arm = arm_of("a", values, runs=4, learning_rate=math.nan, confidence=0.95)
    assert (arm.mean, arm.low, arm.high) == pytest.approx(expected, abs=1e-8)
    assert (arm.finished, arm.learning_rate) == (len(values), None)


def test_the_interval_leaves_out_nought_exactly_where_p_is_below_the_error() -> None:
    source = np.random.default_rng(1)
    for values in source.normal(0.8, 1.0, (200, 4)):
        _, low, high = interval(values, 0.9)
        assert (low > 0 or high < 0) == (p_value(values) < 0.1)


@pytest.mark.parametrize("pairs", [2, 5])
def test_the_interval_covers_as_often_as_it_says(pairs: int) -> None:
    draws = np.random.default_rng(pairs).normal(0.3, 2.0, (4000, pairs))
    covered = sum(low <= 0.3 <= high for _, low, high in (interval(row, 0.9) for row in draws)) / len(draws)
    assert abs(covered - 0.9) < 4 * math.sqrt(0.9 * 0.1 / len(draws))


def separated(effect: float, pairs: int, confidence: float, seed: int = 3, studies: int = 20_000) -> float:
    """How often a true mean is separated, counted over simulated studies."""
    draws = np.random.default_rng(seed).normal(effect, 1.0, (studies, pairs))
    t = draws.mean(axis=1) / (draws.std(axis=1, ddof=1) / math.sqrt(pairs))
    _, low, high = interval(np.array([-1.0, 1.0] if pairs == 2 else [-1.0, 1.0] + [0.0] * (pairs - 2)), confidence)
    spread = np.array([-1.0, 1.0] + [0.0] * (pairs - 2)).std(ddof=1) / math.sqrt(pairs)
    return float(np.mean(np.abs(t) > (high - low) / 2 / spread))


@pytest.mark.parametrize(
    ("effect", "pairs", "confidence"), [(0.0, 5, 0.95), (1.0, 5, 0.95), (0.5, 12, 0.9), (2.0, 3, 0.95), (4.0, 2, 0.8)]
)
def test_power_is_how_often_simulated_studies_separate(effect: float, pairs: int, confidence: float) -> None:
    expected = power(effect, pairs, confidence)
    assert abs(separated(effect, pairs, confidence) - expected) < 4 * math.sqrt(expected * (1 - expected) / 20_000)


@pytest.mark.parametrize(("pairs", "confidence"), [(2, 0.95), (3, 0.99), (5, 0.95), (5, 1 - 0.05 / 12), (10, 0.9)])
def test_what_is_detectable_is_separated_in_four_of_five_simulated_studies(pairs: int, confidence: float) -> None:
    result = separated(detectable(pairs, confidence), pairs, confidence)
    assert abs(result - 0.8) < 4 * math.sqrt(0.8 * 0.2 / 20_000)


@given(st.floats(0.02, 30.0), st.sampled_from([0.8, 0.95, 0.999]))
def test_pairs_needed_are_the_fewest_that_have_the_power(effect: float, confidence: float) -> None:
    needed = pairs_needed(effect, 1.0, confidence)
    assert needed is not None
    assert power(effect, needed, confidence) >= 0.8
    assert needed == 2 or power(effect, needed - 1, confidence) < 0.8


def test_as_many_pairs_as_are_needed_detect_the_difference() -> None:
    result = of(FIVE)
    assert result.needed == pairs_needed(0.3, math.sqrt(0.025), 0.95) == 5
    assert result.detectable == pytest.approx(math.sqrt(0.025) * detectable(5, 0.95))


@pytest.mark.parametrize(
    ("differences", "lower_is_better", "verdict", "better"),
    [
        (FIVE, True, "separated", False),
        (FIVE, False, "separated", True),
        (tuple(-entry for entry in FIVE), True, "separated", True),
        ((-0.3, 0.2, 0.1), True, "not separated", None),
        ((0.2,), True, "undecided", None),
        ((), True, "undecided", None),
        ((0.2, 0.2), True, "undecided", None),
        ((0.93 - 0.91, 0.95 - 0.93, 0.91 - 0.89), True, "undecided", None),  # equal but for rounding
        ((0.0, 0.0), True, "not separated", None),
    ],
)
def test_the_verdict_follows_the_interval(
    differences: tuple[float, ...], lower_is_better: bool, verdict: str, better: bool | None
) -> None:
    result = of(differences, lower_is_better=lower_is_better)
    assert (result.verdict, result.better) == (verdict, better)
    assert (result.low is None) == (np.ptp(differences or (0.0,)) < 1e-12)
    assert (result.mean is None) == (not differences)


def test_the_verdict_turns_where_the_interval_touches_nought() -> None:
    half = 2.776445105 * math.sqrt(0.025 / 5)
    for shift, verdict in ((half * 1.0001, "separated"), (half * 0.9999, "not separated")):
        assert of(tuple(entry - 0.3 + shift for entry in FIVE)).verdict == verdict


def test_a_seed_that_one_arm_lacks_is_left_out() -> None:
    values = {"a": {1: 1.0, 2: 2.0, 3: 7.0}, "b": {1: 1.5, 3: 7.25, 4: 0.0}}
    comparison = compared("b", "a", values, (1, 2, 3, 4), confidence=0.95, lower_is_better=True)
    assert (comparison.seeds, comparison.left_out, comparison.differences) == ((1, 3), (2, 4), (0.5, 0.25))


def test_differences_that_do_not_vary_say_nothing_of_how_sure_they_are() -> None:
    # Accuracies of 100 images are equal by chance: two seeds would often give the same difference.
    for result in (of((0.0, 0.0, 0.0)), of((0.5, 0.5, 0.5)), of((0.93 - 0.91, 0.95 - 0.93))):
        assert (result.p, result.low, result.high, result.needed, result.detectable) == (None,) * 5
        assert result.better is None


@pytest.mark.long
def test_coarse_measures_of_arms_that_do_not_differ_are_separated_as_rarely_as_fine_ones() -> None:
    source, seeds = np.random.default_rng(5), (1, 2)

    def drawn() -> Values:
        return {arm: {seed: round(float(source.normal(0.9, 0.01)), 2) for seed in seeds} for arm in ("a", "b")}

    results = [compared("b", "a", drawn(), seeds, confidence=0.95, lower_is_better=True) for _ in range(2000)]
    assert np.mean([result.verdict == "separated" for result in results]) < 0.05
    assert np.mean([np.ptp(result.differences) < 1e-9 and abs(result.mean or 0) > 0 for result in results]) > 0.1


def test_one_value_has_no_interval() -> None:
    with pytest.raises(ArgumentValueError, match="values: expected two or more, got 1"):
        interval(np.array([1.0]), 0.95)


def simulated(law: Callable[[np.random.Generator], Values], studies: int, seed: int) -> list[PairedComparison]:
    source, seeds = np.random.default_rng(seed), tuple(range(5))
    return [compared("b", "a", law(source), seeds, confidence=0.95, lower_is_better=True) for _ in range(studies)]


@pytest.mark.long
def test_where_nothing_is_planted_one_study_in_twenty_separates_and_pairing_makes_the_rest_sharp() -> None:
    def law(difference: float) -> Callable[[np.random.Generator], Values]:
        def draw(source: np.random.Generator) -> Values:
            shared, direct = source.normal(0, 1.0, 5), source.normal(0, 0.01, (2, 5))
            return {"a": dict(enumerate(shared + direct[0])), "b": dict(enumerate(shared + direct[1] + difference))}

        return draw

    result = simulated(law(0.0), 1500, seed=5)
    share = sum(entry.verdict == "separated" for entry in result) / len(result)
    assert abs(share - 0.05) < 4 * math.sqrt(0.05 * 0.95 / len(result))
    result = simulated(law(-0.1), 100, seed=6)  # a tenth of the deviation between seeds, seven of that between pairs
    assert all(entry.verdict == "separated" and entry.better for entry in result)
