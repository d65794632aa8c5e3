"""Statements of `norms`: what holds within their hypotheses, and what outside them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tokendynamics as td
from tokendynamics.theorems._conditions import integration_tolerance

STATEMENTS = ("norms-3", "norms-4.3-radius", "norms-4.3-variance")
SPACES: dict[str, td.Normalized] = {
    "post": td.Normalized("post"),
    "pre": td.Normalized("pre"),
    "mix": td.Normalized("mix", switch=0.7),
    "peri": td.Normalized("peri"),
    "ngpt": td.Normalized("ngpt", rate=0.6),
    "ngpt over time": td.Normalized("ngpt", rate=lambda t: 1 / (1 + t) ** 0.5),
    "scaled": td.Normalized("scaled"),
}
WITH_RADIUS = ("pre", "mix", "peri")
TIMES = np.concatenate([[0.0], np.geomspace(0.05, 60, 50)])
I3 = torch.eye(3, dtype=torch.float64)


def unit(states: Tensor) -> Tensor:
    return states / torch.linalg.vector_norm(states, dim=-1, keepdim=True)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def at_radii(scheme: str, directions: Tensor, seed: int) -> Tensor:
    """Directions with radii from 0.5 to 2.5 where the scheme has them."""
    if scheme not in WITH_RADIUS:
        return directions
    radii = 0.5 + 2 * torch.rand(directions.shape[:-1], generator=torch.Generator().manual_seed(seed))
    return directions * radii.double().unsqueeze(-1)


def narrow(seed: int, systems: int, tokens: int, spread: float) -> Tensor:
    return unit(unit(normal(seed, systems, 1, 3)) + spread * normal(seed + 1, systems, tokens, 3))


def system(statement: str, scheme: str, seed: int, systems: int = 10) -> tuple[td.Flow, Tensor]:
    """Random systems within the hypotheses of a statement."""
    rng = np.random.default_rng(seed)
    multiples = torch.from_numpy(rng.uniform(0.5, 1.5, (systems, 1, 1, 1)))
    if statement == "norms-3":
        betas = torch.from_numpy(rng.uniform(0.1, 3.0, (systems, 1, 1, 1)))
        attention = td.Attention(betas * I3, multiples * I3, normalization="plain")
        return td.Flow(attention, SPACES[scheme]), at_radii(scheme, unit(normal(seed, systems, 5, 3)), seed)
    qk = normal(seed + 2, systems, 2, 3, 3)
    if statement == "norms-4.3-radius":
        ov = torch.cat([multiples, 0.3 * multiples], dim=1) * I3
        start = narrow(seed, systems, 6, 0.4)
        start[(start @ start.mT).flatten(1).amin(-1) <= 0] = start[:, :1][(start @ start.mT).flatten(1).amin(-1) <= 0]
        return td.Flow(td.Attention(2 * qk, ov, normalization="plain"), SPACES[scheme]), at_radii(scheme, start, seed)
    qk = (
        qk[:, :1]
        / torch.linalg.matrix_norm(qk[:, :1], 2)[..., None, None]
        * torch.from_numpy(rng.uniform(0.0, 1.3, (systems, 1, 1, 1)))
    )
    attention = td.Attention(qk, multiples * I3, normalization="plain")
    return td.Flow(attention, SPACES[scheme]), at_radii(scheme, narrow(seed, systems, 4, 0.004), seed)


def within(statement: str, run: td.Trajectory) -> list[str]:
    """Outcomes of a run all of whose systems meet the hypotheses."""
    assert run.flow is not None
    (checked,) = td.check(run.flow, run.tensor[..., 0, :, :], run.times, statements=[statement])
    assert checked.applies, checked.reasons
    (certificate,) = td.certify(run, [statement])
    return certificate.outcomes.tolist()


@pytest.mark.few(11)
@pytest.mark.parametrize("rtol", [1e-4, 1e-7, 1e-10])
@pytest.mark.parametrize("scheme", SPACES)
@pytest.mark.parametrize("statement", STATEMENTS)
def test_no_system_within_the_hypotheses_contradicts_a_statement(statement: str, scheme: str, rtol: float) -> None:
    if statement == "norms-4.3-radius" and scheme not in WITH_RADIUS:
        return
    flow, start = system(statement, scheme, seed=round(-np.log10(rtol)))
    run = td.simulate(flow, start, TIMES, rtol=rtol, atol=rtol)
    outcomes = within(statement, run)
    assert "fails" not in outcomes
    if statement == "norms-4.3-radius":
        assert set(outcomes) == {"holds"}
    if statement == "norms-4.3-variance" and rtol < 1e-9:
        assert set(outcomes) == {"holds"}
    if statement == "norms-3" and scheme in ("post", "ngpt"):
        assert outcomes.count("holds") >= 6


@pytest.mark.few(1)
@pytest.mark.every_value_once
@pytest.mark.parametrize("engine", ["compiled", "stiff", "fixed", "layers"])
@pytest.mark.parametrize("statement", ["norms-3", "norms-4.3-variance"])
def test_other_engines_do_not_contradict_them_either(statement: str, engine: Any) -> None:
    scheme = "post" if engine in ("compiled", "stiff") else "pre"
    flow, start = system(statement, scheme, 5, 4)
    options: dict[str, Any] = {"fixed": {"step": 0.1}, "layers": {"tau": 0.1}}.get(engine, {"rtol": 1e-9, "atol": 1e-9})
    times = np.unique(TIMES.round()) * 5 if engine == "layers" else TIMES
    run = td.simulate(flow, start, times[times <= 100], engine=engine, **options)
    assert "fails" not in within(statement, run)


# --- hypotheses ------------------------------------------------------------------------------------------------------


def reasons(statement: str, flow: td.Flow, start: Any) -> list[str]:
    (checked,) = td.check(flow, start, TIMES, statements=[statement])
    return [text.split(":")[0] for text in checked.reasons]


CONE, WIDE = narrow(3, 1, 4, 0.003)[0], unit(normal(4, 5, 3))


def one(space: td.Normalized | td.Free = SPACES["pre"], *, qk: Any = 0.5 * I3, ov: Any = I3, **options: Any) -> td.Flow:
    return td.Flow(td.Attention(qk, ov, normalization="plain", **options), space)


@pytest.mark.parametrize(
    ("statement", "flow", "start", "reason"),
    [
        ("norms-3", one(td.Free()), WIDE, "tokens normalized"),
        ("norms-3", one(causal=True), WIDE, "full mask"),
        ("norms-3", one(weights="linear"), WIDE, "softmax weights"),
        ("norms-3", one(qk=torch.stack([I3, I3]), ov=torch.stack([I3, I3])), WIDE, "one head"),
        ("norms-3", one(qk=-I3), WIDE, "β is positive"),
        (
            "norms-3",
            one(qk=torch.diag(torch.tensor([1.0, 1.0, 2.0]).double())),
            WIDE,
            "qk is a multiple of the identity",
        ),
        ("norms-3", one(ov=-I3), WIDE, "the multiples are positive"),
        ("norms-3", one(), WIDE[:1], "at least two tokens"),
        ("norms-3", one(qk=[[1.0]], ov=[[1.0]]), [[1.0], [-2.0]], "dim at least 2"),
        ("norms-3", one(), [[1.0, 0, 0], [-3.0, 0, 0]], "tokens not at rest except in one point"),
        ("norms-4.3-radius", one(SPACES["post"]), CONE, "tokens with a radius"),
        ("norms-4.3-radius", one(ov=-I3), CONE, "the multiples are positive"),
        ("norms-4.3-radius", one(), [[1.0, 0, 0], [-0.1, 1, 0]], "tokens within a right angle"),
        ("norms-4.3-radius", one(weights="exponential"), CONE, "softmax weights"),
        ("norms-4.3-variance", one(), 3 * narrow(3, 1, 4, 0.1)[0], "tokens in a narrow cone"),
        ("norms-4.3-variance", one(qk=9 * I3), narrow(3, 1, 4, 0.006)[0], "tokens in a narrow cone"),
        ("norms-4.3-variance", one(ov=-I3), CONE, "the multiples are positive"),
        ("norms-4.3-variance", one(causal=True), CONE, "full mask"),
        ("norms-4.3-variance", one(), CONE[:1], "at least two tokens"),
        ("norms-4.3-variance", one(td.Free()), CONE, "tokens normalized"),
    ],
)
def test_each_hypothesis_is_named_alone(statement: str, flow: td.Flow, start: Any, reason: str) -> None:
    assert reasons(statement, flow, start) == [reason]


def test_a_rate_over_time_is_assumed_to_be_enough() -> None:
    flow = one(SPACES["ngpt over time"])
    (checked,) = td.check(flow, WIDE, TIMES, statements=["norms-3"])
    assert any("∫α" in text for text in checked.assumed)


# --- outside ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("scheme", SPACES)
def test_tokens_that_repel_each_other_fail(scheme: str) -> None:
    run = td.simulate(one(SPACES[scheme], ov=-I3), at_radii(scheme, CONE, 1), TIMES[TIMES < 12], rtol=1e-9, atol=1e-11)
    energy, radius, variance = td.certify(run, STATEMENTS)
    assert energy.outcome == "fails"
    assert radius.outcome == ("fails" if scheme in WITH_RADIUS else "undecided")
    # Radii end at zero before they could have doubled.
    assert variance.outcome == ("undecided" if scheme in WITH_RADIUS else "fails")


def test_a_rate_with_a_finite_integral_stops_tokens_on_the_way() -> None:
    """With α = e^(−4t) directions go at most 1/4 in all, and right angles remain."""
    flow = one(td.Normalized("ngpt", rate=lambda t: float(np.exp(-4 * t))), qk=I3)
    run = td.simulate(flow, I3, [0.0, 5.0, 50.0], rtol=1e-9, atol=1e-11)
    turned = 2 * torch.asin((run.tensor[-1] - run.tensor[0]).norm(dim=-1) / 2)
    assert float(turned.max()) <= 0.25
    assert td.certify(run, ["norms-3"])[0].outcome == "undecided"
    assert float(td.observables.diameter(run.tensor[-1])) > 0.8


def test_the_printed_cone_allows_an_antipodal_pair_at_rest() -> None:
    """δ = 2 is below 1/(100 ℓ²β²) for β = 0.01, and the variance of the pair is 1 for ever."""
    beta, pair = 0.01, [[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]
    assert 1 / (100 * 4 * beta**2) > 2
    flow = one(SPACES["post"], qk=beta * I3)
    assert reasons("norms-4.3-variance", flow, pair) == ["tokens in a narrow cone"]
    (certificate,) = td.certify(td.simulate(flow, pair, TIMES), ["norms-4.3-variance"])
    assert certificate.outcome == "fails"


def test_the_printed_row_of_ngpt_is_inverted() -> None:
    """The variance falls like e^(−2αt), not like e^(−2t/α): at α = 1/10 the printed speed is a hundred times that."""
    flow = one(td.Normalized("ngpt", rate=0.1))
    run = td.simulate(flow, CONE, [0.0, 5.0, 10.0], rtol=1e-11, atol=1e-12)
    spread = (unit(run.tensor) - unit(run.tensor).mean(dim=-2, keepdim=True)).square().sum(dim=(-2, -1)).log()
    slope = float(spread[2] - spread[1]) / 5
    assert slope == pytest.approx(-0.2, rel=0.05)
    assert not -4 / 0.1 <= slope <= -1 / 9 / 0.1


def test_one_dimension_has_rests_that_are_apart() -> None:
    run = td.simulate(
        td.Flow(td.Attention([[1.0]], [[1.0]], normalization="plain"), SPACES["post"]), [[1.0], [-1.0]], TIMES
    )
    assert torch.equal(run.tensor[-1], run.tensor[0])


# --- numbers by another route ----------------------------------------------------------------------------------------


def test_the_least_growth_of_a_radius_is_that_of_the_worst_scores() -> None:
    """r' = Σ_k e^{βc_k} c_k / Σ_k e^{βc_k}, c_j = 1, is at least (e^β − ℓ + 1)/(ℓe^β) for any scores in [−1, 1]."""
    beta, tokens = 1.7, 5
    bound = (np.exp(beta) - tokens + 1) / (tokens * np.exp(beta))
    scores = np.random.default_rng(1).uniform(-1, 1, (20_000, tokens))
    scores[:, 0] = 1
    growth = (np.exp(beta * scores) * scores).sum(-1) / np.exp(beta * scores).sum(-1)
    assert growth.min() > bound > 0
    flow, start = one(qk=beta * I3), unit(normal(8, tokens, 3))
    (checked,) = td.check(flow, start, statements=["norms-3"])
    assert f"{bound:.3g}" in str(checked.prediction)
    assert td.check(one(qk=1.5 * I3), start, statements=["norms-3"])[0].prediction is not None
    assert "ever more slowly" in str(td.check(one(qk=1.5 * I3), start, statements=["norms-3"])[0].prediction)


