"""Searches for counterexamples: the records, what the page says of them, and that a record can be made again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import tokendynamics as td
from reproductions.searches import RECORDS, searched

SEARCHES = json.loads(RECORDS.read_text(encoding="utf-8"))["searches"]
UNPROVED = {one.name: one for one in td.theorems.ATLAS if one.standing != "theorem"}
PAGE = (Path(__file__).parents[2] / "docs" / "atlas.md").read_text(encoding="utf-8")


def test_every_conjecture_and_false_claim_of_the_atlas_has_a_record() -> None:
    assert [search["statement"] for search in SEARCHES] == list(UNPROVED)
    assert all(search["standing"] == UNPROVED[search["statement"]].standing for search in SEARCHES)


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: search["statement"])
def test_the_page_has_the_numbers_of_the_record(search: dict) -> None:
    outcomes = search["outcomes"]
    assert sum(outcomes.values()) == search["applying"] <= search["drawn"]
    assert (search["counterexample"] is not None) == (outcomes["fails"] > 0)
    assert (search["shortfall"] > 0) == (outcomes["holds"] < search["applying"])
    numbers = [f"{search['applying']:,}", *(f"{outcomes[word]:,}" for word in ("holds", "undecided", "fails"))]
    row = f"| `{search['statement']}` | {search['standing']} | {search['rounds']} | {' | '.join(numbers)} |"
    assert row in PAGE


@pytest.mark.long
@pytest.mark.parametrize("search", [one for one in SEARCHES if one["confirmed"]], ids=lambda one: one["statement"])
def test_the_counterexample_of_a_record_fails(search: dict) -> None:
    """Read back from its text, and run with a third engine."""
    text = search["counterexample"]
    qk, ov, start = (json.loads(re.search(rf"{word} (?:= )?(\[\[.*?\]\])", text)[1]) for word in ("qk", "ov", "along"))
    flow = td.Flow(td.Attention(qk, ov, causal="causal" in text), td.Sphere())
    unit = np.array(start) / np.linalg.norm(start, axis=1, keepdims=True)
    (check,) = td.check(flow, unit, statements=[search["statement"]])
    assert check.applies
    run = td.simulate(flow, unit, np.linspace(0.0, 300.0, 31), engine="compiled", rtol=1e-10, atol=1e-12)
    (certificate,) = td.certify(run, [search["statement"]])
    assert certificate.outcome == "fails"
    assert "engine stiff at rtol 1 × 10⁻¹²" in search["confirmed"]


def test_the_counterexample_of_falling_shares_leaves_zero_outside() -> None:
    """Read back from its text, in plain NumPy: in the end all tokens are on one side of the last."""
    (text,) = (one["counterexample"] for one in SEARCHES if one["statement"] == "hardmax-3")
    qk, x = (np.array(json.loads(re.search(rf"{word} (?:= )?(\[\[.*?\]\])", text)[1])) for word in ("qk", "tokens"))
    for layer in range(200):
        x = x + 2 / (layer + 2) * (x[(x @ qk @ x.T).argmax(axis=1)] - x)
    assert (-x @ qk @ x[0] > 0.1).all()


@pytest.mark.slow
def test_a_record_is_made_by_its_seed() -> None:
    statement = UNPROVED["masking-table-1-simple"]
    first, again = (searched(statement, minutes=0.0, seed=1, count=32) for _ in range(2))
    assert first == again
    assert (first["rounds"], first["seed"], first["count"]) == (1, 1, 32)
