"""Tokens with a radius and a direction, under every scheme of normalization."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad, solve_ivp
from torch import Tensor

import tokendynamics as td
from tokendynamics import specification
from tokendynamics.dynamics.engines.table import UnsuitableEngineError
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.specification import parse
from tokendynamics.specification.build import build
from tokendynamics.sweeps import parse_plan
from tokendynamics.sweeps._store import own_versions
from tokendynamics.sweeps.systems.measures import STATUSES
from tokendynamics.sweeps.systems.running import run_task

IDENTITY = np.eye(3)
TIGHT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
SWITCH = 1.3
SPACES: dict[str, td.Normalized] = {
    "post": td.Normalized("post"),
    "pre": td.Normalized("pre"),
    "mix": td.Normalized("mix", switch=SWITCH),
    "peri": td.Normalized("peri"),
    "ngpt": td.Normalized("ngpt", rate=0.7),
    "ngpt over time": td.Normalized("ngpt", rate=lambda t: 1 / (1 + t) ** 2),
    "scaled": td.Normalized("scaled"),
}
WITH_RADIUS = ("pre", "mix", "peri")
TIMES = np.array([0.0, 0.5, 1.0, 2.0, 3.5])


def drawn(systems: int = 4, tokens: int = 5, seed: int = 3) -> tuple[dict[str, Any], Tensor]:
    rng = np.random.default_rng(seed)
    parts = {"qk": rng.normal(size=(2, 3, 3)), "ov": IDENTITY + 0.3 * rng.normal(size=(2, 3, 3))}
    return parts, torch.from_numpy(rng.normal(size=(systems, tokens, 3)))


def flow_of(scheme: str, parts: dict[str, Any] | None = None, **options: Any) -> td.Flow:
    return td.Flow(td.Attention(**(parts or {"qk": IDENTITY, "ov": IDENTITY}), **options), SPACES[scheme])


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def attention_by_hand(parts: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Σ_h ov_h Σ_j w_ij u_j of one system, token by token, at the directions u."""
    u, out = unit(x), np.zeros_like(x)
    for i in range(len(x)):
        for qk, ov in zip(parts["qk"], parts["ov"], strict=True):
            weights = np.exp([u[i] @ qk @ u[j] for j in range(len(x))])
            out[i] += ov @ (weights @ u / weights.sum())
    return out


def velocity_by_hand(scheme: str, parts: dict[str, Any], x: np.ndarray, t: float) -> np.ndarray:
    """The field as a radius and a direction: x' = r' u + r u'."""
    radius, u, pull = np.linalg.norm(x, axis=-1, keepdims=True), unit(x), attention_by_hand(parts, x)
    along, size = (u * pull).sum(-1, keepdims=True), np.linalg.norm(pull, axis=-1, keepdims=True)
    turning = pull - along * u
    after = scheme == "mix" and t >= SWITCH
    slowness = {"pre": radius, "peri": radius * size, "ngpt": size / 0.7, "scaled": np.sqrt(1 + t)}.get(scheme, 1.0)
    if scheme == "ngpt over time":
        slowness = size * (1 + t) ** 2
    if scheme not in WITH_RADIUS:
        radius = 1.0
    growth = along / size if scheme == "peri" else along if scheme == "pre" or after else 0.0
    return growth * u + radius * turning / (radius if after else slowness)


