"""Statements of `circle`: exponential weights on the circle."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import tokendynamics as td
from tokendynamics.dynamics._field import jacobian
from tokendynamics.theorems.atlas._circle import decay, deviation

Engine = Literal["batched", "compiled", "stiff"]
MEETING, APART = "circle-synchronization", "circle-threshold"
EYE = torch.eye(2, dtype=torch.float64)


def flow(beta: Any, *, ov: float = 1.0, **options: Any) -> td.Flow:
    qk = torch.as_tensor(beta, dtype=torch.float64)[..., None, None] * EYE
    settled = {"weights": "exponential", **options}
    return td.Flow(td.Attention(qk.unsqueeze(-3) if qk.ndim > 2 else qk, ov * EYE, **settled), td.Sphere())


def at(angles: Any) -> Tensor:
    angles = torch.as_tensor(angles, dtype=torch.float64)
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def nearly_equidistant(size: Any, seed: int, systems: tuple[int, ...] = ()) -> Tensor:
    rng = np.random.default_rng(seed)
    kick = rng.normal(size=(*systems, 3))
    kick -= kick.mean(axis=-1, keepdims=True)
    kick *= np.asarray(size)[..., None] / np.linalg.norm(kick, axis=-1, keepdims=True)
    places = np.arange(3) * 2 * np.pi / 3 + rng.uniform(0, 2 * np.pi, (*systems, 1))
    return at(rng.permuted(places + kick, axis=-1))


@pytest.mark.long
@pytest.mark.parametrize("rtol", [1e-4, 1e-7, 1e-10])
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff"])
def test_three_tokens_below_the_threshold_stay_apart(engine: Engine, rtol: float) -> None:
    rng = np.random.default_rng(7)
    systems = 8 if engine == "stiff" else 24
    beta = rng.uniform(-2.0, -0.67, systems)
    basin = decay(torch.tensor(beta)).numpy() / (np.exp(-beta) * (1 - 3 * beta + beta**2))
    start = nearly_equidistant(basin * rng.uniform(0.1, 0.95, systems), 8, (systems,))
    shrinking = flow(beta, ov=1.7, offset=0.3)
    (checked,) = td.check(shrinking, start, statements=[APART])
    assert checked.applies, checked.reasons
    run = td.simulate(shrinking, start, np.linspace(0, 20, 11), engine=engine, rtol=rtol, atol=rtol)
    (certificate,) = td.certify(run, [APART])
    assert not (certificate.outcomes == "fails").any(), certificate.text


def test_deviations_fall_at_the_rate_of_the_linear_part_and_grow_above_the_threshold() -> None:
    for beta in (-2.0, -1.0, -0.5):
        moving = flow(beta, ov=1.3, offset=-0.2, normalization="plain")
        start = nearly_equidistant(1e-4, 3)
        run = td.simulate(moving, start, [0.0, 0.5, 1.5], rtol=1e-11, atol=1e-13)
        gap = deviation(run.tensor)
        rate = float(1.3 * np.exp(0.2) * decay(torch.tensor(beta)))
        assert float((gap[1] / gap[2]).log()) == pytest.approx(rate, rel=2e-3)
        assert (rate > 0) == (beta < -2 / 3)
        # The same by the engine's Jacobian: its symmetric part has this eigenvalue twice, and 0 for a common turn.
        field = moving.field(at(np.arange(3) * 2 * np.pi / 3)[None])
        x = at(np.arange(3) * 2 * np.pi / 3)
        tangent = torch.stack([-x[:, 1], x[:, 0]], dim=-1)
        slopes = torch.einsum("ia,iakb,kb->ik", tangent, jacobian(field, x[None], 0.0)[0], tangent)
        assert np.allclose(np.sort(torch.linalg.eigvals(slopes).real), np.sort([0.0, -rate, -rate]), atol=1e-12)


def test_above_the_threshold_the_certificate_fails() -> None:
    moving = flow(-0.5)
    start = nearly_equidistant(1e-3, 5)
    (checked,) = td.check(moving, start, statements=[APART])
    assert [text.split(":")[0] for text in checked.reasons] == ["β below −2/3"]
    (certificate,) = td.certify(td.simulate(moving, start, np.linspace(0, 60, 31)), [APART])
    assert certificate.outcome == "fails"


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize("rtol", [1e-4, 1e-7, 1e-10])
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff"])
def test_random_starts_of_the_circle_never_contradict_synchronization(engine: Engine, rtol: float) -> None:
    systems = 6 if engine == "stiff" else 24
    beta = np.random.default_rng(9).uniform(-0.16, 2.0, systems)
    moving, start = flow(beta, offset=0.5), td.Sphere().sample(4, 2, (systems,), seed=10)
    (checked,) = td.check(moving, start, statements=[MEETING])
    assert checked.applies, checked.reasons
    run = td.simulate(moving, start, np.linspace(0, 40, 11), engine=engine, rtol=rtol, atol=rtol)
    (certificate,) = td.certify(run, [MEETING])
    assert not (certificate.outcomes == "fails").any(), certificate.text
    assert (certificate.outcomes == "holds").sum() >= systems // 2


def test_tokens_that_move_backwards_lose_energy_and_the_certificate_fails() -> None:
    start = td.Sphere().sample(6, 2, seed=11)
    (certificate,) = td.certify(td.simulate(flow(1.0, ov=-1.0), start, np.linspace(0, 5, 11)), [MEETING])
    assert certificate.outcome == "fails"
    (checked,) = td.check(flow(1.0, ov=-1.0), start, statements=[MEETING])
    assert [text.split(":")[0] for text in checked.reasons] == ["the multiples are positive"]


NEAR = nearly_equidistant(1e-3, 6)


@pytest.mark.parametrize(
    ("name", "changed", "start", "reason"),
    [
        (MEETING, {"beta": -0.17}, NEAR, "β at least −0.16"),
        (MEETING, {"weights": "softmax"}, NEAR, "exponential weights"),
        (MEETING, {"causal": True}, NEAR, "full mask"),
        (APART, {"beta": -1.0}, NEAR[:2], "three tokens"),
        (APART, {"beta": -1.0}, nearly_equidistant(0.5, 6), "tokens nearly equally far apart"),
        (APART, {"beta": -1.0, "causal": True}, NEAR, "full mask"),
        (APART, {"beta": -1.0, "ov": -1.0}, NEAR, "the multiples are positive"),
    ],
)
def test_each_hypothesis_broken_alone_is_named(name: str, changed: dict[str, Any], start: Tensor, reason: str) -> None:
    (checked,) = td.check(flow(**{"beta": 1.0, **changed}), start, statements=[name])
    assert [text.split(":")[0] for text in checked.reasons] == [reason]


def test_it_is_about_the_circle_and_one_temperature() -> None:
    eye = np.eye(3)
    in_space = td.Flow(td.Attention(eye, eye, weights="exponential"), td.Sphere())
    (checked,) = td.check(in_space, eye, statements=[MEETING])
    assert [text.split(":")[0] for text in checked.reasons] == ["dim 2"]
    other = td.Flow(td.Attention(np.diag([1.0, 2.0]), EYE, weights="exponential"), td.Sphere())
    (checked,) = td.check(other, NEAR, statements=[MEETING])
    assert [text.split(":")[0] for text in checked.reasons] == ["qk is a multiple of the identity"]


def test_the_deviation_does_not_depend_on_the_order_of_tokens_or_a_common_turn() -> None:
    one = at([0.1, 2.2, 4.4])
    assert float(deviation(one)) == pytest.approx(float(deviation(at([4.4 + 1.0, 0.1 + 1.0, 2.2 + 1.0]))), abs=1e-14)
    shift = np.array([0.1, 2.2 - 2 * np.pi / 3, 4.4 - 4 * np.pi / 3])
    assert float(deviation(one)) == pytest.approx(np.linalg.norm(shift - shift.mean()), rel=1e-12)
