"""The search for counterexamples: it finds those that are known, makes them small, and goes on where it stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import tokendynamics as td
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError
from tokendynamics.theorems import Condition, Family, Hypothesis, Prediction, Statement, search_counterexample
from tokendynamics.theorems._search import _Trial

CAUSAL = [Family(3, 2, mask="causal")]


def size_of_qk(trajectory: td.Trajectory) -> np.ndarray:
    """Return the largest entry of qk of each system."""
    return trajectory.flow.attention.qk.matrix_at(0.0).abs().amax(dim=(-3, -2, -1)).numpy()


def at_most(limit: float) -> Statement:
    """Return the false statement that no entry of qk is above a limit."""

    def conditions(trajectory: td.Trajectory) -> tuple[Condition, ...]:
        margin = limit - size_of_qk(trajectory)
        outcome = np.where(margin >= 0, "holds", "fails")
        return (Condition("entries of qk", outcome, margin, 0.0, np.where(margin >= 0, np.nan, 0.0), pointwise=True),)

    return Statement(
        name="no entry is large",
        title="",
        equations="",
        structure=lambda flow: (),
        hypotheses=lambda flow, start: (),
        predict=lambda flow, start: Prediction("entries stay small", limit="none"),
        conditions=conditions,
    )


@pytest.mark.slow
def test_a_false_claim_is_refuted_by_a_small_system_and_by_another_engine(tmp_path: Path) -> None:
    options = {"seed": 1, "count": 64, "store": tmp_path / "search.json"}
    search = search_counterexample("masking-table-1-simple", CAUSAL, rounds=1, **options)
    example = search.counterexample
    assert search.outcomes["fails"] > 0
    assert (example.certificate.outcome, example.certificate.statement) == ("fails", "masking-table-1-simple")
    assert example.confirmed == "confirmed by engine stiff at rtol 1 × 10⁻¹²"
    # Token 1 alone goes to ±ξ: two is the least number of tokens.
    assert example.start.shape == (2, 2)
    entries = [example.flow.attention.qk.matrix_at(0.0), example.flow.attention.ov.matrix_at(0.0)]
    assert all(torch.equal(matrix, matrix.round(decimals=2)) for matrix in entries)
    assert str(search) == f"masking-table-1-simple: counterexample: {example}"
    # By another route: the run rests, stably, where token 2 is not along the top eigenvector.
    run = td.simulate(example.flow, example.start[None], [0.0, 300.0], rtol=1e-10, atol=1e-12)
    end = run.tensor[0, -1]
    values, vectors = np.linalg.eig(entries[1][0, 0].numpy())
    top = vectors[:, np.argmax(values.real)].real
    assert abs(float(end[0] @ torch.from_numpy(top))) == pytest.approx(1.0, abs=1e-8)
    assert abs(float(end[1] @ torch.from_numpy(top))) < 0.99
    assert example.flow.velocity(run.tensor[:, -1]).abs().max() < 1e-8
    # The file keeps it: there is nothing to draw any more.
    again = search_counterexample("masking-table-1-simple", CAUSAL, rounds=9, resume=True, **options)
    assert (str(again), again.drawn) == (str(search), 64)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["asymptotic-4.1", "perspective-6.4"])
def test_a_theorem_has_none(name: str) -> None:
    search = search_counterexample(name, seed=1, rounds=2, count=16)
    assert search.counterexample is None
    assert search.applying == sum(search.outcomes.values()) > 50
    assert search.outcomes["fails"] == 0
    assert str(search) == (
        f"{name}: no counterexample among {search.applying} systems that meet the hypotheses: "
        f"{search.outcomes['holds']} hold, {search.outcomes['undecided']} undecided (seed 1)"
    )


@pytest.mark.long
def test_a_wrong_constant_is_found_out() -> None:
    """Theorem 4.1 with five times its rate."""
    right = next(one for one in td.theorems.STATEMENTS if one.name == "asymptotic-4.1")

    def too_fast(trajectory: td.Trajectory) -> tuple[Condition, ...]:
        return right.conditions(replace(trajectory, times=np.asarray(trajectory.times) * 5))

    search = search_counterexample(replace(right, conditions=too_fast), seed=0, rounds=1, count=32)
    assert search.counterexample.certificate.outcome == "fails"


def test_the_gradient_is_followed_to_what_no_random_draw_comes_near() -> None:
    """Entries of qk are normal numbers: 8 is passed once in 10¹⁵ draws, and is 4 steps of the gradient away."""
    limit, family = 8.0, [Family(2, 2, qk="any")]
    wide = at_most(limit / np.sqrt(2))
    random = search_counterexample(wide, family, seed=0, rounds=1, count=512, times=[0.0, 0.1])
    assert random.counterexample is None
    assert -4.0 < random.shortfall < 0.0
    climbing = search_counterexample(wide, family, seed=0, rounds=16, count=64, times=[0.0, 0.1])
    assert climbing.drawn <= 16 * 64 + 16 * 16
    assert climbing.counterexample is not None


def test_systems_outside_the_hypotheses_are_not_asked() -> None:
    def hypotheses(flow: td.Flow, start: torch.Tensor) -> tuple[Hypothesis, ...]:
        small = flow.attention.qk.matrix_at(0.0).abs().amax(dim=(-3, -2, -1)).numpy() < 1.0
        return (Hypothesis("small entries", bool(small.all()), 0.0, 0.0, "of qk", small),)

    statement = replace(at_most(1.0), hypotheses=hypotheses)
    search = search_counterexample(statement, [Family(2, 2)], seed=0, rounds=3, count=64, times=[0.0, 0.1])
    assert search.counterexample is None
    assert 0 < search.applying < search.drawn
    assert search.shortfall < 0.0
    nothing = replace(statement, hypotheses=lambda flow, start: (Hypothesis("never", False, None, 0.0, "is"),))
    empty = search_counterexample(nothing, [Family(2, 2)], seed=0, rounds=2, count=8, times=[0.0, 0.1])
    assert (empty.applying, empty.shortfall, empty.counterexample) == (0, None, None)


def test_an_undecided_system_is_followed_further() -> None:
    """At t = 5 not all is decided, at t = 40 it is."""
    right = next(one for one in td.theorems.STATEMENTS if one.name == "asymptotic-4.1")
    family = [Family(2, 2, qk="I", ov="I")]
    search = search_counterexample(right, family, seed=0, rounds=1, count=12, times=[0.0, 5.0])
    assert search.outcomes == {"holds": 12, "undecided": 0, "fails": 0}
    short = _Trial(right, np.array([0.0, 5.0]), {})
    flow, start = family[0].systems(torch.from_numpy(np.random.default_rng(0).standard_normal((12, 12))))
    assert "undecided" in short.judge(flow, start).outcomes


@pytest.mark.long
def test_layers_and_rescaled_tokens_are_run_as_the_statement_means() -> None:
    assert search_counterexample("rank-collapse", seed=0, rounds=1, count=8).outcomes["fails"] == 0
    rescaled = search_counterexample("clusters-12", [Family(3, 2, "free", ov="I")], seed=0, rounds=1, count=16)
    assert rescaled.outcomes["holds"] > 8


@pytest.mark.long
def test_a_search_goes_on_where_it_stopped(tmp_path: Path) -> None:
    at_once, in_parts = tmp_path / "at_once.json", tmp_path / "in_parts.json"
    options = {"seed": 3, "count": 16, "times": [0.0, 0.1]}
    statement, families = at_most(20.0), [Family(2, 2), Family(3, 2)]
    whole = search_counterexample(statement, families, rounds=3, store=at_once, **options)
    search_counterexample(statement, families, rounds=1, store=in_parts, **options)
    again = search_counterexample(statement, families, rounds=3, store=in_parts, resume=True, **options)
    assert (again, at_once.read_text()) == (whole, in_parts.read_text())
    record = json.loads(at_once.read_text())
    assert [front["rounds"] for front in record["families"]] == [3, 3]
    assert record["search"]["seed"] == 3
    done = search_counterexample(statement, families, rounds=3, store=in_parts, resume=True, **options)
    assert done == whole


def test_another_file_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "search.json"
    options = {"rounds": 1, "count": 4, "store": store, "times": [0.0, 1.0]}
    search_counterexample("masking-4.1", CAUSAL, seed=0, **options)
    with pytest.raises(ArgumentValueError, match=r"store: expected a name where nothing is, got .*resume=True"):
        search_counterexample("masking-4.1", CAUSAL, seed=0, **options)
    with pytest.raises(ArgumentValueError, match=r"store: expected .* to be of the same search, got other seed"):
        search_counterexample("masking-4.1", CAUSAL, seed=1, resume=True, **options)
    for text in ("[]", "{}", '{"search": 1}', '{"search": {}, "families": [{}]}', "nothing"):
        store.write_text(text)
        with pytest.raises(ArgumentValueError, match="store: "):
            search_counterexample("masking-4.1", CAUSAL, seed=0, resume=True, **options)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"statement": "masking-9"}, ArgumentValueError, "statement: expected names among asymptotic-3.1"),
        ({"seed": -1}, ArgumentValueError, "seed: expected at least 0, got -1"),
        ({"seed": True}, ArgumentTypeError, "seed: expected an integer, got True"),
        ({"rounds": 0}, ArgumentValueError, "rounds: expected"),
        ({"count": 1}, ArgumentValueError, "count: expected"),
        ({"systems": []}, ArgumentValueError, "systems: expected at least one family"),
        ({"systems": None, "statement": "positional-C.1"}, ArgumentValueError, "statement: expected a statement whose"),
        ({"times": [1.0, 0.0]}, ArgumentValueError, "times: expected"),
        ({"engine": "quantum"}, ArgumentValueError, "engine: expected"),
        ({"progress": 3}, ArgumentTypeError, "progress: expected"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_arguments_are_named(wrong: dict[str, object], error: type[Exception], message: str) -> None:
    usual = {"statement": "masking-4.1", "systems": CAUSAL, "seed": 0, "rounds": 1, "count": 4}
    with pytest.raises(error, match=message):
        search_counterexample(**(usual | wrong))


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["hardmax-4", "leaders-limit"])
def test_statements_on_hardmax_weights_can_be_searched(name: str) -> None:
    families = [Family(4, 2, space="free", weights="hardmax", qk="positive definite", ov="I")]
    options = {"residual": 0.5, "tau": 0.5} if name == "leaders-limit" else {}
    search = search_counterexample(name, families, seed=0, rounds=1, count=32, **options)
    assert search.counterexample is None
