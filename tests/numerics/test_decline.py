"""Half-lives: against closed forms and simulated declines whose half-life is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tokendynamics.numerics.decline import decline_of


@pytest.mark.parametrize("half_life", [0.7, 3.0, 40.0])
def test_an_exact_decline_is_found_to_rounding(half_life: float) -> None:
    values = [0.8 * 2 ** (-k / half_life) for k in range(60)]
    decline = decline_of(values, bound=1e-9, floor=1e-30)
    assert decline.half_life.value == pytest.approx(half_life, rel=1e-9)
    assert decline.half_life.low == pytest.approx(half_life, rel=1e-6)
    assert decline.half_life.high == pytest.approx(half_life, rel=1e-6)
    wanted = half_life * math.log2(0.8 / 1e-9)
    if wanted > 59:
        assert decline.reached.value == pytest.approx(wanted, rel=1e-6)
    else:
        assert decline.reached.value == math.ceil(wanted)
        assert decline.reached.low == decline.reached.high == decline.reached.value


def test_a_slow_beginning_is_another_regime() -> None:
    values = [1.0, 0.99, 0.98, 0.97, 0.6, *(0.5 * 2 ** (-k / 2) for k in range(20))]
    decline = decline_of(values, bound=1e-9, floor=1e-30)
    assert decline.first == 5
    assert decline.half_life.value == pytest.approx(2.0, rel=1e-9)


def test_what_is_below_the_floor_does_not_count() -> None:
    values = [*(2 ** (-k / 2) for k in range(30)), *([1e-9] * 30)]
    decline = decline_of(values, bound=1e-3, floor=1e-8)
    assert decline.half_life.value == pytest.approx(2.0, rel=1e-9)
    assert decline.reached.value == 20
    assert decline.last == 29


def test_what_does_not_fall_has_no_half_life() -> None:
    rising = decline_of([0.1 * 1.01**k for k in range(40)], bound=1e-3, floor=1e-12)
    assert rising.half_life.value == rising.reached.value == math.inf
    flat = decline_of([0.5 + 0.01 * (-1) ** k for k in range(41)], bound=1e-3, floor=1e-12)
    assert flat.half_life.high == flat.reached.high == math.inf


@pytest.mark.parametrize("values", [[], [0.5], [0.5, 0.4, 0.3], [math.nan, 0.3], [0.0, 0.0, 0.0, 0.0, 0.0]])
def test_too_few_values_say_nothing(values: list[float]) -> None:
    decline = decline_of(values, bound=1e-3, floor=1e-12)
    assert math.isnan(decline.half_life.value)
    assert math.isnan(decline.reached.value)


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_intervals_hold_the_half_life_as_often_as_they_say(correlation: float) -> None:
    """Log steps −0.1 plus noise, independent or correlated from step to step: 300 declines of 120 steps."""
    generator = np.random.default_rng(4)
    held = 0
    for _ in range(300):
        noise = generator.normal(size=130) * 0.15
        for place in range(1, 130):
            noise[place] += correlation * noise[place - 1]
        values = np.exp(np.concatenate([[0.0], np.cumsum(-0.1 + noise[10:])]))
        decline = decline_of(values.tolist(), bound=1e-30, floor=1e-300)
        held += decline.half_life.low <= math.log(2) / 0.1 <= decline.half_life.high
    assert 0.80 <= held / 300 <= 0.95


def test_a_halving_at_the_very_end_leaves_all_steps_but_the_first() -> None:
    decline = decline_of([1.0, 0.9, 0.8, 0.7, 0.6, 0.4], bound=1e-3, floor=1e-12)
    assert (decline.first, decline.last) == (1, 5)
    assert decline.half_life.value == pytest.approx(-4 * math.log(2) / math.log(0.4 / 0.9))
