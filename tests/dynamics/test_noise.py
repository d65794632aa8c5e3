"""Noise beside a flow: its numbers, its law on each space, the order of a step, and what it does not go with."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import expm
from scipy.special import eval_gegenbauer, roots_hermitenorm

import tokendynamics as td
from tokendynamics.dynamics._noise import BrownianMotion, Draws
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError

EYE = np.eye(3)
FLOW = td.Flow(td.Attention(2 * EYE, EYE), td.Sphere())
START = td.Sphere().sample(4, 3, (6,), seed=3)
NOISE = td.Noise(0.4, seed=7)
MASK = 2**64 - 1


def still(space: td.Free | td.Sphere, dim: int) -> td.Flow:
    """Return a flow that moves nothing."""
    return td.Flow(td.Attention(np.zeros((dim, dim)), np.zeros((dim, dim))), space)


# --- numbers ---------------------------------------------------------------------------------------------------------


def mixed(word: int) -> int:
    """Return SplitMix64's finalizer of a word, in Python's integers."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def test_numbers_are_those_of_the_counters() -> None:
    draws = Draws.of(td.Noise(1.0, seed=5, first=9), np.array([0, 40]))
    numbers = draws.of_step(3, (2, 2))
    for system, taken in enumerate((0, 40)):
        word = mixed(5)
        for counter in (9 + system, taken + 3):
            word = mixed((word + (counter + 1) * 0x9E3779B97F4A7C15) & MASK)
        for place, number in enumerate(numbers[system].flatten().tolist()):
            last = mixed((word + (place + 1) * 0x9E3779B97F4A7C15) & MASK)
            assert number == pytest.approx(NormalDist().inv_cdf(((last >> 11) + 0.5) / 2**53), abs=1e-12)


def test_numbers_do_not_change_from_version_to_version() -> None:
    kept = Draws.of(td.Noise(1.0, seed=0), np.array([0])).of_step(0, (3,))[0].tolist()
    assert kept == pytest.approx(GOLDEN, abs=1e-13)


GOLDEN = [-1.0861360155993325, 1.8972433006136606, -0.5892915009733442]


def test_numbers_are_normal_and_independent() -> None:
    draws = Draws.of(td.Noise(1.0, seed=1), np.zeros(2000, dtype=np.int64))
    numbers = torch.stack([draws.of_step(step, (10,)) for step in range(10)])
    assert float(numbers.mean()) == pytest.approx(0, abs=4 / 200_000**0.5)
    for power, moment, spread in ((2, 1, 2), (4, 3, 96)):
        assert float((numbers**power).mean()) == pytest.approx(moment, abs=4 * (spread / 200_000) ** 0.5)
    for first, second in (
        (numbers[:, :-1], numbers[:, 1:]),
        (numbers[:-1], numbers[1:]),
        (numbers[..., :-1], numbers[..., 1:]),
    ):
        assert float((first * second).mean()) == pytest.approx(0, abs=4 / first.numel() ** 0.5)
    assert float(numbers.abs().max()) < 6


# --- law -------------------------------------------------------------------------------------------------------------


def test_free_tokens_spread_by_the_square_root_of_time() -> None:
    start = torch.tensor([[1.0, -2.0], [0.5, 3.0]]).double().expand(4000, 2, 2)
    run = td.simulate(still(td.Free(), 2), start, [0.0, 0.7, 3.0], noise=td.Noise(0.5, seed=2), step=0.35)
    for place, time in ((1, 0.7), (2, 3.0)):
        displacement = (run.tensor[:, place] - start).reshape(4000, 4)
        variance = 0.25 * time
        assert displacement.mean(dim=0).abs().max() < 4 * (variance / 4000) ** 0.5
        assert torch.allclose(
            displacement.T @ displacement / 4000, variance * torch.eye(4).double(), atol=4.5 * variance / 4000**0.5
        )