@pytest.mark.parametrize("scheme", SPACES)
@pytest.mark.parametrize("t", [0.4, 2.9])
def test_the_field_is_that_of_a_radius_and_a_direction(scheme: str, t: float) -> None:
    parts, x = drawn()
    velocity = flow_of(scheme, parts).velocity(x, t)
    expected = np.stack([velocity_by_hand(scheme, parts, one, t) for one in x.numpy()])
    np.testing.assert_allclose(velocity, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("scheme", SPACES)
def test_at_constant_radius_directions_move_as_on_the_sphere_at_another_speed(scheme: str) -> None:
    """P x' / r is the sphere's velocity over s: 1, r, 1 or r, r |A|, |A| / α, √(1 + t)."""
    parts, x = drawn()
    t, radius = 0.8, 2.5
    states = torch.as_tensor(td.Normalized("pre").at_radius(x, radius))
    sphere = td.Flow(td.Attention(**parts, normalization="plain"), td.Sphere()).velocity(x)
    u = torch.from_numpy(unit(x.numpy()))
    velocity = flow_of(scheme, parts).velocity(states, t)
    turning = velocity - (velocity * u).sum(-1, keepdim=True) * u
    size = torch.from_numpy(np.stack([attention_by_hand(parts, one) for one in x.numpy()])).norm(dim=-1, keepdim=True)
    slowness = {"pre": radius, "peri": radius * size, "ngpt": size / 0.7, "scaled": 1.8**0.5}.get(scheme, 1.0)
    if scheme == "ngpt over time":
        slowness = size * 1.8**2
    length = radius if scheme in WITH_RADIUS else 1.0
    torch.testing.assert_close(turning / length * slowness, sphere, rtol=1e-11, atol=1e-12)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff", "layers"])
def test_a_norm_after_each_layer_is_the_sphere_to_the_last_digit(engine: Any) -> None:
    parts, x = drawn()
    attention = td.Attention(**parts, normalization="plain")
    times = [0, 1, 5] if engine == "layers" else TIMES
    runs = [td.simulate(td.Flow(attention, space), x, times, engine=engine) for space in (td.Sphere(), SPACES["post"])]
    assert torch.equal(runs[0].tensor, runs[1].tensor)


@pytest.mark.parametrize("scheme", WITH_RADIUS)
def test_the_radius_of_equal_tokens_grows_linearly(scheme: str) -> None:
    """A = c u for ov of sum c·I, so that r' = c, or 1 where the output is normalized."""
    parts = {"qk": np.stack([IDENTITY, -IDENTITY]), "ov": np.stack([0.5 * IDENTITY, 0.25 * IDENTITY])}
    start = np.tile(2 * unit(np.array([1.0, -2.0, 0.5])), (4, 1))
    speed = 1.0 if scheme == "peri" else 0.75
    run = td.simulate(flow_of(scheme, parts), start, TIMES, **TIGHT)
    after = TIMES.clip(min=SWITCH) - SWITCH if scheme == "mix" else TIMES
    expected = np.broadcast_to(2 + speed * after[:, None], (len(TIMES), 4))
    np.testing.assert_allclose(run.tensor.norm(dim=-1), expected, rtol=1e-9)
    layers = td.simulate(flow_of(scheme, parts), start, [0, 1, 2, 6], engine="layers", tau=0.1)
    counted = np.array([0.0, 1.0, 2.0, 6.0])
    if scheme == "mix":
        counted = (counted - 2).clip(min=0)  # layers 0 and 1 begin before the switch
    np.testing.assert_allclose(layers.tensor.norm(dim=-1)[:, 0], 2 + 0.1 * speed * counted, rtol=1e-14)


def scalar_equations(scheme: str, tokens: int, beta: float) -> Callable[[float, np.ndarray], list[float]]:
    """The common cosine γ and radius r of tokens at equal angles: two equations in two unknowns."""

    def slope(t: float, state: np.ndarray) -> list[float]:
        gamma, radius = state
        total = np.exp(beta) + (tokens - 1) * np.exp(beta * gamma)
        direct, other = np.exp(beta) / total, np.exp(beta * gamma) / total
        along = direct + (tokens - 1) * other * gamma
        square = direct**2 + (tokens - 1) * other**2 + 2 * (tokens - 1) * direct * other * gamma
        square += (tokens - 1) * (tokens - 2) * other**2 * gamma
        size, late = np.sqrt(square), t >= SWITCH
        slowness = {"pre": radius, "peri": radius * size, "ngpt": size / 0.7, "scaled": np.sqrt(1 + t)}.get(scheme, 1.0)
        if scheme == "mix" and late:
            slowness = radius
        if scheme == "ngpt over time":
            slowness = size * (1 + t) ** 2
        growth = {"pre": along, "peri": along / size, "mix": along * late}.get(scheme, 0.0)
        return [2 * other * (1 - gamma) * ((tokens - 1) * gamma + 1) / slowness, growth]

    return slope


@pytest.mark.parametrize("scheme", SPACES)
def test_tokens_at_equal_angles_follow_two_equations(scheme: str) -> None:
    tokens, beta, radius = 4, 1.7, 1.6 if scheme in WITH_RADIUS else 1.0
    start = radius * np.eye(tokens)
    attention = td.Attention(beta * np.eye(tokens), np.eye(tokens), normalization="plain")
    run = td.simulate(td.Flow(attention, SPACES[scheme]), start, TIMES, **TIGHT)
    directions = torch.from_numpy(unit(run.tensor.numpy()))
    cosines = (directions @ directions.mT)[:, 0, 1]
    lengths = run.tensor.norm(dim=-1)[:, 0]
    state, kept = np.array([0.0, radius]), [(0.0, radius)]
    for left, right in pairwise(TIMES):  # no step passes the switch
        for end in sorted({SWITCH, right} if left < SWITCH < right else {right}):
            begin = SWITCH if end == right and left < SWITCH < right else left
            solution = solve_ivp(
                scalar_equations(scheme, tokens, beta),
                (begin, np.nextafter(end, begin)),
                state,
                rtol=1e-11,
                atol=1e-13,
            )
            state = solution.y[:, -1]
        kept.append(tuple(state))
    np.testing.assert_allclose(np.stack([cosines, lengths], axis=-1), kept, rtol=1e-8, atol=1e-9)


@pytest.mark.long
def test_a_rate_over_time_is_a_change_of_time() -> None:
    parts, x = drawn()
    passed = [quad(lambda t: 1 / (1 + t) ** 2, 0, end)[0] for end in TIMES]
    slowed = td.simulate(flow_of("ngpt over time", parts), x, TIMES, **TIGHT)
    steady = td.simulate(td.Flow(td.Attention(**parts), td.Normalized("ngpt")), x, passed, **TIGHT)
    torch.testing.assert_close(slowed.tensor, steady.tensor, rtol=0, atol=1e-8)
    sphere = td.Flow(td.Attention(**parts, normalization="plain"), td.Sphere())
    scaled = td.simulate(flow_of("scaled", parts), x, TIMES, **TIGHT)
    other = td.simulate(sphere, x, 2 * np.sqrt(1 + TIMES) - 2, **TIGHT)
    torch.testing.assert_close(scaled.tensor, other.tensor, rtol=0, atol=1e-8)


@pytest.mark.long
def test_a_switch_is_one_run_after_the_other() -> None:
    parts, x = drawn()
    once = td.simulate(flow_of("mix", parts), x, [0.0, SWITCH, 3.0], **TIGHT)
    post = td.simulate(flow_of("post", parts), x, [0.0, SWITCH], **TIGHT)
    radius = x.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(once.tensor[:, 1], radius * post.tensor[:, 1], rtol=0, atol=1e-8)
    pre = td.simulate(flow_of("pre", parts), once.tensor[:, 1], [0.0, 3.0 - SWITCH], **TIGHT)
    torch.testing.assert_close(once.tensor[:, 2], pre.tensor[:, 1], rtol=0, atol=1e-8)
    late = td.simulate(flow_of("mix", parts), x, [SWITCH, 2.0], **TIGHT)
    torch.testing.assert_close(
        late.tensor, td.simulate(flow_of("pre", parts), x, [0.0, 2.0 - SWITCH], **TIGHT).tensor, rtol=0, atol=1e-9
    )


@pytest.mark.long
@pytest.mark.few(8)
@pytest.mark.parametrize("options", [{}, {"step": 0.1}, {"engine": "layers", "tau": 0.2}], ids=str)
@pytest.mark.parametrize("scheme", SPACES)
def test_a_batch_is_each_alone(scheme: str, options: dict[str, Any]) -> None:
    parts, x = drawn()
    times = [0, 1, 2, 3] if "engine" in options else TIMES
    flow = flow_of(scheme, parts)
    together = td.simulate(flow, x, times, **options)
    alone = torch.stack([td.simulate(flow, one, times, **options).tensor for one in x])
    torch.testing.assert_close(together.tensor, alone, rtol=1e-12, atol=1e-12)


@pytest.mark.long
@pytest.mark.few(8)
@pytest.mark.parametrize("options", [TIGHT, {"step": 0.1}, {"engine": "layers", "tau": 0.2}], ids=str)
@pytest.mark.parametrize("scheme", SPACES)
def test_rotated_tokens_stay_rotated(scheme: str, options: dict[str, Any]) -> None:
    parts, x = drawn()
    turn = torch.linalg.qr(torch.from_numpy(np.random.default_rng(0).normal(size=(3, 3)))).Q
    turned = {name: turn.numpy() @ part @ turn.numpy().T for name, part in parts.items()}
    times = [0, 1, 2, 3] if "engine" in options else TIMES
    straight = td.simulate(flow_of(scheme, parts), x, times, **options).tensor
    rotated = td.simulate(flow_of(scheme, turned), x @ turn.mT, times, **options).tensor
    torch.testing.assert_close(rotated, straight @ turn.mT, rtol=0, atol=1e-8 if "rtol" in options else 1e-12)


@pytest.mark.parametrize("scheme", SPACES)
@pytest.mark.parametrize("residual", [1.0, 0.6])
def test_a_layer_is_that_of_a_network(scheme: str, residual: float) -> None:
    parts, x = drawn(systems=1)
    states, tau, k = x[0].numpy(), 0.3, 1
    pull = attention_by_hand(parts, states)
    if scheme in ("post", "ngpt", "ngpt over time", "scaled"):
        states = unit(states)
    added = {"peri": unit(pull), "ngpt": 0.7 * unit(pull), "ngpt over time": unit(pull) / 4, "scaled": pull / 2**0.5}
    after = residual * states + tau * added.get(scheme, pull)
    if scheme not in WITH_RADIUS:
        after = unit(after)
    if scheme == "mix":  # layer 1 begins before the switch
        after = np.linalg.norm(states, axis=-1, keepdims=True) * unit(residual * unit(states) + tau * pull)
    np.testing.assert_allclose(flow_of(scheme, parts).step(x[0], k, tau, residual), after, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("scheme", SPACES)
def test_a_layer_is_a_step_of_the_flow(scheme: str) -> None:
    parts, x = drawn()
    flow, errors = flow_of(scheme, parts), []
    for tau in (0.02, 0.01):
        exact = td.simulate(flow, x, [0.0, tau], **TIGHT).tensor[:, 1]
        errors.append(float((flow.step(flow.space.project(x), 0, tau) - exact).abs().max()))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("scheme", SPACES)
def test_masks_frozen_tokens_positions_and_schedules_are_those_of_attention(scheme: str) -> None:
    """The field is a function of what attention carries, whatever attention is: asked of the sphere's by hand."""
    parts, x = drawn(systems=2)
    mask = np.tril(np.ones((5, 5), dtype=bool)) | np.eye(5, k=2, dtype=bool)
    options: dict[str, Any] = {
        "mask": mask,
        "positions": td.AbsolutePositions(0.1 * np.arange(15.0).reshape(5, 3)),
        "normalization": "plain",
    }
    qk = td.Sinusoidal(parts["qk"][0], 1.0, 2.0, 0.3)
    attention = td.Attention(qk, parts["ov"][0], **options)
    t = 0.9
    u = torch.from_numpy(unit(x.numpy()))
    pull = td.Flow(attention, td.Free()).velocity(u, t)
    flow = td.Flow(attention, SPACES[scheme], frozen=[1])
    start = torch.as_tensor(flow.space.project(x))
    velocity = flow.velocity(start, t)
    assert float(velocity[:, 1].abs().max()) == 0.0
    size, radius = pull.norm(dim=-1, keepdim=True), x.norm(dim=-1, keepdim=True)
    turning = pull - (u * pull).sum(-1, keepdim=True) * u
    expected = {
        "post": turning,
        "pre": pull,
        "mix": radius * turning,
        "peri": pull / size,
        "ngpt": 0.7 * turning / size,
        "ngpt over time": turning / size / 1.9**2,
        "scaled": turning / 1.9**0.5,
    }[scheme]
    moving = [0, 2, 3, 4]
    torch.testing.assert_close(velocity[:, moving], expected[:, moving], rtol=1e-11, atol=1e-12)
    run = td.simulate(flow, start, TIMES)
    assert torch.equal(run.tensor[:, :, 1], start[:, 1].unsqueeze(1).expand(-1, len(TIMES), -1))


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("scheme", SPACES)
def test_few_tokens_in_many_dimensions_are_run_in_their_span(scheme: str) -> None:
    rng = np.random.default_rng(2)
    attention = td.Attention(rng.normal(size=(12, 12)) / 3, np.eye(12), normalization="plain")
    flow, start = td.Flow(attention, SPACES[scheme]), rng.normal(size=(4, 12))
    run = td.simulate(flow, start, TIMES, **TIGHT)
    assert any("span reduction" in note for note in run.notes)
    plain = td.simulate(flow, start, TIMES, step=0.02)
    torch.testing.assert_close(run.tensor, plain.tensor, rtol=0, atol=1e-8)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("options", [{}, {"rtol": 1e-12, "atol": 1e-12}, {"rtol": 1e-4, "atol": 1e-5}], ids=str)
def test_a_radius_that_reaches_zero_is_a_status(options: dict[str, Any]) -> None:
    """Two opposite tokens that repel each other: r' = −tanh β up to t = coth β. Another system goes on."""
    beta = -2.0
    flow = td.Flow(td.Attention(beta * IDENTITY, IDENTITY), td.Normalized("pre"))
    opposite = np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    gathered = np.array([[1.0, 0.0, 0.0], [0.9, 0.1, 0.0]])
    run = td.simulate(flow, np.stack([opposite, gathered]), [0.0, 0.5, 4.0], **options)
    assert list(run.status) == ["radius reached zero", "reached the horizon"]
    least = max(1e-8, 100 * options.get("atol", 1e-10))
    assert run.end_times[0] == pytest.approx((1 - least) / np.tanh(2), rel=1e-4 if "rtol" in options else 1e-9)
    assert float(run.tensor[0, 1, 0, 0]) == pytest.approx(1 - 0.5 * np.tanh(2), rel=1e-8)
    alone = td.simulate(flow, gathered, [0.0, 0.5, 4.0], **options)
    torch.testing.assert_close(run.tensor[1], alone.tensor, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("step", [0.05, 0.011])
def test_a_fixed_step_over_zero_is_a_status(step: float) -> None:
    flow = td.Flow(td.Attention(-2 * IDENTITY, IDENTITY), td.Normalized("pre"))
    run = td.simulate(flow, np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]), [0.0, 0.5, 4.0], step=step)
    assert str(run.status) == "radius reached zero"
    assert 0 <= float(run.end_times) - 1 / np.tanh(2) <= step


def test_a_layer_that_lands_on_zero_is_a_status() -> None:
    flow = td.Flow(td.Attention(0 * IDENTITY, -IDENTITY), td.Normalized("pre"))
    run = td.simulate(flow, np.tile([2.0, 0.0, 0.0], (3, 1)), [0, 1, 2, 3], engine="layers")
    assert (str(run.status), float(run.end_times)) == ("radius reached zero", 2.0)
    over = td.simulate(flow, np.tile([1.5, 0.0, 0.0], (3, 1)), [0, 1, 2, 3], engine="layers")
    np.testing.assert_array_equal(over.tensor[:, 0, 0], [1.5, 0.5, -0.5, 0.5])


@pytest.mark.parametrize("method", ["dopri5", "dop853", "bosh3"])
@pytest.mark.parametrize("dim", [1, 3])
def test_a_token_that_no_other_sees_passes_zero_with_a_status(method: str, dim: int) -> None:
    """A frozen token repels it, so that x' = −u along one line: nothing bends at zero, and steps are long there."""
    mask = [[True, False], [True, False]]
    attention = td.Attention(0 * np.eye(dim), -np.eye(dim), mask=mask)
    flow = td.Flow(attention, td.Normalized("pre"), frozen=[0])
    line = np.full(dim, dim**-0.5)
    start = np.stack([np.stack([line, radius * line]) for radius in (2.0, 3.7, 50.0)])
    run = td.simulate(flow, start, [0.0, 1.0, 10.0], method=method)
    assert list(run.status) == ["radius reached zero", "radius reached zero", "reached the horizon"]
    np.testing.assert_allclose(run.end_times, [2.0 - 1e-8, 3.7 - 1e-8, 10.0], rtol=1e-9)
    np.testing.assert_allclose(run.tensor[:2, -1, 1].norm(dim=-1), 1e-8, rtol=1e-3)


def test_a_token_that_turns_round_before_zero_goes_on() -> None:
    """Radius 1.5 − sin t along a line, and past zero and back within a step where it is 0.99 − sin t."""
    attention = td.Attention([[0.0]], td.Sinusoidal([[-1.0]], 1.0, 1.0, np.pi / 2), mask=[[True, False], [True, False]])
    flow = td.Flow(attention, td.Normalized("pre"), frozen=[0])
    run = td.simulate(flow, [[[1.0], [1.5]], [[1.0], [0.99]]], [0.0, 20.0], rtol=1e-3, method="dop853")
    assert list(run.status) == ["reached the horizon", "radius reached zero"]
    assert float(run.end_times[1]) == pytest.approx(np.arcsin(0.99), abs=1e-3)


@pytest.mark.parametrize("method", ["dopri5", "dop853"])
def test_a_field_that_is_not_finite_at_the_start_asks_no_function_at_nan(method: str) -> None:
    asked = []

    def gate(t: float) -> np.ndarray:
        asked.append(t)
        return np.eye(3)

    flow = td.Flow(td.Attention(gate, IDENTITY), td.Normalized("scaled"))
    run = td.simulate(flow, np.tile(np.eye(3), (2, 1, 1)), [-1.0, 1.0], method=method)
    assert list(run.status) == ["not finite", "not finite"]
    assert np.isfinite(asked).all()


def test_an_output_of_length_zero_has_no_direction() -> None:
    flow = td.Flow(td.Attention(0 * IDENTITY, IDENTITY), td.Normalized("peri"))
    run = td.simulate(flow, np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]), [0.0, 1.0])
    assert str(run.status) == "not finite"


