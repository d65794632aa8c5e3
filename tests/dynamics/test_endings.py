"""One word for one ending: every engine says the same of a blow-up, of a broken field, and of steps that vanish."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tokendynamics.attention import Attention, Periodic
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.spaces import Free, Sphere

# Many short steps: checking every call of every kernel would take most of the time.
pytestmark = pytest.mark.usefixtures("unchecked")

CONTINUOUS = ("batched", "compiled", "stiff", "dopri5", "bosh3", "dop853", "rk4", "euler")
ENGINES = (*CONTINUOUS, "layers")
EYE = np.eye(2)
TURN = np.array([[1.0, -3.0], [3.0, 1.0]])
TOLERANCES = [(1e-3, 0.0), (1e-10, 0.0), (1e-4, -3.0), (1e-6, 1e6)]


def run(engine, flow, start, times, tau=None, **tolerances):
    """The engine, or the method in fixed steps of a two-hundredth of the horizon."""
    if engine == "compiled":  # one method for all tolerances, so that it is compiled once
        return simulate(flow, start, times, engine=engine, method="dopri5", **tolerances)
    if engine in ("batched", "stiff"):
        return simulate(flow, start, times, engine=engine, **tolerances)
    if engine == "layers":
        return simulate(flow, start, times, engine=engine, tau=tau)
    return simulate(flow, start, times, method=engine, step=(times[-1] - times[0]) / 200)


def linear(ov, qk=EYE, **options):
    return Flow(Attention(qk, ov, weights="linear", **options), Free())


# One token, qk = 1, linear weights: |x|² = 1/(|x_0|^(−2) − 2 c t) with ov = c, or c times the identity plus a rotation.
# Two tokens at one place feel twice the pull; a causal first token feels only its own and has its pole later.
BLOW_UPS = {
    "one token": (linear(EYE), [[0.5, 0.0]], 2.0),
    "small": (linear(EYE), [[1e-3, 0.0]], 5e5),
    "immense": (linear(EYE), [[1e30, 0.0]], 5e-61),
    "spiral": (linear(TURN), [[0.0, 0.5]], 2.0),
    "weak": (linear(1e-8 * EYE), [[0.5, 0.0]], 2e8),
    "two tokens": (linear(EYE), [[0.5, 0.0], [0.5, 0.0]], 1.0),
    "causal": (linear(EYE, causal=True), [[0.5, 0.0], [0.5, 0.0]], None),
    "switched on": (linear(Periodic(np.stack([0 * EYE, EYE]), 10.0)), [[0.5, 0.0]], 7.0),
}


# The stiff engine takes thousands of steps into a pole: its quick ones are those at low tolerances below.
POLES = [
    pytest.param(name, engine, marks=pytest.mark.slow if engine == "stiff" else ())
    for name in BLOW_UPS
    for engine in ENGINES
]


@pytest.mark.long
@pytest.mark.few(4)
@pytest.mark.parametrize(("name", "engine"), POLES)
def test_a_pole_is_divergence_in_every_engine(name, engine):
    flow, start, pole = BLOW_UPS[name]
    horizon = 2 * (2.0 if pole is None else pole)
    if engine == "layers":
        run_result = run(engine, flow, start, [0.0, 1.0, 400.0], tau=horizon / 200)
    else:
        run_result = run(engine, flow, start, [0.0, horizon / 1000, horizon])
    assert str(run_result.status) == "diverged"
    assert np.isfinite(run_result.states).all()
    assert not run_result.reached[-1]
    if engine in ("batched", "compiled", "stiff") and pole is not None:
        # Hundreds of steps of relative error 1e-8 shift the pole by their sum.
        assert float(run_result.end_times) == pytest.approx(pole, rel=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("engine", "rtol", "begin"),
    [
        *((engine, rtol, begin) for engine in ("batched", "compiled") for rtol, begin in TOLERANCES),
        *(pytest.param("stiff", *one, marks=pytest.mark.slow if one[0] < 1e-3 else ()) for one in TOLERANCES),
        ("stiff", 1e-4, 1e6),
    ],
)
def test_a_pole_is_divergence_at_any_tolerance_and_whenever_it_comes(engine, rtol, begin):
    run_result = run(engine, linear(EYE), [[0.5, 0.0]], [begin, begin + 1.0, begin + 10.0], rtol=rtol, atol=rtol / 100)
    assert str(run_result.status) == "diverged"
    assert float(run_result.end_times) - begin == pytest.approx(2.0, rel=min(0.05, 1e3 * rtol), abs=1e-9 * abs(begin))
    assert run_result.reached.tolist() == [True, True, False]


@pytest.mark.few(3)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_pole_is_divergence_in_single_precision(engine):
    start = np.array([[0.5, 0.0]], dtype=np.float32)
    run_result = run(engine, linear(EYE), start, [0.0, 1.0, 60.0], rtol=1e-5, atol=1e-6)
    assert str(run_result.status) == "diverged"
    assert np.isfinite(run_result.states).all()


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize("engine", ENGINES)
def test_exponential_growth_past_the_bound_is_divergence(engine):
    run_result = run(engine, Flow(Attention(EYE, 3 * EYE), Free()), [[1.0, 0.0]], [0.0, 1.0, 400.0], rtol=1e-4)
    assert str(run_result.status) == "diverged"


def broken_from(moment):
    return lambda t: EYE if t < moment else np.full((2, 2), np.nan)


@pytest.mark.few(6)
@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "compiled"])
@pytest.mark.parametrize("space", [Free(), Sphere()])
def test_a_field_that_breaks_at_a_moderate_state_is_not_finite(engine, space):
    flow, start = Flow(Attention(EYE, broken_from(2.5)), space), [[0.6, 0.8], [1.0, 0.0]]
    run_result = run(engine, flow, start, [0.0, 1.0, 20.0])
    assert str(run_result.status) == "not finite"
    assert 1.5 <= float(run_result.end_times) <= (3.0 if engine == "layers" else 2.5)
    assert np.isfinite(run_result.states).all()
    if engine in ("batched", "compiled", "stiff"):
        assert float(run_result.end_times) == pytest.approx(2.5, abs=1e-9)


@pytest.mark.every_value_once
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("space", [Free(), Sphere()])
def test_logits_that_overflow_at_the_start_are_not_finite(engine, space):
    huge = 1e308 * np.ones((2, 2))
    run_result = run(engine, Flow(Attention(huge, EYE), space), [[2.0, 3.0], [1.0, 5.0]], [0.0, 1.0, 20.0])
    assert str(run_result.status) == "not finite"
    assert float(run_result.end_times) == 0.0


@pytest.mark.long
@pytest.mark.parametrize("space", [pytest.param(Free(), marks=pytest.mark.slow), Sphere()])
def test_steps_that_vanish_at_bounded_states_are_no_divergence(space):
    # A jump nobody knows of, at a time so late that one unit of it is a step too long for the tolerance.
    late = 1e9

    def jumping(t):
        return (1.0 if t < late + 3.3 else -5.0) * TURN

    start, times = [[0.6, 0.8], [1.0, 0.0]], [late, late + 10.0]
    run_result = run("batched", Flow(Attention(EYE, jumping), space), start, times, rtol=1e-12)
    assert str(run_result.status) == "step size underflow"
    assert float(run_result.end_times) == pytest.approx(late + 3.3, abs=1e-5)
    # The stiff engine's own time begins at 0, where its steps can be as short as the tolerance asks.
    run_result = run("stiff", Flow(Attention(EYE, jumping), space), start, times, rtol=1e-12)
    early = run("stiff", Flow(Attention(EYE, lambda t: jumping(t + late)), space), start, [0.0, 10.0], rtol=1e-12)
    assert str(run_result.status) == "reached the horizon"
    np.testing.assert_allclose(run_result.states[-1], early.states[-1], rtol=1e-5)


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize(
    "engine", [pytest.param(engine, marks=pytest.mark.slow if engine == "stiff" else ()) for engine in ENGINES]
)
def test_systems_of_one_batch_end_each_in_its_own_way(engine):
    start = np.array([[[0.5, 0.0]], [[1e-3, 0.0]], [[1e200, 0.0]], [[0.2, 0.0]]])
    run_result = run(engine, linear(EYE), start, [0.0, 1.0, 8.0], tau=2.0)
    assert run_result.status.tolist() == ["diverged", "reached the horizon", "diverged", "reached the horizon"]


def test_where_the_implicit_solver_gives_up_the_run_goes_on(monkeypatch):
    from tokendynamics.dynamics.engines._stiff import Equations, StuckError

    plain = Equations.velocity

    def failing(self, t, y):
        if t > 1.0:
            raise StuckError
        return plain(self, t, y)

    flow, start, times = Flow(Attention(EYE, -TURN), Free()), [[0.6, 0.8], [1.0, 0.0]], np.linspace(0.0, 3.0, 7)
    whole = simulate(flow, start, times, engine="stiff")
    monkeypatch.setattr(Equations, "velocity", failing)
    run_result = simulate(flow, start, times, engine="stiff")
    assert str(run_result.status) == "reached the horizon"
    np.testing.assert_allclose(run_result.states, whole.states, rtol=0, atol=1e-6)
    assert not any("dopri5" in note for note in whole.notes)
    assert any("dopri5 continued where it could not, in 1 of 1 systems" in note for note in run_result.notes)
    assert math.isfinite(float(run_result.end_times))
