"""Statements of `metastability`: caps that tokens do not leave, their times, and two clusters."""

from __future__ import annotations

import re
from typing import Any, Literal

import mpmath
import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import Tensor

import tokendynamics as td
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.theorems import predict_equiangular, predict_two_clusters
from tokendynamics.theorems.atlas._metastability import (
    _caps_of_all,
    largest_cosine_allowed,
    times_of_caps,
    widest_group,
)

ALL = ("metastability-main", "metastability-propagation", "metastability-inequality")
Engine = Literal["batched", "compiled", "stiff"]


def unit(states: Tensor) -> Tensor:
    return states / torch.linalg.vector_norm(states, dim=-1, keepdim=True)


def in_caps(seed: int, systems: int, *, caps: int = 2, tokens: int = 2, width: float = 3e-4) -> Tensor:
    """Tokens in caps of that width around orthogonal directions, (system, caps · tokens, 3)."""
    generator = torch.Generator().manual_seed(seed)
    frames = torch.linalg.qr(torch.randn(systems, 3, 3, generator=generator, dtype=torch.float64))[0][:, :caps]
    noise = torch.randn(systems, caps * tokens, 3, generator=generator, dtype=torch.float64)
    return unit(frames.repeat_interleave(tokens, 1) + 0.6 * (2 * width) ** 0.5 * unit(noise))


Weights = Literal["softmax", "exponential"]


def flow(
    beta: Any,
    *,
    ov: float = 1.0,
    causal: bool = False,
    heads: int = 1,
    weights: Weights = "softmax",
    offset: float = 0.0,
) -> td.Flow:
    eye = torch.eye(3, dtype=torch.float64)
    qk = torch.as_tensor(beta, dtype=torch.float64)[..., None, None, None] * eye
    qk = qk.expand(*qk.shape[:-3], heads, 3, 3)
    attention = td.Attention(
        qk,
        (ov * eye).expand(heads, 3, 3),
        causal=causal,
        normalization="plain",
        weights=weights,
        offset=offset,
    )
    return td.Flow(attention, td.Sphere())


def reasons(statement: str, of_one: td.Flow, start: Any) -> list[str]:
    (checked,) = td.check(of_one, start, statements=[statement])
    return [text.split(":")[0] for text in checked.reasons]


WEIGHTS: dict[Weights, dict[str, Any]] = {"softmax": {}, "exponential": {"weights": "exponential", "offset": 17.0}}
"""With that offset T₁ is before the last time that is saved below, and T₂ after it for the smallest β."""


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.every_value_once
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("rtol", [1e-4, 1e-7, 1e-10])
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff"])
def test_tokens_in_caps_never_refute_a_statement(engine: Engine, rtol: float, weights: Weights) -> None:
    seed, systems = round(-np.log10(rtol)), 6 if engine == "stiff" else 34
    of_many = flow(np.random.default_rng(seed).uniform(17, 22, systems), **WEIGHTS[weights])
    start, times = in_caps(seed, systems), [0.0, 1.0, 10.0, 100.0, 300.0, 360.0]
    run = td.simulate(of_many, start, times, engine=engine, rtol=rtol, atol=rtol)
    for statement in ALL:
        (checked,) = td.check(of_many, start, statements=[statement])
        assert checked.applies, checked.reasons
        (certificate,) = td.certify(run, [statement])
        assert set(certificate.outcomes.tolist()) == {"holds"}, certificate.text


def test_three_caps_with_one_or_several_tokens_are_found() -> None:
    start = torch.cat([in_caps(1, 5, caps=3), in_caps(1, 5, caps=3)[:, :1]], dim=1)
    for system in start:
        caps = _caps_of_all([system], [20.0])[0]
        assert len(caps.centers) == 3
        assert np.array_equal(caps.labels[::2][:3], np.unique(caps.labels[::2][:3]))
        gap = 1 - (system.numpy() * caps.centers[caps.labels]).sum(axis=-1)
        assert gap.max() <= caps.epsilon < 1 / 16


@pytest.mark.parametrize("statement", ALL)
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"causal": True}, "full mask"),
        ({"heads": 2}, "one head"),
        ({"ov": -1.0}, "the multiples are positive"),
        ({"beta": -3.0}, "β is positive"),
    ],
)
def test_each_hypothesis_broken_alone_is_named(statement: str, changes: dict[str, Any], reason: str) -> None:
    given = {"beta": 18.0, **changes}
    named = "β above 1" if reason == "β is positive" and statement == ALL[0] else reason
    assert reasons(statement, flow(given.pop("beta"), **given), in_caps(0, 1)[0]) == [named]


