"""Masks of any graph, and tokens that do not move, in every engine, derivative, file and specification."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import tokendynamics as td
from tokendynamics.attention.mixing import SHORT
from tokendynamics.dynamics._field import jacobian, jacobian_vector
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.specification import parse
from tokendynamics.specification.build import build

WEIGHTS: tuple[Literal["softmax", "linear", "exponential"], ...] = ("softmax", "linear", "exponential")
SPACES = {"free": td.Free(), "sphere": td.Sphere(), "ellipsoid": td.Ellipsoid(np.diag([2.0, 1.0, 0.5]))}
TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}


def graph(tokens: int, seed: int = 0) -> np.ndarray:
    mask = np.random.default_rng(seed).random((tokens, tokens)) < 0.4
    mask[np.arange(tokens), np.random.default_rng(seed + 1).integers(tokens, size=tokens)] = True
    return mask


def drawn(tokens: int = 6, systems: int = 3, **options: Any) -> tuple[dict[str, Any], Tensor]:
    rng = np.random.default_rng(5)
    parts = {"qk": rng.normal(size=(2, 3, 3)), "ov": 0.5 * rng.normal(size=(2, 3, 3)), "mask": graph(tokens)}
    return parts | options, torch.from_numpy(0.5 * rng.normal(size=(systems, tokens, 3)))


def by_hand(parts: dict[str, Any], x: Tensor) -> np.ndarray:
    """Σ_h ov_h Σ_j w_ij x_j token by token, over the senders that each sees."""
    states, out = x.numpy(), np.zeros(x.shape)
    for i in range(x.shape[-2]):
        seen = np.flatnonzero(parts["mask"][i])
        for qk, ov in zip(parts["qk"], parts["ov"], strict=True):
            logits = np.einsum("sa,ab,sjb->sj", states[:, i], qk, states[:, seen])
            weights = {"linear": logits, "exponential": np.exp(logits) / len(seen)}.get(
                parts["weights"], np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
            )
            out[:, i] += np.einsum("sj,sjb->sb", weights, states[:, seen]) @ ov.T
    return out


@pytest.mark.parametrize("weights", WEIGHTS)
def test_each_token_averages_those_that_it_sees(weights: Any) -> None:
    parts, x = drawn(weights=weights)
    flow = td.Flow(td.Attention(**parts), td.Free())
    np.testing.assert_allclose(flow.velocity(x), by_hand(parts, x), rtol=1e-12, atol=1e-13)
    hidden = flow.attention.pattern(x)[..., ~torch.from_numpy(parts["mask"])]
    assert float(hidden.abs().max()) == 0.0


@pytest.mark.parametrize("weights", WEIGHTS)
def test_long_sequences_average_those_that_they_see(weights: Any) -> None:
    tokens = SHORT + 9
    parts, x = drawn(tokens, 2, weights=weights)
    flow = td.Flow(td.Attention(**parts), td.Free())
    np.testing.assert_allclose(flow.velocity(x), by_hand(parts, x), rtol=1e-10, atol=1e-11)


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("space", SPACES)
def test_the_lower_triangle_is_the_causal_mask(space: str, weights: Any) -> None:
    parts, x = drawn(weights=weights, mask=np.tri(6, dtype=bool))
    parts["qk"] = 0.2 * parts["qk"]  # linear weights of free tokens are cubic, and run to infinity
    masked = td.Flow(td.Attention(**parts), SPACES[space])
    causal = td.Flow(td.Attention(parts["qk"], parts["ov"], causal=True, weights=weights), SPACES[space])
    # The stiff engine refuses exponential weights of free tokens.
    for engine in ("batched",) if (space, weights) == ("free", "exponential") else ("batched", "stiff"):
        runs = [td.simulate(flow, x, [0.0, 0.5], engine=engine, **TIGHT).tensor for flow in (masked, causal)]
        torch.testing.assert_close(*runs, rtol=1e-7, atol=1e-7)
    for residual in (0.0, 1.0):
        layered = [td.simulate(flow, x, range(5), engine="layers", residual=residual) for flow in (masked, causal)]
        torch.testing.assert_close(layered[0].tensor, layered[1].tensor, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(layered[0].log_residual, layered[1].log_residual, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("frozen", [(), (0, 4)])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("space", SPACES)
def test_the_jacobian_is_that_of_differences(space: str, weights: Any, frozen: tuple[int, ...]) -> None:
    parts, x = drawn(weights=weights)
    flow = td.Flow(td.Attention(**parts), SPACES[space], frozen=frozen)
    y = SPACES[space].project(x)
    field = flow.field(y)
    direction, h = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64), 1e-6
    expected = (field.velocity(y + h * direction, 0.0) - field.velocity(y - h * direction, 0.0)) / (2 * h)
    along = torch.einsum("siakb,skb->sia", jacobian(field, y, 0.0), direction)
    torch.testing.assert_close(along, expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(jacobian_vector(field, y, 0.0, direction), along, rtol=1e-10, atol=1e-11)
    assert float(expected[:, list(frozen)].abs().sum()) == 0.0


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("space", SPACES)
def test_engines_agree_and_leave_frozen_tokens_where_they_are(space: str) -> None:
    parts, x = drawn(systems=70)
    start = SPACES[space].project(x)
    flow = td.Flow(td.Attention(**parts), SPACES[space], frozen=[4, 1])
    assert flow.frozen == (1, 4)
    runs = {
        "batched": td.simulate(flow, start, [0.0, 0.3, 1.0], engine="batched", **TIGHT),
        "stiff": td.simulate(flow, start[:6], [0.0, 0.3, 1.0], engine="stiff", **TIGHT),
        "fixed": td.simulate(flow, start, [0.0, 0.3, 1.0], step=0.01, method="rk4"),
        "layers": td.simulate(flow, start, [0, 1, 3], engine="layers", residual=0.0),
    }
    for name, run in runs.items():
        still = run.tensor[:, :, [1, 4]]
        assert bool((still == still[:, :1]).all()), name
        if name != "layers":
            torch.testing.assert_close(run.tensor[:6], runs["stiff"].tensor, rtol=1e-6, atol=1e-6)
    assert bool((flow.velocity(start)[:, [1, 4]] == 0).all())
    assert bool((flow.step(start)[:, [1, 4]] == start[:, [1, 4]]).all())
    # Others see them: with all but one frozen that one moves among fixed ones.
    shifted = runs["batched"].tensor[:, -1] - runs["batched"].tensor[:, 0]
    assert float(shifted[:, [0, 2, 3, 5]].norm(dim=-1).min()) > 1e-6


def test_slow_tokens_and_many_small_systems_hold_frozen_ones() -> None:
    flow = td.Flow(td.Attention(np.eye(3), np.eye(3)), td.Sphere(), frozen=[0])
    y = td.Sphere().project(torch.tensor([[1.0, 0.0, 0.0], [1.0, 1e-9, 0.0], [1.0, 0.0, 2e-9]]).double())
    velocity = flow.velocity(y)
    assert float(velocity[0].abs().max()) == 0.0
    assert 0 < float(velocity[1].norm()) < 1e-8
    many = y.expand(100, -1, -1)
    assert float(td.simulate(flow, many, [0.0, 1.0]).tensor[:, :, 0].sub(y[0]).abs().max()) == 0.0


def test_files_keep_mask_and_frozen_tokens(tmp_path: Path) -> None:
    parts, x = drawn()
    flow = td.Flow(td.Attention(**parts), td.Free(), frozen=[2])
    run = td.simulate(flow, x, [0.0, 0.5])
    opened = td.Trajectory.open(run.save(tmp_path / "run.zarr"))
    assert opened.flow is not None
    assert opened.flow.frozen == (2,)
    assert opened.flow.attention.mask is not None
    np.testing.assert_array_equal(opened.flow.attention.mask, parts["mask"])
    rest = td.simulate(opened.flow, opened, [0.5, 1.0])
    np.testing.assert_allclose(rest.states[:, -1], td.simulate(flow, x, [0.0, 1.0]).tensor[:, -1], atol=1e-7)


def test_specifications_have_mask_and_frozen_tokens() -> None:
    text = (
        '[attention]\nqk = "identity"\nmask = [[true, false], [true, true]]\nfrozen = [0]\n[space]\nkind = "sphere"\n'
        "[start]\nangles = [0.0, 1.0]\n[time]\nend = 3.0\npoints = 4\n"
    )
    flow = build(parse(text, "a.toml")).flow
    assert flow.frozen == (0,)
    assert flow.attention.mask is not None
    assert flow.attention.mask.tolist() == [[True, False], [True, True]]
    assert repr(flow) == "Flow(1 head, dim 2, a mask of 2 tokens, sphere, paper, 1 frozen)"


@pytest.mark.parametrize("options", [{"mask": graph(6)}, {"frozen": [1]}])
def test_the_compiled_engine_refuses_what_it_does_not_know(options: dict[str, Any]) -> None:
    parts, x = drawn()
    frozen = options.pop("frozen", ())
    flow = td.Flow(td.Attention(parts["qk"], parts["ov"], **options), td.Free(), frozen=frozen)
    with pytest.raises(
        ArgumentValueError, match=r"engine: expected 'batched', .* for (a mask of your own|frozen tokens)"
    ):
        td.simulate(flow, x, [0.0, 1.0], engine="compiled")


def refused_mask(mask: Any, kind: type[Exception], message: str, **options: Any) -> None:
    with pytest.raises(kind, match=message):
        td.Attention(np.eye(2), np.eye(2), mask=mask, **options)


def test_masks_that_mean_nothing_are_refused() -> None:
    refused_mask([[True, False], [False, False]], ArgumentValueError, "mask: .* each token sees, got none for token 1")
    refused_mask([[1, 0], [1, 1]], ArgumentTypeError, "mask: expected True and False, got dtype")
    refused_mask(np.ones((2, 3), dtype=bool), ArgumentValueError, r"mask: expected shape \(token, token\)")
    refused_mask(np.ones((0, 0), dtype=bool), ArgumentValueError, r"mask: expected shape \(token, token\)")
    refused_mask(np.ones((2, 2), dtype=bool), ArgumentValueError, "mask: expected None beside causal", causal=True)
    flow = td.Flow(td.Attention(np.eye(2), np.eye(2), mask=np.ones((2, 2), dtype=bool)), td.Free())
    with pytest.raises(ArgumentValueError, match=r"x0: expected 2 tokens, those of the mask, got shape \(3, 2\)"):
        td.simulate(flow, np.ones((3, 2)), [0.0, 1.0])


@pytest.mark.parametrize(
    ("frozen", "kind", "message"),
    [
        ([0, 0], ArgumentValueError, "frozen: expected each token once"),
        ([-1], ArgumentValueError, "frozen: expected at least 0, got -1"),
        ([0.5], ArgumentTypeError, "frozen: expected an integer"),
    ],
)
def test_frozen_tokens_that_mean_nothing_are_refused(frozen: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        td.Flow(td.Attention(np.eye(2), np.eye(2)), td.Sphere(), frozen=frozen)


def test_frozen_tokens_must_be_there_and_on_the_space() -> None:
    flow = td.Flow(td.Attention(np.eye(2), np.eye(2)), td.Sphere(), frozen=[1])
    with pytest.raises(ArgumentValueError, match="x0: expected at least 2 tokens, as token 1 is frozen"):
        td.simulate(flow, [[1.0, 0.0]], [0.0, 1.0])
    off = [[3.0, 0.0], [0.0, 1.01]]
    for call in (flow.velocity, flow.step, lambda x: td.simulate(flow, x, [0.0, 1.0])):
        with pytest.raises(ArgumentValueError, match=r"on the sphere, got token 1 at a distance of 0\.01"):
            call(off)


def test_statements_that_do_not_speak_of_them_say_so() -> None:
    eye, start = np.eye(3), [[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [0.0, 0.0, 1.0]]
    ring = np.eye(3, dtype=bool) | np.roll(np.eye(3, dtype=bool), 1, axis=1)
    free, sphere = td.Free(), td.Sphere()
    cases = [
        (td.Flow(td.Attention(eye, eye, mask=ring), sphere), "asymptotic-4.1", "full mask"),
        (td.Flow(td.Attention(eye, eye, mask=ring), free), "positional-3.6", "full or causal mask"),
        (td.Flow(td.Attention(eye, eye), sphere, frozen=[0]), "asymptotic-4.1", "all tokens move"),
        (td.Flow(td.Attention(eye, eye), free, frozen=[0]), "positional-3.6", "all tokens move"),
    ]
    for flow, statement, name in cases:
        (check,) = td.check(flow, start, statements=[statement])
        assert [reason.partition(":")[0] for reason in check.reasons] == [name]
    everything = td.theorems.ATLAS
    frozen = td.Flow(td.Attention(eye, eye), sphere, frozen=[0])
    assert not any(check.applies for check in td.check(frozen, start, statements=everything))
