"""Output times are free: they neither move the steps nor cost accuracy."""

from __future__ import annotations

import numpy as np
import pytest

from dynamics.reference import System, constant
from tokendynamics.dynamics import simulate

# Many short steps: checking every call of every kernel would take most of the time.
pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(scope="module", params=["free", "ellipsoid", pytest.param("sphere", marks=pytest.mark.slow)])
def example(request):
    rng = np.random.default_rng(9)
    root = rng.normal(size=(3, 3))
    metric = root @ root.T + np.eye(3) if request.param == "ellipsoid" else None
    system = System(
        constant(rng.normal(size=(2, 3, 3))), constant(0.6 * rng.normal(size=(2, 3, 3))), request.param, metric
    )
    return system, rng.normal(size=(4, 3)), np.sort(np.concatenate([[0.0, 3.0], rng.uniform(0.0, 3.0, size=98)]))


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.every_value_once
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff"])
def test_values_at_a_hundred_random_times_equal_runs_that_end_there(example, engine):
    system, start, times = example
    flow = system.flow()
    run = simulate(flow, start, times, rtol=1e-8, atol=1e-10, engine=engine)
    scale = np.abs(run.states).max()
    for k in range(1, 100, 24):
        ending = simulate(flow, start, [0.0, times[k]], rtol=1e-8, atol=1e-10, engine=engine)
        np.testing.assert_allclose(run.states[k], ending.states[-1], rtol=0, atol=2e-6 * scale)
    exact = system.solution(start, times, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(run.states, exact, rtol=0, atol=2e-6 * scale)
    assert flow.space.defect(run.states) <= 1e-14


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff"])
def test_output_times_do_not_change_the_steps(example, engine):
    system, start, times = example
    flow = system.flow()
    many = simulate(flow, start, times, rtol=1e-6, engine=engine)
    few = simulate(flow, start, [0.0, 3.0], rtol=1e-6, engine=engine)
    assert many.counts["right_hand_sides"] == few.counts["right_hand_sides"]
    np.testing.assert_array_equal(many.states[-1], few.states[-1])


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("engine", ["batched", "compiled"])
def test_output_times_within_a_step_of_order_8_cost_three_right_hand_sides(example, engine):
    system, start, times = example
    flow = system.flow()
    options = {"rtol": 1e-6, "method": "dop853", "engine": engine}
    many, few = (simulate(flow, start, asked, **options) for asked in (times, [0.0, 3.0]))
    np.testing.assert_array_equal(many.states[-1], few.states[-1])
    accepted = int(many.counts["accepted"])
    assert accepted == few.counts["accepted"]
    extra = int(many.counts["right_hand_sides"] - few.counts["right_hand_sides"])
    # Each step with one of the hundred times in it, once: most of them.
    assert extra % 3 == 0
    assert accepted / 2 <= extra / 3 <= accepted


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.every_value_once
@pytest.mark.parametrize("engine", ["batched", "compiled"])
@pytest.mark.parametrize("method", ["dopri5", "bosh3", "dop853"])
def test_the_continuous_extension_is_as_good_as_the_steps(example, engine, method):
    """Large steps: an extension of too low an order would stand out between them."""
    system, start, times = example
    run = simulate(system.flow(), start, times, rtol=1e-5, atol=1e-7, engine=engine, method=method)
    assert int(run.counts["accepted"]) < 500
    exact = system.solution(start, times, rtol=1e-11, atol=1e-12)
    ends = simulate(system.flow(), start, [0.0, 3.0], rtol=1e-5, atol=1e-7, engine=engine, method=method)
    at_end = np.abs(ends.states[-1] - exact[-1]).max()
    between = np.abs(run.states - exact).max()
    assert between <= max(30 * at_end, 1e-4 * np.abs(exact).max())