def test_starts_that_are_too_few_too_wide_or_too_near_are_named() -> None:
    near = unit(torch.tensor([[1.0, 0, 0], [1.0, 0.1, 0], [1.0, 0, 0.1], [1.0, 0.5, 0]]).double())
    assert reasons(ALL[0], flow(18.0), near) == ["tokens in caps far enough apart"]
    assert reasons(ALL[0], flow(18.0), near[:1]) == ["at least two tokens"]
    assert reasons(ALL[1], flow(18.0), near) == ["groups far enough apart"]
    assert reasons(ALL[1], flow(18.0), near[:2]) == ["at least 3 tokens"]
    angles = 2 * torch.pi * torch.arange(3).double() / 3
    thirds = torch.stack([angles.cos(), angles.sin(), 0 * angles], dim=-1)
    assert reasons(ALL[2], flow(18.0), thirds) == ["acute groups"]
    form = td.Flow(td.Attention(np.diag([18.0, 17, 18]), np.eye(3), normalization="plain"), td.Sphere())
    assert [reasons(entry, form, in_caps(0, 1)[0])[0] for entry in ALL] == ["qk is a multiple of the identity"] * 3


@pytest.mark.few(2)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("statement", ALL)
def test_repelling_tokens_refute_a_statement_at_a_finite_time(statement: str, weights: Weights) -> None:
    repelling = flow(20.0, ov=-1.0, **WEIGHTS[weights])
    run = td.simulate(repelling, in_caps(2, 1)[0], [0.0, 1.0, 10.0, 100.0, 350.0])
    assert td.certify(run, [statement])[0].outcome == "fails"


@pytest.mark.parametrize("shift", [-3.0, 0.0, 900.0])
def test_an_offset_of_exponential_weights_is_a_change_of_time(shift: float) -> None:
    """T₁ and T₂ are those of a softmax times e^{offset − β}; where nothing moves any more, nothing is refuted."""
    start, beta = in_caps(4, 1)[0], 18.0
    of_softmax, of_exponentials = (
        str(td.check(one, start, statements=[ALL[0]])[0].prediction)
        for one in (flow(beta), flow(beta, weights="exponential", offset=beta + shift))
    )
    if shift == 0.0:
        assert of_exponentials == of_softmax
    elif shift < 0:
        assert ("until t = 1,730" in of_softmax, "until t = 86;" in of_exponentials) == (True, True)  # 1730/e³
    else:
        assert "× 10³⁹⁴; from" in of_exponentials
    run = td.simulate(flow(beta, weights="exponential", offset=beta + shift), start, [0.0, 1.0, 100.0])
    for statement in ALL:
        assert td.certify(run, [statement])[0].outcome != "fails"


def test_exponential_weights_are_attracted_by_a_crowd_where_a_softmax_is_not() -> None:
    """The upper bound of a weight, e^{−(1 − α)β}, is used where outsiders are many: both weights keep to it."""
    start = in_caps(6, 1, tokens=8)[0]
    for weights, options in WEIGHTS.items():
        pattern = flow(20.0, **options).attention.pattern(start)[0]
        inside = np.kron(np.eye(2), np.ones((8, 8))) > 0
        pulled = 1.0 if weights == "softmax" else np.exp(20.0 - 17.0)
        cosines = (start @ start.mT).numpy()
        assert (pattern.numpy()[~inside] <= pulled * np.exp(-20 * (1 - cosines[~inside]))).all()
        assert (pattern.numpy() >= pulled * np.exp(20 * (cosines - 1)) / 16 * (1 - 1e-12)).all()


@pytest.mark.long
def test_tokens_leave_their_caps_in_the_end_and_the_statement_says_nothing_of_it() -> None:
    run = td.simulate(flow(18.0), in_caps(0, 1)[0], [0.0, 300.0, 1e4, 1e8], engine="stiff")
    assert td.observables.diameter(run.tensor[1]) > 1.3
    assert td.observables.diameter(run.tensor[-1]) < 1e-6
    assert td.certify(run, [ALL[0]])[0].outcome == "holds"
    early = td.simulate(flow(18.0), in_caps(0, 1)[0], [0.0, 1.0])
    (certificate,) = td.certify(early, [ALL[0]])
    assert certificate.outcome == "undecided"
    assert "between T₁ and T₂" in certificate.text