def test_a_token_that_falls_back_has_the_law_of_ornstein_and_uhlenbeck() -> None:
    flow = td.Flow(td.Attention([[0.0]], [[-1.5]]), td.Free())
    run = td.simulate(flow, torch.ones(8000, 1, 1).double(), [0.0, 0.4, 2.0], noise=td.Noise(0.8, seed=4), step=0.02)
    for place, time in ((1, 0.4), (2, 2.0)):
        variance = 0.64 / 3 * -np.expm1(-3 * time)
        states = run.tensor[:, place, 0, 0]
        assert float(states.mean()) == pytest.approx(np.exp(-1.5 * time), abs=4 * (variance / 8000) ** 0.5 + 1e-3)
        assert float(states.var()) == pytest.approx(variance, rel=4 * (2 / 8000) ** 0.5 + 1e-3)


@pytest.mark.parametrize("dim", [2, 3, 6])
def test_the_mean_cosine_on_a_sphere_falls_at_the_rate_of_its_laplacian(dim: int) -> None:
    start = torch.eye(dim).double()[:1].expand(6000, 1, dim)
    run = td.simulate(still(td.Sphere(), dim), start, [0.0, 0.3, 0.9], noise=td.Noise(1.2, seed=dim), step=0.05)
    for place, time in ((1, 0.3), (2, 0.9)):
        cosine = run.tensor[:, place, 0, 0]
        exact = np.exp(-1.44 * (dim - 1) * time / 2)
        assert float(cosine.mean()) == pytest.approx(exact, abs=4 * float(cosine.std()) / 6000**0.5 + 1e-3)
        assert float((run.tensor[:, place].norm(dim=-1) - 1).abs().max()) < 1e-14


