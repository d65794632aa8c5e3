"""Each false claim of the paper is shown false by a stored counterexample, beside the corrected claim."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.observables import hemisphere, hemisphere_function, wendel_probability
from tokendynamics.spaces import Ellipsoid, Sphere
from tokendynamics.theorems import certify, check

NOT_TO_ZERO = {
    "qk": [[1.0, 0.0], [0.0, 1.0]],
    "ov": [[1.0, 0.0], [0.0, 1.0]],
    "metric": [[0.25, 0.0], [0.0, 1.0]],
    "start": [[2.0, 0.0], [1.2, 0.8], [1.6, -0.6]],
    "direction": [2.0, 0.0],
}
"""A flow, a start and a direction v with v^T M v = 1 for which (13), non-increasing, goes to 1 − v·y* far below 0, not
to 0 as a Lyapunov function of the consensus set would."""

PRINTED_BASIN_COUNTEREXAMPLE = {
    "qk": [[1.0, 0.0], [0.0, 1.0]],
    "ov": [[1.0, 0.0], [0.0, 1.0]],
    "angles": (0.0, 2.0, 3.7852751016621813),
}
"""Angles on the circle of three tokens, none of them at the antipode of token 1, of which the third converges to that
antipode: token 2 drags it there. The printed basin, all starts with y_j ≠ −y_1, is therefore false for three
tokens or more. The antipode is unstable, so in floating point the third token leaves it again after a long stay."""


def on_circle(angles: Tensor) -> Tensor:
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def basin_flow() -> Flow:
    stored = PRINTED_BASIN_COUNTEREXAMPLE
    return Flow(Attention(stored["qk"], stored["ov"], causal=True), Sphere())


def test_a_start_in_the_printed_basin_of_theorem_5_1_goes_to_the_antipode() -> None:
    flow, angles = basin_flow(), torch.tensor(PRINTED_BASIN_COUNTEREXAMPLE["angles"], dtype=torch.float64)
    start = on_circle(angles)
    antipode = -start[0]
    # In the printed basin: neither token 2 nor token 3 is at the antipode, by a wide margin.
    assert float(torch.linalg.vector_norm(start[1:] - antipode, dim=-1).min()) > 0.6
    run = simulate(flow, start, np.array([0.0, 60.0]), rtol=1e-11, atol=1e-13)
    assert float(torch.linalg.vector_norm(run.tensor[-1, 1] - start[0])) < 1e-8
    assert float(torch.linalg.vector_norm(run.tensor[-1, 2] - antipode)) < 1e-5
    (certificate,) = certify(run, statements=["asymptotic-5.1"])
    assert certificate.outcome == "undecided"
    assert certificate.margin == pytest.approx(1e-3 - 2.0, abs=1e-9)


@pytest.mark.long
def test_its_neighbours_go_to_token_1_both_ways_round_so_that_some_start_between_cannot() -> None:
    # The limits are continuous where they are token 1; approached from opposite sides they leave a gap between.
    third = PRINTED_BASIN_COUNTEREXAMPLE["angles"][2]
    nearby = torch.tensor([[0.0, 2.0, third - 1e-7], [0.0, 2.0, third + 1e-7]], dtype=torch.float64)
    run = simulate(basin_flow(), on_circle(nearby), np.linspace(0.0, 250.0, 501), rtol=1e-8, atol=1e-11)
    (certificate,) = certify(run, statements=["asymptotic-5.1"])
    assert (certificate.outcomes == "holds").all()
    path = run.tensor[:, :, 2]
    # On the way from the antipode to token 1 each passes the top or the bottom of the circle.
    crossing = path[..., 1].gather(-1, path[..., 0].abs().argmin(dim=-1, keepdim=True)).squeeze(-1)
    assert crossing.sign().prod() == -1
    assert float(crossing.abs().min()) > 0.99


def test_the_printed_basin_is_right_for_two_tokens() -> None:
    angles = torch.tensor([[0.0, math.pi - 1e-3], [0.0, math.pi + 1e-3], [0.0, 2.0]], dtype=torch.float64)
    run = simulate(basin_flow(), on_circle(angles), np.linspace(0.0, 100.0, 11))
    (certificate,) = certify(run, statements=["asymptotic-5.1"])
    assert (certificate.outcomes == "holds").all()


@pytest.mark.long
def test_the_hemisphere_function_tends_to_one_minus_v_dot_consensus_and_not_to_zero() -> None:
    stored = NOT_TO_ZERO
    metric, v = torch.tensor(stored["metric"]).double(), torch.tensor(stored["direction"]).double()
    assert float(v @ metric @ v) == 1.0
    flow = Flow(Attention(stored["qk"], stored["ov"]), Ellipsoid(metric))
    start = torch.tensor(stored["start"], dtype=torch.float64)
    run = simulate(flow, start, np.linspace(0.0, 60.0, 121), rtol=1e-10, atol=1e-12)
    values = hemisphere_function(run.tensor, v)
    assert float(values.diff().max()) < 1e-9
    assert float(values[-1]) == pytest.approx(1 - float(v @ run.tensor[-1, 0]), abs=1e-9)
    assert float(values[-1]) < -2
    (certificate,) = certify(run, statements=["asymptotic-4.1"])
    assert certificate.outcome == "holds"
    # On the sphere the limit is above 0 unless the consensus is v itself.
    sphere = simulate(Flow(Attention(stored["qk"], stored["ov"]), Sphere()), start, np.linspace(0.0, 60.0, 121))
    assert float(hemisphere_function(sphere.tensor, [1.0, 0.0])[-1]) > 1e-3


def test_the_gradient_identity_fails_on_the_sphere_unless_qk_is_the_identity() -> None:
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(200, 1, 3, 3, dtype=torch.float64, generator=generator)
    qk, eye = factor @ factor.mT / 3 + 0.2 * torch.eye(3), torch.eye(3, dtype=torch.float64)
    start = Sphere().sample(5, 3, (200,), seed=1)
    run = simulate(Flow(Attention(qk, eye), Sphere()), start, np.array([0.0, 1.0]))
    (certificate,) = certify(run, statements=["asymptotic-3.1"])
    assert (certificate.outcomes == "fails").all()
    assert float(certificate.margins.max()) < -1e-3
    assert certificate.first_failure == 0.0
    run = simulate(Flow(Attention(eye, eye), Sphere()), start, np.array([0.0, 1.0]))
    (certificate,) = certify(run, statements=["asymptotic-3.1"])
    assert certificate.outcome == "holds"


def half_space_frequency(tokens: int, dim: int, draws: int, *, seed: int) -> tuple[float, float]:
    """Return how often uniform tokens shared an open half space, and the standard error of that frequency."""
    starts = Sphere().sample(tokens, dim, (draws,), seed=seed)
    probability = wendel_probability(tokens, dim)
    return float((hemisphere(starts).margin > 0).double().mean()), math.sqrt(probability * (1 - probability) / draws)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(("tokens", "dim"), [(4, 2), (6, 3), (5, 4)])
def test_wendels_frequency_agrees_with_the_corrected_sum_and_not_with_the_printed_one(tokens: int, dim: int) -> None:
    frequency, error = half_space_frequency(tokens, dim, 1500, seed=3)
    assert abs(frequency - wendel_probability(tokens, dim)) < 4 * error
    assert abs(frequency - wendel_probability(tokens, dim, formula="printed")) > 10 * error


def test_as_many_tokens_as_dimensions_always_share_a_half_space() -> None:
    # The print claims this for ℓ ≤ n only, with dim = n + 1.
    assert half_space_frequency(4, 4, 300, seed=4) == (1.0, 0.0)
    flow = Flow(Attention(torch.eye(4).double(), torch.eye(4).double()), Sphere())
    start = Sphere().sample(4, 4, (20,), seed=5)
    applying = {one.statement: one.prediction for one in check(flow, start) if one.applies}
    prediction = applying["asymptotic-remark-4.2"]
    assert prediction is not None
    assert "probability 1" in prediction.text
    run = simulate(flow, start, np.array([0.0, 1.0]))
    (certificate,) = certify(run, statements=["asymptotic-remark-4.2"])
    assert certificate.outcome == "holds"


def test_one_start_does_not_decide_a_probability() -> None:
    flow = Flow(Attention(torch.eye(2).double(), torch.eye(2).double()), Sphere())
    run = simulate(flow, Sphere().sample(6, 2, seed=6), np.array([0.0, 1.0]))
    (certificate,) = certify(run, statements=["asymptotic-remark-4.2"])
    assert certificate.outcome == "undecided"
    assert "0.1875" in certificate.text
    assert "asymptotic-remark-4.2" not in {one.statement for one in certify(run)}


@pytest.mark.long
def test_many_starts_are_compared_with_the_probability() -> None:
    flow = Flow(Attention(torch.eye(2).double(), torch.eye(2).double()), Sphere())
    uniform = Sphere().sample(6, 2, (200,), seed=6)
    run = simulate(flow, uniform, np.array([0.0, 1e-3]))
    certificate = next(one for one in certify(run) if one.statement == "asymptotic-remark-4.2")
    assert certificate.outcome == "holds"
    # Four standard errors of a frequency among 200, 6 tokens in dim 2: p = 2^(-5) (1 + 5).
    assert certificate.tolerance == pytest.approx(4 * math.sqrt(0.1875 * 0.8125 / 200), rel=1e-12)
    one_sided = Sphere().sample_hemisphere(6, [1.0, 0.0], (200,), seed=6)
    (certificate,) = certify(simulate(flow, one_sided, np.array([0.0, 1e-3])), ["asymptotic-remark-4.2"])
    assert certificate.outcome == "undecided"
    assert certificate.margin == pytest.approx(certificate.tolerance - 0.8125, rel=1e-12)
