"""A space, positions or a schedule of the user's own: only what its class says, and every engine that can runs it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

import tokendynamics as td
from tokendynamics.attention import Positions
from tokendynamics.attention.circuit_at_time import CircuitAtTime, Dense
from tokendynamics.attention.schedules import Schedule, Time
from tokendynamics.attention.schedules._schedule import Continuous
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError
from tokendynamics.spaces import Space

RNG = np.random.default_rng(8)
QK, OV = RNG.normal(size=(2, 4, 4)), RNG.normal(size=(2, 4, 4))
START = RNG.normal(size=(3, 5, 4))
TIMES = [0.0, 0.7, 2.0]
TOLERANCES = {"rtol": 1e-9, "atol": 1e-11}
"""Of both runs that are compared: their states may differ by some hundred times as much."""
CLOSE = {"rtol": 0.0, "atol": 1e-6}


class Round(Space):
    """The unit sphere, written anew with as little as possible."""

    name = "sphere"
    bounded = True

    def project(self, x: Any) -> Any:
        return x / x.norm(dim=-1, keepdim=True)

    def tangent(self, y: Any, vectors: Any) -> Any:
        return vectors - (y * vectors).sum(dim=-1, keepdim=True) * y


class Torus(Space):
    """Two circles: coordinates (0, 1) and (2, 3)."""

    name = "torus"
    bounded = True

    def project(self, x: Any) -> Any:
        pairs = x.unflatten(-1, (2, 2))
        return (pairs / pairs.norm(dim=-1, keepdim=True)).flatten(-2)

    def tangent(self, y: Any, vectors: Any) -> Any:
        circles, pairs = y.unflatten(-1, (2, 2)), vectors.unflatten(-1, (2, 2))
        return (pairs - (circles * pairs).sum(dim=-1, keepdim=True) * circles).flatten(-2)


class Cylinder(Space):
    """A circle in the first two coordinates, the others free."""

    name = "cylinder"

    def project(self, x: Any) -> Any:
        return torch.cat([x[..., :2] / x[..., :2].norm(dim=-1, keepdim=True), x[..., 2:]], dim=-1)

    def tangent(self, y: Any, vectors: Any) -> Any:
        around = torch.cat([y[..., :2], torch.zeros_like(y[..., 2:])], dim=-1)
        return vectors - (vectors * around).sum(dim=-1, keepdim=True) * around


@pytest.mark.parametrize("engine", ["auto", "batched", "fixed", "layers"])
def test_a_sphere_of_ones_own_is_the_sphere(engine: str) -> None:
    options: dict[str, Any] = {"step": 0.05} if engine == "fixed" else {} if engine == "layers" else TOLERANCES
    times = [0.0, 1.0, 3.0] if engine == "layers" else TIMES
    attention = td.Attention(QK, OV, causal=True, normalization="paper")
    direct, known = td.Flow(attention, Round()), td.Flow(attention, td.Sphere())
    np.testing.assert_allclose(direct.velocity(START), known.velocity(START), atol=1e-12)
    np.testing.assert_allclose(direct.step(START, tau=0.3), known.step(START, tau=0.3), atol=1e-12)
    first, second = (td.simulate(flow, START, times, engine=engine, **options) for flow in (direct, known))
    np.testing.assert_allclose(first.states, second.states, **CLOSE)
    assert first.status.tolist() == second.status.tolist()
    assert (
        direct.space.defect(first.states.astype(float) if isinstance(first.states, np.ndarray) else first.states)
        < 1e-14
    )


def test_what_is_known_of_the_sphere_is_not_said_of_a_space_that_shares_its_name() -> None:
    flow = td.Flow(td.Attention(QK[:1], np.eye(4), causal=True), Round())
    results = {result.statement: result for result in td.check(flow, START[0])}
    assert not any(result.applies for result in results.values())
    message = " ".join(results["asymptotic-4.1"].reasons)
    assert "the space is sphere, one of your own, of which nothing more is known" in message
    # The difference form and the reduction to a span are for quadrics.
    run = td.simulate(td.Flow(td.Attention(np.eye(40), np.eye(40)), Round()), RNG.normal(size=(3, 40)), TIMES)
    assert not any("span reduction" in note for note in run.notes)


def pairs_on_a_torus(x: np.ndarray) -> np.ndarray:
    """The right-hand side of two circles by angles, token by token."""
    y = x.reshape(-1, 4)
    pull = np.zeros_like(y)
    for q, v in zip(QK, OV, strict=True):
        for i, token in enumerate(y):
            logits = np.array([token @ q @ other for other in y[: i + 1]])
            weights = np.exp(logits - logits.max())
            pull[i] += v @ (weights / weights.sum() @ y[: i + 1])
    for i, token in enumerate(y):
        for circle in (slice(0, 2), slice(2, 4)):
            around = np.array([-token[circle][1], token[circle][0]])
            pull[i, circle] = around * (around @ pull[i, circle]) / (around @ around)
    return pull.reshape(-1)


@pytest.mark.long
def test_two_circles_agree_with_an_independent_solution() -> None:
    torus = Torus()
    flow = td.Flow(td.Attention(QK, OV, causal=True), torus)
    assert flow.normalization == "plain"
    run = td.simulate(flow, START[0], TIMES, **TOLERANCES)
    assert torus.defect(run.states) < 1e-14
    assert str(run.status) == "reached the horizon"
    start = torus.project(torch.from_numpy(START[0])).numpy().reshape(-1)
    result = solve_ivp(lambda t, x: pairs_on_a_torus(x), (0.0, 2.0), start, "DOP853", TIMES, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(run.states, result.y.T.reshape(3, 5, 4), **CLOSE)


@pytest.mark.long
def test_the_pair_of_order_8_keeps_its_order_in_a_space_of_ones_own() -> None:
    torus = Torus()
    flow = td.Flow(td.Attention(QK, OV, causal=True), torus)
    start = torus.project(torch.from_numpy(START[0])).numpy().reshape(-1)
    options = {"method": "DOP853", "rtol": 3e-14, "atol": 1e-15}
    exact = solve_ivp(lambda t, x: pairs_on_a_torus(x), (0.0, 0.5), start, **options).y[:, -1].reshape(5, 4)
    steps = np.array([16, 18, 20])
    runs = [td.simulate(flow, START[0], [0.0, 0.5], step=0.5 / count, method="dop853") for count in steps]
    errors = [np.linalg.norm(run.states[-1] - exact) for run in runs]
    assert errors[-1] > 3e-13, "lost in rounding: nothing is measured"
    assert np.polyfit(np.log(1 / steps), np.log(errors), 1)[0] == pytest.approx(8, abs=0.3)


@pytest.mark.long
def test_tokens_that_leave_along_a_cylinder_diverge() -> None:
    flow = td.Flow(td.Attention(0 * np.eye(4), 5 * np.eye(4)), Cylinder())
    run = td.simulate(flow, START[:2], [0.0, 1.0, 500.0], rtol=1e-3, atol=1e-3)
    assert run.status.tolist() == ["diverged", "diverged"]
    assert np.isfinite(run.states).all()
    np.testing.assert_allclose(np.linalg.norm(run.states[..., :2], axis=-1), 1.0, atol=1e-14)


def test_a_space_of_ones_own_is_saved_without_its_flow_and_drawn(tmp_path: Any) -> None:
    run = td.simulate(td.Flow(td.Attention(QK, OV), Round()), START[0], TIMES)
    run.save(tmp_path / "run.zarr")
    opened = td.Trajectory.open(tmp_path / "run.zarr")
    np.testing.assert_array_equal(opened.states, run.states)
    assert opened.flow is None
    with pytest.raises(ArgumentValueError, match="simulate it again"):
        td.certify(opened)
    assert td.figures.norms(run) is not None


@pytest.mark.parametrize("engine", ["stiff", "auto"])
def test_the_stiff_engine_needs_a_derivative_that_it_does_not_have(engine: str) -> None:
    flow = td.Flow(td.Attention(QK, OV), Round())
    if engine == "auto":
        assert td.simulate(flow, START[0], [0.0, 3e4], max_steps=50).engine == "batched"
        return
    with pytest.raises(
        ArgumentValueError, match=r"'batched', 'layers' or 'fixed' \(by step=\) for a space or positions of your own"
    ):
        td.simulate(flow, START[0], TIMES, engine="stiff")


class Flattening(Round):
    """Loses a coordinate."""

    def project(self, x: Any) -> Any:
        return x[..., :-1]


class Nowhere(Round):
    """No token has a point."""

    def project(self, x: Any) -> Any:
        return x * math.nan


class Vanishing(Round):
    """Its tangent is lost on the way."""

    def tangent(self, y: Any, vectors: Any) -> Any:
        return torch.where(y[..., :1] > 0.9, vectors * math.nan, vectors - (y * vectors).sum(-1, keepdim=True) * y)


@pytest.mark.usefixtures("unchecked")
def test_a_space_that_is_none_is_refused_by_name_and_one_that_breaks_ends_with_a_status() -> None:
    attention = td.Attention(QK, OV)
    with pytest.raises(ArgumentTypeError, match="or a space of your own, got"):
        td.Flow(attention, Round)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="space: expected"):
        td.Flow(attention, "sphere")  # type: ignore[arg-type]
    with pytest.raises(ArgumentValueError, match=r"sphere\.project\(x0\): expected a tensor of shape \(3, 5, 4\)"):
        td.simulate(td.Flow(attention, Flattening()), START, TIMES)
    with pytest.raises(
        ArgumentValueError, match="x0: expected tokens with a point of space sphere, got none for token 0"
    ):
        td.simulate(td.Flow(attention, Nowhere()), START, TIMES)
    towards = td.Attention(np.eye(4), np.diag([5.0, 0.0, 0.0, 0.0]))
    run = td.simulate(td.Flow(towards, Vanishing()), np.abs(START), [0.0, 50.0], max_steps=100)
    assert "not finite" in run.status.tolist()
    assert set(run.status.tolist()) <= {"not finite", "step budget spent"}
    assert np.isfinite(run.states).all()


class LinearBias(Positions):
    """``−slope · (i − j)`` added to the logits."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def extended(self, query: Tensor, key: Tensor, x: Tensor, t: Time) -> tuple[Tensor, Tensor]:
        i = torch.arange(x.shape[-2], dtype=x.dtype)[:, None]
        rows = torch.cat([-self.slope * i, torch.ones_like(i)], -1), torch.cat([torch.ones_like(i), self.slope * i], -1)
        first, second = (
            torch.cat([side, row.expand(*side.shape[:-1], 2)], -1) for side, row in zip((query, key), rows, strict=True)
        )
        return first, second


