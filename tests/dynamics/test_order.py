"""Measured orders of convergence, and how well the constraint is kept over long horizons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from dynamics.reference import Gate, System, constant
from tokendynamics.attention import Attention, Periodic
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.dynamics.engines import _fixed as fixed
from tokendynamics.dynamics.engines.problem import Problem
from tokendynamics.dynamics.engines.tableau import TABLEAUS, Coefficients, take_step
from tokendynamics.spaces import Ellipsoid, Free, Sphere

# Many short steps: checking every call of every kernel would take most of the time.
pytestmark = pytest.mark.usefixtures("unchecked")

HORIZON = 2.0
STEPS = {
    "dopri5": np.array([54, 81, 120]),
    "rk4": np.array([54, 81, 120]),
    "bosh3": np.array([54, 81, 120, 180]),
    "euler": np.array([200, 400, 800]),
    "dop853": np.array([10, 12, 14]),
}
STEPS_8_IN_FREE_SPACE = np.array([18, 20, 24])
"""There the leading term of the error of dop853 takes over later."""
EYE = torch.eye(3, dtype=torch.float64)


@cache
def example(space: str) -> tuple[System, np.ndarray, np.ndarray]:
    """A system without symmetry, sixteen starts (the order of their summed errors varies little), the exact ends."""
    rng = np.random.default_rng(12)
    qk, ov, root = (rng.normal(size=shape) for shape in ((2, 3, 3), (2, 3, 3), (3, 3)))
    metric = root @ root.T + np.eye(3) if space == "ellipsoid" else None
    qk_size, ov_size = (1.0, 0.4) if space == "free" else (1.0, 0.8)
    circuits = constant(qk_size * qk)
    if space == "driven":
        circuits = Gate(lambda t: (0.5 + 0.5 * math.sin(t)) * qk, lambda t: (0.5 + 0.5 * math.sin(t)) * qk)
    name = "sphere" if space == "driven" else space
    system = System(circuits, constant(ov_size * ov), name, metric, normalization="plain")
    starts = np.array([system.project(x) for x in rng.normal(size=(16, 4, 3))])
    ends = [system.solution(x, np.array([0.0, HORIZON]), rtol=3e-13, atol=1e-14)[-1] for x in starts]
    return system, starts, np.array(ends)


def end_of(space: str, method: str, steps: int, retraction: bool = True) -> np.ndarray:
    system, start, _ = example(space)
    field = system.flow().field(torch.tensor(start))
    problem = Problem(
        field=field,
        start=torch.tensor(start),
        times=(0.0, HORIZON),
        rtol=1e-8,
        atol=1e-10,
        events=(),
        max_steps=10**6,
        tableau=TABLEAUS[method],
        step=HORIZON / steps,
    )
    return fixed.run(problem, retraction=retraction).states[:, -1].numpy()


def slope(sizes: np.ndarray, errors: Sequence[Any]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.every_value_once
@pytest.mark.parametrize("retraction", [True, False])
@pytest.mark.parametrize("space", ["free", "ellipsoid", pytest.param("sphere", marks=pytest.mark.slow)])
def test_dormand_prince_is_of_order_5_with_and_without_retraction(space, retraction):
    exact = example(space)[2]
    steps = STEPS["dopri5"]
    errors = [np.linalg.norm(end_of(space, "dopri5", n, retraction) - exact) for n in steps]
    assert errors[-1] > 1e-12, "the finest step is lost in rounding: nothing is measured"
    assert slope(HORIZON / steps, errors) == pytest.approx(5, abs=0.3)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.every_value_once
@pytest.mark.parametrize(("method", "order", "tolerance"), [("rk4", 4, 0.3), ("bosh3", 3, 0.3), ("euler", 1, 0.05)])
@pytest.mark.parametrize("space", ["free", "sphere"])
def test_the_other_methods_have_their_orders(space, method, order, tolerance):
    exact = example(space)[2]
    steps = STEPS[method]
    errors = [np.linalg.norm(end_of(space, method, n) - exact) for n in steps]
    assert slope(HORIZON / steps, errors) == pytest.approx(order, abs=tolerance)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.every_value_once
@pytest.mark.parametrize("retraction", [True, False])
@pytest.mark.parametrize("space", ["free", "sphere", "ellipsoid", "driven"])
def test_the_pair_of_order_8_has_its_order(space, retraction):
    exact = example(space)[2]
    steps = STEPS_8_IN_FREE_SPACE if space == "free" else STEPS["dop853"]
    errors = [np.linalg.norm(end_of(space, "dop853", n, retraction) - exact) for n in steps]
    assert errors[-1] > 1e-12, "the finest step is lost in rounding: nothing is measured"
    assert slope(HORIZON / steps, errors) == pytest.approx(8, abs=0.3)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("method", "order", "lengths"), [("dop853", 7, (0.16, 0.13, 0.1)), ("dopri5", 4, (0.1, 0.07, 0.05))]
)
@pytest.mark.parametrize("space", ["free", "sphere", "ellipsoid", "driven"])
def test_the_continuous_extension_has_its_order(space, method, order, lengths):
    """Within one step: an extension of order p is wrong by h^(p+1) there."""
    system, starts, _ = example(space)
    x = torch.tensor(starts)
    field, tableau = system.flow().field(x), Coefficients.of(TABLEAUS[method], x)
    t, every = torch.zeros(len(x), dtype=torch.float64), torch.arange(len(x))
    shares = (0.3, 0.6, 0.9)
    moments = np.unique([0.0, *(share * length for length in lengths for share in shares)])
    solutions = [system.solution(start, moments, rtol=3e-14, atol=1e-15) for start in starts]
    errors = []
    for length in lengths:
        h = torch.full_like(t, length)
        attempt = take_step(field, tableau, x, t, h, field.velocity(x, 0.0), t + h)
        attempt.extend(field, every)
        within = [field.project(attempt.at(torch.full_like(t, share))).numpy() for share in shares]
        places = np.searchsorted(moments, [share * length for share in shares])
        errors.append(np.linalg.norm(np.stack(within, axis=1) - np.array(solutions)[:, places]))
    assert errors[-1] > 1e-13, "the shortest step is lost in rounding: nothing is measured"
    assert slope(np.array(lengths), errors) == pytest.approx(order + 1, abs=0.3)


ALL_ERRORS: dict[str, Any] = {"engine": "compiled", "rtol": 1e12, "atol": 1e12}
"""The step grows tenfold from a small one, until something else bounds it."""


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.every_value_once
@pytest.mark.parametrize(
    ("method", "order", "lengths"), [("dop853", 8, (0.2, 0.17, 0.12)), ("dopri5", 5, (0.06, 0.04, 0.025))]
)
@pytest.mark.parametrize("space", ["sphere", "ellipsoid"])
def test_compiled_steps_have_their_order(space, method, order, lengths):
    system, starts, exact = example(space)
    times, errors = [0.0, HORIZON], []
    for length in lengths:
        run = simulate(system.flow(), starts, times, max_step=length, method=method, **ALL_ERRORS)
        assert (run.counts["accepted"] >= HORIZON / length).all()
        errors.append(np.linalg.norm(run.states[:, -1] - exact))
    assert errors[-1] > 1e-12, "the shortest step is lost in rounding: nothing is measured"
    assert slope(np.array(lengths), errors) == pytest.approx(order, abs=0.3)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.every_value_once
@pytest.mark.parametrize("method", ["dop853", "dopri5", "bosh3"])
@pytest.mark.parametrize("space", ["free", "sphere", "ellipsoid"])
def test_compiled_steps_are_those_of_the_fixed_engine(space, method):
    """A schedule that jumps from a matrix to the same one ends steps at its joints: after the first all are equal."""
    system, starts, _ = example(space)
    flow, pieces = system.flow(), 20
    qk, ov = (circuit.matrix_at(0.0) for circuit in (flow.attention.qk, flow.attention.ov))
    length = HORIZON / pieces
    jumping = Attention(Periodic(torch.stack([qk, qk]), 2 * length), ov, normalization="plain")
    run = simulate(Flow(jumping, flow.space), starts, [0.0, length, HORIZON], method=method, **ALL_ERRORS)
    times = [0.0, HORIZON - length]
    fixed_run = simulate(flow, run.states[:, 1], times, step=length, method=method)
    scale = np.abs(fixed_run.states).max()
    np.testing.assert_allclose(run.states[:, -1], fixed_run.states[:, -1], rtol=0, atol=1e-13 * pieces * scale)


@pytest.mark.long
@pytest.mark.parametrize("space", [pytest.param("free", marks=pytest.mark.slow), "sphere", "ellipsoid"])
def test_layers_approach_the_flow_at_first_order(space):
    system, start, exact = example(space)
    counts = np.array([100, 200, 400])
    errors = [
        np.abs(simulate(system.flow(), start, [0.0, n], engine="layers", tau=HORIZON / n).states[:, -1] - exact).max()
        for n in counts.astype(float)
    ]
    assert slope(HORIZON / counts, errors) == pytest.approx(1, abs=0.05)


@pytest.mark.few(1)
@pytest.mark.parametrize("space", ["free", "sphere", "ellipsoid"])
def test_halving_tau_divides_the_error_of_one_layer_by_four(space):
    system, start, _ = example(space)
    flow, errors = system.flow(), []
    for tau in (0.02, 0.01, 0.005):
        exact = [system.solution(x, np.array([0.0, tau]), rtol=1e-13, atol=1e-14)[-1] for x in start]
        errors.append(np.abs(flow.step(start, tau=tau) - exact).max())
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.025)


@pytest.mark.long
@pytest.mark.parametrize("space", ["free", "sphere", "ellipsoid"])
def test_the_error_of_step_control_follows_the_tolerance(space):
    system, start, exact = example(space)
    for rtol in (1e-4, 1e-7, 1e-10):
        run = simulate(system.flow(), start, [0.0, HORIZON], rtol=rtol, atol=rtol * 1e-2, engine="batched")
        error = np.abs(run.states[:, -1] - exact).max() / np.abs(exact).max()
        assert error <= 100 * rtol
        assert error >= 1e-5 * rtol, "far more work than was asked for"


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("space", "engine", "horizon"),
    [
        ("ellipsoid", "batched", 300.0),
        ("ellipsoid", "compiled", 300.0),
        ("ellipsoid", "stiff", 1e4),
        ("sphere", "stiff", 300.0),
        pytest.param("ellipsoid", "batched", 1e4, marks=pytest.mark.slow),
        pytest.param("ellipsoid", "compiled", 1e4, marks=pytest.mark.slow),
        pytest.param("sphere", "batched", 1e4, marks=pytest.mark.slow),
        pytest.param("sphere", "stiff", 1e4, marks=pytest.mark.slow),
    ],
)
def test_the_constraint_holds_at_every_time_over_a_long_horizon(space, engine, horizon):
    generator = torch.Generator().manual_seed(2)
    drawn = torch.randn(3, 3, dtype=torch.float64, generator=generator)
    ov = torch.stack([-EYE, EYE, torch.diag(torch.tensor([1.0, 0.2, -0.5])), -drawn @ drawn.T, drawn / 20])
    flow_space = Sphere() if space == "sphere" else Ellipsoid(torch.diag(torch.tensor([0.3, 1.0, 4.0])).double())
    flow = Flow(Attention(EYE, ov.double().unsqueeze(1)), flow_space)
    start = flow_space.sample(4, 3, (len(ov),), seed=4)
    times = np.concatenate([[0.0], np.geomspace(0.01, horizon, 60)])
    run = simulate(flow, start, times, rtol=1e-3, atol=1e-5, engine=engine)
    assert set(run.status) == {"reached the horizon"}
    metric = torch.eye(3, dtype=torch.float64) if flow_space.metric is None else flow_space.metric
    defect = (torch.einsum("...i,ij,...j->...", run.states, metric, run.states) - 1).abs().amax(dim=(-1, -2))
    assert defect.max() <= 1e-14
    # The raw formula repels for ov = −1; evaluated at the projection, the tokens come to rest.
    assert float(flow.velocity(run.states[:, -1])[0].norm(dim=-1).max()) < 1e-3


def test_tokens_without_a_retraction_would_leave_the_ellipsoid_where_ov_is_negative():
    """What the projected field guards against: dy/dt as printed has d|y|²/dt = 2 (1 − |y|²) y·Σ w ov y < 0 outside."""
    flow = Flow(Attention(EYE, -EYE), Sphere())
    start = Sphere().sample(3, 3, seed=1)
    near = flow.velocity(start)
    np.testing.assert_allclose(flow.velocity(1.7 * start), near, rtol=1e-13, atol=1e-14)
    assert float((start * near).sum(dim=-1).abs().max()) < 1e-14
    assert math.isclose(float(near.norm()), float(flow.velocity(0.2 * start).norm()), rel_tol=1e-13)


@pytest.mark.parametrize("method", ["dopri5", "dop853"])
@pytest.mark.parametrize("space", [Free(), Sphere()], ids=["free", "sphere"])
def test_a_flow_that_is_1024_times_as_fast_takes_the_same_steps_in_a_1024th_of_the_time(
    space: Free | Sphere, method: str
) -> None:
    """A power of two changes no digit: states are equal to the last bit where the first guess scales with time."""
    generator = torch.Generator().manual_seed(2)
    qk, ov, start = (torch.randn(4, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    slow, fast = (
        simulate(
            Flow(Attention(qk, factor * ov), space), start, [0.0, 3.0 / factor], rtol=1e-6, engine="batched",
            method=method,
        )
        for factor in (1.0, 1024.0)
    )  # fmt: skip
    assert slow.counts["right_hand_sides"] == fast.counts["right_hand_sides"]
    np.testing.assert_array_equal(slow.states[-1], fast.states[-1])


@pytest.mark.parametrize(("method", "order"), [("dopri5", 5), ("dop853", 8)])
def test_the_first_step_errs_by_a_hundredth_of_the_tolerance(method: str, order: int) -> None:
    """A token turns by a radian in 100 units of time, in which its velocity changes by itself; see `_first_step`."""
    turning = Attention(torch.zeros(2, 2, dtype=torch.float64), torch.tensor([[0.0, -0.01], [0.01, 0.0]]).double())
    flow = Flow(turning, Free())
    options: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-6, "engine": "batched", "method": method}
    step = simulate(flow, [[1.0, 0.0]], [0.0, 100.0], max_steps=1, **options)
    speed = 0.01 / 1e-6 / math.sqrt(2)
    assert float(step.end_times) == pytest.approx((0.01 * 100**order / speed) ** (1 / (order + 1)), rel=1e-5)
    run = simulate(flow, [[1.0, 0.0]], [0.0, 100.0], **options)
    np.testing.assert_allclose(run.states[-1], [[math.cos(1.0), math.sin(1.0)]], rtol=0, atol=1e-6)


def test_a_token_that_goes_straight_ahead_first_goes_as_far_as_states_are_large() -> None:
    """It attends to a token at rest alone: its velocity never changes, and any step is right."""
    attention = Attention(torch.zeros(2, 2, dtype=torch.float64), 2 * EYE[:2, :2], mask=[[True, False], [True, False]])
    start = [[0.01, 0.01], [1.0, 1.0]]
    options: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-6, "engine": "batched"}
    step = simulate(Flow(attention, Free(), frozen=[0]), start, [0.0, 1e4], max_steps=1, **options)
    # Half of the entries are 1 and move by 0.02, the others are 0.01 and stay.
    size, speed = math.hypot(1.0, 0.01), 0.02
    assert float(step.end_times) == pytest.approx(size / speed, rel=1e-4)
