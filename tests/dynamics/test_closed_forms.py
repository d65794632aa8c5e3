"""Solutions known in closed form, or up to one integral: mathematics.md section 5."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.linalg import expm
from scipy.optimize import brentq

from tokendynamics.attention import Attention, RotaryPositions, Sinusoidal
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.spaces import Ellipsoid, Free, Sphere

# Many short steps: checking every call of every kernel would take most of the time.
pytestmark = pytest.mark.usefixtures("unchecked")

ENGINES = ("batched", "compiled", "stiff")
# A kernel takes seconds to compile: where others have compiled those of a flow alike, these are left to the slow tests.
FEW_COMPILED = ("batched", pytest.param("compiled", marks=pytest.mark.slow), "stiff")
TIMES = np.array([0.0, 0.7, 2.0])

FIG_4_OV = np.array([[-0.2590, 0.4965, 0.5609], [0.4965, -0.7174, -0.5003], [0.5609, -0.5003, -0.0247]])
FIG_4_QK = np.array([[0.3598, 0.4150, 0.1319], [0.0971, -0.0668, -0.2046], [0.1548, -0.2102, 0.1220]])


def states(flow, start, times=TIMES, engine="batched"):
    run = simulate(flow, start, times, rtol=1e-12, atol=1e-14, engine=engine)
    assert set(np.ravel(run.status)) == {"reached the horizon"}
    return np.asarray(run.states)


def on(metric, vectors):
    return vectors / np.sqrt(np.einsum("...i,ij,...j->...", vectors, metric, vectors))[..., None]


@pytest.mark.few(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("space", ["sphere", "ellipsoid"])
def test_token_1_of_a_causal_flow_is_the_projected_exponential(space, engine):
    rng = np.random.default_rng(5)
    qk, ov, start = rng.normal(size=(2, 3, 3)), rng.normal(size=(2, 3, 3)), rng.normal(size=(4, 3))
    root = rng.normal(size=(3, 3))
    metric = np.eye(3) if space == "sphere" else root @ root.T + np.eye(3)
    flow = Flow(Attention(qk, ov, causal=True), Sphere() if space == "sphere" else Ellipsoid(metric))
    computed = states(flow, start, engine=engine)[:, 0]
    wanted = [on(metric, expm(t * ov.sum(axis=0) / math.sqrt(3)) @ start[0]) for t in TIMES]
    np.testing.assert_allclose(computed, wanted, rtol=0, atol=1e-10)


@pytest.mark.long
@pytest.mark.parametrize("engine", FEW_COMPILED)
def test_token_1_of_figure_4_does_not_feel_the_gates(engine):
    gates = {"amplitude": 2.0, "frequency": np.pi * np.array([10.0, 10.0, 6.0]), "phase": [np.pi / 2, 0.0, np.pi / 2]}
    values, vectors = np.linalg.eigh(FIG_4_OV)
    np.testing.assert_allclose(values, [-1.41849, -0.02148, 0.43888], atol=1e-5)
    v = vectors[:, -1] * np.sign(vectors[0, -1])
    np.testing.assert_allclose(v, [0.57806, -0.10208, 0.80958], atol=1e-5)
    flow = Flow(Attention(Sinusoidal(FIG_4_QK, **gates), FIG_4_OV, causal=True), Sphere())
    first = 0.1 * v + math.sqrt(0.99) * vectors[:, 0]
    second = 0.9 * v - math.sqrt(0.19) * vectors[:, 0]
    times = np.array([0.0, 1.0, 1.9])
    traced_states = states(flow, np.array([first, second]), times, engine)
    wanted = [on(np.eye(3), expm(t * FIG_4_OV / math.sqrt(3)) @ first) for t in times]
    np.testing.assert_allclose(traced_states[:, 0], wanted, rtol=0, atol=1e-10)
    # V_2 rises first although token 2 ends at v: printed to three digits in section 6.
    deficit = 1 - traced_states[:, 1] @ v
    assert deficit[0] == pytest.approx(0.1, abs=1e-12)
    assert deficit[2] == pytest.approx(0.171, abs=1e-3)


@pytest.mark.few(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dim", [2, 5])
def test_without_logits_the_second_causal_token_follows_the_hyperbolic_tangent(dim, engine):
    a0 = -0.3
    start = np.zeros((2, dim))
    start[0, 0], start[1, :2] = 1.0, (a0, math.sqrt(1 - a0**2))
    flow = Flow(Attention(np.zeros((dim, dim)), np.eye(dim), causal=True), Sphere())
    traced_states = states(flow, start, engine=engine)
    agreement = np.einsum("td,td->t", traced_states[:, 0], traced_states[:, 1])
    np.testing.assert_allclose(agreement, np.tanh(np.arctanh(a0) + TIMES / (2 * math.sqrt(dim))), rtol=0, atol=1e-10)


@pytest.mark.parametrize("engine", FEW_COMPILED)
def test_without_logits_free_tokens_move_with_their_mean(engine):
    rng = np.random.default_rng(6)
    ov, start = 0.7 * rng.normal(size=(3, 3)), rng.normal(size=(5, 3))
    traced_states = states(Flow(Attention(np.zeros((3, 3)), ov), Free()), start, engine=engine)
    mean = start.mean(axis=0)
    wanted = [start + mean @ (expm(t * ov.T) - np.eye(3)) for t in TIMES]
    np.testing.assert_allclose(traced_states, wanted, rtol=0, atol=1e-10 * np.abs(wanted).max())


@pytest.mark.long
@pytest.mark.parametrize("engine", FEW_COMPILED)
@pytest.mark.parametrize("causal", [False, True])
def test_one_free_token_is_the_exponential_whatever_it_attends_with(causal, engine):
    rng = np.random.default_rng(7)
    qk, ov, start = rng.normal(size=(2, 3, 3)), rng.normal(size=(2, 3, 3)), rng.normal(size=(1, 3))
    rotary = RotaryPositions(rng.normal(size=(3, 4)), rng.normal(size=(3, 4)))
    flow = Flow(Attention(qk, ov, causal=causal, positions=rotary), Free())
    wanted = np.array([expm(t * ov.sum(axis=0)) @ start[0] for t in TIMES])
    np.testing.assert_allclose(states(flow, start, engine=engine)[:, 0], wanted, rtol=0, atol=1e-10 * wanted.max())


@pytest.mark.few(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dim", [2, 4])
def test_two_tokens_on_the_sphere_meet_when_the_integral_says(dim, engine):
    """a' = (2/√dim)(1 − a²) e^a/(e + e^a), so that t = ∫ da / a'."""

    def time_to(a):
        def reciprocal(u):
            return math.sqrt(dim) * (math.e + math.exp(u)) / (2 * (1 - u * u) * math.exp(u))

        return quad(reciprocal, -0.6, a, epsabs=1e-13, epsrel=1e-13)[0]

    start = np.zeros((2, dim))
    start[0, 0], start[1, :2] = 1.0, (-0.6, 0.8)
    traced_states = states(Flow(Attention(np.eye(dim), np.eye(dim)), Sphere()), start, engine=engine)
    agreement = np.einsum("td,td->t", traced_states[:, 0], traced_states[:, 1])
    wanted = [brentq(lambda a, t=t: time_to(a) - t, -0.7, 0.9999, xtol=1e-15) for t in TIMES]
    np.testing.assert_allclose(agreement, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("engine", FEW_COMPILED)
def test_one_free_token_with_linear_weights_grows_like_its_cube(engine):
    """x' = |x|² x for qk = ov = 1 and one token, so that |x|² = 1/(|x_0|^(−2) − 2t)."""
    start = np.array([[0.3, -0.4]])
    times = np.array([0.0, 1.0, 1.5])
    flow = Flow(Attention(np.eye(2), np.eye(2), weights="linear"), Free())
    wanted = start[None] / np.sqrt(1 - 2 * 0.25 * times)[:, None, None]
    np.testing.assert_allclose(states(flow, start, times, engine), wanted, rtol=1e-10)


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_remark_5_1_is_the_identity_value_system_in_other_coordinates(engine):
    rng = np.random.default_rng(8)
    ov, qk, start = np.eye(3) + 0.4 * rng.normal(size=(3, 3)), rng.normal(size=(3, 3)), rng.normal(size=(4, 3))
    metric = ov.T @ ov
    y = states(Flow(Attention(qk, ov, causal=True), Ellipsoid(metric), "remark_5_1"), start, engine=engine)
    inverse = np.linalg.inv(ov)
    turned = Attention(inverse.T @ qk @ inverse, np.eye(3), causal=True)
    z = states(Flow(turned, Sphere()), start @ ov.T, engine=engine)
    np.testing.assert_allclose(y @ ov.T, z, rtol=0, atol=1e-10)
    flow = Flow(Attention(qk, ov, causal=True), Ellipsoid(metric), "remark_5_1")
    velocity = flow.velocity(y[1]) @ ov.T
    np.testing.assert_allclose(velocity, Flow(turned, Sphere()).velocity(y[1] @ ov.T), rtol=0, atol=1e-12)
