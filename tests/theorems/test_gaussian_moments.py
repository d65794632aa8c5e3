"""The moments of a Gaussian of tokens are those of its equation, of the closed form on a line, and of samples."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tokendynamics as td
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.theorems import predict_gaussian_moments


@pytest.mark.parametrize(("qk", "ov", "until"), [(1.0, -1.0, 5.0), (-0.5, 2.0, 5.0), (0.7, 0.9, 0.39), (0.0, 1.0, 2.0)])
def test_on_a_line_the_moments_have_a_closed_form(qk: float, ov: float, until: float) -> None:
    times = np.linspace(0, until, 9)
    mean, covariance = predict_gaussian_moments(times, [0.8], [[2.0]], [[qk]], [[ov]])
    left = 1 - 2 * ov * qk * 2.0 * times
    assert covariance[:, 0, 0] == pytest.approx(2.0 / left, rel=1e-9)
    assert mean[:, 0] == pytest.approx(0.8 * np.exp(ov * times) / np.sqrt(left), rel=1e-9)


def test_on_a_line_the_time_at_which_the_variance_is_infinite_is_named() -> None:
    with pytest.raises(ArgumentValueError, match=r"^times: ") as raised:
        predict_gaussian_moments([0.0, 1.0], [0.0], [[2.0]], [[0.7]], [[0.9]])
    (named,) = re.findall(r"before ([\d.]+), when", str(raised.value))
    assert float(named) == pytest.approx(1 / (2 * 0.9 * 0.7 * 2.0), rel=1e-6)


def test_the_field_of_a_gaussian_is_that_of_samples() -> None:
    rng = np.random.default_rng(0)
    mean, covariance = np.array([0.3, -0.2]), np.array([[0.5, 0.1], [0.1, 0.3]])
    qk, ov = np.array([[0.6, -0.4], [0.2, 0.5]]), np.array([[0.5, 1.0], [-0.3, 0.8]])
    samples = rng.multivariate_normal(mean, covariance, 400_000)
    for point in ([0.0, 0.0], [1.0, -0.5]):
        weights = np.exp(samples @ (qk.T @ point))
        average = weights @ samples / weights.sum()
        assert average == pytest.approx(mean + covariance @ qk.T @ point, abs=5e-3)
    # The slope of the moments is that of the affine field x' = ov(m + Σ qk^T x).
    step = 1e-5
    m, sigma = predict_gaussian_moments([0.0, step], mean, covariance, qk, ov)
    affine = ov @ covariance @ qk.T
    assert (m[1] - m[0]) / step == pytest.approx(ov @ mean + affine @ mean, abs=1e-4)
    assert (sigma[1] - sigma[0]) / step == pytest.approx(affine @ covariance + covariance @ affine.T, abs=1e-4)


def test_samples_follow_the_moments() -> None:
    rng = np.random.default_rng(1)
    mean, covariance = np.array([0.3, -0.2]), np.array([[0.5, 0.1], [0.1, 0.3]])
    qk, ov = np.array([[0.6, -0.4], [0.2, 0.5]]), np.array([[0.4, 0.5], [-0.3, 0.2]])
    tokens = 1000
    drawn = rng.multivariate_normal(mean, covariance, tokens)
    # Samples moved and turned to have the moments exactly: what is left is the error of averages.
    centered = drawn - drawn.mean(axis=0)
    exact = centered @ np.linalg.inv(np.linalg.cholesky(np.cov(centered.T, bias=True))).T
    start = exact @ np.linalg.cholesky(covariance).T + mean
    run = td.simulate(td.Flow(td.Attention(qk, ov), td.Free()), start, [0.0, 0.5, 1.0], rtol=1e-6, atol=1e-8)
    m, sigma = predict_gaussian_moments(run.times, mean, covariance, qk, ov)
    for index, state in enumerate(run.tensor.numpy()):
        assert state.mean(axis=0) == pytest.approx(m[index], abs=0.02)
        assert np.cov(state.T, bias=True) == pytest.approx(sigma[index], abs=0.03)
    # The moments themselves change by far more than that.
    assert np.abs(m[-1] - m[0]).max() > 0.1
    assert np.abs(sigma[-1] - sigma[0]).max() > 0.1


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"mean": [0.0]}, "mean"),
        ({"covariance": [[1.0]]}, "covariance"),
        ({"covariance": [[1.0, 2.0], [2.0, 1.0]]}, "covariance"),
        ({"covariance": [[1.0, 0.5], [0.0, 1.0]]}, "covariance"),
        ({"ov": [[1.0]]}, "ov"),
        ({"qk": [[1.0, 0.0]]}, "qk"),
        ({"times": [1.0, 0.0]}, "times"),
        ({"mean": [np.nan, 0.0]}, "mean"),
        ({"qk": [[[1.0, 0.0], [0.0, 1.0]]]}, "qk"),
        ({"ov": [[[1.0, 0.0], [0.0, 1.0]]]}, "ov"),
    ],
)
def test_what_is_no_gaussian_is_refused(changes: dict[str, Any], named: str) -> None:
    eye = [[1.0, 0.0], [0.0, 1.0]]
    given = {"times": [0.0, 0.1], "mean": [0.0, 0.0], "covariance": eye, "qk": eye, "ov": eye, **changes}
    with pytest.raises(ArgumentValueError, match=rf"^{named}: "):
        predict_gaussian_moments(**given)
