"""The stiff engine: closed forms, the batched engine as witness, and everything that can end a run."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tokendynamics.attention import Attention, Periodic, Sinusoidal
from tokendynamics.dynamics import Flow, Interrupted, simulate
from tokendynamics.dynamics.engines import _stiff as stiff
from tokendynamics.dynamics.engines import _stiff as stiff_solvers
from tokendynamics.dynamics.events import AtRest, Consensus, NormAbove
from tokendynamics.spaces import Ellipsoid, Free, Sphere

TIGHT = {"rtol": 1e-10, "atol": 1e-12}


def accuracy(solver: str) -> tuple[dict[str, float], float]:
    """Tolerances that suit the order of a solver, and the error that they leave."""
    return (TIGHT, 1e-8) if solver == "LSODA" else ({"rtol": 1e-6, "atol": 1e-8}, 3e-5)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def identity(dim: int) -> Tensor:
    return torch.eye(dim, dtype=torch.float64)


def towards_one(dim: int = 3, causal: bool = False) -> Flow:
    return Flow(Attention(identity(dim), identity(dim), causal=causal), Sphere())


@pytest.fixture(params=["LSODA", "BDF with GMRES"])
def solver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both solvers on systems of any size."""
    if request.param != "LSODA":
        monkeypatch.setattr(stiff_solvers, "LARGEST_DENSE", 0)
        monkeypatch.setattr(stiff, "LARGEST_DENSE", 0)
    return request.param


@pytest.mark.long
def test_one_free_token_follows_the_exponential_of_ov(solver: str) -> None:
    ov, x0 = drawn(3, 3, seed=1), drawn(1, 3, seed=2)
    times = torch.linspace(0, 3, 7, dtype=torch.float64)
    run = simulate(Flow(Attention(drawn(3, 3), ov), Free()), x0, times, engine="stiff", **TIGHT)
    exact = torch.stack([x0 @ torch.linalg.matrix_exp(t * ov).mT for t in times])
    assert float((run.tensor - exact).abs().max() / exact.abs().max()) < (1e-9 if solver == "LSODA" else 1e-8)
    assert run.notes[0].startswith(solver)


@pytest.mark.long
def test_two_causal_tokens_meet_as_a_hyperbolic_tangent(solver: str) -> None:
    start = torch.tensor([[1.0, 0.0], [-0.6, 0.8]], dtype=torch.float64)
    times = torch.linspace(0, 20, 11, dtype=torch.float64)
    flow = Flow(Attention(0 * identity(2), identity(2), causal=True), Sphere())
    tolerances, error = accuracy(solver)
    run = simulate(flow, start, times, engine="stiff", **tolerances)
    cosine = (run.tensor[:, 0] * run.tensor[:, 1]).sum(dim=-1)
    exact = torch.tanh(math.atanh(-0.6) + times / (2 * math.sqrt(2)))
    assert float((cosine - exact).abs().max()) < error


SPACES = (Free(), Sphere(), Ellipsoid(torch.diag(torch.tensor([1.0, 2.0, 3.0]).double())))
CIRCUITS = ("per system", "sinusoidal", "periodic")


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.every_value_once
@pytest.mark.parametrize(
    ("space", "circuits"),
    [
        # Each space and each kind of circuits once in every run of the tests, every pair with the slow ones.
        pytest.param(space, circuits, marks=() if one == other else pytest.mark.slow)
        for one, space in enumerate(SPACES)
        for other, circuits in enumerate(CIRCUITS)
    ],
)
def test_the_batched_engine_finds_the_same_states(solver: str, space, circuits: str) -> None:
    qk, ov = drawn(3, 2, 3, 3, seed=3) / 2, drawn(3, 2, 3, 3, seed=4) / 2
    if circuits == "sinusoidal":
        qk = Sinusoidal(qk, 1.0, 2.0, drawn(3, seed=5))
    if circuits == "periodic":
        qk, ov = Periodic(qk, 1.5), Periodic(ov, 1.5)
    flow, x0 = Flow(Attention(qk, ov), space), drawn(3, 5, 3, seed=6)
    times = torch.tensor([0.0, 0.3, 0.5, 1.75, 2.0], dtype=torch.float64)
    tolerances, error = accuracy(solver)
    actual = simulate(flow, x0, times, engine="stiff", **tolerances)
    other = simulate(flow, x0, times, engine="batched", **TIGHT)
    assert float((actual.tensor - other.tensor).abs().max() / other.tensor.abs().max()) < error
    assert space.defect(actual.states) <= 1e-14


