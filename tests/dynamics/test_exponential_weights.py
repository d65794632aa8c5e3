"""Exponential weights: softmax without its denominator, in every engine, with an offset that is a change of time."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from scipy.special import exp1
from torch import Tensor

import tokendynamics as td
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.specification import parse
from tokendynamics.specification.build import build
from tokendynamics.theorems import predict_equiangular

Engine = Literal["batched", "compiled", "stiff"]
ENGINES: tuple[Engine, ...] = ("batched", "compiled", "stiff")
EYE = torch.eye(3, dtype=torch.float64)


def flow(qk: Any = EYE, space: td.spaces.Space | None = None, ov: Any = EYE, **options: Any) -> td.Flow:
    attention = td.Attention(qk, ov, weights="exponential", normalization="plain", **options)
    return td.Flow(attention, td.Sphere() if space is None else space)


def start(systems: int = 3, tokens: int = 5) -> Tensor:
    return td.Sphere().sample(tokens, 3, (systems,), seed=4)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("beta", [-1.0, 0.0, 3.0])
def test_equal_angles_follow_their_equation(engine: Engine, beta: float) -> None:
    times = np.linspace(0.0, 2.0, 5)
    run = td.simulate(flow(beta * EYE), EYE, times, engine=engine, rtol=1e-10, atol=1e-12)
    cosine = (run.tensor[:, 0] * run.tensor[:, 2]).sum(dim=-1)
    assert np.allclose(cosine, predict_equiangular(times, 3, beta, weights="exponential"), atol=1e-8)


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("space", [td.Sphere(), td.Ellipsoid(torch.diag(torch.tensor([2.0, 1.0, 0.5]).double()))])
def test_an_offset_is_a_change_of_time(engine: Engine, causal: bool, space: td.spaces.Space) -> None:
    rng = np.random.default_rng(1)
    qk, ov = rng.normal(size=(2, 3, 3)), rng.normal(size=(2, 3, 3))
    slow = flow(qk, space, ov, causal=causal, offset=1.3)
    fast = flow(qk, space, ov, causal=causal)
    tight: dict[str, Any] = {"engine": engine, "rtol": 1e-10, "atol": 1e-12}
    late = td.simulate(slow, start(), [0.0, 0.4, 1.5], **tight)
    early = td.simulate(fast, start(), np.array([0.0, 0.4, 1.5]) * np.exp(-1.3), **tight)
    assert float((late.tensor - early.tensor).abs().max()) < 1e-8


def test_many_small_systems_move_as_each_does() -> None:
    rng = np.random.default_rng(2)
    qk = torch.tensor(rng.normal(size=(70, 2, 3, 3)))
    for causal in (False, True):
        together = flow(qk, ov=rng.normal(size=(2, 3, 3)), causal=causal, offset=0.4)
        starts = start(70)
        velocity = together.field(starts).velocity(starts, 0.0)
        for system in (0, 31, 69):
            alone = together.attention.select(torch.tensor([system]))
            one = td.Flow(alone, td.Sphere()).field(starts[system : system + 1])
            torch.testing.assert_close(
                velocity[system], one.velocity(starts[system : system + 1], 0.0)[0], rtol=1e-13, atol=1e-14
            )


@pytest.mark.parametrize("engine", ["batched", pytest.param("compiled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("beta", [0.5, 8.0, 40.0])
def test_a_slow_velocity_is_right_to_its_own_digits(beta: float, engine: Engine) -> None:
    """Two tokens a hair apart close in with e^β/2 times their distance each, however small that is."""
    angle = 1e-9
    pair = torch.tensor([[1.0, 0.0, 0.0], [np.cos(angle), np.sin(angle), 0.0]], dtype=torch.float64)
    velocity = flow(beta * EYE, offset=beta).velocity(pair)
    assert float(velocity[0, 1]) == pytest.approx(angle / 2, rel=1e-9)
    # The compiled loop sees the same speed: tokens come to rest when it falls below the event's.
    rest = td.dynamics.events.AtRest(1e-11)
    tight: dict[str, Any] = {"rtol": 1e-13, "atol": 1e-15}
    run = td.simulate(flow(beta * EYE, offset=beta), pair, [0.0, 60.0], engine=engine, events=[rest], **tight)
    assert float(run.end_times) == pytest.approx(np.log(angle / 2 / 1e-11), rel=1e-3)


def test_weights_that_are_no_numbers_are_refused_and_an_offset_mends_it() -> None:
    pair = [[1.0, 0.0, 0.0], [0.6, 0.8, 0.0]]
    ellipsoid = td.Ellipsoid(torch.diag(torch.tensor([0.25, 1.0, 1.0]).double()))
    for space, largest in ((td.Sphere(), "900"), (ellipsoid, "3600")):
        with pytest.raises(ArgumentValueError, match=rf"offset: expected at least .*, as logits come up to {largest}"):
            td.simulate(flow(900 * EYE, space), pair, [0.0, 1.0])
    with pytest.raises(ArgumentValueError, match=r"offset: .* as logits come up to 900, got 0"):
        td.simulate(flow(900 * EYE, td.Free()), pair, [0.0, 1.0])
    run = td.simulate(flow(900 * EYE, offset=900.0), pair, [0.0, 1.0])
    assert str(run.status) == "reached the horizon"


@pytest.mark.long
@pytest.mark.parametrize("engine", ["batched", "compiled"])
def test_tokens_that_run_to_infinity_in_free_space_say_so(engine: Engine) -> None:
    run = td.simulate(flow(space=td.Free()), 2 * EYE, [0.0, 5.0], engine=engine)
    assert str(run.status) in ("diverged", "step size underflow")
    # One token: x' = x e^{x²}, so that ∫ e^{−x²}/x dx = t.
    alone = td.Flow(td.Attention([[1.0]], [[1.0]], weights="exponential"), td.Free())
    method = "dopri5" if engine == "compiled" else None  # compiled for other tests too
    grown = td.simulate(alone, [[0.5]], [0.0, 0.3], engine=engine, rtol=1e-10, atol=1e-12, method=method)
    ends = np.linspace(0.5, float(grown.states[-1][0][0]), 20001)
    slope = np.exp(-(ends**2)) / ends
    assert float(np.trapezoid(slope, ends)) == pytest.approx(0.3, rel=1e-7)


@pytest.mark.parametrize("weights", ["softmax", "linear"])
def test_only_exponential_weights_have_an_offset(weights: Any) -> None:
    with pytest.raises(ArgumentValueError, match=r"offset: expected 0, as only exponential weights have one"):
        td.Attention(EYE, EYE, weights=weights, offset=1.0)
    with pytest.raises(ArgumentValueError, match=r"offset"):
        td.Attention(EYE, EYE, weights="exponential", offset=float("nan"))


SPECIFICATION = """
[attention]
qk = "identity"
weights = "exponential"
offset = {offset}
normalization = "plain"
[space]
kind = "sphere"
[start]
tokens = [[1.0, 0.0], [0.6, 0.8]]
[time]
times = [0.0, 1.0]
"""


def test_a_specification_file_has_an_offset() -> None:
    parsed = [parse(SPECIFICATION.format(offset=offset), "a.toml") for offset in (0.0, 1.0)]
    fast, slow = (build(file) for file in parsed)
    assert (fast.flow.attention.offset, slow.flow.attention.offset) == (0.0, 1.0)
    fast_velocity, slow_velocity = (np.asarray(one.flow.velocity(one.start)) for one in (fast, slow))
    assert np.allclose(fast_velocity, np.e * slow_velocity, rtol=1e-12, atol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_long_sequences_are_those_of_the_sums_written_out(causal: bool) -> None:
    x = td.Sphere().sample(140, 3, seed=5).requires_grad_()
    attention = td.Attention(2 * EYE, EYE, weights="exponential", causal=causal, offset=1.0)
    weights = (2 * x @ x.mT - 1).exp()
    weights = weights.tril() / torch.arange(1, 141).unsqueeze(-1) if causal else weights / 140
    slopes = [torch.autograd.grad((mixed**3).sum(), x)[0] for mixed in (attention.mix(x, 0.0), weights @ x)]
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-12, atol=1e-14)


def _alone(beta: float, **options: Any) -> td.Flow:
    """One token, which moves by ``x' = e^{βx²} x``: ``exp1(βx²)/2`` later it is at infinity if β > 0."""
    return td.Flow(td.Attention([[beta]], [[1.0]], weights="exponential", normalization="plain"), td.Free(), **options)


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("engine", ["batched", "compiled"])
@pytest.mark.parametrize(("beta", "begin"), [(1.0, 1.0), (0.2, 2.0), (25.0, 0.3)])
def test_in_free_space_tokens_reach_infinity_when_the_integral_says(engine: Engine, beta: float, begin: float) -> None:
    pole = float(exp1(beta * begin**2)) / 2
    for rtol in (1e-5, 1e-9):
        run = td.simulate(_alone(beta), [[begin]], [0.0, pole / 2, 3.0], engine=engine, rtol=rtol, atol=rtol / 100)
        assert str(run.status) == "diverged"
        assert float(run.end_times) == pytest.approx(pole, rel=1e2 * rtol)


