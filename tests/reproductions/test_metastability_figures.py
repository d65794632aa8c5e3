"""The figure of how long caps hold their tokens: both proved times, and the time that is measured."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tokendynamics as td
from reproductions.metastability import lifetime


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


def test_the_figure_has_a_line_for_each_time() -> None:
    panel = lifetime.draw(lifetime.reproduce(draws=1, least=16, most=17)).axes[0]
    leaving, second, first = (np.asarray(line.get_ydata(), dtype=float) for line in panel.lines[:3])
    assert (leaving > second).all()
    assert (second > first).all()