@pytest.mark.parametrize("beta", [14.0, 18.0, 60.0, 2000.0, 1e5, 1e160, 1e300])
def test_times_are_those_of_the_formulas_and_leave_a_window(beta: float) -> None:
    tokens, epsilon, alpha = 4, mpmath.mpf("0.0005"), mpmath.mpf("0.13")
    rate, (begin, end) = times_of_caps(tokens, beta, float(epsilon), float(alpha))
    with mpmath.workdps(60):
        b, lam = mpmath.mpf(beta), mpmath.mpf(rate)
        gamma = 1 - alpha - 8 * epsilon - mpmath.log(2 * tokens**2 / epsilon) / b
        if gamma > 0:
            first = mpmath.exp((1 - alpha) * b) * (b - 1) * epsilon / (b**2 * tokens**2 * mpmath.e)
            first *= 1 - mpmath.exp(-gamma * b)
            star = mpmath.log(1 / (8 * epsilon)) / b
            inner = 1 - mpmath.exp(-star * b)
            second = 1 - alpha - mpmath.log(2 * tokens**2 / inner) / b - mpmath.exp(-star * b)
            assert 0 < lam < min(first, second)
            t_1 = 2 * tokens * mpmath.exp(8 * epsilon * b) + mpmath.e * tokens * lam * b**2 / (b - 1)
            t_2 = epsilon / tokens * mpmath.exp((1 - alpha) * b)
            assert begin == pytest.approx(float(mpmath.log(t_1)), rel=1e-9)
            assert end == pytest.approx(float(mpmath.log(t_2)), rel=1e-9)
            assert t_1 < t_2
            # The first bound is that the two times are in this order.
            at_bound = 2 * tokens * mpmath.exp(8 * epsilon * b) + mpmath.e * tokens * first * b**2 / (b - 1)
            assert abs(at_bound / t_2 - 1) < mpmath.mpf(10) ** -40


@pytest.mark.parametrize("beta", [800.0, 3e4])
def test_a_beta_at_which_the_times_overflow_is_handled(beta: float) -> None:
    start = in_caps(3, 1)[0]
    (checked,) = td.check(flow(beta), start, statements=[ALL[0]])
    assert checked.applies
    assert re.search("until t = [0-9.]+ × 10[⁰¹²³⁴⁵⁶⁷⁸⁹]{3,};", str(checked.prediction))
    run = td.simulate(flow(beta), start, [0.0, 1e3, 1e7], engine="stiff")
    assert td.certify(run, [ALL[0]])[0].outcome != "fails"


def test_alpha_is_the_largest_cosine_between_the_caps_of_twice_the_width() -> None:
    (caps,) = _caps_of_all([in_caps(5, 1)[0]], [18.0])
    height = 1 - 2 * caps.epsilon
    turns = torch.linspace(0, 2 * torch.pi, 721).double()
    rims = []
    for center in torch.from_numpy(caps.centers):
        frame = torch.linalg.qr(torch.cat([center[:, None], torch.eye(3).double()], dim=1))[0][:, 1:]
        rim = turns.cos()[:, None] * frame[:, 0] + turns.sin()[:, None] * frame[:, 1]
        rims.append(height * center + (1 - height**2) ** 0.5 * rim)
    assert float((rims[0] @ rims[1].mT).max()) == pytest.approx(caps.alpha, abs=1e-4)