@pytest.mark.parametrize(
    ("scheme", "law", "text"),
    [
        ("post", lambda t: -2.6 * t, "exp(−2.6 t)"),
        ("pre", lambda t: -2 * np.log(t), "t^(−2)"),
        ("mix", lambda t: -2 * np.log(t), "t^(−2)"),
        ("peri", lambda t: -2 * np.log(t), "t^(−2)"),
        ("ngpt", lambda t: -1.2 * t, "exp(−2 ∫α)"),
        ("ngpt over time", lambda t: -4 * np.sqrt(1 + t), "exp(−2 ∫α)"),
        ("scaled", lambda t: -5.2 * np.sqrt(1 + t), "exp(−5.2 √t)"),
    ],
)
def test_the_variance_falls_at_the_end_as_the_prediction_says(scheme: str, law: Any, text: str) -> None:
    """With ov = 1.3 I, which some laws depend on and others do not."""
    flow = one(SPACES[scheme], ov=1.3 * I3)
    (checked,) = td.check(flow, CONE, statements=["norms-4.3-variance"])
    assert str(checked.prediction).split("fall like ")[1].startswith(text)
    ends = (200.0, 2000.0) if scheme in WITH_RADIUS else (1.0, 3.0)
    run = td.simulate(flow, CONE, [0.0, *ends], rtol=1e-12, atol=1e-13)
    directions = unit(run.tensor)
    spread = (directions - directions.mean(dim=-2, keepdim=True)).square().sum(dim=(-2, -1)).log()
    assert float(spread[2] - spread[1]) == pytest.approx(law(ends[1]) - law(ends[0]), rel=0.02)


