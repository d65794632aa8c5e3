"""Statements of `masks` and `spheres`: masks that are graphs, in layers and on spheres."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch

import tokendynamics as td
from tokendynamics.theorems.atlas import _masks

BARE: dict[str, Any] = {"engine": "layers", "residual": 0.0}


def rooted(tokens: int, seed: int) -> np.ndarray:
    """A random mask with token 0 as a root: each sees itself and one before it, and some others."""
    rng = np.random.default_rng(seed)
    mask = np.eye(tokens, dtype=bool) | (rng.random((tokens, tokens)) < 0.15)
    for token in range(1, tokens):
        mask[token, rng.integers(token)] = True
    return mask


def ring(tokens: int) -> np.ndarray:
    eye = np.eye(tokens, dtype=bool)
    return eye | np.roll(eye, 1, axis=1) | np.roll(eye, -1, axis=1)


def names(flow: td.Flow, start: Any, statement: str) -> list[str]:
    (check,) = td.check(flow, start, statements=[statement])
    return [reason.partition(":")[0] for reason in check.reasons]


def outcomes(run: td.Trajectory, statement: str) -> np.ndarray:
    return td.certify(run, [statement])[0].outcomes


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(8))
def test_no_layers_with_a_rooted_mask_contract_less_than_allowed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens, systems = int(rng.integers(2, 8)), 25
    qk, ov = rng.normal(size=(2, systems, 1, 3, 3))
    ov *= rng.uniform(0.5, 1, (systems, 1, 1, 1)) / np.linalg.norm(ov, 2, axis=(-2, -1), keepdims=True)
    flow = td.Flow(td.Attention(qk, ov, mask=rooted(tokens, seed)), td.Free())
    start = rng.uniform(0.1, 1.5, (systems, 1, 1)) * rng.normal(size=(systems, tokens, 3))
    (check,) = td.check(flow, start, statements=["masks-rooted"])
    assert check.applies, check.reasons
    run = td.simulate(flow, start, range(0, 121, 4), **BARE)
    computed = td.certify(run, ["masks-rooted"])[0]
    assert (computed.conditions[0].outcome == "holds").all()
    assert (computed.outcomes == "holds").mean() > 0.5


def test_the_bound_is_reached_by_uniform_weights_on_a_path() -> None:
    # Two tokens, qk = 0, the second sees both: its distance to the first halves at each layer.
    flow = td.Flow(td.Attention([[0.0]], [[1.0]], mask=np.array([[True, False], [True, True]])), td.Free())
    run = td.simulate(flow, [[0.0], [1.0]], range(6), **BARE)
    condition = td.certify(run, ["masks-rooted"])[0].conditions[0]
    assert condition.outcome == "holds"
    np.testing.assert_allclose(float(condition.margin), condition.tolerance, rtol=1e-3)


def test_radii_are_those_of_paths_counted_by_hand() -> None:
    path = torch.from_numpy(np.eye(5, dtype=bool) | np.eye(5, k=-1, dtype=bool))
    assert _masks.radius(path) == 4
    assert _masks.radius(torch.from_numpy(ring(7))) == 3
    assert _masks.radius(torch.ones(4, 4, dtype=torch.bool)) == 1
    assert _masks.radius(torch.ones(1, 1, dtype=torch.bool)) == 0
    assert _masks.radius(torch.eye(3, dtype=torch.bool)) is None


def test_a_mask_without_a_root_is_named_and_leaves_tokens_apart() -> None:
    rng = np.random.default_rng(1)
    mask = np.kron(np.eye(2, dtype=bool), np.ones((3, 3), dtype=bool))
    flow = td.Flow(td.Attention(rng.normal(size=(3, 3)), np.eye(3), mask=mask), td.Free())
    start = rng.normal(size=(6, 3))
    (check,) = td.check(flow, start, statements=["masks-rooted"])
    assert check.reasons == ("a mask with a root: tokens 0 and 3 see no common token, directly or through others",)
    run = td.simulate(flow, start, range(60), **BARE)
    assert run.log_residual[-1] > -3
    assert outcomes(run, "masks-rooted") == "undecided"


def test_each_hypothesis_of_rooted_masks_is_named_alone() -> None:
    eye, start, mask = np.eye(3), np.eye(4, 3), rooted(4, 0)
    blind = mask & ~np.eye(4, dtype=bool)
    blind[0, 1] = True
    cases: list[tuple[dict[str, Any], td.spaces.Space, np.ndarray, str]] = [
        ({"mask": blind}, td.Free(), eye, "tokens see themselves"),
        ({"mask": mask}, td.Free(), 2 * eye, "ov does not lengthen"),
        ({"mask": mask, "weights": "linear"}, td.Free(), eye, "softmax weights"),
        ({"mask": mask}, td.Sphere(), eye, "free space"),
    ]
    for options, space, ov, name in cases:
        start_here = start if name != "free space" else np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]])
        assert names(td.Flow(td.Attention(eye, ov, **options), space), start_here, "masks-rooted") == [name]


def test_weights_that_do_not_sum_to_one_leave_the_bound() -> None:
    flow = td.Flow(td.Attention(3 * np.eye(2), np.eye(2), mask=np.tri(3, dtype=bool)), td.Free())
    start = np.array([[0.1, 0.0], [0.0, 0.1], [0.1, 0.1]])
    run = td.simulate(flow, start, range(4), **BARE)
    assert outcomes(run, "masks-rooted") != "fails"
    # The same states under twice the values: each layer doubles what the bound allows.
    stretched = td.Flow(td.Attention(3 * np.eye(2), 2 * np.eye(2), mask=np.tri(3, dtype=bool)), td.Free())
    assert run.flow is not None
    wrong = replace(td.simulate(stretched, start, range(4), **BARE), flow=run.flow)
    assert outcomes(wrong, "masks-rooted") == "fails"


def test_values_that_undo_the_weights_keep_tokens_of_full_rank() -> None:
    rng = np.random.default_rng(2)
    for beta in (-1.0, 0.5, 3.0):
        rows = np.linalg.qr(rng.normal(size=(4, 4)))[0]
        weights = np.exp(beta * np.eye(4))
        weights /= weights.sum(axis=1, keepdims=True)
        ov = 0.7 * rows.T @ np.linalg.inv(weights) @ rows
        flow = td.Flow(td.Attention(beta * np.eye(4), ov), td.Sphere())
        (check,) = td.check(flow, rows, statements=["masks-norm"])
        assert check.applies, check.reasons
        run = td.simulate(flow, rows, range(4), **BARE)
        assert outcomes(run, "masks-norm") == "holds"
        assert float(torch.linalg.svdvals(run.tensor[-1])[-1]) > 0.99
        assert names(td.Flow(td.Attention(beta * np.eye(4), -ov), td.Sphere()), rows, "masks-norm") == [
            "by a positive multiple"
        ]
        assert names(td.Flow(td.Attention(beta * np.eye(4), ov), td.Sphere()), rows[:3], "masks-norm") == [
            "as many tokens as dimensions"
        ]


@pytest.mark.long
def test_the_rest_of_full_rank_is_unstable() -> None:
    beta = 1.0
    weights = np.exp(beta * np.eye(4))
    ov = np.linalg.inv(weights / weights.sum(axis=1, keepdims=True))
    flow = td.Flow(td.Attention(beta * np.eye(4), ov), td.Sphere())
    kick = 1e-6 * np.random.default_rng(3).normal(size=(4, 4))
    run = td.simulate(flow, np.eye(4) + kick, range(200), **BARE)
    assert float((run.tensor[-1] - run.tensor[0]).norm()) > 0.1
    general = td.Flow(td.Attention(beta * np.eye(4), np.random.default_rng(4).normal(size=(4, 4))), td.Sphere())
    assert names(general, np.eye(4), "masks-norm") == ["ov undoes the weights"]
    assert outcomes(td.simulate(general, np.eye(4), range(3), **BARE), "masks-norm") == "fails"


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("rtol", [1e-4, 1e-7, 1e-10])
@pytest.mark.parametrize("engine", ["batched", "stiff"])
def test_connected_graphs_on_spheres_never_contradict_synchronization(
    engine: Literal["batched", "stiff"], rtol: float
) -> None:
    rng = np.random.default_rng(5)
    systems = 4 if engine == "stiff" else 30 if rtol > 1e-10 else 8
    for tokens in (3, 6):
        mask = rooted(tokens, tokens)
        mask |= mask.T
        beta = rng.uniform(0.0, 3.0, systems)
        qk = beta[:, None, None, None] * np.eye(3)
        flow = td.Flow(td.Attention(qk, np.eye(3), mask=mask, weights="exponential", offset=1.0), td.Sphere())
        start = td.Sphere().sample(tokens, 3, (systems,), seed=tokens)
        (check,) = td.check(flow, start, statements=["spheres-graph"])
        assert check.applies, check.reasons
        run = td.simulate(flow, start, np.linspace(0.0, 80.0, 9), engine=engine, rtol=rtol, atol=rtol / 10)
        result = outcomes(run, "spheres-graph")
        assert not (result == "fails").any()
        assert (result == "holds").mean() >= 0.5


def test_a_ring_on_the_circle_stays_twisted() -> None:
    angles = np.arange(7) * 2 * np.pi / 7
    start = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    kicked = start + 1e-3 * np.random.default_rng(6).normal(size=start.shape)
    flow = td.Flow(td.Attention(0.1 * np.eye(2), np.eye(2), mask=ring(7), weights="exponential"), td.Sphere())
    run = td.simulate(flow, kicked, [0.0, 50.0, 100.0])
    assert names(flow, kicked, "spheres-graph") == ["dim at least 3"]
    cosines = (run.tensor[-1] * run.tensor[-1].roll(1, 0)).sum(dim=-1)
    np.testing.assert_allclose(cosines, np.cos(2 * np.pi / 7), atol=1e-3)


def test_graphs_that_are_not_connected_or_go_one_way_are_named() -> None:
    def flow(mask: np.ndarray, beta: float = 1.0) -> td.Flow:
        return td.Flow(td.Attention(beta * np.eye(3), np.eye(3), mask=mask, weights="exponential"), td.Sphere())

    start = td.Sphere().sample(4, 3, seed=1)
    two = np.kron(np.eye(2, dtype=bool), np.ones((2, 2), dtype=bool))
    one_way = ring(4)
    one_way[0, 1] = False
    assert names(flow(two), start, "spheres-graph") == ["a connected graph"]
    assert names(flow(one_way), start, "spheres-graph") == ["links both ways"]
    assert names(flow(ring(4), -1.0), start, "spheres-graph") == ["β at least 0"]
