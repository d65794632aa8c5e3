"""Wendel's probability: closed forms, its recursion, a Monte Carlo count, and numbers beyond float64."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError
from tokendynamics.observables import hemisphere, wendel_probability


@pytest.mark.parametrize("dim", range(1, 8))
def test_it_is_one_exactly_up_to_as_many_tokens_as_dimensions(dim):
    assert all(wendel_probability(tokens, dim) == 1 for tokens in range(1, dim + 1))
    assert wendel_probability(dim + 1, dim) == 1 - 2.0**-dim
    assert wendel_probability(2 * dim, dim) == 0.5


def test_on_the_line_and_in_the_plane_it_has_closed_forms():
    for tokens in range(1, 30):
        assert wendel_probability(tokens, 1) == 2.0 ** (1 - tokens)
        assert wendel_probability(tokens, 2) == tokens * 2.0 ** (1 - tokens)


def test_it_obeys_the_recursion_that_proves_it():
    # A new token's line either misses the cone of the others or cuts it into two.
    for tokens in range(1, 15):
        for dim in range(2, 10):
            half = (wendel_probability(tokens, dim) + wendel_probability(tokens, dim - 1)) / 2
            assert wendel_probability(tokens + 1, dim) == half


def test_the_printed_formula_is_that_of_one_dimension_less():
    for tokens in range(1, 12):
        for dim in range(2, 8):
            printed = wendel_probability(tokens, dim, formula="printed")
            assert printed == wendel_probability(tokens, dim - 1)
        assert wendel_probability(tokens, 1, formula="printed") == 0


@pytest.mark.few(1)
@pytest.mark.parametrize(("tokens", "dim"), [(4, 2), (5, 3), (8, 3), (7, 4)])
def test_drawn_tokens_share_a_half_space_that_often_and_not_as_printed(tokens, dim):
    draws = 1500
    x = np.random.default_rng(tokens).standard_normal((draws, tokens, dim))
    share = (hemisphere(x).margin > 0).mean()
    probability = wendel_probability(tokens, dim)
    spread = math.sqrt(probability * (1 - probability) / draws)
    assert abs(share - probability) < 4 * spread
    assert abs(share - wendel_probability(tokens, dim, formula="printed")) > 4 * spread


def test_large_numbers_are_rounded_once():
    exact = Fraction(sum(math.comb(1999, mu) for mu in range(950)), 2**1999)
    assert wendel_probability(2000, 950) == float(exact)
    assert wendel_probability(1200, 3) == float(Fraction(sum(math.comb(1199, mu) for mu in range(3)), 2**1199)) == 0
    assert wendel_probability(1060, 3) == float(Fraction(sum(math.comb(1059, mu) for mu in range(3)), 2**1059)) > 0
    assert wendel_probability(10**15, 4) == 0
    assert wendel_probability(20_000, 10_000) == 0.5


def test_numpy_integers_count_as_integers():
    assert wendel_probability(np.int64(5), np.int32(3)) == 0.6875


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_counted_is_refused():
    with pytest.raises(ArgumentTypeError, match=r"tokens: expected an integer, got 2\.5"):
        wendel_probability(2.5, 3)
    with pytest.raises(ArgumentValueError, match="tokens: expected at least 1, got 0"):
        wendel_probability(0, 3)
    with pytest.raises(ArgumentValueError, match="dim: expected at least 1, got -1"):
        wendel_probability(3, -1)
    with pytest.raises(ArgumentValueError, match="formula: expected 'corrected' or 'printed', got 'right'"):
        wendel_probability(3, 3, formula="right")
