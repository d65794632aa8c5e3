"""The stationary points of attention on categories: solutions, trivial saddles, and those the paper overlooks."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares
from torch import Tensor

from tokendynamics.circuits.landscape.categories_only import (
    CategoriesOnly,
    mean_predictor,
    no_output,
    zero_loss,
    zero_row_sums,
)
from tokendynamics.circuits.landscape.classification import classify
from tokendynamics.circuits.landscape.landscape import StationaryPoint
from tokendynamics.numerics.errors import ArgumentValueError

BOTH = pytest.mark.parametrize("causal", [False, True])


def task(categories: int, seed: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    law = torch.rand(categories, generator=source, dtype=torch.float64) + 0.3
    return torch.randn(categories, categories, generator=source, dtype=torch.float64), law / law.sum()


def slope(landscape: CategoriesOnly, q: Tensor, v: Tensor) -> float:
    """|gradient| · |(q, v)| in units of the loss of no output."""
    gradient = landscape.gradient(q, v)
    size = max(1.0, float((q.square().sum() + v.square().sum()).sqrt()))
    return (
        float((gradient.attention.square().sum() + gradient.v.square().sum()).sqrt()) * size / no_output(landscape).loss
    )


def assert_strict_saddle(landscape: CategoriesOnly, point: StationaryPoint) -> None:
    curvatures = torch.linalg.eigvalsh(landscape.hessian(point.attention, point.v))
    assert float(landscape.loss(point.attention, point.v)) == pytest.approx(point.loss, rel=1e-12)
    assert point.loss_per_column == pytest.approx(point.loss / (landscape.positions - 1), rel=1e-14)
    assert slope(landscape, point.attention, point.v) < 1e-12
    assert float(curvatures[0]) < -1e-4 * float(curvatures[-1])


def enumerated_slope(landscape: CategoriesOnly, q: Tensor, v: Tensor) -> float:
    """The largest derivative of the loss summed over all sequences, by automatic differentiation."""
    q, v = q.clone().requires_grad_(), v.clone().requires_grad_()
    sequences = torch.tensor(list(itertools.product(range(len(landscape.law)), repeat=landscape.positions)))
    probabilities = landscape.law[sequences].prod(-1)
    predicted = (v * q[sequences[:, None, :], sequences[:, :, None]]).sum(-1)
    missed = landscape.q_true[sequences[:, :-1], sequences[:, 1:]] - predicted[:, 1:]
    by_q, by_v = torch.autograd.grad((probabilities * missed.square().sum(-1)).sum(), (q, v))
    return max(float(by_q.abs().max()), float(by_v.abs().max()))


@BOTH
@settings(max_examples=25)
@given(
    categories=st.integers(2, 6),
    positions=st.integers(2, 7),
    seed=st.integers(0, 1000),
    scale=st.sampled_from([-3.0, 0.2, 1.0, 5.0]),
    diagonal=st.sampled_from([-4.0, -0.9, -0.5, 0.0, 0.3, 2.0]),
)
def test_the_family_of_solutions_has_no_loss(
    causal: bool, categories: int, positions: int, seed: int, scale: float, diagonal: float
) -> None:
    landscape = CategoriesOnly(*task(categories, seed), positions, causal=causal)
    point = zero_loss(landscape, scale, diagonal)
    assert point.loss == 0.0
    assert float(landscape.loss(point.attention, point.v)) < 1e-25 * no_output(landscape).loss
    curvatures = torch.linalg.eigvalsh(landscape.hessian(point.attention, point.v))
    assert float(curvatures[0]) > -1e-12 * float(curvatures[-1])


def test_the_sign_before_3_71_is_wrong() -> None:
    landscape = CategoriesOnly(*task(4, seed=1), positions=5)
    point = zero_loss(landscape, diagonal=0.5)
    shift = point.attention - landscape.q_true
    torch.testing.assert_close(shift[0], -0.5 * point.attention.diagonal(), rtol=1e-14, atol=1e-14)
    assert float(landscape.loss(point.attention, point.v)) < 1e-25
    # With q = q* − a, as the line before it would have it, the same a does not solve the task.
    assert float(landscape.loss(landscape.q_true - shift, point.v)) > 0.1


def test_solutions_without_a_finite_shift_are_refused() -> None:
    landscape = CategoriesOnly(*task(3, seed=2), positions=4)
    for scale, diagonal in ((1.0, -1.0), (1.0, math.nan), (0.0, 0.5), (math.inf, 0.5), (1e-308, -1.0 + 1e-12)):
        with pytest.raises(ArgumentValueError):
            zero_loss(landscape, scale, diagonal)


@settings(max_examples=20)
@given(
    categories=st.integers(2, 6),
    positions=st.integers(3, 8),
    seed=st.integers(0, 1000),
    scale=st.sampled_from([0.3, 1.0, 4.0]),
)
def test_points_with_zero_row_sums_are_strict_saddles(categories: int, positions: int, seed: int, scale: float) -> None:
    landscape = CategoriesOnly(*task(categories, seed), positions)
    for point in zero_row_sums(landscape, scale):
        assert float(point.v.sum(-1)[1:].abs().max()) < 1e-14 * scale * positions
        curvatures = torch.linalg.eigvalsh(landscape.hessian(point.attention, point.v))
        assert float(landscape.loss(point.attention, point.v)) == pytest.approx(point.loss, rel=1e-11)
        assert slope(landscape, point.attention, point.v) < 1e-11
        assert float(curvatures[0]) < -1e-9 * float(curvatures[-1])


@pytest.mark.parametrize("seed", range(4))
def test_the_paper_misses_points_that_exist_for_plain_tasks(seed: int) -> None:
    landscape = CategoriesOnly(*task(3, seed), positions=4)
    points = zero_row_sums(landscape)
    assert len(points) >= 1
    for point in points:
        assert_strict_saddle(landscape, point)
        assert enumerated_slope(landscape, point.attention, point.v) < 1e-13
        # (3.54) divides by the sum of the row of v: the error of the mean that it claims to vanish does not.
        mean, direct = landscape.law @ point.attention, point.attention.diagonal()
        others = point.v[1].sum() - point.v[1, 1]
        error = landscape.law @ landscape.q_true - others * mean - point.v[1, 1] * direct
        assert float(error.abs().max()) > 1e-3


def test_the_column_means_of_these_points_are_free_in_a_hyperplane() -> None:
    landscape = CategoriesOnly(*task(4, seed=3), positions=5)
    for point in zero_row_sums(landscape):
        direct = point.v[1, 1]
        error = (
            landscape.law @ landscape.q_true
            + direct * (landscape.law @ point.attention)
            - direct * point.attention.diagonal()
        )
        weights = landscape.law * error
        shift = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
        within = shift - weights * (weights @ shift) / (weights @ weights)
        assert slope(landscape, point.attention + within, point.v) < 1e-12
        assert slope(landscape, point.attention + weights, point.v) > 1e-3


def with_empty_diagonal(categories: int, positions: int, seed: int) -> CategoriesOnly:
    """A task whose means satisfy Σ p m*(q*_tt − m*) = V*/(M−1), so that a point with v_ii = 0 exists."""
    q_true, law = task(categories, seed)
    mean = law @ q_true
    gap = q_true.diagonal() - mean
    variance = float((torch.outer(law, law) * (q_true - mean) ** 2).sum())
    weights = law * gap
    wanted = variance / (positions - 1) - float(weights @ mean)
    return CategoriesOnly(q_true + weights * (wanted / float(weights @ weights)), law, positions)


@pytest.mark.parametrize(("categories", "positions"), [(3, 6), (4, 5), (5, 3)])
def test_the_branch_of_3_59_has_m_minus_one(categories: int, positions: int) -> None:
    landscape = with_empty_diagonal(categories, positions, seed=4)
    mean = landscape.law @ landscape.q_true
    values = [point for point in zero_row_sums(landscape) if float(point.v[1, 1].abs()) < 1e-8]
    assert len(values) == 1
    point = values[0]
    # u = v_ii = 0 is a root in rounding; there v_{i,i−1} − v_ij is −(M−1) v_ij, with N − 1 in its place it is not.
    other, step = point.v[1, 2], point.v[1, 0] - point.v[1, 2]
    assert float(step) == pytest.approx(-(positions - 1) * float(other), rel=1e-8)
    expected = float((landscape.law * mean**2).sum()) + landscape.interaction_variance / (positions - 1)
    assert point.loss_per_column == pytest.approx(expected, rel=1e-8)
    assert_strict_saddle(landscape, point)
    printed = point.v.clone()
    printed.diagonal(offset=-1).copy_((1 - (categories - 1)) * point.v[1, 2].expand(positions - 1))
    assert slope(landscape, point.attention, printed) > 1e-3


def test_without_the_coincidence_no_point_has_an_empty_diagonal() -> None:
    landscape = CategoriesOnly(*task(4, seed=5), positions=5)
    assert all(float(point.v[1, 1].abs()) > 1e-3 for point in zero_row_sums(landscape))


@BOTH
def test_mean_predictors_are_strict_saddles(causal: bool) -> None:
    q_true, law = task(4, seed=6)
    landscape = CategoriesOnly(q_true, law, 5, causal=causal)
    source = torch.Generator().manual_seed(0)
    for pairs in (None, torch.randn(4, 4, generator=source, dtype=torch.float64)):
        point = mean_predictor(landscape, -1.7, pairs)
        assert point.loss == pytest.approx(4 * landscape.interaction_variance, rel=1e-14)
        assert_strict_saddle(landscape, point)
    assert_strict_saddle(landscape, no_output(landscape))


def test_a_target_that_ignores_the_previous_category_has_no_such_saddles() -> None:
    landscape = CategoriesOnly([[1.0, -2.0], [1.0, -2.0]], None, 4)
    for refused in (mean_predictor, zero_row_sums):
        with pytest.raises(ArgumentValueError, match="previous category"):
            refused(landscape)


@pytest.mark.parametrize("rest", [0.3, 3e5, 0.0])
def test_rows_that_differ_by_rounding_count_as_equal(rest: float) -> None:
    landscape = CategoriesOnly([[0.1 + 0.2, rest], [0.3, rest]], None, 4)
    for refused in (mean_predictor, zero_row_sums):
        with pytest.raises(ArgumentValueError, match="previous category"):
            refused(landscape)
    step = 1e-9 * max(rest, 1.0)
    barely = CategoriesOnly([[0.3 + step, rest], [0.3, rest]], None, 4)
    assert mean_predictor(barely).loss == pytest.approx(3 * step**2 / 8, rel=1e-4)


def test_zero_row_sums_need_full_attention() -> None:
    with pytest.raises(ArgumentValueError):
        zero_row_sums(CategoriesOnly(*task(3, seed=7), 4, causal=True))


@pytest.mark.parametrize("categories", [2, 3, 5])
@pytest.mark.parametrize("scale", [0.1, 1.0, 20.0])
def test_with_two_positions_one_such_point_exists_for_every_target(categories: int, scale: float) -> None:
    for seed in range(3):
        landscape = CategoriesOnly(*task(categories, seed), 2)
        (point,) = zero_row_sums(landscape, scale)
        assert point.v[1].tolist() == [scale, -scale]
        assert enumerated_slope(landscape, point.attention, point.v) < 1e-13 * max(scale, 1 / scale)
        direct = landscape.q_true.diagonal()
        mean = landscape.law @ landscape.q_true
        # (3.54) claims that the mean is met; it is missed by p_t q*_tt.
        error = mean - scale * (landscape.law @ point.attention - point.attention.diagonal())
        torch.testing.assert_close(error, landscape.law * direct, rtol=1e-12, atol=1e-13)
        assert float(landscape.loss(point.attention, point.v)) == pytest.approx(point.loss, rel=1e-12)
        assert classify(landscape, point.attention, point.v).kind == "strict saddle"


def test_with_two_positions_and_an_empty_diagonal_there_is_none() -> None:
    q_true, law = task(3, seed=8)
    assert zero_row_sums(CategoriesOnly(q_true - torch.diag(q_true.diagonal()), law, 2)) == []


def test_a_target_with_an_empty_diagonal_gives_saddles_only() -> None:
    q_true, law = task(4, seed=8)
    landscape = CategoriesOnly(q_true - torch.diag(q_true.diagonal()), law, 5)
    for point in zero_row_sums(landscape):
        assert_strict_saddle(landscape, point)


@pytest.mark.slow
def test_stationary_points_found_blindly_belong_to_the_families() -> None:
    landscape = CategoriesOnly(*task(3, seed=9), positions=4)
    predicted = [point.loss for point in zero_row_sums(landscape)]
    known = [0.0, mean_predictor(landscape).loss, no_output(landscape).loss, *predicted]

    def split(point) -> tuple[Tensor, Tensor]:
        whole = torch.from_numpy(point)
        return whole[:9].reshape(3, 3), whole[9:].reshape(4, 4)

    def gradient(point):
        at = landscape.gradient(*split(point))
        return torch.cat([at.attention.flatten(), at.v.flatten()]).numpy()

    jacobian: Any = lambda point: landscape.hessian(*split(point)).numpy()  # noqa: E731 (stubs want a string)
    seen = set()
    for seed in range(40):
        start = torch.randn(25, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).numpy()
        result = least_squares(gradient, start, jac=jacobian, gtol=1e-14)
        if abs(result.fun).max() < 1e-12 and abs(result.x).max() < 100.0:
            loss = float(landscape.loss(*split(result.x)))
            nearest = min(range(len(known)), key=lambda k: abs(known[k] - loss))
            assert known[nearest] == pytest.approx(loss, abs=1e-9)
            seen.add(nearest)
    assert seen & set(range(3, len(known)))