def test_states_between_steps_are_as_good_as_those_at_the_end() -> None:
    x0 = Sphere().sample(4, 3, seed=7)
    times = torch.linspace(0, 10, 301, dtype=torch.float64)
    run = simulate(towards_one(), x0, times, engine="stiff", **TIGHT)
    witness = simulate(towards_one(), x0, times, engine="batched", rtol=1e-12, atol=1e-13)
    assert float((run.tensor - witness.tensor).abs().max()) < 1e-8
    assert int(run.counts["accepted"]) < 301


@pytest.mark.slow
def test_a_long_decay_has_the_slope_of_minus_one_half() -> None:
    # positional 3.4: A ≺ 0 and qk ≻ 0 draw all tokens to zero like t^(−1/2).
    flow = Flow(Attention(identity(2), -identity(2)), Free())
    times = [0.0, 1e6, 1e8]
    run = simulate(flow, torch.tensor([[1.0, 0.5], [-0.7, 0.4], [0.2, -1.0]]).double(), times, engine="stiff", **TIGHT)
    norms = run.tensor.norm(dim=-1).amax(dim=-1)
    slope = math.log(float(norms[2] / norms[1])) / math.log(100)
    assert slope == pytest.approx(-0.5, abs=0.01)
    assert int(run.counts["right_hand_sides"]) < 6000
    assert int(run.counts["jacobians"]) > 0


@pytest.mark.slow
def test_events_end_a_run_where_the_batched_engine_ends_it() -> None:
    x0 = Sphere().sample(5, 3, (2,), seed=8)
    for event in (Consensus(1e-2), AtRest(1e-3)):
        actual, other = (
            simulate(towards_one(causal=True), x0, [0.0, 1.0, 1e4], events=(event,), engine=engine)
            for engine in ("stiff", "batched")
        )
        assert list(actual.status) == [str(event.status)] * 2 == list(other.status)
        np.testing.assert_allclose(actual.end_times, other.end_times, rtol=1e-5)
        assert actual.reached.tolist() == [[True, True, False]] * 2
        assert torch.allclose(actual.tensor[:, -1], other.tensor[:, -1], atol=1e-6)


def test_of_two_events_in_one_step_the_earlier_ends_the_run() -> None:
    # One free token e^t: the norm passes 2 at log 2 and 3 at log 3, whatever the order of the events.
    flow = Flow(Attention(identity(1), identity(1)), Free())
    for events in ((NormAbove(2.0), NormAbove(3.0)), (NormAbove(3.0), NormAbove(2.0))):
        run = simulate(flow, [[1.0]], [0.0, 100.0], events=events, engine="stiff", **TIGHT)
        assert float(run.end_times) == pytest.approx(math.log(2), rel=1e-8)
        assert run.tensor[-1].item() == pytest.approx(2.0, rel=1e-8)


def test_an_event_that_holds_at_the_start_ends_the_run_there() -> None:
    run = simulate(towards_one(), Sphere().sample(3, 3, seed=9), [0.0, 1.0], events=(AtRest(1e3),), engine="stiff")
    assert str(run.status) == "equilibrium"
    assert float(run.end_times) == 0.0
    assert int(run.counts["accepted"]) == 0


@pytest.mark.long
def test_exponential_growth_ends_as_diverged_and_without_overflow() -> None:
    flow = Flow(Attention(identity(1), identity(1)), Free())
    run = simulate(flow, [[1.0]], [0.0, 10.0, 1e9], engine="stiff", **TIGHT)
    assert str(run.status) == "diverged"
    assert float(run.end_times) == pytest.approx(100 * math.log(10), rel=1e-8)
    assert run.tensor[1].item() == pytest.approx(math.exp(10), rel=1e-8)