@pytest.mark.parametrize(
    "options", [{"engine": "fixed", "step": 0.01}, {"engine": "fixed", "step": 0.001, "method": "heun"}]
)
@pytest.mark.parametrize("begin", [1.0, 0.6])
def test_steps_of_one_length_call_the_same_end_divergence(options: dict[str, Any], begin: float) -> None:
    """The field overflows at states of a few units, which is by their size all the same."""
    run = td.simulate(_alone(1.0), [[begin]], [0.0, 0.01, 3.0], **options)
    assert str(run.status) == "diverged"
    pole = float(exp1(begin**2)) / 2
    assert pole <= float(run.end_times) <= pole + 0.05
    layers = td.simulate(_alone(1.0), [[begin]], [0.0, 1.0, 300.0], engine="layers", tau=0.01)
    assert str(layers.status) == "diverged"


def test_a_field_of_exponential_weights_that_is_not_finite_at_any_size_did_not_diverge() -> None:
    broken = td.Attention(lambda t: [[np.nan if t > 0.02 else -1.0]], [[1.0]], weights="exponential")
    run = td.simulate(td.Flow(broken, td.Free()), [[1.0]], [0.0, 0.01, 3.0], engine="fixed", step=0.01)
    assert str(run.status) == "not finite"


@pytest.mark.long
def test_many_that_reach_infinity_are_judged_one_by_one() -> None:
    starts = np.array([1.0, 0.5, 0.01, 2.0])[:, None, None]
    run = td.simulate(_alone(1.0), starts, [0.0, 0.6], engine="batched", rtol=1e-8)
    assert [str(status) for status in run.status] == ["diverged", "diverged", "reached the horizon", "diverged"]
    poles = exp1(starts.ravel() ** 2) / 2
    assert np.allclose(run.end_times[[0, 1, 3]], poles[[0, 1, 3]], rtol=1e-6)


