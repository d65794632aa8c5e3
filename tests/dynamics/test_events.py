"""When a run ends early: where exactly, with which status, and what is held afterwards."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tokendynamics.attention import Attention, Periodic
from tokendynamics.dynamics import Flow, Interrupted, Status, Trajectory, simulate
from tokendynamics.dynamics.events import AtRest, Consensus, NormAbove
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.spaces import Free, Sphere

# Many short steps: checking every call of every kernel would take most of the time.
pytestmark = pytest.mark.usefixtures("unchecked")

ENGINES = ("batched", "compiled", "stiff")
# Compiled with one kind of event in the quick tests: a kernel takes ten seconds.
FEW_COMPILED = ("batched", pytest.param("compiled", marks=pytest.mark.slow), "stiff")
EYE = torch.eye(3, dtype=torch.float64)
TIGHT = {"rtol": 1e-11, "atol": 1e-13}


def two_tokens(agreement: float) -> list[list[float]]:
    return [[1.0, 0.0, 0.0], [agreement, math.sqrt(1 - agreement**2), 0.0]]


def held(run: Trajectory, system: tuple[int, ...] = ()) -> None:
    """From the end of a run on, states are one and the same and `reached` is False."""
    states, reached, end = run.tensor[system], run.reached[system], run.end_times[system]
    np.testing.assert_array_equal(reached, run.times <= end)
    after = states[~torch.tensor(reached)]
    assert torch.isfinite(states).all()
    assert len(after) > 0
    assert (after == after[0]).all()


@pytest.mark.parametrize("engine", FEW_COMPILED)
def test_one_free_token_passes_a_norm_at_the_logarithm_over_the_rate(engine):
    rate, bound = 0.8, 50.0
    flow = Flow(Attention(EYE, rate * EYE), Free())
    times = np.linspace(0.0, 10.0, 21)
    run = simulate(flow, [[0.6, 0.0, -0.8]], times, events=[NormAbove(bound)], engine=engine, **TIGHT)
    moment = math.log(bound) / rate
    assert str(run.status) == "diverged"
    assert float(run.end_times) == pytest.approx(moment, abs=1e-8)
    held(run)
    assert float(run.tensor[-1].norm()) == pytest.approx(bound, rel=1e-8)
    exact = np.exp(rate * np.minimum(times, moment))
    np.testing.assert_allclose(run.tensor[:, 0].norm(dim=-1), exact, rtol=1e-8)


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_two_causal_tokens_reach_consensus_when_the_closed_form_says(engine):
    # Without logits a = tanh(artanh a_0 + t/(2√dim)); the chord below is |y_2 − y_1|² = 2 − 2a.
    below, a0 = 1e-2, -0.2
    flow = Flow(Attention(0 * EYE, EYE, causal=True), Sphere())
    event = Consensus(below=below)
    options = {"rtol": 1e-9, "atol": 1e-11, "engine": engine}
    run = simulate(flow, two_tokens(a0), np.linspace(0.0, 60.0, 61), events=[event], **options)
    moment = 2 * math.sqrt(3) * (math.atanh(1 - below**2 / 2) - math.atanh(a0))
    assert str(run.status) == "consensus"
    assert float(run.end_times) == pytest.approx(moment, abs=1e-5)
    held(run)
    assert float((run.tensor[-1, 1] - run.tensor[-1, 0]).norm()) == pytest.approx(below, rel=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("engine", FEW_COMPILED)
def test_rest_is_declared_where_the_speed_falls_below_the_bound(engine):
    # One free token with ov = −1 has speed e^(−t).
    flow = Flow(Attention(EYE, -EYE), Free())
    run = simulate(flow, [[1.0, 0.0, 0.0]], np.linspace(0, 30, 31), events=[AtRest(1e-4)], engine=engine, **TIGHT)
    assert str(run.status) == "equilibrium"
    assert float(run.end_times) == pytest.approx(math.log(1e4), abs=1e-6)
    held(run)


def test_antipodal_tokens_are_at_rest_and_no_consensus():
    run = simulate(
        Flow(Attention(EYE, EYE), Sphere()), two_tokens(-1.0), [0.0, 5.0], events=[Consensus(), AtRest(1e-9)]
    )
    assert str(run.status) == "equilibrium"
    assert float(run.end_times) == 0.0


@pytest.mark.parametrize("engine", [*ENGINES, "layers"])
def test_an_event_that_holds_at_the_start_ends_the_run_there(engine):
    start = two_tokens(1 - 1e-9)
    flow = Flow(Attention(EYE, EYE), Sphere())
    run = simulate(flow, start, [0.0, 1.0, 2.0], events=[Consensus(1e-3)], engine=engine)
    assert str(run.status) == "consensus"
    assert float(run.end_times) == 0.0
    assert run.reached.tolist() == [True, False, False]
    np.testing.assert_allclose(run.states, [start] * 3, atol=1e-14)


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("engine", ENGINES)
def test_each_system_of_a_batch_ends_by_itself(engine):
    rates = torch.tensor([2.0, 0.1, -1.0], dtype=torch.float64)
    ov = rates[:, None, None, None] * EYE
    start = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64).expand(3, 1, 3)
    ends = [NormAbove(4.0), AtRest(0.05)]
    flow = Flow(Attention(EYE, ov), Free())
    run = simulate(flow, start, np.linspace(0.0, 5.0, 11), events=ends, engine=engine, **TIGHT)
    assert run.status.tolist() == ["diverged", "reached the horizon", "equilibrium"]
    np.testing.assert_allclose(run.end_times, [math.log(4) / 2, 5.0, math.log(20)], atol=1e-8)
    assert run.reached[1].all()
    held(run, (0,))
    held(run, (2,))
    np.testing.assert_allclose(run.states[1, -1, 0, 0], math.exp(0.5), rtol=1e-9)


def test_an_event_shows_the_time_at_which_it_happened_and_not_the_next_output_time():
    flow = Flow(Attention(EYE, EYE), Free())
    run = simulate(flow, [[1.0, 0.0, 0.0]], [0.0, 100.0], events=[NormAbove(3.0)], **TIGHT)
    assert float(run.end_times) == pytest.approx(math.log(3.0), abs=1e-8)
    assert run.reached.tolist() == [True, False]


def test_events_see_the_time_of_the_schedules_across_jumps():
    # ov is 1, then −1, then 1 …, each for one unit: the norm peaks at e and comes back.
    ov = Periodic(torch.stack([EYE, -EYE]), 2.0)
    flow = Flow(Attention(EYE, ov), Free())
    run = simulate(flow, [[1.0, 0.0, 0.0]], [0.0, 1.0, 2.0, 3.0], events=[NormAbove(math.e * 1.001)], **TIGHT)
    assert str(run.status) == "reached the horizon"
    np.testing.assert_allclose(run.tensor[:, 0, 0], [1.0, math.e, 1.0, math.e], rtol=1e-9)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("engine", [*ENGINES, "layers"])
def test_free_states_that_overflow_end_as_diverged_with_finite_numbers(engine):
    flow = Flow(Attention(0 * EYE, 5 * EYE), Free())
    run = simulate(
        flow, [[1.0, 0.0, 0.0]], [0.0, 10.0, 1000.0], engine=engine, **({} if engine == "layers" else {"rtol": 1e-5})
    )
    assert str(run.status) == "diverged"
    held(run)
    growth = math.log(6.0) if engine == "layers" else 5.0
    assert float(run.end_times) == pytest.approx(100 * math.log(10) / growth, abs=1.0 if engine == "layers" else 1e-2)


@pytest.mark.long
def test_a_fixed_step_that_overflows_ends_as_diverged_with_finite_numbers():
    flow = Flow(Attention(EYE, 5 * EYE), Free())
    run = simulate(flow, [[[1.0, 0.0, 0.0]], [[1e-3, 0.0, 0.0]]], [0.0, 1.0, 180.0], step=0.2)
    assert run.status.tolist() == ["diverged"] * 2
    assert run.reached.tolist() == [[True, True, False]] * 2
    # The norm passes 1e100 within one of the steps of 0.2.
    moments = np.log([1e100, 1e103]) / 5
    assert np.all((run.end_times > moments - 0.05) & (run.end_times < moments + 0.25))
    held(run, (0,))
    held(run, (1,))
    np.testing.assert_allclose(np.array(run.states)[:, 1, 0, 0], [math.exp(5), 1e-3 * math.exp(5)], rtol=1e-2)


@pytest.mark.slow
def test_a_solution_that_ends_in_finite_time_is_followed_up_to_there():
    # One token, linear weights, qk = ov = 1: |x|² = 1/(|x_0|^(−2) − 2t) has its pole at t = 2.
    flow = Flow(Attention(EYE, EYE, weights="linear"), Free())
    for engine in ENGINES:
        run = simulate(flow, [[0.5, 0.0, 0.0]], [0.0, 1.0, 3.0], engine=engine, rtol=1e-3)
        assert str(run.status) == "diverged"
        assert float(run.end_times) == pytest.approx(2.0, abs=0.05)
        held(run)
        run = simulate(flow, [[0.5, 0.0, 0.0]], [0.0, 1.0, 3.0], engine=engine, events=[NormAbove(1e3)], rtol=1e-9)
        assert str(run.status) == "diverged"
        assert float(run.end_times) == pytest.approx(2.0 - 0.5e-6, abs=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_a_spent_budget_is_a_status_and_the_part_done_is_right(engine):
    rng = np.random.default_rng(0)
    flow, start = Flow(Attention(rng.normal(size=(3, 3)), rng.normal(size=(3, 3))), Sphere()), rng.normal(size=(4, 3))
    times = np.linspace(0.0, 100.0, 2001)
    cut = simulate(flow, start, times, max_steps=30, engine=engine)
    assert str(cut.status) == "step budget spent"
    assert 0.0 < float(cut.end_times) < 100.0
    assert int(cut.counts["accepted"]) + int(cut.counts.get("rejected", 0)) == 30
    held(cut)
    whole = simulate(flow, start, times[: int(cut.reached.sum())], engine=engine)
    np.testing.assert_allclose(cut.states[cut.reached], whole.states, atol=1e-6)


class InterruptAfter:
    """Ctrl-C at the n-th call, as a progress callback or as an event."""

    status = Status.EQUILIBRIUM

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def __call__(self, done: float, total: float = 1.0, what: str = "simulating") -> None:
        assert 0.0 <= done <= 1.0 + 1e-12
        assert (total, what) == (1.0, "simulating")
        self.calls -= 1
        if self.calls == -1:
            raise KeyboardInterrupt

    def value(self, field: object, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        self(0.0)
        return torch.ones(len(x), dtype=torch.float64)


@pytest.mark.long
@pytest.mark.every_value_once
@pytest.mark.parametrize("engine", [*ENGINES, "layers", "fixed"])
@pytest.mark.parametrize("schedule", ["constant", "periodic"])
@pytest.mark.parametrize("calls", [0, 1, 7])
def test_ctrl_c_leaves_a_readable_trajectory(engine, schedule, calls, tmp_path):
    if engine == "compiled" and schedule == "constant" and calls:
        pytest.skip("three systems are done before it tells a second time how far it is")
    generator = torch.Generator().manual_seed(1)
    matrices = torch.randn(2, 3, 3, dtype=torch.float64, generator=generator)
    qk = matrices[0] if schedule == "constant" else Periodic(matrices, 1.0)
    flow, start = Flow(Attention(qk, EYE), Sphere()), torch.randn(3, 4, 3, generator=generator).double()
    times = np.arange(0.0, 13.0)
    options = {"step": 0.25} if engine == "fixed" else {}
    whole = simulate(flow, start, times, engine=engine, **options)
    with pytest.raises(Interrupted, match="interrupted") as caught:
        simulate(flow, start, times, engine=engine, progress=InterruptAfter(calls), **options)
    part = caught.value.trajectory
    assert isinstance(caught.value, KeyboardInterrupt)
    assert "interrupted" in part.status
    for system, status in enumerate(part.status):
        if status == "interrupted":
            assert part.end_times[system] < 12.0
            held(part, (system,))
    reached = torch.tensor(part.reached)
    np.testing.assert_array_equal(part.tensor[reached], whole.tensor[reached])
    opened = Trajectory.open(part.save(tmp_path / "part.zarr"))
    np.testing.assert_array_equal(opened.states, part.states)
    np.testing.assert_array_equal(opened.status, part.status)
    np.testing.assert_array_equal(opened.end_times, part.end_times)


@pytest.mark.parametrize("engine", ["batched", "stiff", "layers"])
@pytest.mark.parametrize("calls", [0, 1, 4])
def test_ctrl_c_inside_an_event_is_caught_too(engine, calls):
    flow, start = Flow(Attention(EYE, EYE), Sphere()), Sphere().sample(4, 3, (2,), seed=2)
    with pytest.raises(Interrupted) as caught:
        simulate(flow, start, np.arange(0.0, 20.0), engine=engine, events=[InterruptAfter(calls)])
    assert caught.value.trajectory.status.tolist() == ["interrupted"] * 2
    held(caught.value.trajectory, (0,))


@pytest.mark.parametrize("event", [Consensus, NormAbove, AtRest])
@pytest.mark.parametrize("number", [0.0, -1.0, math.nan])
def test_thresholds_must_be_positive(event, number):
    with pytest.raises(ArgumentValueError, match="positive number, got"):
        event(number)


def test_with_a_fixed_step_a_system_ends_after_the_step_that_meets_an_event():
    flow = Flow(Attention(EYE, EYE), Free())
    run = simulate(flow, [[1.0, 0.0, 0.0]], [0.0, 1.0, 2.0], step=0.1, method="rk4", events=[NormAbove(2.0)])
    assert str(run.status) == "diverged"
    # log 2 = 0.693 lies in the seventh step.
    assert float(run.end_times) == pytest.approx(0.7, abs=1e-12)
    np.testing.assert_allclose(np.asarray(run.states)[1:, 0, 0], math.exp(0.7), rtol=1e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff", "layers"])
def test_of_several_events_the_earliest_counts_whatever_their_order(engine):
    flow = Flow(Attention(EYE, EYE), Free())
    early, late = NormAbove(2.0), NormAbove(2.01 if engine != "layers" else 5.0, status=Status.EQUILIBRIUM)
    for events in ([early, late], [late, early]):
        run = simulate(flow, [[1.0, 0.0, 0.0], [0.9, 0.1, 0.0]], [0.0, 4.0, 10.0], engine=engine, events=events)
        assert str(run.status) == "diverged"


def test_the_discrete_model_looks_at_events_after_its_last_layer_too():
    flow = Flow(Attention(EYE, EYE), Free())
    run = simulate(flow, [[1.0, 0.0, 0.0]], [0, 1, 2], engine="layers", events=[NormAbove(3.0)])
    assert str(run.status) == "diverged"
    assert float(run.end_times) == 2.0
