"""Sentences of a study: each is a claim, and says the opposite where the opposite is the case."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from tokendynamics.numerics.errors import ArgumentTypeError
from tokendynamics.numerics.intervals import T_COVERAGE, student_quantile
from tokendynamics.report.training._study_page import _of_tuning, arms_table, claims_table, comparisons_table
from tokendynamics.sweeps.study import StudyResult
from tokendynamics.sweeps.study.paired import interval
from tokendynamics.words import signed

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
    """The one sentence after the answer that begins so."""
    (sentence,) = [sentence for sentence in result.sentences[1:] if sentence.startswith(beginning)]
    return sentence


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("mean", "better", "word"),
    [
        (0.1, "lower", "worse"),
        (-0.1, "lower", "better"),
        (0.1, "higher", "better"),
        (-0.1, "higher", "worse"),
    ],
)
def test_a_significant_difference_is_better_or_worse_by_the_measure_s_direction(
    mean: float, better: str, word: str
) -> None:
    result = found(better=better, b=mean)
    sentence, pair = about(result, "b is significantly "), result.comparisons[0]
    ends = sorted((abs(pair.low), abs(pair.high)))
    assert sentence == (
        f"b is significantly {word} than baseline, by 0.100 bits per byte (95 % CI {ends[0]:.3f}–{ends[1]:.3f}, "
        "5 paired seeds)."
    )
    assert result.answer == f"b is significantly {word} than baseline."


@pytest.mark.parametrize(
    ("means", "answer"),
    [
        ({"b": -0.1, "c": 0.0}, "1 of 2 arms differs significantly from baseline: b is better."),
        ({"b": -0.1, "c": 0.1}, "2 of 2 arms differ significantly from baseline: b is better; c is worse."),
        ({"b": 0.1, "c": 0.1, "d": 0.0}, "2 of 3 arms differ significantly from baseline: b and c are worse."),
        ({"b": 0.0, "c": 0.0}, "No arm differs significantly from baseline."),
    ],
)
def test_several_arms_are_one_sentence(means: dict[str, float], answer: str) -> None:
    assert found(**means).answer == answer


def test_a_difference_that_is_not_significant_is_said_with_the_detectable_one() -> None:
    result = found(b=0.005)
    sentence, pair = about(result, "The difference b − baseline of +0.005 bits per byte"), result.comparisons[0]
    assert f"is not significant (95 % CI −{-pair.low:.3f} to {pair.high:.3f}, 5 paired seeds)" in sentence
    assert "better" not in sentence
    assert "worse" not in sentence
    assert (
        f"A true difference of {pair.detectable:.2g} bits per byte would be detected with 80 % probability" in sentence
    )
    assert f"the observed one takes {pair.needed:,} seeds" in sentence
    assert result.answer == "b does not differ significantly from baseline."


def test_one_pair_and_none_are_undecided() -> None:
    result = found(seeds=1, b=1.0)
    assert about(result, "The difference b − baseline is ").endswith(
        "bits per byte for one seed: undecided, because one pair has no confidence interval."
    )
    assert result.table[2][4].endswith("(one run)")
    result.dataset["status"].values[:] = "failed"
    nothing = StudyResult(result.dataset)
    assert about(nothing, "b cannot") == "b cannot be compared with baseline: no seed finished in both, without seed 1."
    runs = "2 of 2 runs did not finish: baseline with seed 1 failed; b with seed 1 failed."
    assert about(nothing, "2 of 2 runs") == runs
    assert [row[2] for row in nothing.table[1:]] == ["0/1", "0/1"]
    assert [row[3] for row in nothing.table[1:]] == ["no run", "no run"]


def test_differences_that_are_all_the_same_need_no_seeds() -> None:
    result = found(b=0.0)
    result.dataset["measure"].values[1] = result.dataset["measure"].values[0]
    assert about(StudyResult(result.dataset), "b equals") == (
        "b equals baseline on every seed (5 paired seeds): not significant."
    )


@pytest.mark.parametrize("seeds", [2, 5])
@pytest.mark.parametrize("size", [None, 0.01])
@pytest.mark.parametrize("shift", [-0.02, 0.0, 0.02])
def test_equal_differences_have_no_interval_and_prove_nothing(shift: float, size: float | None, seeds: int) -> None:
    dataset = found([{"better": "b", "worse": "baseline", "difference": size}], "higher", seeds, b=0.0).dataset
    dataset["measure"].values[:] = np.array([0.91, 0.93, 0.91, 0.95, 0.93])[:seeds] + np.array([[0.0], [shift]])
    result = StudyResult(dataset)
    claim = about(result, "Claim: b is better")
    assert "cannot be decided at this size: all differences are equal, so that no confidence interval follows" in claim
    if shift:
        sentence = about(result, "The difference b − baseline is ")
        assert sentence.startswith(f"The difference b − baseline is {signed(shift)} bits per byte for each of {seeds}")
        assert result.answer == (
            "No comparison can be decided: each arm differs from the reference by one amount on all the finished seeds "
            "that they share."
        )
        assert result.table[2][4].endswith(f"(equal in {seeds} runs)")
    dataset["measure"].values[1, 0] += 0.01
    other = StudyResult(dataset)
    assert "all differences are equal" not in " ".join(other.sentences)
    assert "p = " in about(other, "Claim: b is better")


@pytest.mark.parametrize(
    ("mean", "difference", "wanted_words"),
    [
        (-0.1, None, "Claim: b is better than baseline: holds (p = "),
        (
            0.1,
            None,
            "Claim: b is better than baseline: does not hold: the difference is significant in the other "
            "direction (p = ",
        ),
        (0.0, None, "Claim: b is better than baseline: cannot be decided at this size (p = "),
        (-0.1, 0.05, "Claim: b is better than baseline by 0.05 bits per byte or more: holds (p = "),
        (
            -0.1,
            0.3,
            "Claim: b is better than baseline by 0.3 bits per byte or more: does not hold: a difference this large "
            "is excluded (p = ",
        ),
    ],
)
def test_claims_in_words(mean: float, difference: float | None, wanted_words: str) -> None:
    result = found([{"better": "b", "worse": "baseline", "difference": difference}], b=mean)
    assert about(result, "Claim").startswith(wanted_words)
    assert ("corrected for 2 tests" in about(result, "Claim")) == (difference is not None)


def test_a_claim_that_is_separated_by_itself_alone_is_said_to_be() -> None:
    others = [{"better": "b", "worse": f"c{i}"} for i in range(30)]
    result = found([{"better": "b", "worse": "baseline"}, *others], b=-0.04, **{f"c{i}": 0.0 for i in range(30)})
    sentence = about(result, "Claim: b is better than baseline")
    assert "cannot be decided at this size" in sentence
    assert "significant by itself, but not after the correction for several tests" in sentence
    assert any("The 31 tests of the claims share an error rate of 5 %" in entry for entry in result.sentences)


def test_what_several_intervals_mean_is_told_where_there_are_several() -> None:
    message = (
        "Confidence intervals are not corrected for their number: 5 % of arms equal to the reference differ "
        "significantly by chance."
    )
    assert message in found(b=0.1, c=0.1).sentences
    assert message not in found(b=0.1).sentences


def tuned(rate: float, seeds: int) -> StudyResult:
    """Two arms with the learning rates 0.002 and `rate` of a grid of 0.001 to 0.004, tuned on so many seeds."""
    dataset = found([{"better": "b", "worse": "baseline", "difference": None}], b=0.1).dataset
    grid, tried = [0.001, 0.002, 0.004], list(range(101, 101 + seeds))
    ends = {0.001: "smallest", 0.004: "largest"}
    tables = {
        "tuning": (("arm", "rate", "tuning_seed"), np.ones((2, 3, seeds))),
        "tuning_status": (("arm", "rate", "tuning_seed"), np.full((2, 3, seeds), "finished")),
        "learning_rate_at_end": (("arm",), ["", ends.get(rate, "")]),
    }
    return StudyResult(
        dataset.merge(xr.Dataset(tables, {"rate": grid, "tuning_seed": tried}))
        .assign(learning_rate=("arm", [0.002, rate]))
        .assign_attrs(dataset.attrs)
    )


@pytest.mark.parametrize(("rate", "end"), [(0.004, "largest"), (0.001, "smallest"), (0.002, None)])
def test_a_learning_rate_at_an_end_of_its_grid_is_in_every_record_and_table(
    rate: float, end: str | None, tmp_path: Path
) -> None:
    result = tuned(rate, 2)
    assert [arm.learning_rate_at_end for arm in result.arms] == [None, end]
    assert [row[1] for row in result.table[1:]] == ["0.002", f"{rate:g} ({end} tried)" if end else "0.002"]
    warnings = [sentence for sentence in result.sentences if "may lie beyond the grid" in sentence]
    assert len(warnings) == (end is not None)
    assert all(f"for b ({rate:g}, the {end} tried)" in sentence for sentence in warnings)
    summary = result.record
    assert [arm["learning_rate_at_end"] for arm in summary["arms"]] == [None, end]
    for row in (*summary["comparisons"], *summary["claims"]):
        assert (row["arm_learning_rate_at_end"], row["reference_learning_rate_at_end"]) == (end, None)
    measures = result.dataset["measure"]
    rows = StudyResult(result.dataset.assign(final_validation=measures, seconds=measures))._runs
    assert {row["learning_rate_at_end"] for row in rows if row["arm"] == "b"} == {end or ""}
    for caption in (comparisons_table(result).caption, claims_table(result).caption):
        assert ("may lie beyond the grid for b" in caption) == (end is not None)
    cells = {row[0].text: row[2].text for row in arms_table(result).rows}
    assert (f"({end} tried)" in cells["b"]) == (end is not None)
    assert "tried" not in cells["baseline"]


def test_tuning_on_one_seed_is_said_and_on_two_is_not() -> None:
    message = (
        "Each learning rate was tried with one seed: rates whose measures differ by less than the variation between "
        "seeds cannot be ranked."
    )
    assert message in tuned(0.002, 1).sentences
    assert _of_tuning(tuned(0.002, 1))[1:] == (message,)
    assert _of_tuning(tuned(0.002, 2))[1:] == ()
    for result in (tuned(0.002, 2), found(b=0.1)):
        assert message not in result.sentences


def test_what_t_intervals_assume_is_said_where_there_is_one() -> None:
    message = f"{T_COVERAGE}."
    assert message in found(b=0.1).sentences
    assert message not in found(seeds=1, b=0.1).sentences
    result = tuned(0.002, 2)
    for caption in (comparisons_table(result).caption, claims_table(result).caption):
        assert T_COVERAGE in caption


@pytest.mark.parametrize("pairs", [5, 15])
def test_the_coverage_that_is_said_is_that_of_the_intervals(pairs: int) -> None:
    values = np.random.default_rng(0).exponential(size=(20_000, pairs))
    half = student_quantile(0.95, pairs - 1) * values.std(axis=1, ddof=1) / np.sqrt(pairs)
    low, high = interval(values[0], 0.95)[1:]
    assert (low, high) == pytest.approx((values[0].mean() - half[0], values[0].mean() + half[0]))
    covered = float((np.abs(values.mean(axis=1) - 1.0) <= half).mean())
    assert "88 to 91 %" in T_COVERAGE
    assert 0.875 < covered < 0.915  # the standard error of this share is 0.0022


def test_the_table_has_an_interval_beside_every_mean() -> None:
    columns, baseline, b = found(b=0.1).table
    assert columns[:3] == ("arm", "learning rate", "seeds")
    assert columns[3:] == ("bits per byte (95 % CI)", "minus baseline (95 % CI)", "verdict")
    assert baseline[4:] == ("", "reference")
    assert b[5] == "significant, worse"
    for cell in (baseline[3], b[3], b[4]):
        assert " to " in cell


def test_a_dataset_of_something_else_is_refused(unchecked: None) -> None:
    for other in (xr.Dataset(), found(b=1.0).dataset.drop_attrs(), 3):
        with pytest.raises(ArgumentTypeError, match="dataset: expected the result of `study` or `open_study`"):
            StudyResult(other)  # pyright: ignore[reportArgumentType]
