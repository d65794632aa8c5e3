"""Strengths with few digits of their own (below 1e-308): every statement says of them what it says of β = 1e-20."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest

import tokendynamics as td
from tokendynamics.theorems import predict_position_correlation

SUBNORMAL, SMALL = 5e-324, 1e-20
"""The least number of float64, and one whose exponentials keep all their digits."""


def _measured(beta: float, dim: int, weights: Literal["softmax", "exponential"], sign: float) -> dict[str, list]:
    """Return whether each hypothesis is not violated, and the margins of all certificates, by statement."""
    start = np.abs(np.random.default_rng(3).standard_normal((3, dim)))
    start /= np.linalg.norm(start, axis=-1, keepdims=True)
    flow = td.Flow(td.Attention(beta * np.eye(dim), sign * np.eye(dim), weights=weights), td.Sphere())
    run = td.simulate(flow, start, np.linspace(0.0, 20.0, 21), rtol=1e-10, atol=1e-13)
    margins = {
        f"{one.statement}, asked": [float(part.holds is not False) for part in one.hypotheses]
        for one in td.check(flow, start)
    }
    for certificate in td.certify(run):
        margins[certificate.statement] = [float(part.margin) for part in certificate.conditions]
    return margins


@pytest.mark.long
@pytest.mark.every_value_once
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("weights", ["softmax", "exponential"])
@pytest.mark.parametrize("dim", [2, 3])
def test_statements_measure_the_same(dim: int, weights: Literal["softmax", "exponential"], sign: float) -> None:
    """But for a matrix without digits, of which the gradient's statements do not know whether it is definite."""
    small, smaller, least = (_measured(beta, dim, weights, sign) for beta in (SMALL, 1e-300, SUBNORMAL))
    assert any("asked" not in name for name in small)
    assert small.keys() == smaller.keys() >= least.keys()
    for name, values in small.items():
        assert smaller[name] == pytest.approx(values, rel=1e-6, abs=1e-9), name
        if not name.startswith("asymptotic-3."):
            assert least[name] == pytest.approx(values, rel=1e-6, abs=1e-9), name


@pytest.mark.parametrize("source", [0.01, 0.3, 0.99])
def test_a_decay_and_a_strength_without_digits_are_none(source: float) -> None:
    wanted = predict_position_correlation(1.0, source, beta=0.0)
    series = sum(
        0.5**m * (-math.log(source)) ** (m - 1) / (math.factorial(m) * math.factorial(m - 1)) for m in range(1, 40)
    )
    assert float(wanted) == pytest.approx(series, rel=1e-12)
    for size in (SUBNORMAL, 1e-310, 1e-200, SMALL):
        assert predict_position_correlation(1.0, source, beta=size, decay=size) == pytest.approx(wanted, rel=1e-12)