def gauss(dim: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return nodes (node, dim) and weights of a normal law."""
    nodes, weights = roots_hermitenorm(count)
    grid = np.stack(np.meshgrid(*[nodes] * dim, indexing="ij"), axis=-1).reshape(-1, dim)
    products = np.prod(np.stack(np.meshgrid(*[weights / weights.sum()] * dim, indexing="ij")), axis=0).reshape(-1)
    return torch.from_numpy(grid), torch.from_numpy(products)


@pytest.mark.parametrize("dim", [2, 3, 4])
@pytest.mark.parametrize("degree", [1, 2, 3])
def test_half_a_step_on_a_sphere_agrees_with_the_heat_kernel_to_third_order(dim: int, degree: int) -> None:
    """By quadrature, without drawing: the mean of a harmonic of degree k is exp(−k (k + dim − 2) τ/2) of it."""
    nodes, weights = gauss(dim, 24 if dim < 4 else 14)
    y = torch.nn.functional.normalize(torch.arange(1.0, dim + 1).double(), dim=0).expand(len(nodes), 1, dim)
    motion = BrownianMotion.of(still(td.Sphere(), dim).field(y), Draws.of(td.Noise(1.0, seed=0), np.array([0])))
    assert motion is not None
    errors = []
    for time in (0.016, 0.008):
        cosine = (motion.displaced(y, nodes[:, None], time) * y).sum(dim=-1)[:, 0].clamp(-1, 1).numpy()
        order = dim / 2 - 1
        harmonic = (
            np.cos(degree * np.arccos(cosine))
            if dim == 2
            else eval_gegenbauer(degree, order, cosine) / eval_gegenbauer(degree, order, 1.0)
        )
        errors.append(abs(float(weights.numpy() @ harmonic) - np.exp(-degree * (degree + dim - 2) * time / 2)))
    if dim == 2:  # a circle has no curvature, and the step is exact
        assert max(errors) < 1e-9
    else:
        assert errors[0] < 1e-4
        assert errors[0] / errors[1] == pytest.approx(8, rel=0.12)


def test_a_step_is_of_weak_order_two() -> None:
    """One token on the circle by matrices of transition from step to step, against exp(T L) of the generator L."""
    ov, strength, size, horizon = np.array([[0.9, 0.4], [-0.2, -0.7]]), 0.6, 48, 1.0
    flow = td.Flow(td.Attention(np.zeros((2, 2)), ov, normalization="plain"), td.Sphere())
    angles = 2 * np.pi * np.arange(size) / size
    nodes, weights = gauss(1, 10)

    def on_circle(theta: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.stack([np.cos(theta), np.sin(theta)], axis=-1))[..., None, :]

    def ahead(y: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return lengths[..., None, None] * torch.stack([-y[..., 1], y[..., 0]], dim=-1)

    waves = np.exp(1j * np.outer(angles, np.fft.fftfreq(size, 1 / size)))
    speed = flow.velocity(on_circle(angles))
    turning = (ahead(on_circle(angles), torch.ones(size)) * speed).sum(dim=-1)[:, 0].numpy()
    slope = np.real(waves @ np.diag(1j * np.fft.fftfreq(size, 1 / size)) @ np.linalg.inv(waves))
    exact = expm(horizon * (turning[:, None] * slope + strength**2 / 2 * slope @ slope))
    observed = np.exp(np.cos(angles - 0.3))

    def transition(step: float) -> np.ndarray:
        y = on_circle(angles).repeat_interleave(100, dim=0)
        first, second = nodes[:, 0].repeat_interleave(10).repeat(size), nodes[:, 0].repeat(10 * size)
        motion = BrownianMotion.of(flow.field(y), Draws.of(td.Noise(strength, seed=0), np.array([0])))
        assert motion is not None
        y = motion.displaced(y, ahead(y, first), step / 2)
        y = td.simulate(flow, y, [0.0, step], engine="fixed", method="heun", step=step).tensor[:, -1]
        y = motion.displaced(y, ahead(y, second), step / 2)
        there = torch.atan2(y[:, 0, 1], y[:, 0, 0]).numpy()
        into = np.exp(1j * np.outer(there, np.fft.fftfreq(size, 1 / size))) @ np.linalg.inv(waves)
        both = (weights[:, None] * weights).reshape(-1).numpy()
        return np.real(np.einsum("anb,n->ab", into.reshape(size, 100, size), both))

    errors = [
        np.abs(np.linalg.matrix_power(transition(horizon / count), count) @ observed - exact @ observed).max()
        for count in (8, 16, 32)
    ]
    assert errors[-1] < 1e-3
    for coarse, fine in pairwise(errors):
        assert np.log2(coarse / fine) == pytest.approx(2, abs=0.2)


def test_a_run_is_steps_of_the_flow_between_halves_of_noise() -> None:
    run = td.simulate(FLOW, START, [0.0, 0.2, 0.3], noise=NOISE, step=0.1)
    field, y = FLOW.field(START).flattened(), START
    motion = BrownianMotion.of(field, Draws.of(NOISE, np.zeros(6, dtype=np.int64)))
    assert motion is not None
    for number in range(3):
        first, second = motion.of_step(number, y)
        y = motion.displaced(y, first, 0.05)
        y = td.simulate(FLOW, y, [0.0, 0.1], engine="fixed", method="heun", step=0.1).tensor[:, -1]
        y = motion.displaced(y, second, 0.05)
    assert torch.allclose(run.tensor[:, -1], y, atol=1e-13)
    assert run.engine == "sde"
    assert run.parameters["method"] == "heun"
    assert run.counts["right_hand_sides"].tolist() == [6] * 6


def test_an_ellipsoid_is_the_image_of_a_sphere() -> None:
    """With y = M^(−1/2) u every path on the ellipsoid is one on the sphere, number by number."""
    metric = np.array([[2.0, 0.3, 0.0], [0.3, 0.8, -0.2], [0.0, -0.2, 1.5]])
    values, vectors = np.linalg.eigh(metric)
    half, back = vectors @ np.diag(values**0.5) @ vectors.T, vectors @ np.diag(values**-0.5) @ vectors.T
    qk, ov = np.diag([1.0, -0.5, 2.0]), np.array([[1.0, 0.4, 0.0], [0.0, 0.7, 0.2], [-0.3, 0.0, 1.1]])
    on_ellipsoid = td.Flow(td.Attention(qk, ov), td.Ellipsoid(metric))
    on_sphere = td.Flow(td.Attention(back @ qk @ back, half @ ov @ back), td.Sphere())
    options = {"noise": NOISE, "step": 0.05}
    first = td.simulate(on_ellipsoid, START @ torch.from_numpy(back), [0.0, 1.0], **options).tensor
    second = td.simulate(on_sphere, START, [0.0, 1.0], **options).tensor
    assert torch.allclose(first @ torch.from_numpy(half), second, atol=1e-12)


def test_metrics_of_systems_are_taken_apart() -> None:
    metrics = torch.stack([torch.diag(torch.tensor([1.0, 2.0, 3.0]).double()) * scale for scale in range(1, 7)])
    attention = td.Attention(EYE, EYE)
    together = td.simulate(td.Flow(attention, td.Ellipsoid(metrics)), START, [0.0, 0.4], noise=NOISE, step=0.1)
    for place in range(6):
        flow = td.Flow(attention, td.Ellipsoid(metrics[place]))
        noise = replace(NOISE, first=place)
        alone = td.simulate(flow, START[place], [0.0, 0.4], noise=noise, step=0.1)
        assert torch.allclose(alone.tensor, together.tensor[place], atol=1e-13)


# --- what does not change the numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize("flow", [FLOW, td.Flow(td.Attention(EYE, -EYE), td.Free())])
def test_noise_of_strength_zero_is_none(flow: td.Flow) -> None:
    options = {"step": 0.13, "events": [td.events.Consensus(0.5)]}
    quiet = td.simulate(flow, START, [0.0, 0.5, 2.0], noise=td.Noise(0.0, seed=1), **options)
    plain = td.simulate(flow, START, [0.0, 0.5, 2.0], engine="fixed", method="heun", **options)
    assert torch.equal(quiet.tensor, plain.tensor)
    assert (quiet.status == plain.status).all()


@pytest.mark.parametrize("systems", [6, 200])
def test_a_part_of_a_batch_has_the_numbers_of_the_whole(systems: int) -> None:
    start = td.Sphere().sample(4, 3, (systems,), seed=3)
    options: dict[str, Any] = {"step": 0.1}
    whole = td.simulate(FLOW, start, [0.0, 1.0], noise=NOISE, **options).tensor
    for part in (slice(0, 2), slice(2, 5), slice(5, systems)):
        noise = replace(NOISE, first=part.start)
        assert torch.allclose(
            td.simulate(FLOW, start[part], [0.0, 1.0], noise=noise, **options).tensor, whole[part], atol=1e-12
        )
    assert torch.allclose(td.simulate(FLOW, start[0], [0.0, 1.0], noise=NOISE, **options).tensor, whole[0], atol=1e-12)
    assert float((td.simulate(FLOW, start[1], [0.0, 1.0], noise=NOISE, **options).tensor - whole[1]).abs().max()) > 0.1


def test_threads_change_nothing() -> None:
    start = td.Sphere().sample(4, 3, (600,), seed=3)
    before, runs = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            runs.append(td.simulate(FLOW, start, [0.0, 0.3], noise=NOISE, step=0.1).tensor)
    finally:
        torch.set_num_threads(before)
    assert torch.allclose(*runs, atol=1e-13)


def test_a_run_that_continues_is_the_run_that_did_not_stop(tmp_path: Path) -> None:
    options = {"noise": NOISE, "step": 0.1}
    whole = td.simulate(FLOW, START, [0.0, 0.3, 0.7, 1.0], **options)
    run = td.simulate(FLOW, START, [0.0, 0.3], **options)
    run.save(tmp_path / "run.zarr")
    run = td.Trajectory.open(tmp_path / "run.zarr")
    assert run.noise == NOISE
    for time in (0.7, 1.0):
        run = td.simulate(FLOW, run, [time], **options)
    assert np.allclose(run.states[:, -1], whole.tensor[:, -1], atol=1e-13)
    assert run.counts["drawn"].tolist() == [10] * 6


def test_systems_that_ended_keep_their_numbers_to_themselves() -> None:
    start = td.Sphere().sample(2, 3, (40,), seed=5)
    event = [td.events.Consensus(0.4)]
    options = {"noise": NOISE, "step": 0.05, "events": event}
    whole = td.simulate(FLOW, start, [0.0, 1.0, 2.0], **options)
    half = td.simulate(FLOW, start, [0.0, 1.0], **options)
    assert 0 < (half.status == "consensus").sum() < 40
    rest = td.simulate(FLOW, half, [2.0], **options)
    assert torch.allclose(rest.tensor[:, -1], whole.tensor[:, -1], atol=1e-12)
    assert (rest.status == whole.status).all()


# --- what is looked at, and what is refused --------------------------------------------------------------------------


def test_events_are_looked_at_where_steps_end() -> None:
    start = td.Sphere().sample(2, 3, (40,), seed=5)
    run = td.simulate(FLOW, start, [0.0, 2.0], noise=NOISE, step=0.05, events=[td.events.Consensus(0.4)])
    ended = run.status == "consensus"
    assert ended.any()
    assert np.allclose(run.end_times / 0.05, np.round(run.end_times / 0.05))
    apart = (run.tensor[:, -1, 1] - run.tensor[:, -1, 0]).norm(dim=-1)
    assert (apart[torch.from_numpy(ended)] <= 0.4).all()
    assert any("where steps end" in note for note in run.notes)
    recorded = td.simulate(
        FLOW, start, [0.0, 2.0], noise=NOISE, step=0.05, events=[td.events.Consensus(0.4, then="record")]
    ).recorded
    assert recorded is not None
    first = recorded.times[..., 0, 0][ended & (run.end_times > 0)]
    assert np.allclose(first, run.end_times[ended & (run.end_times > 0)])


def test_tokens_that_grow_without_end_have_a_status() -> None:
    flow = td.Flow(td.Attention([[1.0]], [[8.0]]), td.Free())
    run = td.simulate(flow, [[[1.0]], [[2.0]]], [0.0, 40.0], noise=td.Noise(0.1, seed=0), step=0.1)
    assert (run.status == "diverged").all()
    assert torch.isfinite(run.tensor).all()


def test_frozen_tokens_stay_and_the_others_move() -> None:
    flow = td.Flow(FLOW.attention, td.Sphere(), frozen=[1])
    run = td.simulate(flow, START, [0.0, 0.5], noise=NOISE, step=0.1)
    assert torch.equal(run.tensor[:, -1, 1], START[:, 1])
    assert ((run.tensor[:, -1] - START).norm(dim=-1)[:, [0, 2, 3]] > 1e-3).all()


def test_the_sphere_of_two_points_has_no_motion() -> None:
    flow = td.Flow(td.Attention([[1.0]], [[1.0]]), td.Sphere())
    run = td.simulate(flow, [[1.0], [-1.0]], [0.0, 1.0], noise=NOISE, step=0.1)
    assert torch.equal(run.tensor[0], run.tensor[1])


def test_single_precision_has_the_same_noise() -> None:
    double = td.simulate(FLOW, START, [0.0, 0.5], noise=NOISE, step=0.1).tensor
    single = td.simulate(FLOW, START, [0.0, 0.5], noise=NOISE, step=0.1, dtype="float32").tensor
    assert single.dtype == torch.float32
    assert torch.allclose(single.double(), double, atol=1e-4)


def test_gradients_are_those_along_the_noise_that_was_drawn() -> None:
    qk = torch.eye(3).double().requires_grad_()
    flow = td.Flow(td.Attention(qk, EYE), td.Sphere())
    options = {"noise": NOISE, "step": 0.1}
    td.simulate(flow, START, [0.0, 0.5], **options).tensor[:, -1, 0, 0].sum().backward()
    assert qk.grad is not None
    ends = []
    for shift in (1e-5, -1e-5):
        shifted = torch.eye(3).double()
        shifted[0, 2] += shift
        other_flow = td.Flow(td.Attention(shifted, EYE), td.Sphere())
        ends.append(float(td.simulate(other_flow, START, [0.0, 0.5], **options).tensor[:, -1, 0, 0].sum()))
    assert float(qk.grad[0, 2]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6)


class Plain(td.spaces.Space):
    """The sphere, of which nothing is known but how it projects."""

    name = "plain"

    def project(self, x: Any) -> Any:
        """See `Space`."""
        return x / x.norm(dim=-1, keepdim=True)

    def tangent(self, y: Any, vectors: Any) -> Any:
        """See `Space`."""
        return vectors - (vectors * y).sum(dim=-1, keepdim=True) * y


FREE = td.Flow(td.Attention(EYE, -EYE), td.Free())


@pytest.mark.parametrize(
    ("flow", "options", "message"),
    [
        (FLOW, {"engine": "batched"}, "engine: expected 'sde' or 'auto' where noise is given, got 'batched'"),
        (FLOW, {"engine": "stiff"}, "'sde' or 'auto' where noise is given, got 'stiff'"),
        (FLOW, {"engine": "compiled"}, "'sde' or 'auto' where noise is given, got 'compiled'"),
        (FLOW, {"engine": "layers"}, "'sde' or 'auto' where noise is given, got 'layers'"),
        (FLOW, {"engine": "fixed"}, "'sde' or 'auto' where noise is given, got 'fixed'"),
        (FLOW, {"step": None}, "step: expected a positive time where noise is given"),
        (FLOW, {"step": None, "engine": "sde"}, "step: expected a positive time for engine='sde'"),
        (FLOW, {"noise": None, "engine": "sde"}, r"noise: expected td.Noise\(strength, seed\) for engine='sde'"),
        (FLOW, {"rtol": 1e-6}, "where rtol is given, got 'auto', which takes 'sde' here"),
        (FLOW, {"method": "rk4"}, "where method is given, got 'auto', which takes 'sde' here"),
        (FLOW, {"events": [td.events.AtRest(1e-3)]}, "noise: expected none for the event AtRest"),
        (FREE, {"frame": "rescaled"}, "noise: expected none for the rescaled frame"),
        (td.Flow(FLOW.attention, Plain()), {}, "noise: expected none for a space of your own"),
        (td.Flow(FLOW.attention, td.Normalized("pre")), {}, "noise: expected none for tokens that are normalized"),
        (FLOW, {"step": 1e-9}, "step: expected at most 30000 steps"),
    ],
)
def test_what_noise_does_not_go_with_is_refused_by_name(flow: td.Flow, options: dict, message: str) -> None:
    with pytest.raises(ArgumentValueError, match=message):
        td.simulate(flow, START, [0.0, 1.0], **({"noise": NOISE, "step": 0.1} | options))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"strength": -0.1, "seed": 0}, ArgumentValueError, "strength: expected a finite number of at least 0, got"),
        ({"strength": float("inf"), "seed": 0}, ArgumentValueError, "strength"),
        ({"strength": "much", "seed": 0}, ArgumentTypeError, "strength"),
        ({"strength": 1.0, "seed": -1}, ArgumentValueError, "seed"),
        ({"strength": 1.0, "seed": 0.5}, ArgumentTypeError, "seed"),
        ({"strength": 1.0, "seed": 2**70}, ArgumentValueError, "seed"),
        ({"strength": 1.0, "seed": 0, "first": -1}, ArgumentValueError, "first"),
    ],
)
def test_noise_that_is_none_is_refused(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        td.Noise(**arguments)


def test_noise_is_asked_for_as_noise() -> None:
    given: Any = 0.5
    with pytest.raises(ArgumentTypeError, match="noise: expected a"):
        td.simulate(FLOW, START, [0.0, 1.0], noise=given, step=0.1)