_QK = [[[-2.5, -11.5], [0.0, 4.5]], [[5.0, -2.5], [11.0, 9.5]], [[-1.0, -1.0], [5.0, -1.5]]]
_OV = [[[0.2, 1.2], [1.2, -0.5]], [[-0.5, -0.5], [0.0, 0.1]], [[-0.4, 0.8], [0.0, 0.0]]]


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["dopri5", "dop853"])
def test_a_token_that_falls_to_a_point_of_rest_faster_than_the_time_resolves_does_not_diverge(method: str) -> None:
    """It comes to rest at (2.112, −2.032): states stay bounded, and so is the field at them.

    The stages of the last step reach as far as their slopes are steep: at some tolerances exponentials overflow there.
    """
    flow = td.Flow(td.Attention(_QK, _OV, weights="exponential", causal=True), td.Free(), frozen=[0])
    for rtol in (1e-5, 5e-7, 1e-8):
        options: dict[str, Any] = {"rtol": rtol, "atol": 1e-12, "engine": "batched", "method": method}
        run = td.simulate(flow, [[-2.0, -1.4], [-0.7, 0.4]], [0.0, 0.76, 1.0], **options)
        assert str(run.status) == "step size underflow", rtol
        assert float(run.end_times) == pytest.approx(0.7615, abs=1e-4)
        assert np.abs(run.states).max() < 2.1


@pytest.mark.long
@pytest.mark.parametrize("begin", [0.3, 0.7])
@pytest.mark.parametrize("method", ["dopri5", "dop853"])
def test_matrices_that_are_no_numbers_from_a_time_on_are_not_finite(method: str, begin: float) -> None:
    broken = td.Attention(lambda t: [[np.nan if t > begin else -1.0]], [[1.0]], weights="exponential")
    run = td.simulate(td.Flow(broken, td.Free()), [[1.0]], [0.0, 1.0], engine="batched", method=method)
    assert str(run.status) == "not finite"
    assert float(run.end_times) == pytest.approx(begin, rel=1e-12)


def test_the_stiff_engine_leaves_poles_of_exponential_weights_to_others() -> None:
    """Its long steps may pass them, at states of a few units, and go on behind."""
    wanted = "expected 'batched', 'compiled', .* for exponential weights in a space where tokens can grow without end"
    with pytest.raises(ArgumentValueError, match=wanted):
        td.simulate(_alone(1.0), [[1.0]], [0.0, 1.0], engine="stiff")
    # Of itself a long run takes the stiff engine only where tokens are bounded.
    assert td.simulate(_alone(-1.0), [[1.0]], [0.0, 1e5], max_steps=50).engine == "batched"
    assert td.simulate(flow(), start(1), [0.0, 1e5]).engine == "stiff"
