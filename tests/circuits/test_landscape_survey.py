"""Which claims of `logical` section 3 hold, as the survey tells them: its numbers are those of the landscape."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from tokendynamics.circuits.functionals import random_functional
from tokendynamics.circuits.landscape import CategoriesOnly, PositionsOnly, SoftmaxPositions, survey
from tokendynamics.circuits.landscape.claims import STARTS
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError
from tokendynamics.words import number

LAW = [0.5, 0.3, 0.2]
T, M = 1 - 0.25 - 0.09 - 0.04, 4


@pytest.mark.long
@pytest.mark.usefixtures("unchecked")
def test_the_trap_at_infinity_is_told_per_token_and_in_all():
    landscape_survey = survey("3.1", law=LAW, positions=M, starts=8, seed=2)
    (mark,) = landscape_survey.marks.values()
    assert mark == pytest.approx((M - 1) * T / M, rel=1e-12)
    assert landscape_survey.as_json()["marks"] == {
        "limit at infinity, (M−1)·T/M": {"loss": mark, "loss_per_token": pytest.approx(T / M, rel=1e-12)}
    }
    assert (
        f"T/M = {number(T / M, 6)} per token, (M−1)·T/M = {number((M - 1) * T / M, 6)} in all"
        in landscape_survey.claims[1]
    )
    caught = [run.classification for run in landscape_survey.basins.runs if run.kind == "at infinity"]
    assert caught
    for one in caught:
        assert one is not None
        assert one.limit == pytest.approx(mark, rel=1e-3)


def test_family_b_contradicts_the_paper_with_its_own_loss():
    landscape_survey = survey("3.1", law=LAW, positions=M, starts=1)
    loss = 1 - (1 - 1 / M) * T
    assert f"stationary with the loss {number(loss, 6)} per token. It is a strict saddle" in landscape_survey.claims[0]
    assert "Every finite family but A is a strict saddle" in landscape_survey.claims[2]


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_stalls_lose_per_token_what_the_landscape_says():
    landscape_survey = survey("3.2", law=LAW, positions=M, starts=1)
    landscape = SoftmaxPositions(LAW, M)
    assert landscape_survey.points == ()
    for stalled in landscape_survey.as_json()["stalls"]:
        logits = -stalled["depth"] * torch.ones(M - 1, dtype=torch.float64).diag_embed(offset=1)
        loss = float(landscape.loss(logits, landscape.best_v(logits)))
        assert stalled["loss_per_token"] == pytest.approx(loss / (M - 1), rel=1e-12)
        assert stalled["loss"] == pytest.approx(loss, rel=1e-12)
        assert number(stalled["time"]) in landscape_survey.claims[1]
    assert landscape_survey.as_json()["stalls"][-1]["loss_per_token"] == pytest.approx(T, rel=1e-4)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("section", ["3.1", "3.2", "3.3"])
@pytest.mark.usefixtures("unchecked")
def test_what_is_stored_is_enough_to_compute_the_losses_again(section: Any):
    q_true = random_functional(3, seed=4) if section == "3.3" else None
    stored = json.loads(json.dumps(survey(section, law=LAW, positions=M, q_true=q_true, starts=2).as_json()))
    law, positions = stored["law"], stored["positions"]
    assert (stored["section"], stored["categories"], stored["causal"]) == (
        section,
        3,
        False if q_true is not None else None,
    )
    landscape = {
        "3.1": lambda: PositionsOnly(law, positions),
        "3.2": lambda: SoftmaxPositions(law, positions),
        "3.3": lambda: CategoriesOnly(stored["q_true"], law, positions, stored["causal"]),
    }[section]()
    for place in (*stored["points"], *stored["basins"]["runs"]):
        assert float(landscape.loss(place["attention"], place["v"])) == pytest.approx(
            place["loss"], rel=1e-9, abs=1e-12
        )
    for point in stored["points"]:
        assert point["loss_per_token"] == pytest.approx(point["loss"] / (positions - 1), rel=1e-14)


@pytest.mark.parametrize("positions", [2, 4])
def test_the_missed_points_of_3_3_have_zero_row_sums_and_the_losses_that_are_told(positions: int):
    landscape_survey = survey("3.3", categories=3, positions=positions, starts=1)
    missed = [point for point, _ in landscape_survey.points if point.family == "B"]
    assert missed
    assert f"{len(missed)} with zero row sums of v were found" in landscape_survey.claims[0]
    for point in missed:
        assert np.abs(point.v.numpy()[1:].sum(axis=1)).max() < 1e-9
        assert number(point.loss_per_column, 4) in landscape_survey.claims[0]


def test_a_mask_is_said_to_leave_these_points_out():
    landscape_survey = survey("3.3", categories=2, positions=3, causal=True, starts=1)
    assert not [point for point, _ in landscape_survey.points if point.family == "B"]
    assert any("not searched for under a causal mask" in claim for claim in landscape_survey.claims)
    assert landscape_survey.as_json()["causal"] is True


@pytest.mark.parametrize("scale", [1e-3, 1e5])
def test_kinds_do_not_depend_on_the_unit_of_q_true(scale: float):
    q_true = random_functional(3, seed=1)
    kinds = [
        [kind.kind for _, kind in survey("3.3", q_true=matrix, starts=1).points]
        for matrix in (q_true / q_true.abs().max(), scale * q_true / q_true.abs().max())
    ]
    assert kinds[0] == kinds[1]


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_starts_and_sizes_are_those_of_the_section_unless_given():
    landscape_survey = survey("3.2", categories=2, positions=2)
    assert len(landscape_survey.basins.runs) == STARTS["3.2"] < STARTS["3.1"]
    assert landscape_survey.per_token(6.0) == 6.0
    zipf = survey("3.1", law="zipf", positions=3, starts=1)
    assert zipf.landscape.law.tolist() == pytest.approx([60 / 137, 30 / 137, 20 / 137, 15 / 137, 12 / 137])


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "another section": ("3.4", {}, "section: expected '3.1'"),
    "one category": ("3.1", {"categories": 1}, "categories: expected at least 2, got 1"),
    "no category": ("3.2", {"categories": 0}, "categories: expected at least 2, got 0"),
    "one category of 3.3": ("3.3", {"q_true": [[2.0]]}, "categories: expected at least 2, got 1"),
    "one probability": ("3.1", {"law": [1.0]}, "categories: expected at least 2, got 1"),
    "too many probabilities": ("3.1", {"law": LAW, "categories": 2}, "law: expected 2 probabilities"),
    "one position": ("3.1", {"positions": 1}, "positions: expected at least 2"),
    "a target of 3.1": ("3.1", {"q_true": [[1.0, 2.0], [0.0, 3.0]]}, "q_true: expected none outside of section 3.3"),
    "a mask of 3.2": ("3.2", {"causal": True}, "causal: expected none outside of section 3.3"),
    "too large": ("3.3", {"q_true": [[1e200, -1e200], [1e200, 3.0]]}, "q_true: expected numbers up to 100000"),
    "another size": ("3.3", {"q_true": [[1.0, 2.0], [0.0, 3.0]], "categories": 3}, "categories: expected 2, as q_true"),
    "equal rows": ("3.3", {"q_true": [[1.0, 2.0], [1.0, 2.0]]}, "q_true: expected dependence on the previous"),
    "no start": ("3.1", {"starts": 0}, "starts: expected at least 1"),
}


@pytest.mark.parametrize(("section", "given", "message"), WRONG.values(), ids=WRONG.keys())
@pytest.mark.usefixtures("unchecked")
def test_wrong_input_is_named(section: Any, given: dict[str, Any], message: str):
    with pytest.raises(ArgumentValueError) as refused:
        survey(section, **given)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("unchecked")
def test_half_a_category_is_no_number_of_categories():
    with pytest.raises(ArgumentTypeError, match="categories: expected an integer"):
        survey("3.1", categories=2.5)  # type: ignore[arg-type]
