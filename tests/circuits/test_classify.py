"""Points of landscapes are told apart: minima, saddles, flat points, and the way to infinity."""

from __future__ import annotations

import pytest
import torch

from circuits.landscape_cases import normal_point
from circuits.pair_cases import golden
from tokendynamics.circuits.landscape.classification import (
    balanced,
    classify,
    continue_descent,
    find_symmetries,
    scales_against,
)
from tokendynamics.circuits.landscape.landscape import Gradient, Landscape, checked_point
from tokendynamics.circuits.landscape.positions_only import (
    PositionsOnly,
    families,
    loss_at_infinity,
    mean_predictor,
    no_attention,
    no_values,
    nothing_sent,
    previous_token,
    solved,
    towards_infinity,
    zero_column_sums,
)
from tokendynamics.circuits.landscape.softmax_positions import SoftmaxPositions
from tokendynamics.numerics.arguments import ArrayLike

LANDSCAPE = PositionsOnly([0.4, 0.35, 0.25], 4)


class Polynomial:
    """A loss of two numbers that a test can shape: q and v are 1 × 1."""

    name = "polynomial"
    attention_shape = (1, 1)
    v_shape = (1, 1)
    law = torch.ones(1, dtype=torch.float64)

    def __init__(self, power: int) -> None:
        self.power = power

    def loss(self, q: ArrayLike, v: ArrayLike) -> torch.Tensor:
        """``1 + q^power + (v − 1)²``."""
        checked_q, checked_v = checked_point(self, q, v)
        return 1.0 + checked_q[..., 0, 0] ** self.power + (checked_v[..., 0, 0] - 1.0) ** 2

    def gradient(self, q: ArrayLike, v: ArrayLike) -> Gradient:
        """Its derivatives."""
        checked_q, checked_v = checked_point(self, q, v)
        return Gradient(self.power * checked_q ** (self.power - 1), 2.0 * (checked_v - 1.0))

    def hessian(self, q: ArrayLike, v: ArrayLike) -> torch.Tensor:
        """Its second derivatives."""
        checked_q, _ = checked_point(self, q, v)
        bend = self.power * (self.power - 1) * checked_q[..., 0, 0] ** (self.power - 2)
        return torch.diag_embed(torch.stack([bend, torch.full_like(bend, 2.0)], dim=-1))


@pytest.mark.parametrize("seed", [0, 1])
def test_every_family_is_recognised(seed: int) -> None:
    for point in families(LANDSCAPE, seed):
        classification = classify(LANDSCAPE, point.attention, point.v)
        assert classification.kind == ("global minimum" if point.family == "A" else "strict saddle")
        assert classification.relative_loss == pytest.approx(point.loss_per_column, abs=1e-12)
        assert classification.relative_gradient < 1e-12


def test_the_reference_saddles_are_strict_with_their_lowest_curvature() -> None:
    for name, point in golden("08")["families"].items():
        q, v = torch.tensor(point["q"], dtype=torch.float64), torch.tensor(point["v"], dtype=torch.float64)
        classification = classify(PositionsOnly(golden("08")["p"], 4), q, v)
        assert classification.kind == ("global minimum" if name.startswith("A") else "strict saddle")


def test_the_origin_is_a_strict_saddle() -> None:
    classification = classify(LANDSCAPE, torch.zeros(4, 4), torch.zeros(3, 3))
    assert classification.kind == "strict saddle"
    # Only q and v together bend the loss: ±2(p p^T + [j = i−1] Σ) in one product.
    assert classification.lowest_curvature == pytest.approx(-classification.highest_curvature)


def test_the_zero_directions_of_the_solution_are_the_scaling_and_the_unused_column() -> None:
    point = solved(LANDSCAPE, 1.7)
    classification = classify(LANDSCAPE, point.attention, point.v)
    assert (
        classification.zero_directions,
        classification.symmetric_directions,
        classification.unexplained_directions,
    ) == (5, 5, 0)
    assert "scaling q against v" in classification.symmetries


def test_a_scaled_point_is_the_same_point() -> None:
    point = zero_column_sums(LANDSCAPE)
    plain = classify(LANDSCAPE, point.attention, point.v)
    scaled = classify(LANDSCAPE, point.attention * 1e4, point.v / 1e4)
    assert plain.kind == scaled.kind == "strict saddle"
    assert scaled.lowest_curvature == pytest.approx(plain.lowest_curvature, rel=1e-9)


@pytest.mark.parametrize("s", [0.3, 0.1, 0.01, 1e-3, 1e-4])
def test_the_attractor_is_recognised_from_near_and_far(s: float) -> None:
    point = towards_infinity(LANDSCAPE, s)
    classification = classify(LANDSCAPE, point.attention, point.v)
    assert classification.kind == "at infinity"
    assert classification.growth > 1.5
    assert classification.limit == pytest.approx(3 * loss_at_infinity(LANDSCAPE), rel=1e-5)


def test_on_the_other_side_of_the_wall_the_same_norms_are_not_called_infinity() -> None:
    point = towards_infinity(LANDSCAPE, 0.01, 0.01)
    classification = classify(LANDSCAPE, point.attention, point.v)
    assert classification.kind == "not stationary"
    assert classification.growth < 0.5
    assert classification.limit < 3 * loss_at_infinity(LANDSCAPE) - 1e-3