def test_a_budget_that_is_spent_keeps_what_was_reached(solver: str) -> None:
    run = simulate(towards_one(), Sphere().sample(4, 3, seed=10), [0.0, 1e-3, 1e4], max_steps=12, engine="stiff")
    assert str(run.status) == "step budget spent"
    assert int(run.counts["accepted"]) == 12
    assert 0 < float(run.end_times) < 1e4
    assert torch.isfinite(run.tensor).all()


def test_a_field_that_stops_being_finite_ends_the_run_there() -> None:
    def explodes(t: float) -> Tensor:
        return identity(1) * (1e300 if t > 0.5 else 0.0)

    flow = Flow(Attention(explodes, identity(1), weights="linear"), Free())
    run = simulate(flow, [[1e10]], [0.0, 0.25, 1.0], engine="stiff")
    assert str(run.status) == "not finite"
    assert float(run.end_times) <= 0.5 + 1e-9
    assert run.tensor.flatten().tolist() == [1e10] * 3


@pytest.mark.long
def test_an_interruption_keeps_every_system_where_it_was(solver: str) -> None:
    calls = 0

    def interrupted(t: float) -> Tensor:
        nonlocal calls
        calls += t > 2.0
        if calls > 100:
            raise KeyboardInterrupt
        return identity(3) * (1 + 0.1 * math.sin(t))

    x0 = Sphere().sample(4, 3, (3,), seed=11)
    with pytest.raises(Interrupted) as caught:
        simulate(Flow(Attention(interrupted, identity(3)), Sphere()), x0, [0.0, 1.0, 40.0], engine="stiff", **TIGHT)
    run = caught.value.trajectory
    stopped = list(run.status).index("interrupted")
    assert list(run.status[stopped:]) == ["interrupted"] * (3 - stopped)
    assert 1.0 < run.end_times[stopped] < 40.0
    assert all(run.end_times[stopped + 1 :] == 0.0)
    assert torch.equal(run.tensor[-1, -1], x0[-1]) or stopped == 2
    assert Sphere().defect(run.tensor) <= 1e-14


def test_an_error_in_a_schedule_comes_out_as_it_is() -> None:
    def broken(t: float) -> Tensor:
        if t > 0.5:
            raise RuntimeError("no matrix after 0.5")
        return identity(3)

    with pytest.raises(RuntimeError, match=r"no matrix after 0\.5"):
        simulate(Flow(Attention(broken, identity(3)), Sphere()), drawn(4, 3), [0.0, 9.0], engine="stiff")


def test_single_precision_is_worked_in_double_and_returned_in_single() -> None:
    x0 = Sphere().sample(4, 3, seed=12).float()
    single = simulate(towards_one(), x0, [0.0, 3.0], engine="stiff")
    double = simulate(towards_one(), x0.double(), [0.0, 3.0], engine="stiff")
    assert single.tensor.dtype == torch.float32
    assert torch.allclose(single.tensor.double(), double.tensor, atol=1e-5)


def test_progress_never_falls_and_ends_at_one() -> None:
    shares: list[float] = []
    x0 = Sphere().sample(4, 3, (2,), seed=13)
    simulate(towards_one(), x0, [0.0, 5.0], engine="stiff", progress=lambda done, total, what: shares.append(done))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_system_too_large_for_a_dense_jacobian_is_run_by_products_of_it() -> None:
    x0 = Sphere().sample(360, 3, seed=14)
    run = simulate(towards_one(), x0, [0.0, 1.0], rtol=1e-6, atol=1e-8, engine="stiff")
    witness = simulate(towards_one(), x0, [0.0, 1.0], engine="batched")
    assert run.notes[0] == "BDF with GMRES: 1080 numbers of state"
    assert float((run.tensor - witness.tensor).abs().max()) < 1e-5
