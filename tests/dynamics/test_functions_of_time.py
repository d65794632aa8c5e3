"""Functions of time: asked within the run only, not stepped over between output times, jumps declared, and rest."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from tokendynamics.attention import Attention, Periodic, RotaryPositions, Sinusoidal
from tokendynamics.attention.schedules.conversion import FromCallable
from tokendynamics.dynamics import Flow, Trajectory, simulate
from tokendynamics.dynamics.events import AtRest
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.spaces import Free, Sphere

pytestmark = pytest.mark.usefixtures("unchecked")

EYE, ZERO = np.eye(2), np.zeros((2, 2))
ENGINES = ("batched", "stiff")
MISSED = "may have been missed"


def grown(run: Trajectory) -> float:
    """Return log |x| at the end: the integral of the gate."""
    return math.log(float(np.asarray(run.states)[-1, 0, 0]))


def gated(gate, **options) -> Trajectory:
    flow = Flow(Attention(ZERO, lambda t: gate(t) * EYE), Free())
    return simulate(flow, [[1.0, 0.0]], options.pop("times", [0.0, 100.0]), **options)


def box(t: float) -> float:
    return 2.0 * (50.0 < t < 50.5)


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_a_box_between_two_output_times_may_be_missed_and_the_run_says_so(engine):
    run = gated(box, engine=engine)
    assert any(MISSED in note for note in run.notes)
    dense = gated(box, engine=engine, times=np.linspace(0, 100, 201))
    assert grown(dense) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.every_value_once
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "options", [{"max_step": 0.2}, {"jumps": [50.0, 50.5]}, {"jumps": (50.0, 50.5), "max_step": 9}]
)
def test_a_longest_step_or_declared_jumps_find_the_box(engine, options):
    run = gated(box, engine=engine, **options)
    assert grown(run) == pytest.approx(1.0, abs=1e-8 if "jumps" in options else 1e-5)
    assert any(MISSED in note for note in run.notes) is ("max_step" not in options)


@pytest.mark.long
@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_fixed_steps_end_at_declared_jumps(method):
    run = gated(box, step=0.3, method=method, jumps=[50.0, 50.5])
    assert grown(run) == pytest.approx(1.0, abs=1e-3 if method == "rk4" else 1e-5)


def test_jumps_make_steps_of_full_order_on_both_sides():
    few, many = (gated(box, engine="batched", jumps=jumps, max_step=1.0) for jumps in ([50.0, 50.5], ()))
    assert 2 * int(few.counts["rejected"]) < int(many.counts["rejected"])


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_a_smooth_bump_is_seen_at_output_times_as_dense_as_it(engine):
    run = gated(lambda t: math.exp(-((t - 50) ** 2)), engine=engine, times=np.linspace(0, 100, 101))
    assert grown(run) == pytest.approx(math.sqrt(math.pi), abs=1e-5)


@pytest.mark.long
def test_many_output_times_do_not_spend_the_budget():
    run = gated(lambda t: 0.01, times=np.linspace(0, 1, 4_001), engine="batched", max_steps=600)
    assert str(run.status) == "reached the horizon"
    assert grown(run) == pytest.approx(0.01, rel=1e-8)


def asked_times(engine: Any, place: str, options: dict) -> list[float]:
    asked: list[float] = []

    def inverse(t: float) -> np.ndarray:
        asked.append(t)
        return EYE / t  # not defined at 0

    circuits: dict[str, Any] = {"qk": 0.1 * EYE, "ov": EYE, "positions": None}
    if place == "positions":
        circuits["positions"] = RotaryPositions(inverse, EYE)
    else:
        circuits[place] = [inverse] if place == "list" else inverse
    if place == "list":
        circuits["ov"] = circuits.pop("list")
    flow = Flow(Attention(**circuits), Sphere())
    run = simulate(flow, [[1.0, 0.2], [0.3, 1.0]], [1.0, 2.0, 10.0], engine=engine, **options)
    assert str(run.status) == "reached the horizon"
    return asked


@pytest.mark.parametrize("place", ["qk", "ov", "list", "positions"])
@pytest.mark.parametrize("engine", [*ENGINES, "layers", "fixed"])
def test_a_function_is_asked_within_the_run_only(engine, place):
    asked = asked_times(engine, place, {"step": 0.7} if engine == "fixed" else {})
    assert min(asked) >= 1.0
    assert max(asked) <= 10.0


def test_both_circuits_may_be_functions_that_begin_late():
    flow = Flow(Attention(lambda t: EYE / t, lambda t: EYE / t), Free())
    run = simulate(flow, [[1.0, 0.0]], [1.0, math.e], engine="batched")
    assert float(np.asarray(run.states)[-1, 0, 0]) == pytest.approx(math.e, rel=1e-6)
    np.testing.assert_allclose(flow.velocity([[1.0, 0.0]], 2.0), [[0.5, 0.0]])
    np.testing.assert_allclose(flow.attention.logits([[1.0, 0.0]], 4.0), [[[0.25]]])


def test_shapes_that_do_not_fit_are_refused_at_the_first_time():
    flow = Flow(Attention(lambda t: np.eye(3) / t, EYE), Free())
    with pytest.raises(ArgumentValueError, match="expected the heads and dim of qk"):
        simulate(flow, [[1.0, 0.0]], [1.0, 2.0])


def test_jumps_of_a_flow_without_functions_are_refused():
    with pytest.raises(ArgumentValueError, match="jumps: expected none where no matrix is a function of time"):
        simulate(Flow(Attention(EYE, EYE), Free()), [[1.0, 0.0]], [0.0, 1.0], jumps=[0.5])


def test_circuits_known_as_formulas_have_no_such_note():
    for ov in (EYE, Sinusoidal(EYE, 1.0, 1.0, 0.0), Periodic(np.stack([EYE, -EYE]), 1.0)):
        run = simulate(Flow(Attention(ZERO, ov), Free()), [[1.0, 0.0]], [0.0, 1.0], engine="batched")
        assert not any(MISSED in note for note in run.notes)


@pytest.mark.long
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff"])
def test_the_longest_step_bounds_the_steps_of_every_engine(engine):
    flow = Flow(Attention(ZERO, 1e-6 * EYE), Free())
    run = simulate(flow, [[1.0, 0.0]], [0.0, 100.0], engine=engine, max_step=0.5)
    assert int(run.counts["accepted"]) >= 200
    with pytest.raises(ArgumentValueError, match="max_step"):
        simulate(flow, [[1.0, 0.0]], [0.0, 4.0], engine="layers", max_step=1.0)


@pytest.mark.parametrize("engine", ["batched", "stiff", "fixed", "layers"])
def test_rest_at_one_moment_of_a_moving_schedule_ends_no_run(engine):
    # The gate is zero at t = 0, and tokens then move.
    options: dict[str, Any] = {"step": 0.1} if engine == "fixed" else {}
    for ov in (Sinusoidal(EYE, 1.0, 0.5, 0.0), Periodic(np.stack([ZERO, EYE]), 2.0)):
        run = simulate(
            Flow(Attention(ZERO, ov), Free()), [[1.0, 0.0]], [0.0, 3.0], engine=engine, events=[AtRest(1e-3)], **options
        )
        assert str(run.status) == "reached the horizon"
        assert float(np.asarray(run.states)[-1, 0, 0]) > 1.5
        assert any("AtRest ended no run" in note for note in run.notes)
    still = simulate(
        Flow(Attention(ZERO, ZERO), Free()), [[1.0, 0.0]], [0.0, 3.0], engine=engine, events=[AtRest(1e-3)], **options
    )
    assert str(still.status) == "equilibrium"


def test_a_function_with_jumps_is_asked_on_the_near_side():
    asked: list[float] = []

    def step(t: float) -> torch.Tensor:
        asked.append(t)
        return torch.eye(2) * float(t >= 1.0)

    schedule = FromCallable(step, jumps=[1.0])
    assert schedule.breaks(0.0, 2.0) == [1.0]
    assert float(schedule.within(0.0, 1.0).matrix_at(1.0)[0, 0, 0]) == 0.0
    assert float(schedule.within(1.0, 2.0).matrix_at(1.0)[0, 0, 0]) == 1.0
    assert asked[0] < 1.0 < asked[1]


@pytest.mark.few(1)
@pytest.mark.every_value_once
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff"])
@pytest.mark.parametrize("first", [1e10, 1e13])
def test_no_digits_are_lost_at_large_times(engine, first):
    # A rotation that is turned with any attention: one token, x' = ov x.
    turn = 0.3 * np.array([[0.0, -1.0], [1.0, 0.0]])
    flow = Flow(Attention(ZERO, turn), Free())
    method = {"method": "dopri5"} if engine == "compiled" else {}  # compiled for other tests too
    run = simulate(flow, [[1.0, 0.0]], [first, first + 64.0], engine=engine, rtol=1e-9, atol=1e-12, **method)
    computed = np.asarray(run.states)[-1, 0]
    np.testing.assert_allclose(computed, [math.cos(0.3 * 64), math.sin(0.3 * 64)], atol=1e-6)
    assert any("spacing of floats" in note for note in run.notes)
    near = simulate(flow, [[1.0, 0.0]], [0.0, 64.0], engine=engine, **method)
    assert not any("spacing of floats" in note for note in near.notes)
