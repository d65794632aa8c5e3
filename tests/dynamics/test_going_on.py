"""A run that goes on from a trajectory is the run in one go."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tokendynamics.attention import Attention, Periodic, Sinusoidal
from tokendynamics.dynamics import Flow, Trajectory, simulate
from tokendynamics.dynamics.events import Consensus, NormAbove
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.spaces import Ellipsoid, Free, Sphere

pytestmark = pytest.mark.usefixtures("unchecked")

RNG = np.random.default_rng(12)
EYE = np.eye(3)
MATRICES, START = RNG.normal(size=(3, 3, 3)), RNG.normal(size=(2, 4, 3))
GATES = Sinusoidal(MATRICES[0], 1.0, 2.0, 0.4)


def options(engine):
    return {"step": 0.125} if engine == "fixed" else {"tau": 0.4} if engine == "layers" else {}


@pytest.mark.long
@pytest.mark.every_value_once
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff", "fixed", "layers"])
@pytest.mark.parametrize("space", [Free(), Sphere(), Ellipsoid(np.diag([1.0, 2.0, 5.0]))], ids=lambda space: space.name)
@pytest.mark.parametrize("qk", [GATES, Periodic(MATRICES, 2.0)], ids=["gates", "periodic"])
def test_two_runs_are_the_run_in_one_go(engine, space, qk):
    flow, setting = Flow(Attention(qk, -EYE), space), {"engine": engine, **options(engine)}
    whole = simulate(flow, START, [0.0, 1.0, 2.0, 3.0, 5.0], **setting)
    first = simulate(flow, START, [0.0, 1.0, 2.0], **setting)
    rest = simulate(flow, first, [3.0, 5.0], **setting)
    assert rest.times.tolist() == [3.0, 5.0]
    assert rest.states.shape == (2, 2, 4, 3)
    assert rest.status.tolist() == ["reached the horizon"] * 2
    assert rest.reached.all()
    # Equal steps repeat themselves to the digit; on a constrained space what is handed out is projected once more.
    exact = engine == "layers" or (engine == "fixed" and space.name == "free")
    tolerance = 0 if exact else 1e-13 if engine == "fixed" else 1e-6
    np.testing.assert_allclose(rest.states, whole.states[:, 3:], rtol=0, atol=tolerance)
    one = simulate(flow, first, [2.0, 3.0, 5.0], **setting)
    np.testing.assert_array_equal(one.states[:, 0], first.states[:, -1])
    np.testing.assert_array_equal(one.states[:, 1:], rest.states)


@pytest.mark.long
def test_systems_that_ended_keep_their_end_and_are_not_run():
    ov = np.array([2.0, -1.0, 0.1])[:, None, None, None] * EYE
    flow, start = Flow(Attention(EYE, ov), Free()), np.tile([[[1.0, 0.0, 0.0]]], (3, 1, 1))
    ends = [NormAbove(4.0)]
    first = simulate(flow, start, [0.0, 0.5, 1.0], events=ends)
    rest = simulate(flow, first, [2.0, 20.0], events=ends)
    assert rest.status.tolist() == ["diverged", "reached the horizon", "diverged"]
    np.testing.assert_allclose(rest.end_times, [math.log(4) / 2, 20.0, 10 * math.log(4)], atol=1e-6)
    np.testing.assert_array_equal(rest.reached, [[False, False], [True, True], [True, False]])
    np.testing.assert_array_equal(rest.states[0], np.stack([first.states[0, -1]] * 2))
    assert rest.counts["right_hand_sides"][0] == 0
    assert rest.counts["right_hand_sides"][1] > 0
    np.testing.assert_allclose(rest.states[1, :, 0, 0], np.exp([-2.0, -20.0]), rtol=0, atol=1e-9)
    over = simulate(flow, rest, [30.0], events=ends)
    assert over.status.tolist() == rest.status.tolist()
    ended = simulate(Flow(Attention(EYE, EYE), Sphere()), START, [0.0, 50.0], events=[Consensus(1e-2)])
    assert set(ended.status) == {"consensus"}
    still = simulate(ended.flow, ended, [60.0, 70.0])
    np.testing.assert_array_equal(still.states[:, 0], ended.states[:, -1])
    np.testing.assert_array_equal(still.end_times, ended.end_times)


@pytest.mark.long
def test_a_saved_run_goes_on(tmp_path):
    flow = Flow(Attention(GATES, MATRICES[1]), Sphere())
    first = simulate(flow, START, [0.0, 1.0])
    opened = Trajectory.open(first.save(tmp_path / "first.zarr"))
    rest, again = simulate(flow, first, [2.0, 3.0]), simulate(opened.flow, opened, [2.0, 3.0])
    np.testing.assert_array_equal(again.states, rest.states)
    assert Trajectory.open(rest.save(tmp_path / "rest.zarr")).times.tolist() == [2.0, 3.0]


def test_gradients_pass_from_run_to_run():
    start = torch.tensor(START, requires_grad=True)
    flow = Flow(Attention(GATES, MATRICES[1]), Sphere())
    first = simulate(flow, start, [0.0, 1.0], step=0.25)
    simulate(flow, first, [2.0], step=0.25).states.square()[..., 0].sum().backward()
    computed, start.grad = start.grad.clone(), None
    simulate(flow, start, [0.0, 1.0, 2.0], step=0.25).states[:, -1].square()[..., 0].sum().backward()
    torch.testing.assert_close(computed, start.grad, rtol=1e-9, atol=1e-11)


def test_times_before_the_end_are_refused():
    first = simulate(Flow(Attention(EYE, EYE), Sphere()), START, [0.0, 2.0])
    for times in ([1.0, 3.0], [0.0, 2.0, 3.0], [-1.0]):
        with pytest.raises(
            ArgumentValueError, match=r"times: expected times from 2 on, where the trajectory ends, got"
        ):
            simulate(first.flow, first, times)
    with pytest.raises(ArgumentValueError, match=r"times: expected increasing times"):
        simulate(first.flow, first, [4.0, 3.0])
    with pytest.raises(ArgumentValueError, match=r"times: expected at least one time"):
        simulate(first.flow, first, [])


@pytest.mark.few(2)
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff", "fixed", "layers"])
def test_one_start_holds_for_all_systems_of_parameters(engine):
    ov, setting = RNG.normal(size=(2, 3, 1, 3, 3)), {"engine": engine, **options(engine)}
    metrics = np.stack([np.diag([1.0, 2.0, 3.0 + k]) for k in range(6)]).reshape(2, 3, 3, 3)
    for flow in (
        Flow(Attention(EYE, ov), Sphere()),
        Flow(Attention(Sinusoidal(EYE, RNG.normal(size=(2, 3, 1, 1)), 1.0, 0.3), -EYE), Free()),
        Flow(Attention(EYE, EYE), Ellipsoid(metrics)),
    ):
        run = simulate(flow, START[0], [0.0, 1.0, 2.0], **setting)
        assert run.states.shape == (2, 3, 3, 4, 3)
        every = simulate(flow, np.broadcast_to(START[0], (2, 3, 4, 3)).copy(), [0.0, 1.0, 2.0], **setting)
        np.testing.assert_array_equal(run.states, every.states)
        assert flow.velocity(START[0]).shape == (2, 3, 4, 3)
