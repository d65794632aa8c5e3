"""The closed-form loss of attention on positions, its gradient and its Hessian."""

from __future__ import annotations

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
from circuits.pair_cases import golden
from tokendynamics.circuits._task import category_law
from tokendynamics.circuits.landscape.landscape import Landscape, LossAndGradient, flatten, unflatten
from tokendynamics.circuits.landscape.positions_only import PositionsOnly
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError


def relative(came: torch.Tensor, wanted: object) -> float:
    """The largest difference, as a part of the largest entry."""
    reference = torch.as_tensor(wanted, dtype=torch.float64)
    return float((came - reference).abs().max() / reference.abs().max())


@pytest.mark.parametrize("law", ["uniform", "p"])
def test_the_reference_loss_and_gradients_are_met_to_twelve_digits(law: str) -> None:
    case = golden("07")
    wanted = case["cases"][law]
    landscape = PositionsOnly(wanted["p"], case["M"])
    gradient = landscape.gradient(case["q"], case["v"])
    assert relative(landscape.loss(case["q"], case["v"]), wanted["loss"]) < 1e-12
    assert relative(gradient.attention, wanted["grad_q"]) < 1e-12
    assert relative(gradient.v, wanted["grad_v"]) < 1e-12


@pytest.mark.parametrize("law", ["uniform", "zipf"])
def test_the_loss_is_the_mean_over_all_27_sequences(law: str) -> None:
    landscape = PositionsOnly(category_law(law, 3), 3)
    for seed in range(3):
        q, v = normal_point(landscape, seed)
        wanted = loss_by_enumeration(landscape.law, q, v)
        assert abs(float(landscape.loss(q, v)) - wanted) < 1e-13 * wanted


@pytest.mark.long
@settings(max_examples=25)
@given(laws(), st.integers(2, 6), st.integers(0, 10**6), st.floats(0.1, 10.0))
def test_gradient_and_hessian_are_the_derivatives_for_any_law(
    law: list[float], positions: int, seed: int, scale: float
) -> None:
    landscape = PositionsOnly(law, positions)
    q, v = normal_point(landscape, seed, scale=scale)
    gradient = landscape.gradient(q, v)
    wanted_q, wanted_v = gradient_by_autograd(landscape, q, v)
    assert relative(flatten(gradient.attention, gradient.v), flatten(wanted_q, wanted_v)) < 1e-12
    assert relative(landscape.hessian(q, v), hessian_by_autograd(landscape, q, v)) < 1e-12


def test_the_printed_form_of_the_loss_is_the_same_number() -> None:
    landscape = PositionsOnly([0.5, 0.3, 0.2], 4)
    q, v = normal_point(landscape, 0)
    law = landscape.law
    covariance = torch.diag(law) - law[:, None] * law
    total = 0.0
    for i in range(1, 4):
        column, s = q[:, i], q[:, i].sum()
        total += 1.0 - 2.0 * (s * law @ v @ law + q[i - 1, i] * torch.trace(v @ covariance))
        total += s**2 * (v @ law).square().sum() + column.square().sum() * torch.trace(v.mT @ v @ covariance)
    assert relative(landscape.loss(q, v), total) < 1e-13


def test_a_tiny_loss_keeps_all_its_digits() -> None:
    # A squared form of terms near one would leave 1e-16 of rounding here.
    landscape = PositionsOnly([0.5, 0.25, 0.25], 3)
    off = 2.0**-50
    q = torch.diag(torch.ones(2).double(), diagonal=1) * (1.0 + off)
    direct = landscape.loss(q, torch.eye(3).double())
    assert abs(float(direct) / (2.0 * off**2) - 1.0) < 1e-12


def test_leading_axes_are_independent_points_and_broadcast() -> None:
    landscape = PositionsOnly([0.5, 0.3, 0.2], 4)
    q, v = normal_point(landscape, 3, 2, 5)
    losses, slopes, bends = landscape.loss(q, v), landscape.gradient(q, v), landscape.hessian(q, v)
    for index in [(0, 0), (1, 3)]:
        assert relative(losses[index], landscape.loss(q[index], v[index])) < 1e-14
        assert relative(slopes.v[index], landscape.gradient(q[index], v[index]).v) < 1e-14
        assert relative(bends[index], landscape.hessian(q[index], v[index])) < 1e-14
    one_v = landscape.loss(q, v[0, 0])
    assert relative(one_v[1, 2], landscape.loss(q[1, 2], v[0, 0])) < 1e-14
    assert isinstance(landscape, Landscape)
    assert torch.equal(flatten(*unflatten(landscape, flatten(q, v))), flatten(q, v))


def test_the_first_column_of_q_has_no_influence() -> None:
    landscape = PositionsOnly([0.6, 0.4], 3)
    q, v = normal_point(landscape, 1)
    shifted = q.clone()
    shifted[:, 0] += 5.0
    assert torch.equal(landscape.loss(shifted, v), landscape.loss(q, v))
    assert bool((landscape.gradient(q, v).attention[:, 0] == 0.0).all())


def test_wrong_input_is_named(unchecked: None) -> None:
    landscape = PositionsOnly([0.5, 0.5], 3)
    q, v = normal_point(landscape, 0)
    with pytest.raises(ArgumentValueError, match=r"attention: expected shape \(…, 3, 3\).*got shape \(2, 2\)"):
        landscape.loss(v, v)
    with pytest.raises(ArgumentValueError, match="v: expected leading axes"):
        landscape.loss(q.expand(2, 3, 3), v.expand(5, 2, 2))
    with pytest.raises(ArgumentValueError, match="attention: expected finite numbers"):
        landscape.loss(q * float("nan"), v)
    with pytest.raises(ArgumentTypeError, match="v: expected real floating-point numbers"):
        landscape.loss(q, torch.ones(2, 2, dtype=torch.int64))
    with pytest.raises(ArgumentValueError, match="positions: expected at least 2, got 1"):
        PositionsOnly([0.5, 0.5], 1)
    with pytest.raises(ArgumentTypeError, match="positions: expected an integer"):
        PositionsOnly([0.5, 0.5], 3.0)  # type: ignore[arg-type]
    with pytest.raises(ArgumentValueError, match="law: expected probabilities that sum to 1"):
        PositionsOnly([0.5, 0.6], 3)


@settings(max_examples=15)
@given(laws(), st.integers(2, 5), st.integers(0, 10**6))
def test_loss_and_gradient_at_once_are_the_same_as_one_by_one(law: list[float], positions: int, seed: int) -> None:
    landscape = PositionsOnly(law, positions)
    q, v = normal_point(landscape, seed)
    loss, gradient = landscape.loss_and_gradient(q, v)
    alone = landscape.gradient(q, v)
    assert isinstance(landscape, LossAndGradient)
    assert torch.equal(loss, landscape.loss(q, v))
    assert torch.equal(gradient.attention, alone.attention)
    assert torch.equal(gradient.v, alone.v)
