"""Softmax over positions: no finite stationary point, and yet descent that waits as long as one likes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuits.landscape_cases import (
    gradient_by_autograd,
    hessian_by_autograd,
    laws,
    loss_by_enumeration,
    normal_point,
)
from tokendynamics.circuits.landscape.landscape import flatten
from tokendynamics.circuits.landscape.positions_only import previous_token
from tokendynamics.circuits.landscape.softmax_positions import SoftmaxPositions, stall
from tokendynamics.numerics.errors import ArgumentValueError


def test_the_loss_is_the_mean_over_all_27_sequences_with_softmax_weights() -> None:
    landscape = SoftmaxPositions([0.5, 0.3, 0.2], 3)
    logits, v = normal_point(landscape, 0)
    weights = torch.exp(logits) / torch.exp(logits).sum(0)
    wanted = loss_by_enumeration(landscape.law, weights, v)
    assert abs(float(landscape.loss(logits, v)) - wanted) < 1e-13 * wanted
    assert float((landscape.weights(logits) - weights).abs().max()) < 1e-15


@pytest.mark.long
@settings(max_examples=25)
@given(laws(), st.integers(2, 5), st.integers(0, 10**6), st.floats(0.1, 4.0))
def test_gradient_and_hessian_are_the_derivatives(law: list[float], positions: int, seed: int, scale: float) -> None:
    landscape = SoftmaxPositions(law, positions)
    logits, v = normal_point(landscape, seed, scale=scale)
    gradient = landscape.gradient(logits, v)
    flat = flatten(gradient.attention, gradient.v)
    assert float((flat - flatten(*gradient_by_autograd(landscape, logits, v))).abs().max()) < 1e-12 * float(flat.norm())
    hessian = landscape.hessian(logits, v)
    wanted = hessian_by_autograd(landscape, logits, v)
    assert float((hessian - wanted).abs().max()) < 1e-12 * float(wanted.abs().max())


@settings(max_examples=50)
@given(laws(), st.integers(2, 5), st.integers(0, 10**6), st.floats(0.0, 6.0), st.booleans())
def test_at_every_finite_point_the_loss_falls_along_the_certificate(
    law: list[float], positions: int, seed: int, scale: float, best: bool
) -> None:
    landscape = SoftmaxPositions(law, positions)
    logits, v = normal_point(landscape, seed, scale=scale)
    v = landscape.best_v(logits) if best else v
    certificate = landscape.descent(logits, v)
    q_slope, v_slope = gradient_by_autograd(landscape, logits, v)
    along = float((q_slope * certificate.attention).sum() + (v_slope * certificate.v).sum())
    sizes = float((q_slope * certificate.attention).abs().sum() + (v_slope * certificate.v).abs().sum())
    assert float(certificate.slope) < 0.0
    assert abs(along - float(certificate.slope)) <= 1e-10 * sizes


def test_the_certificate_is_negative_at_the_mean_predictor_and_vanishes_only_towards_infinite_logits() -> None:
    landscape = SoftmaxPositions([0.5, 0.3, 0.2], 4)
    mean = landscape.law[:, None].expand(3, 3)
    slopes = [float(landscape.descent(-s * previous_token(4), mean).slope) for s in (0.0, 5.0, 10.0, 20.0)]
    assert all(slope < 0.0 for slope in slopes)
    # The direction has length e^s in the held logits, and the gradient there is of order e^(−2s).
    assert slopes[2] / slopes[1] == pytest.approx(math.exp(-5.0), rel=0.02)
    towards = [float(landscape.descent(s * previous_token(4), torch.eye(3).double()).slope) for s in (5.0, 10.0, 20.0)]
    assert all(slope < 0.0 for slope in towards)
    assert abs(towards[2]) < 1e-6 * abs(towards[0])


@settings(max_examples=15)
@given(laws(), st.integers(2, 5), st.integers(0, 10**6))
def test_best_v_has_no_gradient_and_no_lower_neighbour(law: list[float], positions: int, seed: int) -> None:
    landscape = SoftmaxPositions(law, positions)
    logits, v = normal_point(landscape, seed)
    best = landscape.best_v(logits)
    assert float(landscape.gradient(logits, best).v.abs().max()) < 1e-13
    assert float(landscape.loss(logits, best)) <= float(landscape.loss(logits, v))


def test_the_optimum_lies_at_infinite_logits_with_v_the_identity() -> None:
    landscape = SoftmaxPositions([0.5, 0.3, 0.2], 4)
    losses = [float(landscape.loss(s * previous_token(4), torch.eye(3).double())) for s in (5.0, 10.0, 20.0, 300.0)]
    others = 3.0  # senders that share the rest of every column
    for s, loss in zip((5.0, 10.0, 20.0), losses, strict=False):
        rest = others / (math.exp(s) + others)
        exact = 3.0 * landscape.gini * (rest**2 + rest**2 / others)
        assert loss == pytest.approx(exact, rel=1e-6)
    assert losses[-1] < 1e-250


def test_the_mean_predictor_without_weight_on_the_previous_token_is_stationary_on_the_closed_simplex() -> None:
    landscape = SoftmaxPositions([0.5, 0.3, 0.2], 4)
    weights = torch.full((4, 4), 1.0 / 3.0, dtype=torch.float64) * (1.0 - previous_token(4))
    gradient = landscape.linear.gradient(weights, landscape.law[:, None].expand(3, 3))
    assert float(gradient.v.abs().max()) < 1e-15
    # Equal within each column: nothing is gained by moving weight between senders, the previous token included.
    assert float((gradient.attention - gradient.attention.mean(0)).abs().max()) < 1e-15
    assert float(landscape.linear.loss(weights, landscape.law[:, None].expand(3, 3))) == pytest.approx(3 * 0.62)


@pytest.mark.slow
def test_leaving_the_stall_takes_e_to_the_two_s_when_all_columns_are_held(unchecked: None) -> None:
    landscape = SoftmaxPositions([0.4, 0.35, 0.25], 4)
    for depth, tolerance in ((5.0, 2e-3), (8.0, 1e-4)):
        result = stall(landscape, depth)
        assert result.status == "left"
        assert result.time == pytest.approx(9.0 * math.exp(2.0 * depth) / (16.0 * landscape.gini), rel=tolerance)
        assert result.loss == pytest.approx(3.0 * landscape.gini, abs=4.0 * math.exp(-2.0 * depth))


@pytest.mark.slow
def test_leaving_the_stall_takes_e_to_the_s_when_one_column_is_held(unchecked: None) -> None:
    landscape = SoftmaxPositions([0.4, 0.35, 0.25], 4)
    early, late = stall(landscape, 6.0, columns=[3]), stall(landscape, 9.0, columns=[3])
    assert math.log(late.time / early.time) == pytest.approx(3.0, abs=0.05)
    assert math.log(early.gradient / late.gradient) == pytest.approx(3.0, abs=0.05)


def test_a_million_steps_of_plain_gradient_descent_would_still_be_at_the_mean_predictor(unchecked: None) -> None:
    landscape = SoftmaxPositions([0.4, 0.35, 0.25], 4)
    result = stall(landscape, 10.0, horizon=1e5)
    assert result.status == "still there"
    assert result.time == 1e5
    assert result.gradient < 1e-8


def test_wrong_parameters_are_named() -> None:
    landscape = SoftmaxPositions([0.5, 0.5], 3)
    with pytest.raises(ArgumentValueError, match="depth: expected a number of at least 0"):
        stall(landscape, -1.0)
    with pytest.raises(ArgumentValueError, match=r"columns: expected receivers 2\.\.3, got 1"):
        stall(landscape, 1.0, columns=[1])
    with pytest.raises(ArgumentValueError, match="horizon: expected a positive time"):
        stall(landscape, 1.0, horizon=0.0)


def test_a_single_category_has_solutions_at_finite_logits_and_no_stall() -> None:
    landscape = SoftmaxPositions([1.0], 3)
    logits, _ = normal_point(landscape, 0)
    solution = torch.ones(1, 1).double()
    gradient = landscape.gradient(logits, solution)
    assert float(landscape.loss(logits, solution)) < 1e-30
    assert float(gradient.attention.norm() + gradient.v.norm()) < 1e-15
    with pytest.raises(ArgumentValueError, match="landscape: expected at least 2 categories, got 1"):
        stall(landscape, 5.0)
