"""Figures of metastability: how long caps hold their tokens, the staircase of the energy, clusters on the circle."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tokendynamics as td
from reproductions.metastability import circle, lifetime, staircase


@pytest.mark.slow
def test_no_token_leaves_before_the_proved_time_and_that_grows_exponentially() -> None:
    record = lifetime.reproduce(draws=2, least=16, most=18)
    assert not record.failures
    leaving, proved = record.results["leaving"], record.results["proved"]
    assert leaving.shape == (3, 2)
    assert (leaving > proved[:, 1:] + 3).all()
    np.testing.assert_allclose(np.diff(np.median(leaving, axis=1)), 1.0, atol=0.1)


def test_the_proved_times_are_those_of_the_statement() -> None:
    start = lifetime.starts(1, 0)
    centers = np.repeat(np.eye(3)[:2], 2, axis=0)
    np.testing.assert_array_less(1 - lifetime.EPSILON - 1e-15, (start[0].numpy() * centers).sum(axis=1))
    flow = td.Flow(td.Attention(18 * np.eye(3), np.eye(3), normalization="plain"), td.Sphere())
    (check,) = td.check(flow, start, statements=["metastability-main"])
    assert check.applies
    # By hand, from the formulas of the theorem: squares of half angles in place of the inverse cosine.
    half = math.asin(math.sqrt(lifetime.EPSILON))
    first, second = lifetime.proved_times(18)
    alpha = math.cos(math.pi / 2 - 4 * half)
    assert second == pytest.approx(math.log(lifetime.EPSILON / 4) + (1 - alpha) * 18, rel=1e-12)
    assert math.exp(first) == pytest.approx(8 * math.exp(0.0432) + math.e * 4 * 0.3 * 324 / 17, rel=1e-12)


@pytest.mark.long
def test_the_figure_has_a_line_for_each_time() -> None:
    panel = lifetime.draw(lifetime.reproduce(draws=1, least=16, most=17)).axes[0]
    leaving, second, first = (np.asarray(line.get_ydata(), dtype=float) for line in panel.lines[:3])
    assert (leaving > second).all()
    assert (second > first).all()


def test_plateaus_and_mergers_of_a_staircase_by_hand() -> None:
    """Two of three tokens meet at once halfway; then one cluster of two and one token rest."""
    times = np.arange(200)
    first, second = np.where(times < 100, 0.0, 0.1), np.where(times < 100, 0.5, 0.1)
    angles = np.stack(
        [first, second, np.full(200, 3.0), *(np.full(200, angle) for angle in (4, 4.6, 5.2, 5.8, 2))], axis=1
    )
    (merger,) = staircase.mergers(angles)
    assert (merger.time, merger.lost) == (100, 1)
    assert merger.gap == pytest.approx(0.5)
    assert merger.least == pytest.approx(2 * math.pi - 5.8)  # of tokens 0 and 6: not the closest pair merged
    energy = np.where(times < 100, 0.125, 0.15625)
    assert staircase.plateaus(energy) == [0.125, 0.15625]
    assert staircase.plateaus(np.linspace(0, 1, 200)) == []
    assert staircase.groups(angles[-1])[0] in ([0, 1], [1, 0], [2], [7])
    assert sorted(map(len, staircase.groups(angles[-1]))) == [1] * 6 + [2]
    assert staircase.groups(np.zeros(8)) == [list(range(8))]
    late = np.where(times[:, None] < 190, angles[:1], angles[-1:])
    assert staircase.mergers(late) == []


@pytest.mark.long
def test_the_energy_is_a_staircase_and_a_low_beta_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    record = staircase.reproduce(draws=2)
    assert not record.failures
    assert {len(line.get_ydata()) for line in staircase.draw(record).axes[0].lines[:2]} == {640}
    monkeypatch.setattr(staircase, "BETA", 2.0)
    low = staircase.reproduce(draws=1)
    assert "share of mergers that join the closest pair of clusters" in {one.name for one in low.failures}
    assert [one.unsettled[:7] for one in low.of_verdict("cannot tell")] == ["no draw"]


@pytest.mark.parametrize("beta", [4.0, 64.0])
def test_the_growth_of_a_mode_is_the_integral_of_the_linearized_flow(beta: float) -> None:
    """With the density (1 + ε cos kφ)/2π, the velocity to first order by quadrature."""
    angles = 2 * np.pi * np.arange(4096) / 4096
    weights = np.exp(beta * (np.cos(angles) - 1))
    for mode in (1, circle.fastest(beta), 20):
        speed = (weights * np.sin(angles) * np.sin(mode * angles)).mean() / weights.mean()
        assert circle.growth(mode, beta) == pytest.approx(mode * speed, rel=1e-9, abs=1e-12)
        assert circle.growth(mode, beta) <= circle.growth(circle.fastest(beta), beta)
    assert circle.measured_growth(beta, 400) == pytest.approx(
        float(circle.growth(circle.fastest(beta), beta)), rel=1e-6
    )


def test_a_plateau_has_groups_that_are_tight_and_stay() -> None:
    tight, loose = np.repeat([0.0, 2.0, 4.0], 3), np.linspace(0.0, 6.0, 9)
    apart = np.array([[*loose], *[[*tight]] * 6])
    assert circle.plateau(apart, 16.0) == 3
    assert np.isnan(circle.plateau(apart[:4], 16.0))  # not seen for long enough
    assert np.isnan(circle.plateau(np.repeat(loose[None], 8, axis=0) / 40, 16.0))  # one loose group


@pytest.mark.slow
def test_clusters_on_the_circle_grow_like_the_root_of_beta() -> None:
    record = circle.reproduce(draws=2, tokens=200)
    assert not record.failures
    panel = circle.draw(record).axes[0]
    number, modes, root = (np.asarray(line.get_ydata(), dtype=float) for line in panel.lines[:3])
    assert (number <= modes).all()
    assert np.abs(modes - root).max() < 1
