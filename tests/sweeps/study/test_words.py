"""Sentences of a study: each is a claim, and says the opposite where the opposite is the case."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xarray as xr

from tokendynamics.numerics._errors import ArgumentTypeError
from tokendynamics.sweeps.study import StudyResult

SPREAD = np.array([-0.02, -0.01, 0.0, 0.01, 0.02])


def found(
    claims: list[dict[str, object]] | None = None, better: str = "lower", seeds: int = 5, **means: float
) -> StudyResult:
    """A result whose differences have these means, over seeds that differ by far more."""
    arms = ["baseline", *means]
    shifts = [0.0, *means.values()]
    values = np.array([7.0 * np.arange(seeds) + m + np.roll(SPREAD, i)[:seeds] for i, m in enumerate(shifts)])
    words = ("arm", "seed")
    dataset = xr.Dataset(
        {
            "measure": (words, values),
            "status": (words, np.full(values.shape, "finished")),
            "reason": (words, np.full(values.shape, "")),
            "learning_rate": (("arm",), np.full(len(arms), 2e-3)),
        },
        {"arm": arms, "seed": np.arange(1, seeds + 1)},
        {"name": "made", "measure": "bits_per_byte", "better": better, "reference": "baseline", "confidence": 0.95},
    )
    return StudyResult(dataset.assign_attrs(claims=json.dumps(claims or []), manifest="{}", specification=""))


def about(result: StudyResult, beginning: str) -> str:
    (told,) = [sentence for sentence in result.sentences if sentence.startswith(beginning)]
    return told


@pytest.mark.parametrize(
    ("mean", "better", "told"),
    [
        (0.1, "lower", "separated, b is worse."),
        (-0.1, "lower", "separated, b is better."),
        (0.1, "higher", "separated, b is better."),
        (-0.1, "higher", "separated, b is worse."),
    ],
)
def test_what_is_separated_is_called_better_or_worse_by_the_measure_s_direction(
    mean: float, better: str, told: str
) -> None:
    sentence = about(found(better=better, b=mean), "b − baseline = ")
    assert sentence.endswith(told)
    assert "95 % interval" in sentence
    assert "5 paired seeds" in sentence


def test_what_is_not_separated_is_told_with_what_would_have_been() -> None:
    result = found(b=0.005)
    sentence, pair = about(result, "b − baseline = +0.005"), result.comparisons[0]
    assert "not separated" in sentence
    assert "better" not in sentence
    assert "worse" not in sentence
    assert f"a difference of {pair.detectable:.2g} bits per byte would have been separated" in sentence
    assert f"one as large as this takes {pair.needed:,} seeds" in sentence


def test_one_pair_and_none_are_undecided() -> None:
    result = found(seeds=1, b=1.0)
    assert about(result, "b − baseline").endswith("for one seed: undecided, one pair has no interval.")
    result.dataset["status"].values[:] = "failed"
    nothing = StudyResult(result.dataset)
    assert about(nothing, "b − baseline") == "b − baseline: undecided, no seed was finished by both, without seed 1."
    assert nothing.sentences[0].startswith("0 of 2 runs finished: baseline with seed 1 failed; b with seed 1 failed")
    assert [row[2] for row in nothing.table[1:]] == ["0/1", "0/1"]
    assert [row[3] for row in nothing.table[1:]] == ["no run", "no run"]


def test_differences_that_are_all_the_same_need_no_seeds() -> None:
    result = found(b=0.0)
    result.dataset["measure"].values[1] = result.dataset["measure"].values[0]
    assert about(StudyResult(result.dataset), "b − baseline").endswith("not separated; all differences are the same.")


@pytest.mark.parametrize(
    ("mean", "difference", "told"),
    [
        (-0.1, None, "Claim: b is better than baseline: holds (p = "),
        (0.1, None, "Claim: b is better than baseline: does not hold: it is the other way round (p = "),
        (0.0, None, "Claim: b is better than baseline: cannot be decided at this size (p = "),
        (-0.1, 0.05, "Claim: b is better than baseline by 0.05 bits per byte or more: holds (p = "),
        (
            -0.1,
            0.3,
            "Claim: b is better than baseline by 0.3 bits per byte or more: does not hold: differences so large are "
            "excluded (p = ",
        ),
    ],
)
def test_claims_in_words(mean: float, difference: float | None, told: str) -> None:
    result = found([{"better": "b", "worse": "baseline", "difference": difference}], b=mean)
    assert about(result, "Claim").startswith(told)
    assert ("corrected for 2 tests" in about(result, "Claim")) == (difference is not None)


def test_a_claim_that_is_separated_by_itself_alone_is_said_to_be() -> None:
    others = [{"better": "b", "worse": f"c{i}"} for i in range(30)]
    result = found([{"better": "b", "worse": "baseline"}, *others], b=-0.04, **{f"c{i}": 0.0 for i in range(30)})
    sentence = about(result, "Claim: b is better than baseline")
    assert "cannot be decided at this size" in sentence
    assert "separated by itself, but not among all tests" in sentence
    assert any("The 31 tests of the claims share one error of 5 %" in each for each in result.sentences)


def test_what_several_intervals_mean_is_told_where_there_are_several() -> None:
    told = "Each interval is one by itself: of arms that do not differ from the reference, 5 % are separated."
    assert told in found(b=0.1, c=0.1).sentences
    assert told not in found(b=0.1).sentences


def test_the_table_has_an_interval_beside_every_mean() -> None:
    columns, baseline, b = found(b=0.1).table
    assert columns[:3] == ("arm", "learning rate", "seeds")
    assert columns[3:] == ("bits per byte (95 %)", "minus baseline (95 %)", "verdict")
    assert baseline[4:] == ("", "the reference")
    assert b[5] == "separated, worse"
    for cell in (baseline[3], b[3], b[4]):
        assert " … " in cell


def test_a_dataset_of_something_else_is_refused(unchecked: None) -> None:
    for other in (xr.Dataset(), found(b=1.0).dataset.drop_attrs(), 3):
        with pytest.raises(ArgumentTypeError, match="dataset: expected what `study` or `open_study` gave"):
            StudyResult(other)  # pyright: ignore[reportArgumentType]
