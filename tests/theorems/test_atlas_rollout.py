"""The statement of `rollout`: what holds within its hypotheses, and what outside them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch

import tokendynamics as td

Engine = Literal["batched", "compiled", "stiff"]
EYE = np.eye(2)
PAIR = [[1.0, 0.0], [0.6, 0.8], [-0.8, 0.6]]
NAME = "rollout-product"


def flow(qk: Any, ov: Any, *, causal: bool = True, weights: Any = "softmax", space: Any = None) -> td.Flow:
    return td.Flow(td.Attention(qk, ov, causal=causal, weights=weights), space or td.Sphere())


@pytest.mark.every_value_once
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff"])
@pytest.mark.parametrize("rtol", [1e-4, 1e-7, 1e-10])
def test_nothing_fails_within_the_hypotheses(engine: Engine, rtol: float) -> None:
    rng = np.random.default_rng(int(-np.log10(rtol)))
    systems = 4 if engine == "stiff" else 32
    ov = rng.normal(size=(systems, 1, 2, 2))
    of = flow(rng.uniform(-1, 1, (systems, 1, 2, 2)), ov)
    start = torch.nn.functional.normalize(torch.from_numpy(rng.normal(size=(systems, 4, 2))), dim=-1)
    assert td.check(of, start, statements=[NAME])[0].applies
    run = td.simulate(of, start, np.linspace(0, 6, 61), engine=engine, rtol=rtol, atol=rtol)
    (certificate,) = td.certify(run, [NAME])
    assert "fails" not in certificate.outcomes, certificate.text
    assert (certificate.outcomes == "holds").sum() >= systems // 2


@pytest.mark.parametrize(
    ("of", "named"),
    [
        (flow(EYE, EYE, causal=False), "causal mask"),
        (flow(EYE, EYE, weights="linear"), "softmax weights"),
        (flow(EYE, EYE, space=td.Free()), "tokens on an ellipsoid"),
        (flow([EYE, EYE], [EYE, EYE]), "one head"),
        (flow(td.Periodic([EYE, 2 * EYE], period=1.0), EYE), "qk constant in time"),
    ],
)
def test_each_hypothesis_broken_alone_is_named(of: td.Flow, named: str) -> None:
    (checked,) = td.check(of, PAIR, statements=[NAME])
    assert [text.split(":")[0] for text in checked.reasons] == [named]


def test_with_a_full_mask_the_first_token_gets_no_more_than_its_part() -> None:
    run = td.simulate(flow(EYE, EYE, causal=False), PAIR, np.linspace(0, 8, 81))
    (certificate,) = td.certify(run, [NAME])
    assert [one.outcome.item() for one in certificate.conditions] == ["fails", "undecided"]


def test_in_free_space_weights_leave_the_first_token_and_the_product_stays_away_from_it() -> None:
    # Token 2 grows as token 1 does and has the larger product with itself: in the end it sees itself alone.
    run = td.simulate(flow(EYE, EYE, space=td.Free()), [[1.0, 0.0], [0.0, 3.0]], np.linspace(0, 6, 61))
    product = np.eye(2)
    for state in run.tensor:
        product = run_pattern(state) @ product
    assert product[1, 0] < 0.01


def run_pattern(state: torch.Tensor) -> np.ndarray:
    """Softmax with a causal mask, by numpy."""
    logits = state.numpy() @ state.numpy().T
    weights = np.tril(np.exp(logits - logits.max(axis=1, keepdims=True)))
    return weights / weights.sum(axis=1, keepdims=True)


def test_without_logits_the_share_of_the_second_token_halves_and_meets_its_bound() -> None:
    # qk = 0: the weight of token 1 is 1/ℓ in the last row at least, and 1/2 for two tokens.
    run = td.simulate(flow(0 * EYE, EYE), PAIR[:2], np.linspace(0, 3, 31))
    product = np.eye(2)
    for index in range(31):
        product = np.array([[1.0, 0.0], [0.5, 0.5]]) @ product
        assert 1 - product[1, 0] == pytest.approx(0.5 ** (index + 1))
    (certificate,) = td.certify(run, [NAME])
    assert certificate.outcome == "holds"
    assert certificate.conditions[0].margin == pytest.approx(certificate.conditions[0].tolerance, abs=1e-12)


def test_one_token_is_the_first() -> None:
    run = td.simulate(flow(EYE, EYE), [[1.0, 0.0]], [0.0, 1.0])
    assert td.certify(run, [NAME])[0].outcome == "holds"


@pytest.mark.parametrize("residual", [0.0, 1.0])
def test_it_speaks_of_layers_as_of_flows(residual: float) -> None:
    """The product by numpy, layer by layer; nothing is said of layers being another thing than the flow."""
    run = td.simulate(flow(EYE, -EYE), PAIR, range(12), engine="layers", residual=residual)
    product = np.eye(3)
    for state in run.tensor:
        product = run_pattern(state) @ product
    (certificate,) = td.certify(run, [NAME])
    assert certificate.outcome == ("holds" if 1 - product[:, 0].min() <= 1e-3 else "undecided")
    assert "layers" not in certificate.text
    assert any(one.statement == NAME for one in td.certify(run))
    assert "of which the statement does not speak" in td.certify(run, ["perspective-6.1"])[0].text