def test_the_bounds_of_the_variance_are_between_twice_the_radius_and_the_end() -> None:
    """By hand for pre: from t = 2 max r(0) on, log V falls by 1/9 to 4 times log(t/T)."""
    flow, start = one(), 1.5 * CONE
    times = np.array([0.0, 2.9, 3.1, 30.0])
    run = td.simulate(flow, start, times, rtol=1e-11, atol=1e-12)
    directions = unit(run.tensor)
    logs = (directions - directions.mean(dim=-2, keepdim=True)).square().sum(dim=-1).mean(dim=-1).log()
    fall, passed = float(logs[2] - logs[3]), np.log(30 / 3.1)
    (certificate,) = td.certify(run, ["norms-4.3-variance"])
    assert certificate.outcome == "holds"
    worst = max(fall - 4 * passed, passed / 9 - fall)
    assert certificate.tolerance - certificate.margin == pytest.approx(worst, rel=1e-6)
    (short,) = td.certify(td.simulate(flow, start, times[:2]), ["norms-4.3-variance"])
    assert short.outcome == "undecided"


def played(flow: td.Flow, times: Any, states: Tensor) -> td.Trajectory:
    """A run of this flow that says it went through these states."""
    return replace(td.simulate(flow, states[0], times, rtol=1e-8, atol=1e-10), states=states, tensor=states)


