"""The statement on noise: its thresholds by other routes, and what runs above and below them come to."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy.special import gammaln, ive

import tokendynamics as td
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.theorems import predict_noise_transition

NAME = "noise-transition"

# --- closed forms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [2, 3, 4, 11, 64])
@pytest.mark.parametrize("beta", [1e-3, 0.7, 4.0, 60.0, 700.0, 5000.0])
def test_the_coupling_is_that_of_the_bessel_function(dim: int, beta: float) -> None:
    if (scaled := ive(dim / 2, beta)) < 1e-200:
        pytest.skip("the Bessel function itself underflows")
    formula = dim / 2 * math.log(beta / 2) - gammaln(dim / 2) - math.log(scaled) - beta
    assert predict_noise_transition(beta, dim).log_coupling == pytest.approx(formula, rel=1e-11, abs=1e-11)
    if formula > -700:
        assert predict_noise_transition(beta, dim).coupling == pytest.approx(math.exp(formula), rel=1e-10)


def test_without_logits_the_coupling_is_that_of_kuramoto() -> None:
    assert [predict_noise_transition(0.0, dim).coupling for dim in (2, 3, 768)] == [1.0, 1.5, 384.0]
    assert predict_noise_transition(1.0, 768).coupling == pytest.approx(384 * math.exp(-1 / (4 * 385)), rel=1e-5)
    assert predict_noise_transition(1e5, 3).log_coupling < -9e4
    assert predict_noise_transition(1e5, 3).coupling == 0.0


def test_the_coupling_is_where_the_fokker_planck_equation_on_the_circle_loses_stability() -> None:
    """The whole equation of the density on a grid, differentiated at the uniform one by automatic differentiation."""
    size, beta = 64, 3.0
    angles = 2 * math.pi * torch.arange(size, dtype=torch.float64) / size
    apart = angles[None] - angles[:, None]
    pull = (beta * apart.cos()).exp() * apart.sin() / size
    waves = torch.fft.fftfreq(size, 1 / size, dtype=torch.float64)

    def slope(values: torch.Tensor) -> torch.Tensor:
        return torch.fft.ifft(1j * waves * torch.fft.fft(values)).real

    def change(density: torch.Tensor, coupling: float) -> torch.Tensor:
        return slope(slope(density)) / 2 - slope(density * coupling * (pull @ density))

    def fastest(coupling: float) -> float:
        jacobian = torch.func.jacrev(lambda density: change(density, coupling))(torch.ones(size, dtype=torch.float64))
        off = torch.linalg.eigvals(jacobian).real
        return float(off[off.abs() > 1e-9].max())

    critical = predict_noise_transition(beta, 2).coupling
    rates = [fastest(share * critical) for share in (0.9, 1.1)]
    assert rates == pytest.approx([-0.05, 0.05], abs=1e-9)  # (K/K_# − 1)/2


@pytest.mark.parametrize("dim", [3, 5])
def test_the_coupling_is_where_the_first_harmonic_neither_grows_nor_falls(dim: int) -> None:
    """By quadrature: for the density 1 + ε y·e the drift at x is ε (I − xxᵀ) e times K E[e^{β x·y} (y·u)²], u ⊥ x.

    Its divergence is −(d − 1) ε x·e times that, and ½Δ takes (d − 1)/2 ε x·e away.
    """
    beta, nodes = 2.2, np.polynomial.legendre.leggauss(80)
    cosine, weight = nodes[0], nodes[1] * (1 - nodes[0] ** 2) ** ((dim - 3) / 2)
    across = (weight @ (np.exp(beta * cosine) * (1 - cosine**2))) / weight.sum() / (dim - 1)
    assert predict_noise_transition(beta, dim).coupling * across == pytest.approx(1 / 2, rel=1e-12)


def test_the_transition_changes_its_kind_where_the_source_says() -> None:
    assert predict_noise_transition(0.0, 2).tricritical_beta == pytest.approx(2.44692, abs=5e-6)
    assert predict_noise_transition(0.0, 3).tricritical_beta == pytest.approx(1.81615, abs=5e-6)
    for dim in (2, 3, 7, 100):
        beta = predict_noise_transition(0.0, dim).tricritical_beta
        assert ive(dim / 2 + 1, beta) / ive(dim / 2, beta) == pytest.approx(1 / dim, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: predict_noise_transition(-1.0, 2).coupling, "beta: expected a finite number of at least 0"),
        (lambda: predict_noise_transition(1e9, 2).coupling, "beta: expected at most 1e"),
        (lambda: predict_noise_transition(1.0, 1).coupling, "dim: expected at least 2"),
        (lambda: predict_noise_transition(0.0, 1), "dim: expected at least 2"),
    ],
)
def test_what_has_no_threshold_is_refused(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ArgumentValueError, match=message):
        call()


# --- runs ------------------------------------------------------------------------------------------------------------

TOKENS = 110
SHARES = {2: (0.3, 2.0), 3: (0.3, 1.8)}


def flow_at(shares: tuple[float, ...], dim: int, beta: float, offset: float = 0.0) -> td.Flow:
    """Return systems with these shares of the critical coupling under noise of strength 1."""
    multiples = torch.tensor(shares).double() * predict_noise_transition(beta, dim).coupling * math.exp(offset)
    ov = multiples[:, None, None, None] * torch.eye(dim).double()
    attention = td.Attention(beta * np.eye(dim), ov, weights="exponential", offset=offset, normalization="plain")
    return td.Flow(attention, td.Sphere())


@cache
def run_of(dim: int, together: bool = False) -> td.Trajectory:
    """Return a run of two systems, below and above the threshold, from a uniform start or one direction."""
    start = td.Sphere().sample(TOKENS, dim, seed=4)
    if together:
        start = td.Sphere().project(start / 10 + torch.eye(dim).double()[0])
    times = np.linspace(0.0, {2: 120.0, 3: 60.0}[dim], 61)
    flow = flow_at(SHARES[dim], dim, 1.0)
    return td.simulate(flow, start.expand(2, -1, -1), times, noise=td.Noise(1.0, seed=dim), step={2: 0.2, 3: 0.1}[dim])


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.every_value_once
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("dim", [2, 3])
def test_runs_on_both_sides_of_the_threshold_hold(dim: int, together: bool) -> None:
    (certificate,) = td.certify(run_of(dim, together))
    assert certificate.statement == NAME
    assert certificate.outcomes.tolist() == ["holds", "holds"]
    mean = run_of(dim, together).tensor[:, 30:].mean(dim=-2).norm(dim=-1).square().mean(dim=-1)
    assert float(mean[0]) < 5 / TOKENS
    assert float(mean[1]) > 0.2


@pytest.mark.long
def test_tokens_that_do_the_opposite_fail() -> None:
    """A run under another coupling than it says it had is on the other side of the threshold."""
    swapped = replace(run_of(2), flow=flow_at(SHARES[2][::-1], 2, 1.0))
    (certificate,) = td.certify(swapped, [NAME])
    assert certificate.outcomes.tolist() == ["fails", "fails"]
    assert certificate.first_failure == 120.0
    strong = replace(run_of(2), noise=td.Noise(2.6, seed=2))
    assert td.certify(strong, [NAME])[0].outcomes.tolist() == ["holds", "fails"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("excess", "outcome"), [(0.9, "holds"), (1.1, "undecided"), (1.9, "undecided"), (2.1, "fails")]
)
def test_a_mean_is_judged_by_its_logarithm_beside_what_is_expected(excess: float, outcome: str) -> None:
    """Tokens at two angles have any mean: below the threshold a large one, above it a small one says the opposite."""
    shares = 0.3, 1.8
    squares = math.exp(excess) / (1 - shares[0]) / TOKENS, 30 * math.exp(-excess) / TOKENS
    angles = torch.tensor(squares, dtype=torch.float64).sqrt().arccos()[:, None] * torch.tensor([1.0, -1.0]).repeat(
        TOKENS // 2
    )
    still = torch.stack([angles.cos(), angles.sin()], dim=-1)[:, None].expand(run_of(2).tensor.shape)
    played = replace(run_of(2), flow=flow_at(shares, 2, 1.0), states=still, tensor=still)
    (certificate,) = td.certify(played, [NAME])
    assert certificate.outcomes.tolist() == [outcome, outcome]
    (one, other) = certificate.conditions
    assert one.margin[0] == pytest.approx(1 - excess, abs=1e-6)
    assert other.margin[1] == pytest.approx(1 - excess, abs=1e-6)


def cut(run: td.Trajectory, times: slice) -> td.Trajectory:
    """Return a part of a run."""
    tensor = run.tensor[:, times]
    return replace(run, states=tensor, tensor=tensor, times=run.times[times], reached=run.reached[:, times])


@pytest.mark.long
def test_what_cannot_be_told_is_undecided() -> None:
    run = run_of(2)
    for part in (cut(run, slice(0, 20)), cut(run, slice(0, 61, 15))):
        assert td.certify(part, [NAME])[0].outcome == "undecided"
    few = replace(run, states=run.tensor[:, :, :20], tensor=run.tensor[:, :, :20])
    assert td.certify(few, [NAME])[0].outcomes.tolist() == ["undecided", "undecided"]
    sharp = flow_at((0.8, 3.0), 2, 4.0)
    certificate = td.certify(replace(run, flow=sharp), [NAME])[0]
    assert certificate.outcomes[0] == "undecided"
    assert "β > β_*" in "".join(one.reason for one in certificate.conditions)


def test_steps_that_are_too_long_for_the_drift_decide_nothing() -> None:
    run = run_of(2)
    coarse = replace(run, parameters=run.parameters | {"step": 2.0})
    assert td.certify(coarse, [NAME])[0].outcomes.tolist() == ["undecided", "undecided"]


@pytest.mark.slow
@pytest.mark.parametrize("step", [0.1, 0.05, 0.025])
@pytest.mark.parametrize("dim", [2, 3])
def test_no_drawn_system_fails(dim: int, step: float) -> None:
    source, tokens, count = np.random.default_rng(dim), 85, 100
    betas = source.uniform(0.1, 3.5, count)
    below, above = source.uniform(0.05, 0.2, count), source.uniform(1.8, 4.0, count)
    shares = np.where(np.arange(count) % 2, below, above)
    critical = [predict_noise_transition(float(beta), dim).coupling for beta in betas]
    qk, ov = (
        torch.from_numpy(np.asarray(values))[:, None, None, None] * torch.eye(dim).double()
        for values in (betas, shares * critical)
    )
    flow = td.Flow(td.Attention(qk, ov, weights="exponential", normalization="plain"), td.Sphere())
    start = td.Sphere().sample(tokens, dim, (count,), seed=dim)
    horizon = 2 * 20 / ((dim - 1) / 2 * 0.79)
    noise = td.Noise(1.0, seed=dim)
    run = td.simulate(flow, start, np.linspace(0.0, horizon, 61), noise=noise, step=step)
    decided = td.certify(run, [NAME])[0].outcomes.tolist()
    assert "fails" not in decided
    assert decided.count("holds") > count / 4


def test_a_run_without_noise_is_undecided_and_not_asked() -> None:
    flow = flow_at((2.0,), 2, 1.0)
    run = td.simulate(flow, td.Sphere().sample(5, 2, (1,), seed=1), [0.0, 1.0])
    assert NAME not in {one.statement for one in td.certify(run)}
    assert td.certify(run, [NAME])[0].outcome == "undecided"


def test_an_offset_slows_the_drift_and_not_the_noise() -> None:
    """The coupling has the factor e^(−offset): with ov larger by e^offset the prediction is the same."""
    texts = []
    for offset in (0.0, 3.0):
        (check,) = td.check(flow_at((2.0,), 3, 1.0, offset), td.Sphere().sample(5, 3, (1,), seed=1), statements=[NAME])
        assert check.applies
        assert check.prediction is not None
        texts.append(check.prediction.text)
    assert texts[0] == texts[1]
    assert "below 1.414 the uniform law is unstable" in texts[0]
    assert "continuous" in texts[0]
    (check,) = td.check(flow_at((2.0,), 3, 6.0), td.Sphere().sample(5, 3, (1,), seed=1), statements=[NAME])
    assert check.prediction is not None
    assert "have gathered stay so" in check.prediction.text


EYE = np.eye(3)
START = td.Sphere().sample(5, 3, seed=1)


@pytest.mark.parametrize(
    ("flow", "name"),
    [
        (td.Flow(td.Attention(EYE, EYE), td.Sphere()), "exponential weights"),
        (td.Flow(td.Attention(EYE, EYE, weights="exponential"), td.Free()), "tokens on the sphere"),
        (td.Flow(td.Attention(EYE, EYE, weights="exponential", causal=True), td.Sphere()), "full mask"),
        (td.Flow(td.Attention([EYE, EYE], [EYE, EYE], weights="exponential"), td.Sphere()), "one head"),
        (td.Flow(td.Attention(EYE, -EYE, weights="exponential"), td.Sphere()), "the multiples are positive"),
        (td.Flow(td.Attention(-EYE, EYE, weights="exponential"), td.Sphere()), "β is positive"),
        (
            td.Flow(td.Attention(np.diag([1.0, 1.0, 2.0]), EYE, weights="exponential"), td.Sphere()),
            "qk is a multiple of the identity",
        ),
    ],
)
def test_each_hypothesis_that_is_broken_is_named(flow: td.Flow, name: str) -> None:
    (check,) = td.check(flow, START, statements=[NAME], noise=td.Noise(1.0, seed=0))
    assert [reason.partition(":")[0] for reason in check.reasons] == [name]


def test_noise_is_a_hypothesis_of_its_own() -> None:
    flow = td.Flow(td.Attention(EYE, EYE, weights="exponential"), td.Sphere())
    (unknown,) = td.check(flow, START, statements=[NAME])
    assert unknown.applies
    assert any(one.startswith("noise: ") for one in unknown.assumed)
    (none,) = td.check(flow, START, statements=[NAME], noise=td.Noise(0.0, seed=0))
    assert none.reasons == ("noise: its strength is 0",)
    (some,) = td.check(flow, START, statements=[NAME], noise=td.Noise(0.5, seed=0))
    assert some.applies
    assert not any(one.startswith("noise: ") for one in some.assumed)


def test_a_search_runs_with_noise() -> None:
    family = td.theorems.Family(3, 2, qk="multiple of I", ov="multiple of I", weights="exponential")
    search = td.theorems.search_counterexample(NAME, [family], seed=0, rounds=1, count=8, times=[0.0, 1.0])
    assert search.counterexample is None