def test_events_see_the_tokens() -> None:
    flow = flow_of("pre")
    start = np.tile([2.0, 0.0, 0.0], (3, 1))
    run = td.simulate(flow, start, [0.0, 9.0], events=[td.events.NormAbove(5.0)])
    assert (str(run.status), float(run.end_times)) == ("diverged", pytest.approx(3.0))
    rest = [td.events.AtRest(1e-6)]
    still = td.simulate(flow_of("scaled"), start, [0.0, 9.0], events=rest)
    assert str(still.status) == "reached the horizon"
    assert any("AtRest" in note for note in still.notes)
    assert str(td.simulate(flow_of("ngpt"), start, [0.0, 9.0], events=rest).status) == "equilibrium"


@pytest.mark.long
def test_gradients_pass_through() -> None:
    parts, x = drawn(systems=1, tokens=3)
    for scheme in SPACES:
        flow = flow_of(scheme, parts)

        def end(start: Tensor, flow: td.Flow = flow) -> Tensor:
            return td.simulate(flow, start, [0.0, 0.4], step=0.1).tensor[:, -1].square().sum() + start.sum() * 0

        start, way = x.clone().requires_grad_(), torch.from_numpy(np.random.default_rng(1).normal(size=x.shape))
        weight = torch.from_numpy(np.random.default_rng(4).normal(size=x.shape))
        run = td.simulate(flow, start, [0.0, 0.4], step=0.1).tensor[:, -1]
        (slope,) = torch.autograd.grad((weight * run).sum(), start)
        h = 1e-5
        ends = [td.simulate(flow, x + sign * h * way, [0.0, 0.4], step=0.1).tensor[:, -1] for sign in (1, -1)]
        assert float((slope * way).sum()) == pytest.approx(
            float((weight * (ends[0] - ends[1])).sum()) / (2 * h), rel=1e-5, abs=1e-7
        )


