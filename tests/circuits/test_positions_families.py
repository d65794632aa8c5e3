"""The stationary points of attention on positions: six families, complete, and an attractor at infinity."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import root

from circuits.landscape_cases import laws, normal_point, slope_size
from circuits.pair_cases import golden
from tokendynamics.circuits.landscape.landscape import StationaryPoint, flatten, unflatten
from tokendynamics.circuits.landscape.positions_only import (
    PositionsOnly,
    families,
    loss_at_infinity,
    mean_predictor,
    no_attention,
    no_values,
    nothing_sent,
    solved,
    towards_infinity,
    zero_column_sums,
)
from tokendynamics.numerics.errors import ArgumentValueError


def reference_points() -> list[tuple[dict[str, object], StationaryPoint]]:
    """Every reference point beside what the constructors make of its parameters."""
    case = golden("08")
    landscape = PositionsOnly(case["p"], 4)
    by_letter = {name.split()[0]: point for name, point in case["families"].items()}
    by_letter["D"] = case["families"]["D v=w1^T,p.w=0,s_i=0"]
    exact = {
        letter: [torch.tensor(point[key], dtype=torch.float64) for key in ("q", "v")]
        for letter, point in by_letter.items()
    }
    assert exact.keys() == {"A", "B", "C", "D", "D'"}
    w = exact["B"][1][:, 0] - torch.tensor([1.7, 0.0, 0.0], dtype=torch.float64)
    built = {
        "A": solved(landscape, 1.7),
        "B": zero_column_sums(landscape, 1.7, w),
        "C": mean_predictor(landscape, 0.6, exact["C"][0]),
        "D": nothing_sent(landscape, exact["D"][1][:, 0], exact["D"][0]),
        "D'": no_attention(landscape, exact["D'"][1]),
    }
    return [(by_letter[letter], point) for letter, point in built.items()]


@pytest.mark.parametrize(("reference", "point"), reference_points(), ids=["A", "B", "C", "D", "D'"])
def test_the_constructors_give_the_reference_points_with_their_losses_and_curvatures(
    reference: dict[str, object], point: StationaryPoint
) -> None:
    landscape = PositionsOnly(golden("08")["p"], 4)
    q, v = (torch.tensor(reference[key], dtype=torch.float64) for key in ("q", "v"))
    assert float((point.attention - q).abs().max()) < 1e-13
    assert float((point.v - v).abs().max()) < 1e-13
    assert point.loss_per_column == pytest.approx(reference["loss_per_column_predicted"], abs=1e-12)
    assert float(landscape.loss(q, v)) == pytest.approx(reference["loss"], abs=1e-12)
    curvatures = torch.linalg.eigvalsh(landscape.hessian(q, v))
    assert float(curvatures[0]) == pytest.approx(reference["hessian_min"], abs=1e-9)
    assert float(curvatures[-1]) == pytest.approx(reference["hessian_max"], abs=1e-9)


@settings(max_examples=30)
@given(laws(), st.integers(2, 6), st.integers(0, 10**6))
def test_every_member_is_stationary_with_the_predicted_loss_and_all_but_the_solution_are_strict_saddles(
    law: list[float], positions: int, seed: int
) -> None:
    landscape = PositionsOnly(law, positions)
    for point in families(landscape, seed):
        size = 1.0 + float(flatten(point.attention, point.v).abs().max()) ** 3
        assert slope_size(landscape, point.attention, point.v) < 1e-12 * size
        assert float(landscape.loss(point.attention, point.v)) == pytest.approx(point.loss, rel=1e-12, abs=1e-13)
        lowest = float(torch.linalg.eigvalsh(landscape.hessian(point.attention, point.v))[0])
        if point.family == "A":
            assert abs(lowest) < 1e-12
        else:
            assert lowest < -1e-6


def test_the_claim_that_only_degenerate_zeros_remain_is_false_by_family_b() -> None:
    landscape = PositionsOnly([0.2] * 5, 6)
    point = zero_column_sums(landscape)
    assert slope_size(landscape, point.attention, point.v) < 1e-14
    # Neither the solution nor one of the paper's zeros with v constant in every row or q constant in every column.
    assert point.loss_per_column == pytest.approx(1.0 - (5.0 / 6.0) * 0.8)
    assert float((point.v.diagonal() - point.v[:, [1, 2, 3, 4, 0]].diagonal()).abs().min()) == pytest.approx(1.0)
    assert float((point.attention[0, 1] - point.attention[1, 1]).abs()) == pytest.approx(1.0)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("law", [[0.5, 0.3, 0.2], [0.7, 0.3]])
def test_the_families_are_all_there_is(law: list[float], unchecked: None) -> None:
    # Roots of the gradient from random starts, by a method that knows nothing of the families.
    landscape = PositionsOnly(law, 3)
    levels = torch.tensor(sorted({point.loss for point in families(landscape)}), dtype=torch.float64)

    def slope(point: object) -> tuple[object, object]:
        at = unflatten(landscape, torch.as_tensor(point))
        gradient = landscape.gradient(*at)
        return flatten(gradient.attention, gradient.v).numpy(), landscape.hessian(*at).numpy()

    reached: list[float] = []
    for seed in range(20):
        start = flatten(*normal_point(landscape, seed))
        result = root(slope, start.numpy(), jac=True, method="lm", options={"maxiter": 400})
        end = torch.from_numpy(result.x)
        if slope_size(landscape, *unflatten(landscape, end)) < 1e-10 and float(end.norm()) < 50.0:
            reached.append(float(landscape.loss(*unflatten(landscape, end))))
    assert len(reached) >= 8
    distances = (torch.tensor(reached, dtype=torch.float64)[:, None] - levels).abs()
    assert float(distances.min(-1).values.max()) < 1e-8
    assert len(set(distances.argmin(-1).tolist())) >= 3


@settings(max_examples=20)
@given(laws(), st.integers(2, 6), st.floats(-2.0, 2.0).filter(lambda s: abs(s) > 0.05), st.floats(0.2, 3.0))
def test_the_curve_to_infinity_has_the_loss_of_its_formula(
    law: list[float], positions: int, s: float, scale: float
) -> None:
    landscape = PositionsOnly(law, positions)
    point = towards_infinity(landscape, s, scale)
    assert float(landscape.loss(point.attention, point.v)) == pytest.approx(point.loss, rel=1e-10)
    assert point.loss_per_column == pytest.approx(landscape.gini / positions * (1.0 - s * scale) ** 2)


def test_along_the_curve_the_loss_falls_to_t_over_m_and_the_gradient_vanishes_while_the_norm_explodes() -> None:
    landscape = PositionsOnly([0.4, 0.35, 0.25], 4)
    limit = 3 * loss_at_infinity(landscape)
    assert limit == pytest.approx(3 * 0.655 / 4)
    points = [towards_infinity(landscape, 10.0**-k) for k in range(1, 5)]
    losses = [float(landscape.loss(point.attention, point.v)) for point in points]
    slopes = [slope_size(landscape, point.attention, point.v) for point in points]
    norms = [float(flatten(point.attention, point.v).norm()) for point in points]
    assert all(later < earlier for earlier, later in itertools.pairwise(losses))
    assert losses[-1] - limit == pytest.approx(limit * ((1.0 + 1e-8) ** 2 - 1.0), rel=1e-6)
    # One step further, rounding of the column sums (1e-16 against s = 1e-4) has a gradient of its own.
    assert all(math.isclose(later, earlier / 10.0, rel_tol=0.05) for earlier, later in itertools.pairwise(slopes[:3]))
    assert all(later > 9.0 * earlier for earlier, later in itertools.pairwise(norms))


def test_the_curve_meets_the_solution_on_the_other_side_of_the_wall() -> None:
    landscape = PositionsOnly([0.4, 0.35, 0.25], 4)
    end = towards_infinity(landscape, 0.5, 2.0)
    aim = solved(landscape, 2.0)
    assert float((end.attention - aim.attention).abs().max()) < 1e-15
    assert float((end.v - aim.v).abs().max()) < 1e-15
    assert loss_at_infinity(landscape) < min(point.loss_per_column for point in families(landscape)[1:])


def test_wrong_parameters_are_named() -> None:
    landscape = PositionsOnly([0.5, 0.5], 3)
    with pytest.raises(ArgumentValueError, match="scale: expected a number that is not zero"):
        solved(landscape, 0.0)
    with pytest.raises(ArgumentValueError, match="s: expected a number that is not zero"):
        towards_infinity(landscape, 0.0)
    with pytest.raises(ArgumentValueError, match="w: expected 2 numbers, one for each category"):
        nothing_sent(landscape, [1.0, 2.0, 3.0])
    with pytest.raises(ArgumentValueError, match="attention: expected shape"):
        no_values(landscape, [[1.0]])