def pair(cosines: Any, radii: Any = 1.0) -> Tensor:
    """Two tokens at each time with a cosine and a radius."""
    angles = torch.as_tensor(cosines, dtype=torch.float64).arccos()[:, None] / 2 * torch.tensor([1.0, -1.0])
    directions = torch.stack([angles.cos(), angles.sin(), torch.zeros_like(angles)], dim=-1)
    return directions * torch.as_tensor(radii, dtype=torch.float64).expand(len(angles))[:, None, None]


@pytest.mark.parametrize(("factor", "outcome"), [(0.0, "fails"), (0.2, "holds"), (3.9, "holds"), (4.2, "fails")])
def test_a_speed_of_the_variance_is_judged_in_a_short_run_too(factor: float, outcome: str) -> None:
    times = np.linspace(0.0, 0.5, 6)
    variance = 1e-4 * np.exp(-factor * times)  # of two tokens: the square of the sine of half of their angle
    run = played(one(SPACES["post"]), times, pair(1 - 2 * variance))
    assert td.certify(run, ["norms-4.3-variance"])[0].outcome == outcome


@pytest.mark.long
@pytest.mark.parametrize(("beyond", "outcome"), [(0.3, "fails"), (-0.3, "holds")])
def test_below_the_errors_of_a_run_nothing_is_asked_of_the_variance(beyond: float, outcome: str) -> None:
    times = np.linspace(0.0, 400.0, 41)
    run = played(one(SPACES["post"]), times, pair(np.full(41, 0.9999)))
    least = (200 * integration_tolerance(run)) ** 2 * math.exp(beyond)
    variance = np.maximum(1e-3 * np.exp(-2 * times), least)
    run = played(one(SPACES["post"]), times, pair(1 - 2 * variance))
    assert td.certify(run, ["norms-4.3-variance"])[0].outcome == outcome