def test_the_jacobian_is_the_slope_of_the_field() -> None:
    parts, x = drawn(systems=1, tokens=3)
    for scheme in SPACES:
        flow = flow_of(scheme, parts)
        start = torch.as_tensor(flow.space.project(x[0]))
        way = torch.from_numpy(np.random.default_rng(1).normal(size=start.shape))
        h = 1e-6
        slope = (flow.velocity(start + h * way, 0.3) - flow.velocity(start - h * way, 0.3)) / (2 * h)
        along = torch.einsum("iakb,kb->ia", flow.jacobian(start, 0.3), way)
        torch.testing.assert_close(along, slope, rtol=1e-6, atol=1e-7)


@pytest.mark.few(1)
@pytest.mark.parametrize("scheme", SPACES)
def test_a_stored_run_goes_on(scheme: str, tmp_path: Path) -> None:
    parts, x = drawn()
    flow = flow_of(scheme, parts)
    whole = td.simulate(flow, x, [0.0, 1.0, 3.0], **TIGHT)
    half = td.simulate(flow, x, [0.0, 1.0], **TIGHT)
    opened = td.Trajectory.open(half.save(tmp_path / "run.zarr"))
    if scheme == "ngpt over time":
        assert opened.flow is None
        return
    assert opened.flow is not None
    assert repr(opened.flow.space) == repr(flow.space)
    rest = td.simulate(opened.flow, opened, [3.0], **TIGHT)
    np.testing.assert_allclose(rest.tensor[:, -1], whole.tensor[:, -1], rtol=0, atol=1e-8)