def test_an_arbitrary_point_is_not_stationary() -> None:
    q, v = normal_point(LANDSCAPE, 0)
    assert classify(LANDSCAPE, q, v).kind == "not stationary"


def test_softmax_runs_to_infinity_is_solved_far_out_and_flat_in_its_stall() -> None:
    landscape = SoftmaxPositions([0.4, 0.35, 0.25], 4)
    identity, mean = torch.eye(3).double(), landscape.law[:, None].expand(3, 3)
    running = classify(landscape, 6.0 * previous_token(4), identity)
    assert running.kind == "at infinity"
    assert running.limit < 1e-15
    assert classify(landscape, 25.0 * previous_token(4), identity).kind == "global minimum"
    stalled = classify(landscape, -20.0 * previous_token(4), mean)
    assert stalled.kind == "degenerate"
    assert stalled.relative_loss == pytest.approx(landscape.gini)


def test_a_minimum_above_the_lowest_loss_is_local_and_a_quartic_one_degenerate() -> None:
    at = torch.zeros(1, 1).double(), torch.ones(1, 1).double()
    assert isinstance(Polynomial(2), Landscape)
    assert classify(Polynomial(2), *at).kind == "local minimum"
    assert classify(Polynomial(2), *at, lowest=1.0).kind == "global minimum"
    flat = classify(Polynomial(4), *at)
    assert (flat.kind, flat.zero_directions, flat.symmetric_directions) == ("degenerate", 1, 0)


def test_descent_continued_from_a_finite_minimum_comes_back() -> None:
    q, v = torch.tensor([[0.3]]).double(), torch.tensor([[3.0]]).double()
    result = continue_descent(Polynomial(2), q, v)
    assert result.loss == pytest.approx(1.0, abs=1e-14)
    assert result.attention.abs().item() < 1e-7
    assert result.v.item() == pytest.approx(1.0, abs=1e-7)


def test_symmetries_are_found_and_their_directions_change_nothing() -> None:
    q, v = normal_point(LANDSCAPE, 4)
    result = find_symmetries(LANDSCAPE, q, v)
    assert result.names == ("scaling q against v", "constant on a column of q", "entries without influence")
    # One direction of scaling, and the four entries of the first column; its constant is one of these.
    assert result.directions.shape == (25, 5)
    gradient = LANDSCAPE.gradient(q, v)
    slope = torch.cat([gradient.attention.flatten(), gradient.v.flatten()])
    assert float((slope @ result.directions).abs().max()) < 1e-13 * float(slope.norm())
    softmax = SoftmaxPositions([0.4, 0.35, 0.25], 4)
    assert not scales_against(softmax)
    assert find_symmetries(softmax, q, v).directions.shape == (25, 7)
    assert scales_against(LANDSCAPE)


def test_balancing_keeps_the_products() -> None:
    q, v = normal_point(LANDSCAPE, 5)
    even_q, even_v = balanced(100.0 * q, v)
    assert float(even_q.norm()) == pytest.approx(float(even_v.norm()))
    assert float(LANDSCAPE.loss(even_q, even_v)) == pytest.approx(float(LANDSCAPE.loss(100.0 * q, v)))


def test_balancing_without_one_factor_gives_the_other_norm_one() -> None:
    q, v = balanced(torch.zeros(2, 2), torch.full((2, 2), 1e4))
    assert torch.equal(q, torch.zeros(2, 2))
    assert torch.equal(v, torch.full((2, 2), 0.5))
    q, v = balanced(torch.full((2, 2), 1e-4), torch.zeros(2, 2))
    torch.testing.assert_close(q, torch.full((2, 2), 0.5), rtol=1e-6, atol=0.0)
    assert all(not bool(part.any()) for part in balanced(torch.zeros(1, 1), torch.zeros(1, 1)))


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("positions", [3, 6])
def test_a_saddle_stays_one_however_large_its_free_entries_are(size: float, positions: int) -> None:
    landscape = PositionsOnly([0.4, 0.35, 0.25], positions)
    q, v = normal_point(landscape, 6)
    w = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    for point in (
        no_attention(landscape, size * v),
        no_values(landscape, size * q),
        mean_predictor(landscape, 1.0, size * q),
        nothing_sent(landscape, w, size * q),
    ):
        classification = classify(landscape, point.attention, point.v)
        assert classification.kind == "strict saddle"
        assert classification.lowest_curvature * max(classification.norm, 1.0) ** 2 < -1e-2 * classification.loss


def test_the_valley_of_q_zero_has_one_curvature_for_all_sizes_of_v() -> None:
    _, v = normal_point(LANDSCAPE, 7)
    near, far = no_attention(LANDSCAPE, v), no_attention(LANDSCAPE, 1e4 * v)
    curvatures = [classify(LANDSCAPE, point.attention, point.v).lowest_curvature for point in (near, far)]
    assert curvatures[1] == pytest.approx(curvatures[0], rel=1e-6)
