"""Every known statement, asked by name of flows that it is not about: an answer, never an error or a NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tokendynamics as td
from tokendynamics.theorems import ATLAS, STATEMENTS, certify, check

SPACES = {"free": td.Free(), "sphere": td.Sphere()}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("space", "dim", "tokens", "heads", "options", "kind"),
    [
        ("free", 1, 1, 1, {}, "large"),
        ("free", 1, 2, 2, {"weights": "linear"}, "random"),
        ("free", 2, 2, 1, {"causal": True}, "zero"),
        ("free", 3, 4, 1, {"weights": "exponential"}, "negative"),
        ("sphere", 1, 3, 1, {"causal": True}, "zero"),
        ("sphere", 2, 1, 1, {}, "identity"),
        ("sphere", 2, 4, 2, {"causal": True, "weights": "exponential"}, "random"),
        ("sphere", 3, 2, 1, {}, "negative"),
        ("ellipsoid", 2, 3, 1, {"weights": "exponential"}, "large"),
        ("ellipsoid", 3, 4, 2, {"causal": True}, "random"),
    ],
)
def test_a_statement_answers_of_any_flow(
    space: str, dim: int, tokens: int, heads: int, options: dict[str, Any], kind: str
) -> None:
    rng = np.random.default_rng(dim + tokens)
    matrices = {"zero": 0 * np.eye(dim), "identity": np.eye(dim), "negative": -np.eye(dim), "large": 40 * np.eye(dim)}
    qk = np.stack([matrices.get(kind, rng.normal(size=(dim, dim)))] * heads)
    ov = np.stack([np.eye(dim) if kind != "random" else rng.normal(size=(dim, dim))] * heads)
    chosen = td.Ellipsoid(2 * np.eye(dim)) if space == "ellipsoid" else SPACES[space]
    flow = td.Flow(td.Attention(qk, ov, **options), chosen)
    start = rng.normal(size=(2, tokens, dim))
    for x0 in (start, start[0]):
        run = td.simulate(flow, x0, [0.0, 1e-3, 2e-3], rtol=1e-5, max_steps=20)
        known = [*STATEMENTS, *ATLAS]
        for one, certificate in zip(check(flow, x0), certify(run, known), strict=True):
            assert one.structure or not one.applies_to.any()
            assert all(part.margin is None or not np.isnan(part.margin) for part in one.hypotheses), one
            assert not any(np.isnan(part.margin).any() for part in certificate.conditions), certificate
            assert certificate.standing == one.standing
        for certificate in certify(run):
            assert certificate.outcome != "fails" or certificate.standing != "theorem", certificate


def test_a_conjecture_is_called_one_wherever_it_speaks() -> None:
    flow = td.Flow(td.Attention(np.eye(3), np.eye(3), causal=True), td.Sphere())
    start = td.Sphere().sample(4, 3, seed=1)
    checks = {one.statement: one for one in check(flow, start)}
    conjecture, theorem = checks["masking-table-1-space"], checks["masking-4.1"]
    assert (conjecture.standing, theorem.standing) == ("conjecture", "theorem")
    assert conjecture.applies
    assert str(conjecture.prediction).startswith("conjectured, not proved: ")
    assert "conjectured" not in str(theorem.prediction)
    run = td.simulate(flow, start, np.linspace(0.0, 60.0, 31))
    (certificate,) = certify(run, ["masking-table-1-space"])
    assert certificate.outcome == "holds"
    assert certificate.text.startswith("no counterexample to the conjecture: ")
    assert certify(run, ["masking-4.1"])[0].text.find("conjecture") < 0