SPECIFICATION = """
[attention]
qk = {{ identity = 2.0 }}
ov = "identity"

[space]
kind = "normalized"
{space}

[start]
law = "uniform"
tokens = 4
dim = 3
seed = 1

[time]
end = 3.0
points = 4
"""


@pytest.mark.parametrize(
    ("written", "space"),
    [
        ('scheme = "post"', td.Normalized("post")),
        ('scheme = "pre"\nradius = 2.5', td.Normalized("pre", radius=2.5)),
        ('scheme = "mix"\nswitch = 1.5', td.Normalized("mix", switch=1.5)),
        ('scheme = "peri"', td.Normalized("peri")),
        ('scheme = "ngpt"\nrate = 0.5', td.Normalized("ngpt", rate=0.5)),
        ('scheme = "scaled"', td.Normalized("scaled")),
    ],
)
def test_a_specification_has_the_scheme(written: str, space: td.Normalized) -> None:
    setup = build(parse(SPECIFICATION.format(space=written), "a.toml"))
    assert repr(setup.flow.space) == repr(space)
    np.testing.assert_allclose(setup.start.norm(dim=-1), space.radius, rtol=1e-14)
    run = td.simulate(setup.flow, setup.start, setup.times)
    by_hand = td.simulate(td.Flow(td.Attention(2 * IDENTITY, IDENTITY), space), setup.start, setup.times)
    assert torch.equal(run.tensor, by_hand.tensor)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ('scheme = "mix"', "space: switch: expected a time for 'mix'"),
        ('scheme = "pre"\nswitch = 1.0', "line 9: space.switch: expected a time for 'mix'"),
        ('scheme = "pre"\nrate = 1.0', "line 9: space.rate: expected none but for 'ngpt'"),
        ('scheme = "post"\nradius = 2.0', "line 9: space.radius: expected 1"),
        ('scheme = "layer"', "line 8: space.scheme: unknown name 'layer'"),
    ],
)
def test_a_specification_is_refused_at_its_line(written: str, message: str) -> None:
    with pytest.raises(specification.SpecificationError, match=message):
        build(parse(SPECIFICATION.format(space=written), "a.toml"))


