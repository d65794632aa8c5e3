"""What statements say is understood without the paper: no number of an equation, and every symbol has its words."""

import re
from collections.abc import Iterator

import numpy as np
import pytest

import tokendynamics as td
from tokendynamics.theorems.result import symbols_in

EYE = np.eye(3)
NUMBER_OF_AN_EQUATION = re.compile(r"(?<!\w)\(\d+\)|\b[tT]heorem \d|\bx_l\b|\bq_A\b|\|_A\b")


def flows() -> Iterator[tuple[td.Flow, np.ndarray]]:
    """Yield flows that between them meet the hypotheses of the statements of the three papers."""
    on_one_side = td.Sphere().sample_hemisphere(5, [1.0, 0.0, 0.0], seed=1).numpy()
    free = np.random.default_rng(0).normal(size=(5, 3))
    skew = EYE + np.array([[0.0, 0.6, 0.0], [-0.6, 0.0, 0.0], [0.0, 0.0, 0.0]])
    for causal in (False, True):
        for ov in (EYE, np.diag([3.0, 2.0, 1.0])):
            yield td.Flow(td.Attention(EYE, ov, causal=causal), td.Sphere()), on_one_side
        yield td.Flow(td.Attention(EYE, EYE, causal=causal), td.Free()), free
        yield td.Flow(td.Attention(EYE, -EYE, causal=causal), td.Free()), free
        yield td.Flow(td.Attention(skew, -EYE, causal=causal), td.Free()), free


@pytest.mark.parametrize(("flow", "start"), list(flows()))
def test_no_text_needs_the_paper_beside_it(flow: td.Flow, start: np.ndarray) -> None:
    checks = td.check(flow, start)
    texts = [text for one in checks for text in (*one.reasons, *one.assumed)]
    texts += [one.prediction.text for one in checks if one.prediction is not None]
    run = td.simulate(flow, start, [0.0, 0.5, 1.0])
    texts += [part.text for one in td.certify(run) for part in one.conditions]
    assert any(one.applies for one in checks)
    assert len(texts) > 30
    assert [text for text in texts if NUMBER_OF_AN_EQUATION.search(text)] == []


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("the least x_i·x_j does not fall", "x_i is token i."),
        ("for each of ℓ", "ℓ is the number of tokens."),
        ("A symmetric: the relative asymmetry", "A = qk ov⁻¹."),
        ("ρ′ ≥ ω c", "ω is the factor of the weights"),
    ],
)
def test_a_symbol_is_explained_where_it_stands_and_only_there(text: str, meaning: str) -> None:
    assert meaning in symbols_in([text])
    assert meaning not in symbols_in(["all tokens meet in one point"])


def test_a_certificate_names_its_outcome_once() -> None:
    start = td.Sphere().sample_hemisphere(5, [1.0, 0.0, 0.0], seed=1)
    flow = td.Flow(td.Attention(EYE, EYE), td.Sphere())
    for end, outcome in ((40.0, "holds"), (0.5, "undecided")):
        (certificate,) = td.certify(td.simulate(flow, start, [0.0, end]), ["asymptotic-4.1"])
        assert certificate.outcome == outcome
        assert str(certificate).count(outcome) == 1
        assert ("a longer run may decide" in str(certificate)) == (outcome == "undecided")
