"""Intervals: as wide as theory says, and holding the truth as often as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from tokendynamics.numerics.arguments import generator
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.numerics.intervals import Bootstrap, bayesian_bootstrap, percentile_interval, wilson


@pytest.mark.parametrize(("count", "total"), [(0, 10), (3, 17), (28, 100), (100, 100)])
def test_the_interval_is_that_of_wilson(count: int, total: int) -> None:
    reference = binomtest(count, total).proportion_ci(0.95, method="wilson")
    assert wilson(count, total) == pytest.approx((reference.low, reference.high), abs=1e-12)


def test_an_interval_without_trials_is_refused() -> None:
    for count, total in ((0, 0), (3, 2), (-1, 2)):
        with pytest.raises(ArgumentValueError):
            wilson(count, total)


def test_bootstrap_intervals_are_as_wide_as_theory_says() -> None:
    draws = torch.randn(4000, generator=generator(0), dtype=torch.float64) + 5.0
    ones = torch.ones_like(draws)
    value, low, high = Bootstrap.drawn(4000, 1000, 0.95, seed=1).ratio(draws, ones)
    assert value == pytest.approx(float(draws.mean()))
    assert low is not None
    assert high is not None
    assert high - low == pytest.approx(2 * 1.96 * float(draws.std()) / math.sqrt(4000), rel=0.12)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    samples = torch.randn(300, 200, 2, generator=generator(2), dtype=torch.float64) + torch.tensor([2.0, 4.0])
    held = 0
    for number, sample in enumerate(samples):
        _, low, high = Bootstrap.drawn(200, 200, 0.9, seed=number).ratio(sample[:, 0], sample[:, 1])
        assert low is not None
        assert high is not None
        held += low <= 0.5 <= high
    # Four standard deviations of a binomial with 300 tries around 0.9, and bootstrap intervals are a little short.
    assert 0.82 <= held / 300 <= 0.97


def test_a_ratio_without_denominator_or_with_infinite_sums_has_no_numbers() -> None:
    bootstrap = Bootstrap.drawn(50, 20, 0.9, seed=0)
    ones, zeros = torch.ones(50).double(), torch.zeros(50).double()
    assert bootstrap.ratio(ones, zeros) == (None, None, None)
    assert bootstrap.ratio(ones * math.inf, ones) == (None, None, None)
    rare = zeros.clone()
    rare[0] = 1.0
    assert bootstrap.ratio(rare, rare) == (1.0, 1.0, 1.0)


def test_the_interval_of_a_ratio_is_that_of_all_its_resamples() -> None:
    bootstrap = Bootstrap.drawn(4, 20, 0.5, seed=3)
    numerator, denominator = torch.tensor([[1.0, 5.0, 2.0, 9.0], [1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)
    resampled = [
        sum(count * top for count, top in zip(counts, numerator.tolist(), strict=True))
        / sum(count * bottom for count, bottom in zip(counts, denominator.tolist(), strict=True))
        for counts in bootstrap.counts.tolist()
    ]
    low, high = np.quantile(resampled, [0.25, 0.75])
    assert bootstrap.ratio(numerator, denominator) == pytest.approx((1.7, low, high), rel=1e-12)


def test_weights_of_the_bayesian_bootstrap_stand_around_the_law() -> None:
    law = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    weights = bayesian_bootstrap(law, 4000, seed=0)
    assert torch.allclose(weights.sum(dim=1), torch.ones(4000).double())
    assert bool((weights > 0).all())
    exponential = torch.distributions.Exponential(torch.ones(3).double())
    torch.manual_seed(0)
    other = exponential.sample((200_000,)) * law
    assert torch.allclose(weights.mean(dim=0), (other / other.sum(dim=1, keepdim=True)).mean(dim=0), atol=0.015)


def test_percentiles_leave_the_same_share_out_at_both_ends() -> None:
    values = torch.arange(201, dtype=torch.float64)
    assert percentile_interval(values, 0.9) == pytest.approx((10.0, 190.0))
    assert percentile_interval(torch.empty(0), 0.9) == (None, None)
    assert percentile_interval(torch.tensor([1.0, math.inf]).double(), 0.9)[1] is None