def test_a_sweep_goes_over_schemes_and_rates() -> None:
    """Systems of different schemes or rates are no batch: each has the end of its own run."""
    text = SPECIFICATION.format(space='scheme = "ngpt"\nrate = 0.5').replace("seed = 1", "")
    sweep = """
[sweep]
seed = 7
draws = 2
task = 8
retry = "none"
measure = ["outcome", "log_norm", "mean_pair_cosine"]

[[sweep.axis]]
key = "space.rate"
values = [0.5, 1.0]
"""
    plan = parse_plan(text + sweep, "a.toml")
    (task,) = np.ndindex(*plan.tasks)
    stored = run_task(plan.text, plan.name, task, own_versions(), "compiled")
    assert (stored["status"] == STATUSES.index("reached the horizon")).all()
    assert stored["log_norm"] == pytest.approx(0.0, abs=1e-12)
    for index, rate in enumerate((0.5, 1.0)):
        setup = plan.setup(list(plan.blocks(task))[index])
        flow = td.Flow(td.Attention(2 * IDENTITY, IDENTITY), td.Normalized("ngpt", rate=rate))
        end = td.simulate(flow, setup.start, setup.times).tensor[:, -1]
        np.testing.assert_allclose(stored["mean_pair_cosine"][index], td.observables.mean_pair_cosine(end), rtol=1e-12)


