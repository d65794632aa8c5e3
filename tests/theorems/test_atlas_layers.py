"""Statements on layers: `rank` (with and without residual connection) and `hardmax` (a share of each token is kept)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tokendynamics as td
from tokendynamics.theorems.atlas._rank import cube

BARE: dict[str, Any] = {"engine": "layers", "residual": 0.0}


def drawn(seed: int, systems: int, tokens: int, dim: int, heads: int) -> tuple[td.Flow, Tensor]:
    """Systems whose logits and steps are small in some and large in others."""
    rng = np.random.default_rng(seed)
    sizes = [10 ** rng.uniform(low, 0.5, (systems, 1, 1, 1)) for low in (-1.5, -0.5, -1.5)]
    qk, ov = (size * rng.normal(size=(systems, heads, dim, dim)) for size in sizes[:2])
    start = sizes[2][:, 0] * rng.normal(size=(systems, tokens, dim))
    return td.Flow(td.Attention(qk, ov / dim**0.5), td.Free()), torch.from_numpy(start)


SHAPES = [(5, 3, 2), (3, 6, 3), (12, 8, 1), (2, 1, 1)]


def outcomes(run: td.Trajectory, name: str) -> np.ndarray:
    (certificate,) = td.certify(run, [name])
    return certificate.outcomes


@pytest.mark.parametrize("tau", [1.0, 0.3])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("times", [range(8), [0, 1, 3, 6, 7]])
def test_no_layers_without_residual_contradict_the_collapse(
    shape: tuple[int, int, int], times: Any, tau: float
) -> None:
    flow, start = drawn(1, 25, *shape)
    (check,) = td.check(flow, start, statements=["rank-collapse"])
    assert check.applies_to.sum() > 5
    run = td.simulate(flow, start, times, tau=tau, **BARE)
    assert (outcomes(run, "rank-collapse") == "holds").all()
    # K D² < 1 is what makes it a collapse.
    inside = run.log_residual[np.asarray(check.applies_to)]
    assert (inside[:, -1] < inside[:, 0] - 10).mean() > 0.5


def test_periodic_layers_have_the_bound_of_their_largest_matrices() -> None:
    rng = np.random.default_rng(2)
    pieces = rng.normal(size=(3, 1, 3, 3)) * np.array([0.2, 1.0, 0.5])[:, None, None, None]
    flow = td.Flow(td.Attention(td.Periodic(pieces, 3.0), td.Periodic(pieces[::-1].copy(), 3.0)), td.Free())
    largest = max(np.linalg.norm(piece[0], 2) for piece in pieces)
    np.testing.assert_allclose(float(cube(flow)), largest**2 / 4)
    run = td.simulate(flow, 0.3 * rng.normal(size=(6, 3)), range(9), **BARE)
    assert outcomes(run, "rank-collapse") == "holds"


def test_two_tokens_on_a_line_reach_the_cubic_bound() -> None:
    flow = td.Flow(td.Attention([[0.8]], [[1.5]]), td.Free())
    run = td.simulate(flow, [[0.01], [-0.01]], [0, 1], **BARE)
    assert run.deviations is not None
    before, after = run.deviations.log_diameter.tolist()
    np.testing.assert_allclose(after, np.log(1.5 * 0.8 / 4) + 3 * before, atol=1e-4)


def test_the_printed_norm_is_that_of_its_definition() -> None:
    flow, start = drawn(3, 4, 5, 3, 2)
    from tokendynamics.theorems.atlas._rank import _printed, mixed_norm

    run = td.simulate(flow, start, [0, 1], **BARE)
    rest = (start - start.mean(dim=-2, keepdim=True)).numpy()
    expected = [0.5 * np.log(np.linalg.norm(one, 1) * np.linalg.norm(one, np.inf)) for one in rest]
    np.testing.assert_allclose(mixed_norm(run)[:, 0], expected, rtol=1e-12)
    qk, ov = (schedule.matrix_at(0.0).numpy() for schedule in (flow.attention.qk, flow.attention.ov))
    for system in range(4):
        beta = max(
            np.linalg.norm(qk[system, head], 1)
            * np.sqrt(np.linalg.norm(ov[system, head].T, 1) * np.linalg.norm(ov[system, head].T, np.inf))
            for head in range(2)
        )
        np.testing.assert_allclose(float(_printed(flow)[system]), 8 * beta, rtol=1e-12)


def test_a_causal_mask_does_not_collapse_doubly_exponentially() -> None:
    rng = np.random.default_rng(4)
    qk, ov = 0.3 * rng.normal(size=(2, 1, 3, 3))
    start = rng.normal(size=(5, 3))
    flow = td.Flow(td.Attention(qk, ov, causal=True), td.Free())
    (check,) = td.check(flow, start, statements=["rank-collapse"])
    assert [reason.partition(":")[0] for reason in check.reasons] == ["full mask"]
    assert outcomes(td.simulate(flow, start, range(12), **BARE), "rank-collapse") == "fails"


def test_each_hypothesis_of_the_collapse_is_named_alone() -> None:
    rng = np.random.default_rng(5)
    qk, ov = 0.2 * rng.normal(size=(2, 3, 3))
    start = 0.5 * rng.normal(size=(4, 3))
    cases: tuple[tuple[dict[str, Any], td.Free | td.Sphere, float, str], ...] = (
        ({}, td.Free(), 100.0, "tokens near enough to each other"),
        ({"weights": "linear"}, td.Free(), 1.0, "softmax weights"),
        ({"positions": td.AbsolutePositions(np.ones((4, 3)))}, td.Free(), 1.0, "no positions"),
        ({}, td.Sphere(), 1.0, "free space"),
    )
    for options, space, scale, name in cases:
        flow = td.Flow(td.Attention(qk, ov, **options), space)
        (check,) = td.check(flow, scale * start, statements=["rank-collapse"])
        assert [reason.partition(":")[0] for reason in check.reasons] == [name]


@pytest.mark.parametrize(("residual", "tau"), [(1.0, 1.0), (1.0, 0.2), (0.5, 0.5)])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_layers_with_residual_collapse_faster_than_allowed(
    shape: tuple[int, int, int], residual: float, tau: float
) -> None:
    flow, start = drawn(6, 25, *shape)
    run = td.simulate(flow, start, [0, 1, 2, 3, 5, 9], engine="layers", residual=residual, tau=tau)
    assert (outcomes(run, "rank-skip") == "holds").all()


def test_where_attention_is_weaker_than_the_residual_nothing_collapses() -> None:
    rng = np.random.default_rng(7)
    qk, ov = rng.normal(size=(2, 40, 1, 4, 4))
    ov /= 1.2 * np.linalg.norm(ov, 2, axis=(-2, -1), keepdims=True)
    start = rng.normal(size=(40, 6, 4))
    flow = td.Flow(td.Attention(qk, ov), td.Free())
    (check,) = td.check(flow, start, statements=["rank-skip"])
    assert check.applies
    bare, kept = (td.simulate(flow, start, range(10), engine="layers", residual=value) for value in (0.0, 1.0))
    assert (kept.log_residual[:, -1] > kept.log_residual[:, 0] + 9 * np.log(1 - 1 / 1.2)).all()
    assert (bare.log_residual[:, -1] < -100).mean() > 0.9


def test_strong_attention_undoes_a_residual_connection_in_one_layer() -> None:
    # Linear weights, which see the two tokens alike: x + (1/2)(−2x) = 0.
    flow = td.Flow(td.Attention([[1.0]], [[-0.5]], weights="linear"), td.Free())
    assert float(flow.step([[1.0], [-1.0]])[0][0]) == 0.0
    # With softmax weights that see the receiver alone the same comes about to rounding.
    strong = td.Flow(td.Attention([[50.0]], [[-1.0]]), td.Free())
    (check,) = td.check(strong, [[1.0], [-1.0]], statements=["rank-skip"])
    assert [reason.partition(":")[0] for reason in check.reasons] == ["attention weaker than the residual connection"]
    run = td.simulate(strong, [[1.0], [-1.0]], [0, 1], engine="layers")
    assert run.log_residual[-1] < -30


def test_a_run_that_collapsed_fails_as_one_with_residual() -> None:
    flow, start = drawn(8, 1, 5, 3, 1)
    bare = td.simulate(flow, 0.1 * start, range(6), **BARE)
    renamed = replace(bare, parameters={**bare.parameters, "residual": 1.0})
    assert (outcomes(renamed, "rank-skip") == "fails").all()
    kept = td.simulate(flow, 0.1 * start, range(6), engine="layers")
    assert (outcomes(replace(kept, parameters={**kept.parameters, "residual": 0.0}), "rank-collapse") == "fails").all()


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("gamma", [0.2, 0.7, 1.0])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_layers_that_keep_a_share_contract_and_stay_in_the_hull(gamma: float, dtype: str) -> None:
    rng = np.random.default_rng(9)
    beta = rng.uniform(-2, 2, 40)
    qk = beta[:, None, None, None] * np.eye(3)
    flow = td.Flow(td.Attention(qk, np.eye(3)), td.Free())
    start = rng.normal(size=(40, 6, 3))
    (check,) = td.check(flow, start, statements=["hardmax-averaging"])
    assert check.applies
    assert "each layer leaves at most" in str(check.prediction)
    run = td.simulate(flow, start, range(0, 201, 10), engine="layers", residual=1 - gamma, tau=gamma, dtype=dtype)
    (certificate,) = td.certify(run, ["hardmax-averaging"])
    assert all((one.outcome == "holds").all() for one in certificate.conditions[:2]), certificate.text
    assert (certificate.outcomes == "holds").mean() > 0.6


def test_averages_turned_round_leave_the_hull() -> None:
    rng = np.random.default_rng(10)
    start = rng.normal(size=(5, 3))
    flow = td.Flow(td.Attention(np.eye(3), -2 * np.eye(3)), td.Free())
    (check,) = td.check(flow, start, statements=["hardmax-averaging"])
    assert [reason.partition(":")[0] for reason in check.reasons] == ["ov is the identity"]
    run = td.simulate(flow, start, range(6), engine="layers", residual=0.5, tau=0.5)
    (certificate,) = td.certify(run, ["hardmax-averaging"])
    assert certificate.outcome == "fails"
    skewed = td.Flow(td.Attention(np.diag([1.0, 2.0, 1.0]), np.eye(3)), td.Free())
    (check,) = td.check(skewed, start, statements=["hardmax-averaging"])
    assert [reason.partition(":")[0] for reason in check.reasons] == ["qk is a multiple of the identity"]


@pytest.mark.parametrize(
    ("statement", "options", "why"),
    [
        ("rank-collapse", {"engine": "batched"}, "one of the engine batched"),
        ("rank-collapse", {"engine": "layers"}, "their residual factor is 1, not 0"),
        ("rank-skip", BARE, "they have no residual connection"),
        ("hardmax-averaging", {"engine": "layers"}, "no shares that add to 1"),
        ("hardmax-averaging", {"engine": "layers", "tau": 2.0, "residual": 0.0}, "no shares that add to 1"),
    ],
)
def test_runs_that_a_statement_does_not_speak_of_are_undecided(
    statement: str, options: dict[str, Any], why: str
) -> None:
    flow = td.Flow(td.Attention(np.eye(2), np.eye(2)), td.Free())
    run = td.simulate(flow, [[1.0, 0.0], [0.0, 1.0]], [0, 1, 2], **options)
    (certificate,) = td.certify(run, [statement])
    assert certificate.outcome == "undecided"
    assert why in certificate.text


def test_layers_of_no_softmax_have_no_deviations_to_judge() -> None:
    flow = td.Flow(td.Attention(np.eye(2), np.eye(2), weights="linear"), td.Free())
    run = td.simulate(flow, [[0.1, 0.0], [0.0, 0.1]], [0, 1, 2], **BARE)
    (certificate,) = td.certify(run, ["rank-collapse"])
    assert "does not have the deviations" in certificate.text