@pytest.mark.parametrize("tokens", [3, 8])
@pytest.mark.parametrize("inside", [0.5, 0.9, 0.999])
def test_the_groups_of_the_propagation_lemma_meet_it_with_equality(inside: float, tokens: int) -> None:
    beta = 12.0
    delta = widest_group(inside, beta)
    alpha = largest_cosine_allowed(delta, tokens, beta)
    assert delta * (1 - delta) * np.exp(-delta * beta) / tokens == pytest.approx(tokens * np.exp(-(1 - alpha) * beta))
    others = np.linspace(1 - inside, 0.999, 2001)
    assert alpha >= max(largest_cosine_allowed(float(other), tokens, beta) for other in others) - 1e-12


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("beta", [5e-324, 0.0, -1.0])
def test_the_propagation_lemma_is_refused_without_a_warning_for_a_beta_of_next_to_zero(beta: float) -> None:
    start = unit(torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    assert reasons("metastability-propagation", flow(beta), start)


@pytest.mark.parametrize("seed", range(6))
def test_the_scalar_equation_behind_the_first_time_is_as_fast_as_its_bound_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for beta, first, c in zip(
        rng.uniform(1.05, 30, 20), rng.uniform(0.3, 0.99, 20), rng.uniform(0.05, 1, 20), strict=True
    ):
        last = 1 - np.exp(-c * beta)
        if last <= first:
            continue
        # u' = u(1 − u) e^{β(u − 1)}, its time by quadrature in s = −log(1 − u).
        time, _ = quad(lambda s, b=beta: np.exp(b * np.exp(-s)) / (1 - np.exp(-s)), -np.log1p(-first), c * beta)
        assert time <= np.exp(beta * (1 - first)) / first + beta**2 * c * np.e / (beta - 1)


# --- two clusters ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rtol", [1e-4, 1e-7, 1e-10])
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff"])
def test_two_points_shared_by_many_tokens_follow_the_equation(engine: Engine, rtol: float) -> None:
    start = torch.tensor([[1.0, 0, 0], [1.0, 0, 0], [1.0, 0, 0], [0.2, 0.96**0.5, 0]], dtype=torch.float64)
    for beta, ov in ((0.0, 1.0), (3.0, 0.5), (2.0, -1.0)):
        run = td.simulate(flow(beta, ov=ov), start, np.linspace(0, 6, 7), engine=engine, rtol=rtol, atol=rtol)
        wanted = predict_two_clusters(run.times, beta, share=0.75, cosine=0.2, speed=ov)
        cosine = (run.tensor[:, 0] * run.tensor[:, 3]).sum(dim=-1).numpy()
        assert np.abs(cosine - wanted).max() < 100 * rtol


def test_equal_halves_are_two_tokens_and_take_an_exponential_time_to_meet() -> None:
    times = np.linspace(0, 5, 6)
    for weights in ("softmax", "exponential"):
        halves = predict_two_clusters(times, 2.0, cosine=-0.3, speed=0.7, weights=weights)
        assert np.allclose(
            halves, predict_equiangular(times, 2, 2.0, cosine=-0.3, speed=0.7, weights=weights), atol=1e-11
        )
    for beta in (10.0, 14.0):
        # The same time by quadrature, and its leading order.
        time, _ = quad(lambda rho, b=beta: (1 + np.exp(b * (1 - rho))) / (2 * (1 - rho**2)), 0, 0.5)
        assert predict_two_clusters([0.0, time], beta)[1] == pytest.approx(0.5, abs=1e-9)
        assert time == pytest.approx(np.exp(beta) / (2 * beta), rel=0.1)


def test_unequal_shares_with_exponential_weights_meet_as_equal_ones_do() -> None:
    # (1 − p) + p = 1: the share does not matter.
    times = np.linspace(0, 3, 4)
    few = predict_two_clusters(times, 1.0, share=0.1, weights="exponential")
    assert np.allclose(few, predict_two_clusters(times, 1.0, share=0.5, weights="exponential"), atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "named"), [({"share": 0.0}, "share"), ({"share": 1.0}, "share"), ({"cosine": 1.2}, "cosine")]
)
def test_clusters_that_cannot_be_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ArgumentValueError, match=f"^{named}: "):
        predict_two_clusters([0.0, 1.0], 1.0, **changes)


@pytest.mark.parametrize("beta", [5e-324, 1e-300, 1e-17, 1e-8, 0.1, 1.0, 30.0, 1e8, 1e200])
def test_the_widest_group_is_where_the_bound_is_largest(beta: float) -> None:
    # The derivative of δ(1 − δ)e^{−δβ} is (1 − 2δ − βδ(1 − δ)) e^{−δβ}.
    delta = widest_group(1.0, beta)
    assert 0 < delta <= 0.5
    terms = np.array([1 - delta, delta, beta * delta * (1 - delta)])
    assert abs(terms[0] - terms[1] - terms[2]) <= 4e-16 * terms.sum()