def test_starts_have_the_radii_that_are_chosen() -> None:
    space = td.Normalized("peri", radius=3.0)
    np.testing.assert_allclose(space.sample(4, 3, seed=1).norm(dim=-1), 3.0, rtol=1e-14)
    x = td.Sphere().sample(4, 3, (2,), seed=1)
    radii = np.array([[1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]])
    start = space.at_radius(x, radii)
    np.testing.assert_allclose(start.norm(dim=-1), radii, rtol=1e-14)
    run = td.simulate(td.Flow(td.Attention(IDENTITY, IDENTITY), space), start, [0.0, 1.0])
    assert torch.equal(run.tensor[:, 0], start)


@pytest.mark.parametrize("engine", ["compiled", "stiff"])
@pytest.mark.parametrize("scheme", [one for one in SPACES if one != "post"])
def test_other_engines_say_which_have_it(engine: Any, scheme: str) -> None:
    parts, x = drawn()
    kind = UnsuitableEngineError if engine == "compiled" else ArgumentValueError
    norm = scheme.split()[0]
    with pytest.raises(
        kind, match=rf"'batched', 'layers' or 'fixed' \(by step=\) for tokens that are normalized by '{norm}'"
    ):
        td.simulate(flow_of(scheme, parts), x, [0.0, 1.0], engine=engine)


