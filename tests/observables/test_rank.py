"""Effective and stable rank, and the distance to a constant matrix, against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.observables import effective_rank, rank_one_distance, stable_rank


def with_singular_values(values, tokens, dim, seed=0):
    random = np.random.default_rng(seed)
    left = np.linalg.qr(random.standard_normal((tokens, len(values))))[0]
    right = np.linalg.qr(random.standard_normal((dim, len(values))))[0]
    return left * values @ right.T


@pytest.mark.parametrize(("tokens", "dim"), [(9, 6), (6, 9), (6, 6)])
@pytest.mark.parametrize("exponent", [1, 2, 2.5])
def test_effective_rank_is_the_exponential_of_the_entropy(tokens, dim, exponent):
    values = np.array([5.0, 3.0, 0.5, 0.01])
    p = values**exponent / (values**exponent).sum()
    expected = math.exp(-(p * np.log(p)).sum())
    x = with_singular_values(values, tokens, dim)
    assert effective_rank(x, exponent=exponent) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rank", [1, 2, 5])
@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_equal_singular_values_count_as_their_number(rank, scale):
    x = with_singular_values(np.full(rank, 0.7), 8, 6) * scale
    assert effective_rank(x) == pytest.approx(rank, rel=1e-12)
    assert effective_rank(x, exponent=1) == pytest.approx(rank, rel=1e-12)
    assert stable_rank(x) == pytest.approx(rank, rel=1e-12)


def test_energies_are_the_default_and_count_less_than_amplitudes():
    # Two singular values 2 and 1: shares 4/5, 1/5 of the energy and 2/3, 1/3 of the amplitude.
    x = [[2.0, 0.0], [0.0, 1.0]]
    assert effective_rank(x) == pytest.approx(5 / 4**0.8, rel=1e-14)
    assert effective_rank(x, exponent=1) == pytest.approx(3 / 2 ** (2 / 3), rel=1e-14)


def test_one_large_token_hides_the_others_unless_rows_are_normalised():
    x = np.eye(8)
    x[0] *= 1e4
    assert effective_rank(x) == pytest.approx(1, abs=1e-5)
    assert stable_rank(x) == pytest.approx(1, abs=1e-6)
    assert effective_rank(x, unit_rows=True) == pytest.approx(8, rel=1e-13)
    assert stable_rank(x, unit_rows=True) == pytest.approx(8, rel=1e-13)


def test_stable_rank_is_the_ratio_of_squared_norms():
    x = np.random.default_rng(1).standard_normal((2, 7, 4))
    expected = [np.linalg.norm(s) ** 2 / np.linalg.norm(s, 2) ** 2 for s in x]
    np.testing.assert_allclose(stable_rank(x), expected, rtol=1e-13)


@pytest.mark.parametrize("tokens", [1, 3, 10, 26])
def test_equal_rows_are_at_distance_exactly_zero(tokens):
    x = np.repeat(np.random.default_rng(2).standard_normal((1, 13)), tokens, axis=0)
    assert rank_one_distance(x) == 0


def test_rank_one_distance_follows_its_formula():
    x = np.random.default_rng(3).standard_normal((3, 6, 5)) + 1
    expected = [np.linalg.norm(s - s.mean(axis=0)) / np.linalg.norm(s) for s in x]
    np.testing.assert_allclose(rank_one_distance(x), expected, rtol=1e-13)


def test_rank_one_distance_is_the_least_over_all_constant_matrices():
    x = np.random.default_rng(4).standard_normal((6, 5)) + 1
    ones = np.ones((6, 1))
    nearest = ones @ np.linalg.lstsq(ones, x, rcond=None)[0]
    assert rank_one_distance(x) == pytest.approx(np.linalg.norm(x - nearest) / np.linalg.norm(x), rel=1e-13)


@pytest.mark.parametrize("spread", [1e-14, 1e-10, 1e-4])
def test_a_near_collapse_keeps_its_size(spread):
    # Rows 1 ± spread in one coordinate: the distance is spread/√(1 + spread²).
    above, below = 1 + spread, 1 - spread
    half_gap, mean = (above - below) / 2, (above + below) / 2
    expected = half_gap / math.hypot(half_gap, mean)
    assert rank_one_distance([[above], [below]]) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_rank_one_distance_does_not_see_the_scale(scale):
    assert rank_one_distance([[scale, 0.0], [0.0, scale]]) == pytest.approx(math.sqrt(0.5), rel=1e-14)


@pytest.mark.parametrize("measure", [effective_rank, stable_rank, rank_one_distance])
def test_an_all_zero_system_is_refused_and_named(measure):
    x = np.ones((2, 3, 4))
    x[1] = 0
    with pytest.raises(ArgumentValueError, match=r"x: expected at least one token that is not zero.*system \(1,\)"):
        measure(x)


@pytest.mark.parametrize("measure", [effective_rank, stable_rank, rank_one_distance])
def test_a_single_zero_token_does_not_disturb_the_raw_ranks(measure):
    assert np.isfinite(measure([[1.0, 0.0], [0.0, 0.0]]))


@pytest.mark.parametrize("exponent", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_exponent_is_refused(exponent):
    with pytest.raises(ArgumentValueError, match="exponent: expected a positive number"):
        effective_rank([[1.0]], exponent=exponent)
