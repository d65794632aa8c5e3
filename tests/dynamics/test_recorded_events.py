"""Events that are recorded while the run goes on: when, where, how often, in every engine, saved and read back."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tokendynamics.attention import Attention, Periodic
from tokendynamics.dynamics import Flow, Trajectory, simulate
from tokendynamics.dynamics.events import AtRest, Consensus, NormAbove
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.spaces import Free

pytestmark = pytest.mark.usefixtures("unchecked")

EYE = np.eye(3)
# ov is 1, then −1, …, each for one unit: |x| = |x_0| e^s with s a zigzag from 0 to 1 and back.
FLOW = Flow(Attention(EYE, Periodic(np.stack([EYE, -EYE]), 2.0)), Free())
START = np.array([[[1.0, 0.0, 0.0]], [[0.0, 0.5, 0.0]], [[0.0, 0.0, 4.0]]])
PASSED = NormAbove(2.0, then="record")
MOMENTS = math.log(2) + 2 * np.arange(3)


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff", pytest.param("fixed", marks=pytest.mark.slow)])
def test_every_crossing_is_recorded_and_the_run_goes_on(engine, tmp_path):
    options = {"step": 0.01} if engine == "fixed" else {"rtol": 1e-10, "atol": 1e-12}
    if engine == "compiled":  # it is compiled faster than "dop853", with which the slow test below records
        options["method"] = "dopri5"
    run = simulate(FLOW, START, [0.0, 6.0], events=[PASSED, NormAbove(50.0, then="record")], engine=engine, **options)
    assert set(run.status) == {"reached the horizon"}
    computed = run.recorded
    assert computed is not None
    # The second never gets there; the third is above at the start and stays above.
    np.testing.assert_array_equal(computed.counts, [[3, 0], [0, 0], [0, 0]])
    tolerance = 0.011 if engine == "fixed" else 1e-7
    np.testing.assert_allclose(computed.times[0, 0], MOMENTS, atol=tolerance)
    np.testing.assert_allclose(np.linalg.norm(computed.states[0, 0, :, 0], axis=-1), 2.0, rtol=tolerance)
    assert np.isnan(computed.times[1:]).all()
    assert np.isnan(computed.states[0, 1]).all()
    opened = Trajectory.open(run.save(tmp_path / "run.zarr")).recorded
    assert opened is not None
    assert opened.events == computed.events
    for name in ("counts", "times", "states"):
        np.testing.assert_array_equal(getattr(opened, name), getattr(computed, name))


def test_layers_record_after_the_layer_that_meets_the_event():
    run = simulate(Flow(Attention(EYE, EYE), Free()), START, [0, 3], engine="layers", events=[PASSED])
    np.testing.assert_array_equal(run.recorded.counts, [[1], [1], [0]])
    np.testing.assert_array_equal(run.recorded.times[:2, 0, 0], [1.0, 2.0])


@pytest.mark.parametrize("engine", ["batched", pytest.param("compiled", marks=pytest.mark.slow), "stiff"])
def test_what_would_come_after_the_end_is_not_recorded(engine):
    flow = Flow(Attention(EYE, EYE), Free())
    events = [NormAbove(3.0), NormAbove(2.0, then="record"), NormAbove(3.01, then="record")]
    run = simulate(flow, START[:1], [0.0, 100.0], events=events, engine=engine)
    assert run.status.tolist() == ["diverged"]
    np.testing.assert_array_equal(run.recorded.counts, [[1, 0]])
    assert float(run.recorded.times[0, 0, 0]) == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.long
def test_without_recorded_events_nothing_is_recorded_and_ends_are_the_same():
    run = simulate(FLOW, START, [0.0, 6.0], events=[NormAbove(2.0)])
    assert run.recorded is None
    noted = simulate(FLOW, START, [0.0, 6.0], events=[PASSED])
    assert float(run.end_times[0]) == pytest.approx(float(noted.recorded.times[0, 0, 0]), abs=1e-9)


@pytest.mark.parametrize("event", [Consensus, NormAbove, AtRest])
def test_another_word_than_end_or_record_is_refused(event):
    with pytest.raises(ArgumentValueError, match="then: expected 'end' or 'record', got 'stop'"):
        event(1.0, then="stop")