def test_the_rescaled_frame_is_that_of_free_space() -> None:
    with pytest.raises(ArgumentValueError, match="pre-norm"):
        td.simulate(flow_of("pre"), IDENTITY, [0.0, 1.0], frame="rescaled")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: td.Normalized("mix"), "switch: expected a time for 'mix'"),
        (lambda: td.Normalized("pre", switch=1.0), "switch: expected a time for 'mix'"),
        (lambda: td.Normalized("mix", switch=float("nan")), "switch: expected a finite number"),
        (lambda: td.Normalized("pre", rate=1.0), "rate: expected none but for 'ngpt'"),
        (lambda: td.Normalized("ngpt", rate=0.0), "rate: expected a positive finite number"),
        (lambda: td.Normalized("post", radius=2.0), "radius: expected 1, that of the sphere"),
        (lambda: td.Normalized("pre", radius=-1.0), "radius: expected a positive finite number"),
        (lambda: td.Normalized("pre").at_radius(IDENTITY, [1.0, 0.0, 1.0]), "radius: expected lengths above 0"),
        (lambda: td.Normalized("pre").at_radius(IDENTITY, [1.0, 2.0]), "radius: expected a number, or shape"),
        (lambda: td.Normalized("pre").at_radius(0 * IDENTITY, 1.0), "x: expected tokens that are not zero"),
        (lambda: flow_of("pre").velocity(0 * IDENTITY), "x: expected tokens that are not zero"),
        (lambda: td.simulate(flow_of("peri"), 0 * IDENTITY, [0.0, 1.0]), "x0: expected tokens that are not zero"),
    ],
)
def test_wrong_arguments_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentValueError, match=message):
        make()


def test_wrong_kinds_are_named(unchecked: None) -> None:
    with pytest.raises(ArgumentValueError, match="scheme: expected 'post', 'pre', 'mix'"):
        td.Normalized("layer")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentTypeError, match="rate"):
        td.Normalized("ngpt", rate="fast")  # pyright: ignore[reportArgumentType]
    flow = td.Flow(td.Attention(IDENTITY, IDENTITY), td.Normalized("ngpt", rate=lambda t: "fast"))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentTypeError, match="rate: expected a function that returns a number"):
        flow.velocity(IDENTITY)
