"""The statement of `context`: one attention average of tokens at equal angles."""

from __future__ import annotations

import math
from typing import Any, Literal

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

import tokendynamics as td
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.theorems import predict_long_context

NAME = ["context-layer"]


def equiangular(tokens: int, cosine: float) -> Tensor:
    gram = torch.full((tokens, tokens), cosine, dtype=torch.float64).fill_diagonal_(1.0)
    return torch.linalg.cholesky(gram)


def flow(qk: Any, dim: int, *, ov: float = 1.0, causal: bool = False, heads: int = 1) -> td.Flow:
    eye = torch.eye(dim, dtype=torch.float64)
    qk = torch.as_tensor(qk, dtype=torch.float64)
    qk = qk if qk.ndim >= 2 else qk * eye
    parts = qk.expand(heads, dim, dim), (ov * eye).expand(heads, dim, dim)
    return td.Flow(td.Attention(*parts, causal=causal), td.Sphere())


@pytest.mark.every_value_once
@pytest.mark.parametrize("rtol", [1e-4, 1e-7, 1e-10])
@pytest.mark.parametrize("engine", ["batched", "stiff", pytest.param("compiled", marks=pytest.mark.slow)])
def test_one_average_of_equal_angles_has_the_cosine_of_the_formula(
    engine: Literal["batched", "compiled", "stiff"], rtol: float
) -> None:
    rng = np.random.default_rng(round(-math.log10(rtol)))
    for tokens in (2, 5, 12):
        cosines, betas = rng.uniform(0, 0.95, 8), rng.uniform(-1, 12, 8)
        start = torch.stack([equiangular(tokens, rho) for rho in cosines])
        eye = torch.eye(tokens, dtype=torch.float64)
        of_many = td.Flow(td.Attention(torch.from_numpy(betas)[:, None, None, None] * eye, eye), td.Sphere())
        run = td.simulate(of_many, start, [0.0, 0.1], engine=engine, rtol=rtol, atol=rtol)
        (checked,) = td.check(of_many, start, statements=NAME)
        assert checked.applies, checked.reasons
        assert set(td.certify(run, NAME)[0].outcomes.tolist()) == {"holds"}


@pytest.mark.parametrize("tokens", [2, 7, 40])
@pytest.mark.parametrize("scale", [-0.5, 0.0, 1.0, 1.6, 4.0])
def test_the_value_is_that_of_vectors(tokens: int, scale: float) -> None:
    for rho in (0.0, 0.3, 0.9):
        x = equiangular(tokens, rho)
        averages = torch.softmax(scale * math.log(tokens) * x @ x.mT, dim=-1) @ x
        cosine = torch.nn.functional.cosine_similarity(averages[0], averages[1], dim=0)
        assert predict_long_context(tokens, scale, rho) == pytest.approx(float(cosine), abs=1e-12)


@pytest.mark.parametrize("rho", [0.1, 0.4, 0.8])
def test_the_limit_is_that_of_more_and_more_tokens(rho: float) -> None:
    critical = 1 / (1 - rho)
    for factor, limit in ((0.5, 1.0), (1.0, 4 * rho / (1 + 3 * rho)), (2.0, rho)):
        assert predict_long_context(math.inf, factor * critical, rho) == pytest.approx(limit)
        with mpmath.workdps(60):
            # ℓ = 10^40, from the weights themselves.
            tokens = mpmath.mpf(10) ** 40
            ratio = tokens ** (-mpmath.mpf(factor))
            p = 1 / (1 + (tokens - 1) * ratio)
            q, s = ratio * p, 1 + (tokens - 1) * mpmath.mpf(rho)
            rest = 2 * (p - q) * q * s + q**2 * tokens * s
            assert float(((p - q) ** 2 * rho + rest) / ((p - q) ** 2 + rest)) == pytest.approx(limit, abs=1e-8)


@pytest.mark.parametrize(
    ("start", "changes", "reason"),
    [
        ([[1.0, 0, 0], [0, 1, 0], [0.6, 0, 0.8]], {}, "one cosine for all pairs"),
        ([[1.0, 0, 0], [-0.6, 0.8, 0]], {}, "cosine not negative"),
        (np.eye(3)[:1], {}, "at least two tokens"),
        (np.eye(3), {"causal": True}, "full mask"),
        (np.eye(3), {"heads": 2}, "one head"),
        (np.eye(3), {"ov": -1.0}, "the multiples are positive"),
        (np.eye(3), {"qk": np.diag([1.0, 2, 5])}, "qk is a multiple of the identity"),
    ],
)
def test_each_hypothesis_broken_alone_is_named(start: Any, changes: dict[str, Any], reason: str) -> None:
    given = {"qk": 1.0, **changes}
    (checked,) = td.check(flow(given.pop("qk"), 3, **given), start, statements=NAME)
    assert [text.split(":")[0] for text in checked.reasons] == [reason]


@pytest.mark.parametrize("changes", [{"qk": np.diag([1.0, 2, 5])}, {"qk": 1.0, "causal": True}])
def test_other_attention_has_other_cosines(changes: dict[str, Any]) -> None:
    other = flow(changes["qk"], 3, causal=changes.get("causal", False))
    run = td.simulate(other, np.eye(3), [0.0, 0.1])
    assert td.certify(run, NAME)[0].outcome == "fails"


@pytest.mark.parametrize(("tokens", "cosine", "named"), [(1, 0.5, "tokens"), (5, -0.1, "cosine"), (5, 1.1, "cosine")])
def test_what_has_no_average_is_refused(tokens: int, cosine: float, named: str) -> None:
    with pytest.raises(ArgumentValueError, match=f"^{named}: "):
        predict_long_context(tokens, 1.0, cosine)
