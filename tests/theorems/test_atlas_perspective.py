"""Statements of `perspective`: what holds within their hypotheses, and what outside them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import tokendynamics as td
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.theorems import predict_equiangular


def flow(beta: float, dim: int, *, ov: float = 1.0, causal: bool = False, heads: int = 1) -> td.Flow:
    """One temperature on the sphere."""
    eye = torch.eye(dim, dtype=torch.float64)
    values = (ov * eye).expand(heads, dim, dim)
    return td.Flow(td.Attention((beta * eye).expand(heads, dim, dim), values, causal=causal), td.Sphere())


def equiangular(tokens: int, cosine: float) -> Tensor:
    """Tokens with one cosine between them, in as many dimensions."""
    gram = torch.full((tokens, tokens), cosine, dtype=torch.float64).fill_diagonal_(1.0)
    return torch.linalg.cholesky(gram)


# --- equal angles ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rtol", [1e-4, 1e-7, 1e-10])
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff"])
@pytest.mark.parametrize("tokens", [2, 5])
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
    run = td.simulate(steep, equiangular(4, 0.3), np.linspace(0, 2e4, 41), engine="stiff", rtol=1e-4, atol=1e-4)
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
