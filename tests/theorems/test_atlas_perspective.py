"""Statements of `perspective`: what holds within their hypotheses, and what outside them."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

import tokendynamics as td
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.theorems import predict_equiangular, predict_two_clusters


def flow(beta: float, dim: int, *, ov: float = 1.0, causal: bool = False, heads: int = 1) -> td.Flow:
    """One temperature on the sphere."""
    eye = torch.eye(dim, dtype=torch.float64)
    values = (ov * eye).expand(heads, dim, dim)
    return td.Flow(td.Attention((beta * eye).expand(heads, dim, dim), values, causal=causal), td.Sphere())


def equiangular(tokens: int, cosine: float) -> Tensor:
    """Tokens with one cosine between them, in as many dimensions."""
    gram = torch.full((tokens, tokens), cosine, dtype=torch.float64).fill_diagonal_(1.0)
    return torch.linalg.cholesky(gram)


def drawn(seed: int, *shape: int) -> Tensor:
    """Directions, uniform on the sphere."""
    states = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return states / torch.linalg.vector_norm(states, dim=-1, keepdim=True)


def one_sided(seed: int, *shape: int) -> Tensor:
    """Directions in an open half space, some near its boundary."""
    states = drawn(seed, *shape)
    states[..., 0] = states[..., 0].abs() + 0.05
    return states / torch.linalg.vector_norm(states, dim=-1, keepdim=True)


def temperatures(seed: int, systems: int, dim: int, *, ov: float = 1.0, lowest: float = 0.0) -> td.Flow:
    """Systems that differ in β and in the multiple of the identity in ov."""
    rng = np.random.default_rng(seed)
    eye = torch.eye(dim, dtype=torch.float64)
    betas, multiples = (torch.from_numpy(rng.uniform(*ends, systems)) for ends in ((lowest, 4.0), (0.5, 2.0)))
    parts = (betas[:, None, None, None] * eye, ov * multiples[:, None, None, None] * eye)
    return td.Flow(td.Attention(*parts), td.Sphere())


def reasons(statement: str, of_one: td.Flow, start: Any) -> list[str]:
    (checked,) = td.check(of_one, start, statements=[statement])
    return [text.split(":")[0] for text in checked.reasons]


def within(statement: str, run: td.Trajectory) -> list[str]:
    """Outcomes of a run all of whose systems meet the hypotheses."""
    assert run.flow is not None
    (checked,) = td.check(run.flow, run.tensor[..., 0, :, :], statements=[statement])
    assert checked.applies, checked.reasons
    (certificate,) = td.certify(run, [statement])
    return certificate.outcomes.tolist()


ENGINES = pytest.mark.parametrize("engine", ["batched", "compiled", "stiff"])
TOLERANCES = pytest.mark.parametrize("rtol", [1e-4, 1e-7, 1e-10])
Engine = Literal["batched", "compiled", "stiff"]


# --- one point -------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.few(3)
@TOLERANCES
@ENGINES
def test_tokens_within_the_hypotheses_meet_and_never_refute_a_statement(engine: Engine, rtol: float) -> None:
    times, seed = np.linspace(0, 50, 11), round(-np.log10(rtol))
    systems = 4 if engine == "stiff" else 16
    of_many = temperatures(seed, systems, 3)
    for start, statements in (
        (drawn(seed, systems, 3, 3), ("perspective-6.1", "perspective-6.3", "perspective-6.4", "perspective-6.4-step")),
        (one_sided(seed, systems, 5, 3), ("perspective-6.1", "perspective-6.4", "perspective-6.4-step")),
    ):
        run = td.simulate(of_many, start, times, engine=engine, rtol=rtol, atol=rtol)
        for statement in statements:
            outcomes = within(statement, run)
            assert "fails" not in outcomes
            assert outcomes.count("holds") >= systems / 2


@pytest.mark.long
def test_tokens_that_no_half_space_holds_meet_as_well_in_three_dimensions() -> None:
    run = td.simulate(temperatures(3, 30, 3), drawn(5, 30, 8, 3), np.linspace(0, 120, 16))
    outcomes = within("perspective-6.1", run)
    assert "fails" not in outcomes
    assert outcomes.count("holds") >= 20
    assert run.flow is not None
    assert td.check(run.flow, run.tensor[..., 0, :, :], statements=["perspective-6.4"])[0].applies_to.sum() < 15


def test_any_constant_qk_lets_a_cone_collapse() -> None:
    qk = torch.randn(30, 1, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    of_many = td.Flow(td.Attention(qk, torch.eye(3, dtype=torch.float64)), td.Sphere())
    run = td.simulate(of_many, one_sided(2, 30, 5, 3), np.linspace(0, 80, 41), rtol=1e-9, atol=1e-9)
    assert set(within("perspective-6.4", run)) == {"holds"}
    assert reasons("perspective-6.3", of_many, run.tensor[..., 0, :3, :])[0] == "qk is a multiple of the identity"


@pytest.mark.parametrize(
    ("statement", "start", "changes", "reason"),
    [
        ("perspective-6.1", drawn(1, 4, 2), {"dim": 2}, "dim at least 3"),
        ("perspective-6.1", drawn(1, 1, 3), {}, "at least two tokens"),
        ("perspective-6.1", drawn(1, 4, 3), {"beta": -1.0}, "β is not negative"),
        ("perspective-6.1", drawn(1, 4, 3), {"ov": -1.0}, "the multiples are positive"),
        ("perspective-6.1", [[1.0, 0, 0], [-1.0, 0, 0]], {}, "tokens not at rest except in one point"),
        ("perspective-6.1", drawn(1, 4, 3), {"causal": True}, "full mask"),
        ("perspective-6.1", drawn(1, 4, 3), {"heads": 2}, "one head"),
        ("perspective-6.3", drawn(1, 4, 3), {}, "no more tokens than dimensions"),
        ("perspective-6.3", [[1.0, 0, 0], [-1.0, 0, 0]], {}, "linearly independent tokens"),
        ("perspective-6.3", drawn(1, 3, 3), {"beta": -1.0}, "β is not negative"),
        ("perspective-6.3", drawn(1, 3, 3), {"ov": -1.0}, "the multiples are positive"),
        ("perspective-6.4", [[1.0, 0, 0], [-1.0, 0, 0], [0, 1, 0]], {}, "start in an open half space"),
        ("perspective-6.4", one_sided(1, 4, 3), {"ov": -1.0}, "the multiples are positive"),
        ("perspective-6.4", one_sided(1, 4, 3), {"causal": True}, "full mask"),
        ("perspective-6.4-step", one_sided(1, 4, 3), {"beta": -1.0}, "β is not negative"),
        ("perspective-6.4-step", one_sided(1, 4, 3), {"ov": -1.0}, "the multiples are positive"),
        ("perspective-6.4-step", [[1.0, 0, 0], [-1.0, 0, 0], [0, 1, 0]], {}, "start in an open half space"),
        ("perspective-9", drawn(1, 5, 3), {"ov": -1.0}, "at most d + 1 tokens"),
        ("perspective-9", drawn(1, 1, 3), {"ov": -1.0}, "at least two tokens"),
        ("perspective-9", drawn(1, 3, 3), {}, "the multiple is negative"),
        ("perspective-9", drawn(1, 3, 3), {"ov": -1.0, "beta": 0.0}, "β is positive"),
        ("perspective-9", [[1.0, 0, 0], [1.0, 0, 0], [0, 1, 0]], {"ov": -1.0}, "tokens apart"),
        (
            "perspective-9",
            [[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]],
            {"ov": -1.0},
            "tokens not at rest except on the simplex",
        ),
        ("perspective-9", drawn(1, 3, 3), {"ov": -1.0, "causal": True}, "full mask"),
    ],
)
def test_each_hypothesis_of_the_sphere_broken_alone_is_named(
    statement: str, start: Any, changes: dict[str, Any], reason: str
) -> None:
    given = {"beta": 1.0, "dim": 3, **changes}
    assert reasons(statement, flow(given.pop("beta"), given.pop("dim"), **given), start) == [reason]


def test_a_qk_or_an_ov_of_another_kind_is_named() -> None:
    eye, form = torch.eye(3, dtype=torch.float64), torch.diag(torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64))
    varying = td.attention.Sinusoidal(eye, 1.0, 2.0, 0.0)
    other = [td.Flow(td.Attention(qk, ov), td.Sphere()) for qk, ov in ((form, eye), (varying, eye), (eye, form))]
    start = one_sided(1, 3, 3)
    for statement in ("perspective-6.1", "perspective-6.3", "perspective-6.4-step"):
        named = [reasons(statement, entry, start) for entry in other]
        assert [text[0] for text in named] == [
            "qk is a multiple of the identity",
            "qk constant in time",
            "ov is a multiple of the identity",
        ]
    assert reasons("perspective-6.4", other[1], start) == ["qk constant in time"]
    repelling = td.Flow(td.Attention(eye, -form), td.Sphere())
    assert reasons("perspective-9", repelling, start)[0] == "ov is a multiple of the identity"


def test_a_pair_of_opposite_tokens_rests_and_meets_never() -> None:
    run = td.simulate(flow(1.0, 3), [[1.0, 0, 0], [-1.0, 0, 0]], np.linspace(0, 200, 21))
    assert td.observables.diameter(run.tensor[-1]) == pytest.approx(2.0)
    assert td.certify(run, ["perspective-6.1"])[0].outcome == "undecided"
    # Orthogonal tokens at a high β move by e^{−β}, which is slow and no rest.
    assert reasons("perspective-6.1", flow(60.0, 3), np.eye(3)) == []


@pytest.mark.parametrize("statement", ["perspective-6.1", "perspective-6.4", "perspective-6.4-step"])
def test_repelling_tokens_refute_that_they_meet_at_a_finite_time(statement: str) -> None:
    run = td.simulate(flow(1.0, 3, ov=-1.0), one_sided(4, 3, 3) * 0.1 + torch.tensor([1.0, 0, 0]), [0.0, 0.5, 1.0])
    (certificate,) = td.certify(run, [statement])
    assert certificate.outcome == "fails"
    assert certificate.first_failure in (0.0, 0.5)


def test_the_rates_are_those_of_the_formulas() -> None:
    start = one_sided(6, 4, 3)
    (cone,) = td.check(flow(1.3, 3, ov=0.8), start, statements=["perspective-6.4"])
    (step,) = td.check(flow(1.3, 3, ov=0.8), start, statements=["perspective-6.4-step"])
    assert cone.prediction is not None
    assert step.prediction is not None
    # The depth of the deepest half space, by a search over directions.
    depth = float((start @ drawn(0, 200_000, 3).mT).amin(dim=0).max())
    ((coefficient, exponent),) = cone.prediction.bound
    assert coefficient == pytest.approx(0.8 / np.sqrt(3) * depth, rel=1e-2)
    assert exponent == pytest.approx(2.6)
    assert cone.prediction.rate == pytest.approx(0.8 / np.sqrt(3))
    rate = 0.8 / np.sqrt(3) / (2 * 4 * np.exp(2.6))
    assert f"{rate:.3g}"[:4] in step.prediction.text


@pytest.mark.long
def test_tokens_slower_than_the_step_inequality_refute_it() -> None:
    of_one, start = flow(0.2, 3), one_sided(3, 4, 3)
    run = td.simulate(of_one, start, np.linspace(0, 10, 11))
    slow = dataclasses.replace(run, times=np.asarray(run.times) * 100)
    (certificate,) = td.certify(slow, ["perspective-6.4-step"])
    assert certificate.outcome == "fails"
    assert td.certify(run, ["perspective-6.4-step"])[0].outcome == "holds"


# --- repulsion -------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.few(3)
@TOLERANCES
@ENGINES
def test_repelling_tokens_lower_the_energy_down_to_the_simplex(engine: Engine, rtol: float) -> None:
    seed, systems, tokens = round(-np.log10(rtol)), *((6, 3) if engine == "stiff" else (32, 4))
    of_many, start = temperatures(seed, systems, 3, ov=-1.0, lowest=0.3), drawn(seed, systems, tokens, 3)
    run = td.simulate(of_many, start, np.linspace(0, 100, 11), engine=engine, rtol=rtol, atol=rtol)
    outcomes = within("perspective-9", run)
    assert "fails" not in outcomes
    assert outcomes.count("holds") >= systems / 2


def test_attracting_tokens_raise_the_energy_and_more_than_d_plus_1_miss_the_simplex() -> None:
    run = td.simulate(flow(1.0, 3), one_sided(2, 3, 3), [0.0, 1.0, 2.0])
    assert td.certify(run, ["perspective-9"])[0].outcome == "fails"
    run = td.simulate(flow(1.0, 2, ov=-1.0), drawn(2, 4, 2), np.linspace(0, 200, 21))
    # Four tokens on the circle end as a square, whose cosines are 0 and −1.
    cosines = (run.tensor[-1] @ run.tensor[-1].mT)[torch.triu(torch.ones(4, 4), 1).bool()]
    assert torch.allclose(cosines.sort().values, torch.tensor([-1.0, -1, 0, 0, 0, 0]).double(), atol=1e-3)
    assert td.certify(run, ["perspective-9"])[0].outcome == "undecided"


def test_two_tokens_that_coincide_stay_together_however_they_repel() -> None:
    run = td.simulate(flow(1.0, 3, ov=-1.0), [[1.0, 0, 0], [1.0, 0, 0], [0, 1.0, 0]], np.linspace(0, 50, 11))
    assert torch.allclose(run.tensor[:, 0], run.tensor[:, 1], atol=1e-9)
    assert td.certify(run, ["perspective-9"])[0].outcome == "undecided"


# --- equal angles ----------------------------------------------------------------------------------------------------


@pytest.mark.every_value_once
@pytest.mark.parametrize("rtol", [1e-4, 1e-7, 1e-10])
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff"])
@pytest.mark.parametrize("tokens", [5, 3, 2])
def test_equal_angles_stay_equal_and_follow_the_equation(
    tokens: int, engine: Literal["batched", "compiled", "stiff"], rtol: float
) -> None:
    rng = np.random.default_rng(tokens)
    for beta, cosine, ov in zip(
        rng.uniform(-2, 6, 4), rng.uniform(-0.9 / (tokens - 1), 0.9, 4), (1, 2, 0.5, 3), strict=True
    ):
        of_one = flow(float(beta), tokens, ov=ov)
        run = td.simulate(
            of_one, equiangular(tokens, cosine), np.linspace(0, 8, 9), engine=engine, rtol=rtol, atol=rtol
        )
        (certificate,) = td.certify(run, ["perspective-6.8"])
        assert certificate.outcome == "holds", certificate.text
        (checked,) = td.check(of_one, equiangular(tokens, cosine), statements=["perspective-6.8"])
        assert checked.applies, checked.reasons


def test_systems_of_a_batch_follow_each_its_own_equation() -> None:
    betas = torch.tensor([0.0, 1.0, 4.0], dtype=torch.float64)
    eye = torch.eye(3, dtype=torch.float64)
    together = td.Flow(td.Attention(betas[:, None, None, None] * eye, eye), td.Sphere())
    run = td.simulate(together, eye.expand(3, 3, 3), np.linspace(0, 6, 7), rtol=1e-10, atol=1e-12)
    (certificate,) = td.certify(run, ["perspective-6.8"])
    assert certificate.outcomes.tolist() == ["holds"] * 3
    for system, beta in enumerate(betas.tolist()):
        gamma = predict_equiangular(run.times, 3, beta, speed=1 / np.sqrt(3))
        cosine = (run.tensor[system, :, 0] * run.tensor[system, :, 1]).sum(dim=-1)
        assert np.allclose(cosine, gamma, atol=1e-8)


@pytest.mark.parametrize(
    ("start", "changes", "reason"),
    [
        ([[1.0, 0, 0], [0, 1, 0], [0.6, 0, 0.8]], {}, "one cosine for all pairs"),
        (np.eye(3), {"causal": True}, "full mask"),
        (np.eye(3), {"heads": 2}, "one head"),
        (np.eye(3), {"ov": -1.0}, "the multiples are positive"),
        (np.eye(3)[:1], {}, "at least two tokens"),
    ],
)
def test_each_hypothesis_broken_alone_is_named(start: np.ndarray, changes: dict[str, Any], reason: str) -> None:
    (checked,) = td.check(flow(1.0, 3, **changes), start, statements=["perspective-6.8"])
    assert [text.split(":")[0] for text in checked.reasons] == [reason]


def test_a_qk_that_is_no_multiple_of_the_identity_is_named_and_the_angles_come_apart() -> None:
    other = td.Flow(td.Attention(np.diag([1.0, 2.0, 5.0]), np.eye(3)), td.Sphere())
    (checked,) = td.check(other, np.eye(3), statements=["perspective-6.8"])
    assert [text.split(":")[0] for text in checked.reasons] == ["qk is a multiple of the identity"]
    (certificate,) = td.certify(td.simulate(other, np.eye(3), np.linspace(0, 3, 7)), ["perspective-6.8"])
    assert certificate.outcome == "fails"


def test_the_simplex_rests_and_is_no_case_of_the_statement() -> None:
    simplex = [[1.0, 0.0], [-0.5, 3**0.5 / 2], [-0.5, -(3**0.5) / 2]]
    (checked,) = td.check(flow(1.0, 2), simplex, statements=["perspective-6.8"])
    assert [text.split(":")[0] for text in checked.reasons] == ["tokens not at rest"]


def test_where_errors_grow_until_they_decide_nothing_is_said() -> None:
    steep = flow(16.0, 4)
    run = td.simulate(steep, equiangular(4, 0.3), np.linspace(0, 2e4, 401), engine="stiff", rtol=1e-4, atol=1e-4)
    (certificate,) = td.certify(run, ["perspective-6.8"])
    assert certificate.outcome == "undecided"


def test_two_tokens_without_temperature_follow_the_hyperbolic_tangent() -> None:
    times = np.linspace(0, 3, 7)
    assert np.allclose(predict_equiangular(times, 2, 0.0), np.tanh(times), atol=1e-12)
    # With exponential weights β = 0 is the same flow; β > 0 ends at 2 e^β for 1 − γ.
    assert np.allclose(predict_equiangular(times, 2, 0.0, weights="exponential"), np.tanh(times), atol=1e-12)
    late = 1 - predict_equiangular([0.0, 2.0, 2.5], 3, 1.0, weights="exponential")
    assert np.log(late[1] / late[2]) / 0.5 == pytest.approx(2 * np.e, rel=1e-3)
    late = 1 - predict_equiangular([0.0, 8.0, 8.5], 3, 1.0, speed=0.7)
    assert np.log(late[1] / late[2]) / 0.5 == pytest.approx(2 * 0.7, rel=1e-3)


@pytest.mark.parametrize(("tokens", "cosine", "named"), [(1, 0.0, "tokens"), (3, -0.6, "cosine"), (3, 1.1, "cosine")])
def test_angles_that_no_tokens_have_are_refused(tokens: int, cosine: float, named: str) -> None:
    with pytest.raises(ArgumentValueError, match=f"^{named}: "):
        predict_equiangular([0.0, 1.0], tokens, 1.0, cosine=cosine)


@pytest.mark.parametrize(
    "predict",
    [lambda **one: predict_equiangular([0.0, 1.0], 3, **one), lambda **one: predict_two_clusters([0.0, 1.0], **one)],
)
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"beta": float("nan")}, "beta"),
        ({"beta": float("inf")}, "beta"),
        ({"beta": 1.0, "speed": float("nan")}, "speed"),
        ({"beta": 800.0, "weights": "exponential"}, "beta"),
    ],
)
def test_closed_forms_refuse_what_they_cannot_solve(predict: Any, given: dict[str, Any], named: str) -> None:
    with pytest.raises(ArgumentValueError, match=f"^{named}: "):
        predict(**given)
    assert len(predict(beta=700.0)) == 2


@pytest.mark.parametrize("weights", ["softmax", "exponential"])
@pytest.mark.parametrize("speed", [1.0, -1.0])
@pytest.mark.parametrize("beta", [-700.0, -36.0, 0.0, 36.0, 700.0])
def test_equations_in_one_unknown_are_solved_however_fast_they_come_to_rest(
    beta: float, speed: float, weights: Literal["softmax", "exponential"]
) -> None:
    """An explicit method in γ itself would need e^β steps: this hung."""
    times = np.linspace(0.0, 40.0, 9)
    for cosine in (-0.49, 0.0, 0.9):
        three = predict_equiangular(times, 3, beta, cosine=cosine, speed=speed, weights=weights)
        two = predict_two_clusters(times, beta, share=0.3, cosine=cosine, speed=speed, weights=weights)
        for solved, least in ((three, -0.5), (two, -1.0)):
            assert ((solved >= least) & (solved <= 1.0)).all()
            assert (speed * np.diff(solved) >= -1e-15).all()
            assert solved[0] == pytest.approx(cosine, abs=1e-14)


@pytest.mark.parametrize("weights", ["softmax", "exponential"])
@pytest.mark.parametrize(("beta", "first", "last"), [(0.5, -0.4, 0.99), (20.0, 0.1, 0.5), (-6.0, 0.0, 0.8)])
def test_the_time_from_one_cosine_to_another_is_the_integral_of_the_inverse_speed(
    beta: float, first: float, last: float, weights: Literal["softmax", "exponential"]
) -> None:
    mpmath.mp.dps = 30

    def slowness(gamma: mpmath.mpf) -> mpmath.mpf:
        relative = mpmath.exp(beta * gamma)
        weight = relative / (mpmath.exp(beta) + 2 * relative) if weights == "softmax" else relative / 3
        return 1 / (2 * weight * (1 - gamma) * (2 * gamma + 1))

    time = float(mpmath.quad(slowness, np.linspace(first, last, 9).tolist()))
    solved = predict_equiangular([0.0, time], 3, beta, cosine=first, weights=weights)
    assert solved[1] == pytest.approx(last, abs=1e-9)
