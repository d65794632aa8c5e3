"""Where random starts end, with intervals that cover and statuses that say why."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tokendynamics.circuits._task import category_law
from tokendynamics.circuits.landscape.basins import Ending, Objective, find_basins, flow, random_starts
from tokendynamics.circuits.landscape.categories_only import CategoriesOnly
from tokendynamics.circuits.landscape.landscape import Gradient, flatten
from tokendynamics.circuits.landscape.positions_only import PositionsOnly
from tokendynamics.circuits.landscape.softmax_positions import SoftmaxPositions
from tokendynamics.numerics.arguments import ArrayLike
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError

LAW = category_law(None, 5)


def pair_target() -> Tensor:
    return torch.randn(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Spring:
    """Loss |q|² + |v|² (or a constant less that) up to a radius, and not a number beyond."""

    name = "spring"
    attention_shape = (2, 2)
    v_shape = (1, 3)
    law = torch.ones(1, dtype=torch.float64)

    def __init__(self, sign: float = 1.0, edge: float = math.inf) -> None:
        self._sign, self._edge = sign, edge

    def loss(self, q: ArrayLike, v: ArrayLike) -> Tensor:
        square = torch.as_tensor(q).square().sum((-2, -1)) + torch.as_tensor(v).square().sum((-2, -1))
        height = 0.0 if self._sign > 0 else 2.0 * self._edge**2
        return torch.where(square <= self._edge**2, height + self._sign * square, torch.nan)

    def gradient(self, q: ArrayLike, v: ArrayLike) -> Gradient:
        return Gradient(2 * self._sign * torch.as_tensor(q), 2 * self._sign * torch.as_tensor(v))

    def hessian(self, q: ArrayLike, v: ArrayLike) -> Tensor:
        return 2 * self._sign * torch.eye(7, dtype=torch.float64).expand(*torch.as_tensor(q).shape[:-2], 7, 7)


def test_starts_have_the_stated_spread_and_do_not_depend_on_their_number() -> None:
    landscape = PositionsOnly(LAW, 6)
    q, v = random_starts(landscape, 400, seed=3, scale=0.5)
    assert float(q.std()) == pytest.approx(0.5, rel=0.03)
    assert float(v.std()) == pytest.approx(0.5, rel=0.03)
    fewer, _ = random_starts(landscape, 7, seed=3, scale=0.5)
    assert torch.equal(q[:7], fewer)
    uniform_q, uniform_v = random_starts(landscape, 400, seed=3, scale="fan-in")
    assert 0.99 / 6**0.5 < float(uniform_q.abs().max()) <= 1 / 6**0.5
    assert 0.99 / 5**0.5 < float(uniform_v.abs().max()) <= 1 / 5**0.5


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_the_attractor_at_infinity_catches_between_15_and_45_percent() -> None:
    landscape = PositionsOnly(LAW, 6)
    basins = find_basins(landscape, 24, seed=2)
    caught = basins.share("at infinity")
    assert 0.15 <= caught.fraction <= 0.45
    assert caught.low < 0.28 < caught.high
    limit = 5 * (1 - 1 / 5) / 6
    ends = [run for run in basins.runs if run.kind == "at infinity"]
    for run in ends:
        assert run.classification is not None
        assert run.classification.limit == pytest.approx(limit, rel=1e-3)
    assert {share.kind for share in basins.shares} == {"global minimum", "at infinity"}


@pytest.mark.long
@pytest.mark.usefixtures("unchecked")
def test_shares_statuses_and_json_tell_the_same_story() -> None:
    basins = find_basins(PositionsOnly(LAW, 6), 12, seed=0)
    kinds = [run.kind for run in basins.runs]
    assert sum(share.count for share in basins.shares) == sum(basins.statuses.values()) == 12
    for share in basins.shares:
        assert share.count == kinds.count(share.kind)
        assert share.low <= share.fraction <= share.high
    assert basins.share("local minimum").count == 0
    lost = sum(run.loss > 0.1 for run in basins.runs)
    assert basins.above(0.1).count == lost
    stored = json.loads(json.dumps(basins.as_json()))
    assert [run["kind"] for run in stored["runs"]] == kinds
    assert stored["runs"][3]["attention"] == basins.runs[3].attention.tolist()
    assert stored["shares"][0]["fraction"] == basins.shares[0].fraction


@pytest.mark.long
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("causal", [False, True])
def test_attention_on_categories_catches_no_start_above_zero_loss(causal: bool) -> None:
    landscape = CategoriesOnly(pair_target(), LAW, 6, causal=causal)
    basins = find_basins(landscape, 10, seed=1)
    # A few descend towards the far ends of the zero-loss family, where v_ii outweighs v_{i,i−1} without bound.
    assert {run.kind for run in basins.runs} <= {"global minimum", "at infinity"}
    assert basins.share("global minimum").count >= 8
    nothing = float(landscape.loss(basins.runs[0].attention, 0.0 * basins.runs[0].v))
    for run in basins.runs:
        assert run.classification is not None
        assert run.classification.limit < 1e-9 * nothing


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_the_flow_ends_where_the_descent_can_end() -> None:
    landscape = PositionsOnly(category_law(None, 3), 3)
    basins = find_basins(landscape, 3, seed=0, method="gradient-flow", budget=5000, horizon=300.0)
    assert {run.kind for run in basins.runs} <= {"global minimum", "at infinity"}
    assert basins.share("global minimum").count >= 1


def test_the_flow_of_a_spring_is_exponential() -> None:
    start = np.arange(1.0, 8.0)
    objective = Objective(Spring(), start)
    ending = flow(objective, start, horizon=1.5, steps=1000, tolerance=1e-12)
    assert ending.status == "budget spent"
    assert ending.point == pytest.approx(start * math.exp(-3.0), rel=1e-5)


def test_the_flow_keeps_what_the_scaling_symmetry_conserves() -> None:
    landscape = PositionsOnly(category_law(None, 3), 4)
    q, v = random_starts(landscape, 1, seed=5)
    start = flatten(q[0], v[0]).numpy()
    objective = Objective(landscape, start)
    ending = flow(objective, start, horizon=2.0, steps=5000, tolerance=1e-12, accuracy=1e-9)
    end_q, end_v = objective.unflatten(ending.point)
    before, after = float(q[0].square().sum() - v[0].square().sum()), float(end_q.square().sum() - end_v.square().sum())
    assert after == pytest.approx(before, abs=1e-6)
    assert objective(ending.point)[0] < objective(start)[0]


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_a_softmax_stalls_the_flow_and_not_the_quasi_newton_descent() -> None:
    landscape = SoftmaxPositions(LAW, 6)
    quick = find_basins(landscape, 5, seed=0)
    assert quick.share("global minimum").count == 5
    slow = find_basins(landscape, 3, seed=0, method="gradient-flow", horizon=30.0)
    assert slow.above(4e-3).count == 3
    assert slow.statuses == {"budget spent": 3}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("method", ["quasi-newton", "gradient-flow"])
def test_a_run_that_leaves_the_numbers_keeps_its_state_and_says_why(method) -> None:
    basins = find_basins(Spring(sign=-1.0, edge=1e3), 3, seed=0, method=method, horizon=1e3)
    for run in basins.runs:
        assert run.status == "not finite"
        assert run.kind == "not finite"
        assert "not finite" in run.reason
        assert math.isfinite(run.loss)
        assert bool(torch.isfinite(run.attention).all())
    assert basins.share("not finite").count == 3
    assert basins.as_json()["statuses"] == {"not finite": 3}


@pytest.mark.usefixtures("unchecked")
def test_a_start_without_a_loss_is_a_status_too() -> None:
    basins = find_basins(Spring(edge=1e-6), 2, seed=0)
    assert basins.statuses == {"not finite": 2}
    assert all(math.isnan(run.loss) for run in basins.runs)
    starts, _ = random_starts(Spring(), 2, seed=0)
    assert torch.equal(basins.runs[1].attention, starts[1])


@pytest.mark.long
@pytest.mark.usefixtures("unchecked")
def test_a_spent_budget_is_reported() -> None:
    basins = find_basins(PositionsOnly(LAW, 6), 2, seed=0, budget=3)
    assert basins.statuses == {"budget spent": 2}
    assert "3 steps" in basins.runs[0].reason


@pytest.mark.usefixtures("unchecked")
def test_progress_is_reported_after_each_start() -> None:
    seen = []
    find_basins(Spring(), 4, seed=0, progress=lambda *message: seen.append(message))
    assert seen == [(done, 4, "spring: quasi-newton") for done in range(5)]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"landscape": "3.1"}, ArgumentTypeError, "landscape"),
        ({"starts": 0}, ArgumentValueError, "starts"),
        ({"starts": 2.5}, ArgumentTypeError, "starts"),
        ({"seed": "one"}, ArgumentTypeError, "seed"),
        ({"method": "newton"}, ArgumentValueError, "method"),
        ({"scale": -1.0}, ArgumentValueError, "scale"),
        ({"scale": "fan-out"}, ArgumentValueError, "scale"),
        ({"budget": 0}, ArgumentValueError, "budget"),
        ({"horizon": math.inf}, ArgumentValueError, "horizon"),
        ({"tolerance": 0.0}, ArgumentValueError, "tolerance"),
    ],
)
def test_wrong_settings_are_refused_before_anything_runs(changes, error, says) -> None:
    settings = {"landscape": Spring(), "starts": 2, "seed": 0} | changes
    with pytest.raises(error) as raised:
        find_basins(**settings)
    assert str(raised.value).startswith(says)


def test_an_ending_knows_its_reason() -> None:
    objective = Objective(Spring(), np.zeros(7))
    ending = flow(objective, np.ones(7), horizon=100.0, steps=10_000, tolerance=1e-6)
    assert isinstance(ending, Ending)
    assert ending.status == "converged"
    assert float(np.abs(ending.point).max()) < 1e-5