class Table(Positions):
    """A table added to the states, written anew."""

    changes_states, changes_logits = True, False

    def __init__(self, table: np.ndarray) -> None:
        self.table = torch.from_numpy(table)

    def read(self, x: Tensor) -> Tensor:
        return x + self.table.to(x)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("space", "systems"),
    [(td.Free(), 3), (td.Sphere(), 3), (td.Free(), 200), pytest.param(td.Sphere(), 200, marks=pytest.mark.slow)],
    ids=["free-3", "sphere-3", "free-200", "sphere-200"],
)
def test_a_table_of_ones_own_is_the_absolute_positions(space: Any, systems: int) -> None:
    table, start = RNG.normal(size=(5, 4)), np.random.default_rng(4).normal(size=(systems, 5, 4))
    # ov is a multiple of the identity: what attention averages is x + p, and no form for x alone may be taken.
    for ov in (-OV @ OV.swapaxes(-1, -2), np.stack([np.eye(4), -2 * np.eye(4)])):
        direct, known = (
            td.simulate(td.Flow(td.Attention(QK, ov, positions=entry), space), start, [0.0, 0.1], **TOLERANCES)
            for entry in (Table(table), td.AbsolutePositions(table))
        )
        np.testing.assert_allclose(direct.states, known.states, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("systems", [1, 200])
def test_linear_biases_enter_the_logits_of_every_form_of_the_field(systems: int) -> None:
    start = np.random.default_rng(5).normal(size=(systems, 5, 4))
    attention = td.Attention(QK, OV, causal=True, positions=LinearBias(0.7))
    logits = np.einsum("sia,hab,sjb->shij", start, QK, start) - 0.7 * (np.arange(5)[:, None] - np.arange(5))
    np.testing.assert_allclose(attention.logits(start), logits, atol=1e-12)
    weights = np.where(np.tri(5, dtype=bool), np.exp(logits), 0.0)
    weights /= weights.sum(axis=-1, keepdims=True)
    velocity = np.einsum("hab,shij,sjb->sia", OV, weights, start)
    flow = td.Flow(attention, td.Free())
    np.testing.assert_allclose(flow.velocity(start), velocity, atol=1e-11)
    run = td.simulate(flow, start, [0.0, 1e-4], step=1e-4, method="euler")
    np.testing.assert_allclose(run.states[:, -1], start + 1e-4 * velocity, atol=1e-12)


@pytest.mark.usefixtures("unchecked")
def test_positions_of_ones_own_are_not_mistaken_for_none(tmp_path: Any) -> None:
    flow = td.Flow(td.Attention(QK[:1, :, :], np.eye(4), causal=True, positions=LinearBias(0.7)), td.Sphere())
    # Remark 4.2 speaks of where tokens start, whatever moves them.
    assert {result.statement for result in td.check(flow, START[0]) if result.applies} == {"asymptotic-remark-4.2"}
    with pytest.raises(ArgumentValueError, match="positions of your own"):
        td.simulate(flow, START[0], TIMES, engine="stiff")
    wide = td.Attention(np.eye(40), np.eye(40), positions=LinearBias(0.7))
    run = td.simulate(td.Flow(wide, td.Sphere()), RNG.normal(size=(3, 40)), TIMES)
    assert not any("span reduction" in note for note in run.notes)
    run.save(tmp_path / "run.zarr")
    assert td.Trajectory.open(tmp_path / "run.zarr").flow is None
    with pytest.raises(ArgumentTypeError, match="positions: expected"):
        td.Attention(QK, OV, positions=object())  # type: ignore[arg-type]


class Decaying(Continuous):
    """``exp(−t)`` times a matrix."""

    constant, bounded, uniformly_continuous = False, True, True

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self.shape = tuple(matrix.shape)

    def matrix_at(self, t: float) -> Tensor:
        return math.exp(-t) * self.matrix

    def at(self, t: Time) -> CircuitAtTime:
        if not isinstance(t, Tensor) or not t.ndim:
            return Dense(self.matrix_at(float(t)))
        return Dense(torch.exp(-t).to(self.matrix)[:, None, None, None] * self.matrix)

    def flattened(self) -> Schedule:
        return self

    def select(self, systems: Tensor) -> Schedule:
        return self

    def to(self, *, dtype: torch.dtype, device: torch.device) -> Schedule:
        return Decaying(self.matrix.to(dtype=dtype, device=device))


@pytest.mark.parametrize("engine", ["batched", "stiff", "fixed"])
def test_a_schedule_of_ones_own_runs_in_every_engine(engine: str) -> None:
    # One token: dx/dt = e^(−t) ov x, so x = exp((1 − e^(−t)) ov) x0.
    ov = torch.from_numpy(RNG.normal(size=(1, 4, 4)))
    flow = td.Flow(td.Attention(np.zeros((4, 4)), Decaying(ov)), td.Free())
    options: dict[str, Any] = {"step": 0.01} if engine == "fixed" else {"engine": engine, **TOLERANCES}
    run = td.simulate(flow, START[:, :1], TIMES, **options)
    for k, t in enumerate(TIMES):
        wanted = START[:, :1] @ torch.linalg.matrix_exp((1 - math.exp(-t)) * ov[0]).T.numpy()
        np.testing.assert_allclose(run.states[:, k], wanted, rtol=1e-6, atol=1e-6)
