"""On random systems that satisfy the hypotheses every certificate holds; predicted rates are the measured ones."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from tokendynamics.attention import Attention, Sinusoidal
from tokendynamics.dynamics import Flow, Trajectory, simulate
from tokendynamics.observables import diameter, direction_deficit, potential, riemannian_metric
from tokendynamics.spaces import Ellipsoid, Sphere
from tokendynamics.theorems import Certificate, certify, check
from tokendynamics.theorems.statements._asymptotic_3_1 import negative_gradient
from tokendynamics.theorems.statements._asymptotic_6_1 import sided

Normalization = Literal["plain", "paper"]
SYSTEMS, TOKENS, DIM = 200, 5, 3


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def eye(*leading: int) -> Tensor:
    return torch.eye(DIM, dtype=torch.float64).expand(*leading, DIM, DIM)


def positive_definite(seed: int, *leading: int) -> Tensor:
    factor = normal(seed, *leading, DIM, DIM)
    return factor @ factor.mT / DIM + 0.2 * eye()


def symmetric_with(values: Tensor, seed: int) -> Tensor:
    basis = torch.linalg.qr(normal(seed, *values.shape[:-1], DIM, DIM)).Q
    made = (basis * values.unsqueeze(-2)) @ basis.mT
    return (made + made.mT) / 2


def sinusoids(seed: int, heads: int) -> Sinusoidal:
    matrix = normal(seed, SYSTEMS, heads, DIM, DIM) / 2
    frequency = normal(seed + 1, SYSTEMS, heads, DIM).abs()
    return Sinusoidal(matrix, 1.0, frequency, normal(seed + 2, SYSTEMS, heads, DIM), absolute=seed % 2 == 1)


def coarse(flow: Flow, start: Tensor, times: np.ndarray) -> Trajectory:
    """A run precise enough for outcomes: the certificates allow rises of 1e-6."""
    return simulate(flow, start, times, rtol=1e-6, atol=1e-9)


def named(name: str, trajectory: Trajectory) -> Certificate:
    """The certificate, found among those that apply."""
    return {entry.statement: entry for entry in certify(trajectory)}[name]


@pytest.mark.long
def test_gradient_statements_hold_on_random_systems() -> None:
    qk = positive_definite(0, SYSTEMS)
    space = Ellipsoid(qk)
    flow = Flow(Attention(qk.unsqueeze(-3), eye(1)), space)
    trajectory = coarse(flow, space.sample(TOKENS, DIM, (SYSTEMS,), seed=1), np.linspace(0.0, 80.0, 41))
    identity, convergence = named("asymptotic-3.1", trajectory), named("asymptotic-3.2", trajectory)
    assert (identity.outcomes == "holds").sum() == SYSTEMS
    assert identity.margin > 0.99e-10
    assert (convergence.outcomes == "holds").sum() == SYSTEMS


@pytest.mark.long
def test_consensus_from_half_spaces_holds_on_random_systems() -> None:
    metric = positive_definite(2, SYSTEMS)
    space = Ellipsoid(metric)
    flow = Flow(Attention(sinusoids(4, 2), eye(2)), space)
    start = space.sample(TOKENS, DIM, (SYSTEMS,), seed=5)
    direction = normal(6, SYSTEMS, DIM)
    start = start * (start @ direction.unsqueeze(-1)).sign()
    by_name = named("asymptotic-4.1", coarse(flow, start, np.linspace(0.0, 60.0, 61)))
    assert (by_name.outcomes == "holds").all()
    assert by_name.outcomes.shape == (SYSTEMS,)


@pytest.mark.long
def test_causal_consensus_holds_on_random_systems() -> None:
    flow = Flow(Attention(sinusoids(7, 2), eye(2), causal=True), Sphere())
    start = Sphere().sample(TOKENS, DIM, (SYSTEMS,), seed=8)
    by_name = named("asymptotic-5.1", coarse(flow, start, np.linspace(0.0, 100.0, 21)))
    assert (by_name.outcomes == "holds").all()


@pytest.mark.long
def test_the_other_projection_holds_on_random_systems() -> None:
    # Of moderate condition, so that the tolerance is 1e-12 as it stands.
    ov = normal(9, SYSTEMS, DIM, DIM) / 6 + eye()
    assert float(torch.linalg.cond(ov).max()) < 30
    space = Ellipsoid(ov.mT @ ov)
    flow = Flow(Attention(sinusoids(10, 1), ov.unsqueeze(-3), causal=True), space, projection="remark_5_1")
    start = space.sample(TOKENS, DIM, (SYSTEMS,), seed=11)
    by_name = named("asymptotic-remark-5.1", coarse(flow, start, np.linspace(0.0, 130.0, 21)))
    assert (by_name.outcomes == "holds").all()
    assert float(by_name.conditions[0].margin.min()) > 0.9e-12


def test_consensus_at_the_top_eigenvector_holds_on_random_systems() -> None:
    top = 0.5 + normal(12, SYSTEMS, 1).abs()
    others = top - 0.4 - 2 * normal(13, SYSTEMS, DIM - 1).abs()
    ov = symmetric_with(torch.cat([others, top], dim=-1), seed=14)
    flow = Flow(Attention(sinusoids(15, 1), ov.unsqueeze(-3), causal=True), Sphere())
    start = Sphere().sample(TOKENS, DIM, (SYSTEMS,), seed=16)
    v = torch.linalg.eigh(ov).eigenvectors[..., -1:]
    sides = torch.where(torch.arange(SYSTEMS) % 2 == 0, 1.0, -1.0)[:, None, None]
    start = start * (start @ v).sign() * sides
    by_name = named("asymptotic-6.1", coarse(flow, start, np.linspace(0.0, 50.0, 21)))
    assert (by_name.outcomes == "holds").all()


@pytest.mark.parametrize(("statement", "heads"), [("asymptotic-3.2", 1), ("asymptotic-4.1", 2)])
@pytest.mark.parametrize("normalization", ["plain", "paper"])
def test_the_diameter_shrinks_at_the_predicted_rate(statement: str, heads: int, normalization: Normalization) -> None:
    qk = positive_definite(17)
    space = Ellipsoid(qk)
    flow = Flow(Attention(qk.expand(heads, DIM, DIM), eye(heads), normalization=normalization), space)
    start = space.sample_hemisphere(TOKENS, [1.0, 0.0, 0.0], seed=18)
    predicted = {entry.statement: entry.prediction for entry in check(flow, start)}[statement]
    assert predicted is not None
    assert predicted.rate is not None
    late = np.array([0.0, 12.0, 15.0]) / predicted.rate
    spread = diameter(simulate(flow, start, late, rtol=1e-8, atol=1e-14).tensor)
    assert float((spread[1] / spread[2]).log()) == pytest.approx(3.0, rel=1e-3)


@pytest.mark.parametrize("values", [(0.3, -0.5, 1.0), (-0.4, -1.5, 1.0)])
def test_tokens_reach_the_top_eigenvector_at_the_predicted_rate(values: tuple[float, ...]) -> None:
    ov = symmetric_with(torch.tensor(values, dtype=torch.float64), seed=19)
    flow = Flow(Attention(normal(20, DIM, DIM), ov, causal=True), Sphere())
    start = Sphere().sample(2, DIM, seed=21)
    start = start * (start @ torch.linalg.eigh(ov).eigenvectors[:, -1:]).sign()
    rate = expected_rate(flow, start, "asymptotic-6.1")
    # Two tokens, since the rates λ − μ/i of many lie close together and the slowest takes over late.
    late = np.array([0.0, 22.0, 25.0]) / rate
    run = simulate(flow, start, late, rtol=1e-8, atol=1e-14)
    gap = direction_deficit(run.tensor, sided(flow, start)[0]).amax(dim=-1).sqrt()
    assert float((gap[1] / gap[2]).log()) == pytest.approx(3.0, rel=2e-2)


def test_causal_tokens_reach_the_first_at_the_predicted_rate() -> None:
    flow = Flow(Attention(normal(22, 2, DIM, DIM) / 2, eye(2), causal=True), Sphere())
    start = Sphere().sample(TOKENS, DIM, seed=23)
    rate = expected_rate(flow, start, "asymptotic-5.1")
    assert rate == pytest.approx(1 / math.sqrt(3))
    # Gaps of e^(−18) are measured to a thousandth: errors of 1e-11 are what that takes.
    run = simulate(flow, start, np.array([0.0, 15.0, 18.0]) / rate, rtol=1e-11, atol=1e-14)
    gap = torch.linalg.vector_norm(run.tensor[:, 1] - run.tensor[:, 0], dim=-1)
    assert float((gap[1] / gap[2]).log()) == pytest.approx(3.0, rel=1e-3)


def expected_rate(flow: Flow, start: Tensor, statement: str) -> float:
    prediction = {entry.statement: entry.prediction for entry in check(flow, start)}[statement]
    assert prediction is not None
    assert prediction.rate is not None
    return prediction.rate


@pytest.mark.parametrize("normalization", ["plain", "paper"])
def test_the_gradient_is_that_of_the_potential_in_the_metric_on_any_ellipsoid(normalization: Normalization) -> None:
    # dV(u) = ⟨grad V, u⟩ for tangent u, also where M is not qk; dV from central differences.
    qk, metric = positive_definite(24), positive_definite(25)
    space = Ellipsoid(metric)
    flow = Flow(Attention(qk, eye(1), normalization=normalization), space)
    y = space.sample(TOKENS, DIM, seed=26)
    u = space.tangent(y, normal(27, TOKENS, DIM))
    slope = (potential(y + 1e-5 * u, qk) - potential(y - 1e-5 * u, qk)) / 2e-5
    descent = negative_gradient(flow, y, 0.0)
    assert descent is not None
    against = -riemannian_metric(descent, u, y, qk, normalization=flow.normalization)
    assert float(against) == pytest.approx(float(slope), rel=1e-8)
    assert float((descent * (y @ metric)).sum(dim=-1).abs().max()) < 1e-13


@pytest.mark.long
def test_a_token_may_first_leave_the_top_eigenvector() -> None:
    # asymptotic Fig. 4, with a start at which 1 − v·y_2 rises from 0.100 to 0.171 and the theorem holds.
    ov = torch.tensor(
        [[-0.2590, 0.4965, 0.5609], [0.4965, -0.7174, -0.5003], [0.5609, -0.5003, -0.0247]], dtype=torch.float64
    )
    matrix = [[0.3598, 0.4150, 0.1319], [0.0971, -0.0668, -0.2046], [0.1548, -0.2102, 0.1220]]
    frequency = [10 * math.pi, 10 * math.pi, 6 * math.pi]
    qk = Sinusoidal(matrix, 2.0, frequency, [math.pi / 2, 0.0, math.pi / 2])
    vectors = torch.linalg.eigh(ov).eigenvectors
    v, q = vectors[:, -1] * vectors[0, -1].sign(), vectors[:, 0]
    assert v.tolist() == pytest.approx([0.57806, -0.10208, 0.80958], abs=1e-5)
    start = torch.stack([0.1 * v + math.sqrt(0.99) * q, 0.9 * v - math.sqrt(0.19) * q])
    times = np.linspace(0.0, 30.0, 301)
    run = coarse(Flow(Attention(qk, ov, causal=True), Sphere()), start, times)
    second = direction_deficit(run.tensor, v)[:, 1]
    assert float(second[0]) == pytest.approx(0.1)
    assert float(second.max()) == pytest.approx(0.171, abs=1e-3)
    assert times[int(second.argmax())] == pytest.approx(1.8, abs=0.2)
    assert named("asymptotic-6.1", run).outcome == "holds"


def test_an_ill_conditioned_value_matrix_fails_no_identity_for_its_rounding() -> None:
    ov = torch.diag(torch.tensor([1.0, 1e-2, 1e-3], dtype=torch.float64)) @ torch.linalg.qr(normal(28, DIM, DIM)).Q
    space = Ellipsoid(ov.mT @ ov)
    flow = Flow(Attention(normal(29, DIM, DIM) * 1e-6, ov, causal=True), space, projection="remark_5_1")
    run = coarse(flow, space.sample(TOKENS, DIM, seed=30), np.array([0.0, 1.0]))
    (computed,) = certify(run, statements=["asymptotic-remark-5.1"])
    assert computed.conditions[0].outcome == "holds"
