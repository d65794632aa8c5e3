"""LayerNorm before the comparison: what it changes in the landscape of attention on positions, and what not."""

from __future__ import annotations

import itertools

import pytest
import torch

from circuits.landscape_cases import normal_point
from circuits.normalized_landscape import NormalizedPositions
from tokendynamics.circuits.landscape.basins import find_basins
from tokendynamics.circuits.landscape.classification import classify, continue_descent, find_symmetries
from tokendynamics.circuits.landscape.landscape import Landscape, flatten, unflatten
from tokendynamics.circuits.landscape.positions_only import (
    PositionsOnly,
    loss_at_infinity,
    no_attention,
    previous_token,
    towards_infinity,
)
from tokendynamics.circuits.landscape.softmax_positions import SoftmaxPositions
from tokendynamics.numerics.errors import ArgumentValueError

LAW = [0.5, 0.3, 0.2]


def test_the_loss_is_the_mean_over_all_27_sequences_token_by_token() -> None:
    landscape = NormalizedPositions(LAW, 3)
    q, v = normal_point(landscape, 0)
    norm = torch.nn.LayerNorm(3, eps=1e-5, elementwise_affine=False)
    total = 0.0
    for sequence in itertools.product(range(3), repeat=3):
        x = torch.nn.functional.one_hot(torch.tensor(sequence), 3).double()
        outputs = (v @ x.mT @ q).mT
        error = (norm(x[:-1]) - norm(outputs[1:])).square().sum()
        total += LAW[sequence[0]] * LAW[sequence[1]] * LAW[sequence[2]] * float(error)
    assert isinstance(landscape, Landscape)
    assert float(landscape.loss(q, v)) == pytest.approx(total, rel=1e-13)


def test_gradient_and_hessian_agree_with_differences() -> None:
    landscape = NormalizedPositions(LAW, 3)
    q, v = normal_point(landscape, 1)
    point, step = flatten(q, v), 1e-6
    moves = step * torch.eye(18, dtype=torch.float64)
    ahead, behind = (landscape.loss(*unflatten(landscape, point + sign * moves)) for sign in (1.0, -1.0))
    gradient = landscape.gradient(q, v)
    assert float((flatten(gradient.attention, gradient.v) - (ahead - behind) / (2.0 * step)).abs().max()) < 1e-6
    slopes = [landscape.gradient(*unflatten(landscape, point + sign * moves)) for sign in (1.0, -1.0)]
    bends = (flatten(slopes[0].attention, slopes[0].v) - flatten(slopes[1].attention, slopes[1].v)) / (2.0 * step)
    hessian = landscape.hessian(q, v)
    assert float((hessian - bends).abs().max()) < 1e-5 * float(hessian.abs().max())


def test_a_batch_is_cut_into_pieces_without_a_change() -> None:
    landscape = NormalizedPositions([0.25] * 4, 6)  # 4096 sequences: 42 points at once
    q, v = normal_point(landscape, 2, 3, 20)
    losses = landscape.loss(q, v)
    assert losses.shape == (3, 20)
    assert float(losses[2, 19]) == pytest.approx(float(landscape.loss(q[2, 19], v[2, 19])), rel=1e-13)


def test_size_and_common_offset_stop_to_matter() -> None:
    # Without LayerNorm the products 2q, v and q, 2v have another loss; with it, up to ε, they have the same.
    landscape, plain = NormalizedPositions(LAW, 3, epsilon=1e-12), PositionsOnly(LAW, 3)
    q, v = normal_point(landscape, 3)
    loss = float(landscape.loss(q, v))
    assert float(landscape.loss(2.0 * q, v)) == pytest.approx(loss, rel=1e-9)
    assert float(landscape.loss(q, 30.0 * v)) == pytest.approx(loss, rel=1e-9)
    assert float(landscape.loss(q, v + torch.tensor([[1.0, 5.0, -3.0]]))) == pytest.approx(loss, rel=1e-12)
    assert abs(float(plain.loss(2.0 * q, v)) / float(plain.loss(q, v)) - 1.0) > 0.1
    names = find_symmetries(landscape, q, v).names
    assert "constant on a column of v" in names
    gradient = landscape.gradient(q, v)
    assert abs(float((gradient.attention * q).sum())) < 1e-9 * float(gradient.attention.norm())


def test_the_sign_matters_the_opposite_of_the_solution_is_the_worst_point() -> None:
    landscape = NormalizedPositions(LAW, 3)
    solution, identity = previous_token(3), torch.eye(3).double()
    assert float(landscape.loss(solution, identity)) < 1e-25
    worst = float(landscape.loss(-solution, identity))
    target = 3.0 * (2.0 / 9.0) / (2.0 / 9.0 + 1e-5)  # |LN(one-hot)|²
    assert worst == pytest.approx(2 * 4.0 * target, rel=1e-9)
    losses = landscape.loss(*normal_point(landscape, 4, 200))
    assert float(losses.max()) < worst


def test_zero_output_stays_a_strict_saddle_between_walls_of_curvature_one_over_epsilon() -> None:
    # For equal categories, q = 0 is stationary for the same v as without LayerNorm.
    plain = PositionsOnly([1 / 3] * 3, 3)
    point = no_attention(plain, normal_point(plain, 6)[1])
    values = [
        classify(NormalizedPositions([1 / 3] * 3, 3, epsilon), point.attention, point.v, curvature_tolerance=1e-12)
        for epsilon in (1e-4, 1e-6)
    ]
    assert [one.kind for one in values] == ["strict saddle", "strict saddle"]
    assert values[0].relative_loss == pytest.approx(1.0)
    assert values[1].highest_curvature / values[0].highest_curvature == pytest.approx(100.0, rel=0.05)
    # The way down does not steepen: a mixed derivative of 1/√ε, squared, against a wall of 1/ε.
    assert values[1].lowest_curvature / values[0].lowest_curvature == pytest.approx(1.0, rel=0.05)


@pytest.mark.long
def test_the_attractor_at_infinity_is_gone() -> None:
    plain, normalized = PositionsOnly([1 / 3] * 3, 3), NormalizedPositions([1 / 3] * 3, 3)
    point = towards_infinity(plain, 0.1)
    stuck = continue_descent(plain, point.attention, point.v)
    freed = continue_descent(normalized, point.attention, point.v)
    assert stuck.loss == pytest.approx(2 * loss_at_infinity(plain), rel=1e-3)
    assert freed.loss < 1e-6


@pytest.mark.slow
def test_all_starts_succeed_under_softmax_and_the_failures_under_layer_norm_share_no_level(
    unchecked: None,
) -> None:
    law = [0.4, 0.35, 0.25]
    plain = find_basins(PositionsOnly(law, 3), 30, seed=0)
    softmax = find_basins(SoftmaxPositions(law, 3), 30, seed=0)
    normalized = find_basins(NormalizedPositions(law, 3), 30, seed=0)
    assert plain.share("at infinity").low > 0.05
    assert plain.share("global minimum").count + plain.share("at infinity").count == 30
    assert softmax.share("global minimum").count == 30
    assert normalized.share("global minimum").low > 0.7
    # Those that fail are no longer at one level.
    failed = [run.loss for run in normalized.runs if run.kind != "global minimum"]
    assert len({round(loss, 2) for loss in failed}) == len(failed)


def test_wrong_input_is_named() -> None:
    with pytest.raises(ArgumentValueError, match="epsilon: expected a positive number"):
        NormalizedPositions(LAW, 3, epsilon=0.0)
    with pytest.raises(ArgumentValueError, match=r"got 5\^10 = 9765625"):
        NormalizedPositions([0.2] * 5, 10)
