"""Layers with any residual factor: the map itself, and deviations of tokens far below rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

import tokendynamics as td
from tokendynamics.numerics import ArgumentValueError


def drawn(
    seed: int, *, tokens: int = 5, dim: int = 3, heads: int = 2, strength: float = 0.5
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    qk, ov = strength * torch.randn(2, heads, dim, dim, dtype=torch.float64, generator=generator)
    return qk, ov, torch.randn(tokens, dim, dtype=torch.float64, generator=generator)


def by_digits(
    x: Any, qk: Any, ov: Any, layers: int, digits: int, *, causal: bool, residual: float, tau: float, metric: Any
) -> list[float]:
    """The log residuals of the map in numbers of that many digits, straight from its definition."""
    with mpmath.workdps(digits):
        state, (tokens, dim) = mpmath.matrix(x.tolist()), x.shape
        logs = []
        for layer in range(layers + 1):
            mean = [mpmath.fsum(state[:, a]) / tokens for a in range(dim)]
            squares = ((state[i, a] - mean[a]) ** 2 for i in range(tokens) for a in range(dim))
            logs.append(float(mpmath.log(mpmath.fsum(squares)) / 2))
            if layer == layers:
                break
            shifted = residual * state
            for circuit, values in zip(qk, ov, strict=True):
                logits = state * mpmath.matrix(circuit.tolist()) * state.T
                weights = mpmath.matrix(tokens, tokens)
                for i in range(tokens):
                    seen = range(i + 1) if causal else range(tokens)
                    total = mpmath.fsum(mpmath.exp(logits[i, j]) for j in seen)
                    for j in seen:
                        weights[i, j] = mpmath.exp(logits[i, j]) / total
                shifted += tau * weights * state * mpmath.matrix(values.tolist()).T
            if metric is not None:
                form = mpmath.matrix(metric.tolist())
                for i in range(tokens):
                    length = mpmath.sqrt((shifted[i, :] * form * shifted[i, :].T)[0])
                    for a in range(dim):
                        shifted[i, a] /= length
            state = shifted
        return logs


METRIC = torch.tensor([[2.0, 0.3, 0.0], [0.3, 1.0, -0.2], [0.0, -0.2, 0.7]], dtype=torch.float64)
SPACES = {"free": td.Free(), "sphere": td.Sphere(), "ellipsoid": td.Ellipsoid(METRIC)}
METRICS = {"free": None, "sphere": torch.eye(3).double(), "ellipsoid": METRIC}


@pytest.mark.few(6)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(("residual", "tau"), [(0.0, 1.0), (0.4, 0.6), (1.0, 0.5)])
def test_log_residuals_are_those_of_enough_digits(space: str, causal: bool, residual: float, tau: float) -> None:
    qk, ov, x = drawn(1)
    flow = td.Flow(td.Attention(qk, ov, causal=causal, normalization="plain"), SPACES[space])
    collapses = residual == 0 and not causal
    layers = 6 if collapses else 10
    run = td.simulate(flow, x, range(layers + 1), engine="layers", residual=residual, tau=tau)
    options = {"causal": causal, "residual": residual, "tau": tau, "metric": METRICS[space]}
    expected = by_digits(run.tensor[0], qk, ov, layers, 600 if collapses else 60, **options)
    np.testing.assert_allclose(run.log_residual, expected, rtol=1e-11, atol=1e-11)
    if collapses:
        assert run.log_residual[-1] < -300


@pytest.mark.slow
def test_two_tokens_on_a_line_follow_their_scalar_map_to_minus_ten_thousand() -> None:
    # With x = m ± d the weights of the first token are σ(2qd(m ± d)), and d' is d times their difference.
    q, v, m, d = 0.7, -0.9, 1.3, 0.4
    flow = td.Flow(td.Attention([[q]], [[v]]), td.Free())
    run = td.simulate(flow, [[m + d], [m - d]], range(10), engine="layers", residual=0.0)
    expected = []
    with mpmath.workdps(12_000):
        m, d = mpmath.mpf(float(run.tensor[0].mean())), mpmath.mpf(float(run.tensor[0, 0] - run.tensor[0, 1])) / 2
        for _ in range(10):
            expected.append(float(mpmath.log(abs(d)) + mpmath.log(2) / 2))
            first, second = (1 / (1 + mpmath.exp(-2 * q * d * (m + sign * d))) for sign in (1, -1))
            m, d = v * (m + d * (first + second - 1)), v * d * (first - second)
    assert expected[-1] < -10_000
    np.testing.assert_allclose(run.log_residual, expected, rtol=1e-13)


def test_a_collapse_is_followed_to_the_exponent_of_its_theory() -> None:
    qk, ov, x = drawn(1, heads=1)
    run = td.simulate(td.Flow(td.Attention(qk, ov), td.Free()), x, range(31), engine="layers", residual=0.0)
    logs = run.log_residual
    # log r' = 3 log r + a constant of the direction, which settles.
    ratios = logs[1:] / logs[:-1]
    assert logs[-1] < -1e12
    np.testing.assert_allclose(ratios[-10:], 3.0, atol=1e-3)
    assert bool((run.tensor[-1] == run.tensor[-1][0]).all())


def test_far_apart_tokens_are_those_of_the_plain_map() -> None:
    qk, ov, x = drawn(5)
    for space in SPACES.values():
        flow = td.Flow(td.Attention(qk, ov, causal=True), space)
        state, run = space.project(x), td.simulate(flow, x, [0, 1, 2, 3], engine="layers", residual=0.3, tau=0.8)
        for k in range(3):
            state = flow.step(state, k, tau=0.8, residual=0.3)
            torch.testing.assert_close(run.tensor[k + 1], state, rtol=1e-13, atol=1e-13)


def test_nearly_equal_tokens_are_those_of_the_plain_map_to_rounding() -> None:
    qk, ov, x = drawn(6)
    close = x[:1] + 1e-5 * x
    flow = td.Flow(td.Attention(qk, ov, causal=True), td.Sphere())
    run = td.simulate(flow, close, range(4), engine="layers")
    state = td.Sphere().project(close)
    for k in range(3):
        state = flow.step(state, k)
        torch.testing.assert_close(run.tensor[k + 1], state, rtol=1e-14, atol=1e-14)


def test_a_step_without_residual_is_the_attention_and_keeps_the_share_that_it_is_told() -> None:
    qk, ov, x = drawn(7, heads=1)
    flow = td.Flow(td.Attention(qk, ov), td.Free())
    attended = flow.velocity(x)
    torch.testing.assert_close(flow.step(x, residual=0.0), attended, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(flow.step(x, tau=0.3, residual=0.7), 0.7 * x + 0.3 * attended, rtol=1e-14, atol=1e-14)
    # The root mean square 1 of a norm is the ellipsoid of metric I/dim.
    rms = td.Flow(td.Attention(qk, ov, normalization="plain"), td.Ellipsoid(torch.eye(3).double() / 3))
    torch.testing.assert_close(
        rms.step(x, residual=0.0).square().mean(dim=-1), torch.ones(5).double(), rtol=1e-14, atol=0.0
    )


@pytest.mark.parametrize("space", ["free", "ellipsoid"])
def test_a_run_continues_below_rounding_and_from_a_file(tmp_path: Path, space: str) -> None:
    qk, ov, x = drawn(1)
    flow = td.Flow(td.Attention(qk, ov), SPACES[space])
    starts = torch.stack([x, 2 * x, x.flip(0) + 1])
    options: dict[str, Any] = {"engine": "layers", "residual": 0.0}
    whole = td.simulate(flow, starts, range(10), **options)
    half = td.simulate(flow, starts, range(6), **options)
    for before in (half, td.Trajectory.open(half.save(tmp_path / "half.zarr"))):
        rest = td.simulate(flow, before, range(6, 10), **options)
        np.testing.assert_array_equal(rest.log_residual, whole.log_residual[:, 6:])
        np.testing.assert_array_equal(rest.tensor.numpy(), whole.tensor[:, 6:].numpy())
    assert whole.dataset["log_residual"].dims == ("system", "time")
    assert half.parameters["residual"] == 0.0


def test_systems_that_ended_are_held_with_their_deviations() -> None:
    qk, ov, x = drawn(2, heads=1)
    flow = td.Flow(td.Attention(qk, ov), td.Free())
    starts = torch.stack([x, 0.01 * x])
    events = [td.dynamics.events.Consensus(1e-6)]
    options: dict[str, Any] = {"engine": "layers", "residual": 0.0, "events": events}
    whole = td.simulate(flow, starts, range(9), **options)
    assert (whole.status == "consensus").all()
    first, second = (int(end) for end in whole.end_times)
    assert second < first
    logs = whole.log_residual
    np.testing.assert_array_equal(logs[1, second:], logs[1, second])
    begun = td.simulate(flow, starts, range(second + 1), **options)
    rest = td.simulate(flow, begun, range(second, 9), **options)
    np.testing.assert_array_equal(rest.log_residual, logs[:, second:])


def test_other_weights_and_gradients_have_the_residual_of_their_states() -> None:
    qk, ov, x = drawn(4)
    linear = td.Flow(td.Attention(qk, ov, weights="linear"), td.Sphere())
    run = td.simulate(linear, x, range(4), engine="layers", residual=0.0)
    assert run.deviations is None
    spread = run.tensor - run.tensor.mean(dim=-2, keepdim=True)
    np.testing.assert_allclose(run.log_residual, spread.flatten(-2).norm(dim=-1).log(), rtol=1e-12)
    asked = x.clone().requires_grad_()
    flow = td.Flow(td.Attention(qk, ov), td.Sphere())
    td.simulate(flow, asked, [0, 2], engine="layers", residual=0.0).states[-1].sum().backward()
    assert asked.grad is not None
    assert float(asked.grad.abs().max()) > 0


def test_equal_tokens_have_residual_zero_and_stay_equal() -> None:
    qk, ov, x = drawn(4)
    run = td.simulate(td.Flow(td.Attention(qk, ov), td.Free()), x[:1].expand(4, -1), range(4), engine="layers")
    assert (run.log_residual == -np.inf).all()
    # A center of many equal tokens can differ from them by a unit in the last place.
    assert float((run.tensor - run.tensor[:, :1]).abs().max()) <= 1e-15 * float(run.tensor.abs().max())


def test_layers_that_are_no_steps_of_the_flow_are_not_judged_as_such() -> None:
    qk, _, x = drawn(4, heads=1)
    flow = td.Flow(td.Attention(qk, torch.eye(3).double()), td.Sphere())
    start = x.abs()
    plain, bare = (td.simulate(flow, start, range(20), engine="layers", residual=value) for value in (1.0, 0.0))
    assert {one.statement for one in td.certify(plain)} >= {"asymptotic-4.1"}
    assert td.certify(bare) == []
    assert "residual connection" in " ".join(bare.notes)
    assert plain.notes == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "layers", "residual": -0.1}, r"residual: expected a finite number of at least 0, got -0\.1"),
        ({"engine": "layers", "residual": float("nan")}, r"residual: expected a finite number of at least 0, got nan"),
        ({"engine": "layers", "residual": float("inf")}, r"residual: expected a finite number of at least 0, got inf"),
        ({"residual": 0.0}, r"engine: expected 'layers' where residual is given, got 'auto'"),
        ({"engine": "stiff", "residual": 1.0}, r"engine: expected 'layers' where residual is given, got 'stiff'"),
    ],
)
def test_residuals_that_mean_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    qk, ov, x = drawn(4)
    flow = td.Flow(td.Attention(qk, ov), td.Free())
    with pytest.raises(ArgumentValueError, match=message):
        td.simulate(flow, x, [0, 1], **options)
    with pytest.raises(ArgumentValueError, match="residual: expected a finite number"):
        flow.step(x, residual=-1.0)