@pytest.mark.parametrize(("share", "applies"), [(0.996, True), (1.004, False)])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_narrow_cone_is_as_wide_as_its_formula(factor: float, share: float, applies: bool) -> None:
    widest = 1 / (100 * 2**2 * max(1.0, factor) ** 2)
    flow = one(SPACES["post"], qk=factor * I3)
    assert (reasons("norms-4.3-variance", flow, pair([1 - share * widest])[0]) == []) == applies


@pytest.mark.parametrize(("slope", "outcome"), [(0.45, "fails"), (0.6, "holds"), (1.0, "holds"), (1.05, "fails")])
def test_radii_grow_by_the_least_cosine_of_the_start_at_least(slope: float, outcome: str) -> None:
    times = np.array([0.0, 1.0, 2.0])
    run = played(one(SPACES["pre"]), times, pair([0.5, 0.9, 0.99], 1 + slope * times))
    assert td.certify(run, ["norms-4.3-radius"])[0].outcome == outcome


def test_a_loose_run_is_undecided_and_other_flows_are_answered() -> None:
    (loose,) = td.certify(td.simulate(one(), CONE, TIMES, rtol=1e-2, atol=1e-2), ["norms-4.3-variance"])
    assert loose.outcome == "undecided"
    free = td.simulate(one(td.Free()), CONE, [0.0, 1.0])
    assert [entry.outcome for entry in td.certify(free, STATEMENTS[1:])] == ["undecided", "undecided"]
    single = td.simulate(one(), CONE[:1], [0.0, 1.0])
    assert td.certify(single, ["norms-3"])[0].outcome == "undecided"
    assert td.certify(single, ["norms-4.3-radius"])[0].outcome == "holds"
