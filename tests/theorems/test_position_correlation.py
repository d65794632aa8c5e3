"""The closed form of `kinetic`, against its equation, a linear system, the flows themselves and random texts."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.linalg import expm
from scipy.special import iv

import tokendynamics as td
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.theorems import predict_position_correlation


def _kernel(position: float, source: float, decay: float) -> float:
    """Return the share of attention per length of text, by its definition."""
    total = quad(lambda at: math.exp(-decay * (position - at)), 0.0, position)[0]
    return math.exp(-decay * (position - source)) / total


def _rate(mode: int, beta: float) -> float:
    return mode**2 * iv(mode, beta) / beta


@pytest.mark.slow
@given(st.floats(0.02, 0.9), st.floats(0.0, 4.0), st.floats(0.1, 3.0), st.floats(0.05, 6.0), st.integers(1, 4))
def test_it_solves_its_equation(source: float, decay: float, time: float, beta: float, mode: int) -> None:
    """The slope of √(at/Y) I₁(2√(atY)) in t is a I₀(2√(atY)), from another function than the profile itself."""
    position, a = 1.0, _rate(mode, beta)
    distance = math.log(math.expm1(decay) / math.expm1(decay * source)) if decay > 1e-300 else -math.log(source)
    slope = a * _kernel(position, source, decay) * iv(0, 2 * math.sqrt(a * time * distance))

    def inflow(at: float) -> float:
        profile = predict_position_correlation(time, source, at, beta=beta, mode=mode, decay=decay)
        return _kernel(position, at, decay) * float(profile)

    wanted = a * (_kernel(position, source, decay) + quad(inflow, source, position, epsabs=0.0, epsrel=1e-11)[0])
    assert slope == pytest.approx(wanted, rel=1e-7)


def _groups(groups: int, decay: float, repeats: bool) -> np.ndarray:
    """Return how many tokens stand at each place of a text: as many as a decaying weight counts them."""
    sizes = np.exp(decay * np.arange(1, groups + 1) / groups)
    return np.round(sizes) if repeats else sizes


def _averaging(sizes: np.ndarray) -> np.ndarray:
    """Return the share of attention that each group gives to each, (receiver, sender)."""
    shares = np.tril(np.broadcast_to(sizes, (len(sizes), len(sizes))))
    return shares / shares.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("decay", [0.0, 2.0])
@pytest.mark.parametrize("mode", [1, 3])
def test_it_is_the_limit_of_ever_finer_texts(decay: float, mode: int) -> None:
    """The linear system of groups of tokens: its distance from the limit falls like one over their number."""
    misses = []
    for groups in (200, 400):
        source, rest = groups // 4, np.arange(groups // 4 + 1, groups)
        response = expm(_rate(mode, 1.5) * 2.0 * _averaging(_groups(groups, decay, repeats=False)))[:, source]
        wanted = predict_position_correlation(
            2.0, (source + 1) / groups, (rest + 1) / groups, beta=1.5, mode=mode, decay=decay
        )
        misses.append(np.abs(groups * response[rest] / wanted - 1).max())
    assert misses[1] < 0.03
    assert misses[0] / misses[1] == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("engine", ["batched", "fixed", "stiff"])
def test_the_flow_answers_to_a_change_of_a_few_tokens_at_the_rate_of_the_closed_form(
    engine: Literal["batched", "fixed", "stiff"],
) -> None:
    """Groups of evenly spread tokens are at rest; a small wave of mode n in one of them runs on to the later ones."""
    beta, mode, amplitude, time = 1.5, 2, 1e-4, 0.8
    sizes = _groups(4, 2.0, repeats=True).astype(int)  # 2, 3, 4 and 7 rounds of the circle: an early one counts less
    lattice, rounds = np.arange(14) * 2 * np.pi / 14, np.repeat(np.arange(len(sizes)), sizes)
    angles = np.tile(lattice, len(rounds)) + 0.1
    group = np.repeat(rounds, len(lattice))
    moving = group == 1
    angles[moving] -= 2 * amplitude / mode * np.sin(mode * angles[moving])
    mask = group[:, None] >= group[None, :]
    attention = td.Attention(beta * np.eye(2), np.eye(2), weights="exponential", mask=mask, normalization="plain")
    start = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    options: dict = {"step": 0.02} if engine == "fixed" else {"rtol": 1e-9, "atol": 1e-12}
    run = td.simulate(td.Flow(attention, td.Sphere()), start, [0.0, time], engine=engine, **options)
    end = np.asarray(run.states[-1])
    turned = mode * np.arctan2(end[:, 1], end[:, 0])
    waves = np.array([np.cos(turned[group == place]).mean() for place in range(len(sizes))]) / amplitude
    wanted = expm(_rate(mode, beta) * time * _averaging(sizes.astype(float)))[:, 1]
    np.testing.assert_allclose(waves, wanted, atol=2e-5)


@pytest.mark.slow
def test_random_texts_have_this_correlation() -> None:
    """Independent uniform tokens, a causal mask, the compiled engine: within four standard errors."""
    systems, tokens, beta, time = 4000, 64, 1.0, 1.0
    angles = np.random.default_rng(7).uniform(0, 2 * np.pi, (systems, tokens))
    attention = td.Attention(beta * np.eye(2), np.eye(2), weights="exponential", causal=True, normalization="plain")
    start = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    run = td.simulate(td.Flow(attention, td.Sphere()), start, [0.0, time], engine="compiled", rtol=1e-6, atol=1e-8)
    end = np.asarray(run.states[:, -1])
    late, early = np.arange(48, 64), np.arange(4, 20)
    turned = np.arctan2(end[:, late, 1], end[:, late, 0])
    sums = np.cos(turned[:, :, None] - angles[:, None, early]).sum(axis=-1).mean(axis=-1)
    places = (early[None, :] + 1) / tokens, (late[:, None] + 1) / tokens
    wanted = predict_position_correlation(time, *places, beta=beta).sum(axis=-1).mean() / tokens
    error = sums.std(ddof=1) / math.sqrt(systems)
    assert abs(sums.mean() - wanted) < 4 * error
    assert wanted > 8 * error


@pytest.mark.parametrize("decay", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("share", [0.1, 0.95])
def test_the_middle_of_a_text_is_lost_with_a_decay_and_not_without(decay: float, share: float) -> None:
    """Under the condition of the theorem the profile falls, and then rises to the end; the mask alone only falls."""
    beta, source = 1.0, np.linspace(1e-3, 1.0, 2001)
    time = share * min(3 - math.sqrt(3), 2 * -math.expm1(-decay)) / _rate(1, beta)
    steps = np.diff(predict_position_correlation(time, source, beta=beta, decay=decay)) > 0
    assert not steps[0]
    assert steps[-1]
    assert np.count_nonzero(np.diff(steps)) == 1
    assert (np.diff(predict_position_correlation(time, source, beta=beta)) < 0).all()


def test_ends_of_its_range() -> None:
    t = np.array([0.0, 1.0])
    assert predict_position_correlation(t, 1.0, beta=2.0).tolist() == [0.0, pytest.approx(_rate(1, 2.0))]
    assert predict_position_correlation(1.0, 0.5, beta=0.0) == pytest.approx(
        predict_position_correlation(1.0, 0.5, beta=1e-9), rel=1e-8
    )
    assert predict_position_correlation(1.0, 0.5, beta=0.0, mode=2) == 0.0
    little, none = (predict_position_correlation(1.0, 0.5, beta=1.0, decay=decay) for decay in (1e-9, 0.0))
    assert little == pytest.approx(none, rel=1e-8)
    near = predict_position_correlation(1.0, 1 - 1e-12, beta=1.0, decay=800.0)
    assert near == pytest.approx(800 * _rate(1, 1.0), rel=1e-6)
    assert predict_position_correlation(np.ones((2, 1)), [0.1, 0.2, 0.3], beta=1.0).shape == (2, 3)


@pytest.mark.parametrize(
    ("argument", "changes"),
    [
        ("times", {"times": -1.0}),
        ("times", {"times": math.nan}),
        ("times", {"times": 1e6}),
        ("source", {"source": 0.0}),
        ("source", {"source": math.nan}),
        ("source", {"position": 0.3}),
        ("source", {"position": 1.5}),
        ("beta", {"beta": -1.0}),
        ("beta", {"beta": 701.0}),
        ("mode", {"mode": 0}),
        ("decay", {"decay": -0.1}),
    ],
)
def test_wrong_input_is_named(argument: str, changes: dict) -> None:
    with pytest.raises(ArgumentValueError, match=f"^{argument}: expected"):
        predict_position_correlation(**{"times": 1.0, "source": 0.4, "position": 1.0, "beta": 1.0, **changes})
