"""The pages of a run and of a study: each sentence in each of its ways, from numbers that are known."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from report.planted_study import RATES, full_study, planted_record, planted_study
from report.reading import close, figure_of, page_of, ragged, saved, table_of, value_of
from tokendynamics.figures.figure import Table
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.report import write
from tokendynamics.report.training._run_page import losses
from tokendynamics.report.training._study_page import (
    _of_tuning,
    arms_table,
    claims_table,
    comparisons_table,
    differences,
    unfinished_table,
    validation,
)
from tokendynamics.sweeps.study import StudyResult
from tokendynamics.training import preset
from tokendynamics.training import record as run_words

HOSTILE = "<script>alert(1)</script></style>\"'&amp;\x00\u202eevil"
BASE = (2.0, 2.1, 2.2, 2.3, 2.4)
T_4 = 2.7764451051977987
"""The 97.5 % quantile of Student's t with four degrees of freedom, from tables."""


def beside(*shifts: float, base: tuple[float, ...] = BASE) -> list[float]:
    """Measures that differ from those of the reference by these."""
    return [value + shift for value, shift in zip(base, shifts, strict=True)]


def texts(table: Table | None) -> list[list[str]]:
    assert table is not None
    return [[cell.text for cell in row] for row in table.shown]


NOISE = (-0.1, 0.1, -0.1, 0.1, 0.0)
LOWER = (-0.010, -0.012, -0.014, -0.012, -0.012)
HALF = T_4 * np.std(LOWER, ddof=1) / np.sqrt(5)
ENDS = f"{0.012 - HALF:.4f}–{0.012 + HALF:.4f}"


@pytest.mark.parametrize(
    ("sign", "better", "word"),
    [(1, "lower", "better"), (-1, "lower", "worse"), (1, "higher", "worse"), (-1, "higher", "better")],
)
def test_a_separated_arm_is_better_or_worse_by_its_measure_and_its_direction(sign: int, better: str, word: str) -> None:
    result = planted_study({"baseline": BASE, "divergence": beside(*(sign * shift for shift in LOWER))}, better=better)
    assert result.answer == f"divergence is significantly {word} than baseline."
    assert result.findings[0] == (
        f"divergence is significantly {word} than baseline, by 0.0120 bits per byte (95 % CI {ENDS}, 5 paired seeds)."
    )
    assert f"{better} is better" in arms_table(result).caption
    assert texts(comparisons_table(result))[0][6] == f"significant, {word}"


@pytest.mark.parametrize(("better", "left", "right"), [("lower", "better", "worse"), ("higher", "worse", "better")])
def test_the_drawing_of_seeds_says_which_side_is_the_better_one(better: str, left: str, right: str) -> None:
    svg = differences(planted_study({"baseline": BASE, "divergence": beside(*NOISE)}, better=better)).svg
    assert f"← {left} · difference in bits per byte · {right} →" in svg
    assert f"← {left} · {right} →" in svg  # on a phone


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_what_is_not_separated_is_said_with_what_could_have_been(better: str) -> None:
    values = {"baseline": BASE, "a": beside(*NOISE), "b": beside(*(2 * shift + 0.01 for shift in NOISE))}
    result = planted_study(values, better=better)
    assert result.answer == "No arm differs significantly from baseline."
    deviation = float(np.std(NOISE, ddof=1))
    half = 2 * T_4 * deviation / np.sqrt(5)
    ends = f"95 % CI −{half - 0.01:.2f} to {half + 0.01:.2f}, 5 paired seeds"
    # Five pairs separate 1.682 standard deviations with a power of 80 % at an error of 5 %.
    assert result.findings[1] == (
        f"The difference b − baseline of +0.01 bits per byte is not significant ({ends}). A true difference of "
        f"{2 * 1.682 * deviation:.2g} bits per byte would be detected with 80 % probability; the observed one takes "
        f"{result.comparisons[1].needed:,} seeds."
    )
    alone = planted_study({name: values[name] for name in ("baseline", "a")})
    assert alone.answer == "a does not differ significantly from baseline."


def test_some_separated_arms_are_sorted_into_better_and_worse() -> None:
    higher = tuple(-shift for shift in LOWER)
    values = {"baseline": BASE, "good": beside(*LOWER), "bad": beside(*higher), "noisy": beside(*NOISE)}
    result = planted_study(values)
    assert result.answer == "2 of 3 arms differ significantly from baseline: good is better; bad is worse."
    assert [finding.split(" (")[0] for finding in result.findings[:2]] == [
        "good is significantly better than baseline, by 0.0120 bits per byte",
        "bad is significantly worse than baseline, by 0.0120 bits per byte",
    ]
    one = planted_study({name: values[name] for name in ("baseline", "bad", "noisy")})
    assert one.answer == "1 of 2 arms differs significantly from baseline: bad is worse."
    two = planted_study({"baseline": BASE, "one": beside(*LOWER), "other": beside(*LOWER)})
    assert two.answer == "2 of 2 arms differ significantly from baseline: one and other are better."


def test_an_arm_that_is_the_reference_on_every_seed_is_called_that() -> None:
    same, nearly = (planted_study({"baseline": BASE, "twin": beside(0, 0, 0, 0, last)}) for last in (0.0, 1e-3))
    assert same.answer == "twin does not differ significantly from baseline."
    assert same.findings[0] == "twin equals baseline on every seed (5 paired seeds): not significant."
    assert texts(comparisons_table(same))[0][-1] == "undefined"
    assert "equals" not in nearly.findings[0]


def test_one_seed_has_no_interval_and_none_no_difference() -> None:
    values = {"baseline": (2.0,), "divergence": (1.0,)}
    one, none = planted_study(values), planted_study(values, ended={("divergence", 1): ("failed", "")})
    for result in (one, none):
        assert result.answer == "No comparison is possible: no arm shares two finished seeds with the reference."
    assert one.findings[0] == (
        "The difference divergence − baseline is −1 bits per byte for one seed: undecided, because one pair has no "
        "confidence interval."
    )
    assert texts(comparisons_table(one)) == [
        ["divergence − baseline", "1", "−1", *["undefined"] * 3, "undecided", "undefined", "undefined"]
    ]
    assert texts(arms_table(one))[0] == ["baseline", "1 of 1", "0.002", "2", "undefined", "undefined"]
    assert none.findings[0] == "divergence cannot be compared with baseline: no seed finished in both, without seed 1."
    drawing = differences(none)
    assert not drawing.svg
    assert drawing.caption == "Nothing to plot: no seed finished both in an arm and in the reference."


def test_an_undecided_arm_beside_others_is_counted() -> None:
    values = {"baseline": BASE, "noisy": beside(*NOISE), "lost": BASE}
    ended = {("lost", seed): ("not finite", "why") for seed in (1, 2, 3, 4)}
    assert (
        planted_study(values, ended=ended).answer
        == "No arm differs significantly from baseline; 1 of 2 cannot be decided."
    )


def test_runs_that_did_not_finish_are_counted_and_listed() -> None:
    values = {"baseline": BASE, "divergence": beside(*LOWER)}
    whole = planted_study(values)
    assert whole.findings[-1] == "All 10 runs finished."
    assert unfinished_table(whole) is None
    ended = {
        ("divergence", 2): ("not finite", "the loss"),
        ("divergence", 4): ("failed", "RuntimeError"),
        ("baseline", 5): ("failed", "killed"),
    }
    result = planted_study(values, ended=ended)
    assert result.findings[-1] == (
        "3 of 10 runs did not finish: baseline with seed 5 failed (killed); divergence with seed 2 not finite (the "
        "loss); divergence with seed 4 failed (RuntimeError)."
    )
    assert texts(unfinished_table(result)) == [
        ["baseline", "5", "failed", "killed"],
        ["divergence", "2", "not finite", "the loss"],
        ["divergence", "4", "failed", "RuntimeError"],
    ]
    assert [row[1] for row in texts(arms_table(result))] == ["4 of 5", "3 of 5"]
    assert texts(comparisons_table(result))[0][1] == "2"


@pytest.mark.parametrize(
    ("claim", "wanted_words"),
    [
        (("divergence", "baseline", None), "divergence is better than baseline: holds"),
        (("baseline", "divergence", None), "baseline is better than divergence: does not hold"),
        (("noisy", "baseline", None), "noisy is better than baseline: cannot be decided at this size"),
        (
            ("divergence", "baseline", 0.5),
            "divergence is better than baseline by 0.5 bits per byte or more: does not hold",
        ),
    ],
)
def test_a_claim_has_its_verdict(claim: tuple[str, str, float | None], wanted_words: str) -> None:
    values = {"baseline": BASE, "divergence": beside(*LOWER), "noisy": beside(*NOISE)}
    alone = planted_study(values, claims=[claim])
    assert sum(sentence.startswith(f"Claim: {wanted_words}") for sentence in alone.findings) == 1
    ((first, verdict, *_),) = texts(claims_table(alone))
    assert f"{first}: {verdict}" == wanted_words
    both = planted_study(values, claims=[claim, ("noisy", "divergence", None)])
    assert sum(sentence.startswith("Claim: ") for sentence in both.findings) == 2
    assert not any("laim" in sentence for sentence in planted_study(values).findings)


def test_a_learning_rate_at_an_end_of_the_grid_is_named() -> None:
    values = {"baseline": BASE, "divergence": beside(*LOWER)}
    inside = planted_study(values, chosen={"baseline": 0.001, "divergence": 0.002})
    assert _of_tuning(inside) == ("No chosen learning rate is at an end of the grid.",)
    edge = planted_study(values, chosen={"baseline": 0.0005, "divergence": 0.004})
    assert _of_tuning(edge) == (
        "A better learning rate may lie beyond the grid for baseline (0.0005, the smallest tried) and divergence "
        "(0.004, the largest tried).",
    )
    assert not any("grid" in sentence for sentence in planted_study(values).sentences)


def test_bands_are_intervals_over_the_seeds_that_finished() -> None:
    values = {"baseline": BASE, "divergence": beside(-0.3, -0.1, -0.2, -0.25, 5.0)}
    together, apart = validation(planted_study(values, ended={("divergence", 5): ("not finite", "")}))
    kept = np.array(values["divergence"][:4])
    t_3 = 3.182446305284263
    for figure, row, wanted in ((together, slice(4, 7), kept + 1.0), (apart, slice(1, 4), kept - BASE[:4])):
        half = t_3 * wanted.std(ddof=1) / 2
        assert close(texts(figure.table)[0][row], np.array([wanted.mean(), wanted.mean() - half, wanted.mean() + half]))
        assert "Band: its 95 % t-interval" in figure.caption
    assert "An arm is better below zero." in apart.caption
    _, higher = validation(planted_study(values, better="higher"))
    assert "An arm is better above zero." in higher.caption


def test_a_band_of_one_seed_is_none() -> None:
    together, _ = validation(planted_study({"baseline": (2.0,), "divergence": (1.0,)}))
    assert texts(together.table)[0][1:4] == ["3.000", "undefined", "undefined"]
    assert "fill-opacity" not in together.svg.split("<text")[0]


@pytest.mark.long
def test_columns_have_one_number_of_places(study_page: str, run_page: str) -> None:
    assert ragged(study_page) == []
    assert ragged(run_page) == []


@pytest.mark.long
def test_the_page_of_a_study_holds_what_is_counted_again(study_page: str) -> None:
    result = full_study()
    measures = result.dataset["measure"].values
    for row, values in zip(section_table(study_page, "arms"), measures, strict=True):
        known = values[np.isfinite(values)]
        assert value_of(row[3]) == pytest.approx(known.mean(), rel=1e-3)
        assert (value_of(row[4]) + value_of(row[5])) / 2 == pytest.approx(known.mean(), rel=1e-3)
        assert value_of(row[4]) < value_of(row[5])
    for row, values in zip(section_table(study_page, "differences"), measures[1:], strict=True):
        difference = (values - measures[0])[np.isfinite(values)]
        assert int(row[1]) == len(difference)
        assert close([row[2]], np.array([difference.mean()]))
        assert (value_of(row[3]) < 0 < value_of(row[4])) == row[6].startswith("not significant")
    heads, *rows = saved(study_page, "seeds")
    assert heads[:2] == ["Seed", "baseline"]
    written = np.array([[float(cell) if cell else np.nan for cell in row] for row in rows])
    np.testing.assert_allclose(written[:, 1:7], measures.T, rtol=1e-12)
    np.testing.assert_allclose(written[:, 7:], (measures[1:] - measures[0]).T, rtol=0, atol=1e-12)


@pytest.mark.long
def test_every_sentence_of_a_result_is_on_its_page(study_page: str) -> None:
    result, page = full_study(), unescape(study_page)
    assert f"<strong>{result.answer}</strong>" in page
    for entry in (*result.findings, *result.details):
        assert f"<li>{entry}</li>" in page
    assert _of_tuning(result)[0] in page


def test_layers_are_medians_with_the_extremes_of_the_seeds(study_page: str) -> None:
    norms = full_study().dataset["token_norm"].sel(arm="divergence", state="bare").values
    rows = table_of(study_page, "layers-norm")
    heads = re.findall(r'<th scope="col">(.*?)</th>', figure_of(study_page, "layers-norm"))
    at = heads.index("divergence, attention alone")
    assert heads[at + 1 : at + 3] == ["divergence, attention alone, lowest", "divergence, attention alone, highest"]
    for layer, row in enumerate(rows):
        wanted = [np.median(norms[:, layer]), norms[:, layer].min(), norms[:, layer].max()]
        assert close(row[at : at + 3], np.array(wanted))


def test_an_arm_looks_the_same_in_every_figure(study_page: str) -> None:
    looks = {}
    for ident in ("validation", "layers-norm", "layers-distance", "learning-rates"):
        keys = re.findall(r"<g transform[^>]*><line ([^>]*)/><text[^>]*>(\w+)</text>", figure_of(study_page, ident))
        looks[ident] = {name: re.findall(r'(stroke|stroke-dasharray)="([^"]*)"', how) for how, name in keys}
    assert len({str(look) for look in looks["validation"].values()}) == 6
    assert all(look == looks["validation"] for look in looks.values())


def test_the_page_says_which_learning_rate_was_chosen(study_page: str) -> None:
    chosen = {row[0]: value_of(row[1]) for row in table_of(study_page, "learning-rates") if row[-1] == "chosen"}
    rates = full_study().dataset["learning_rate"]
    assert chosen == {str(arm): float(rates.sel(arm=arm)) for arm in rates["arm"].values}
    wide = figure_of(study_page, "learning-rates").split("</svg>")[0]
    columns = sorted({float(x) for x in re.findall(r'<circle transform="translate\(([\d.]+)', wide)})
    diamonds = [float(x) for x in re.findall(r'<path transform="translate\(([\d.]+),[\d.]+\)" d="M-', wide)]
    assert [RATES[columns.index(x)] for x in diamonds] == rates.values.tolist()


def test_the_page_of_a_large_study_is_small(study_page: str) -> None:
    assert len(study_page.encode()) < 2_000_000
    rows = table_of(study_page, "validation")
    assert len(rows) == 200
    assert [rows[0][0], rows[-1][0]] == ["100", "100,000"]


def test_what_users_wrote_is_escaped() -> None:
    values = {"baseline": BASE[:2], HOSTILE: beside(0.1, 0.2, base=BASE[:2])}
    rates = {"baseline": 0.001, HOSTILE: 0.002}
    claims = [(HOSTILE, "baseline", None)]
    ended = {(HOSTILE, 1): ("failed", HOSTILE)}
    study = planted_study(values, ended=ended, name=HOSTILE, text=HOSTILE, chosen=rates, claims=claims, measure=HOSTILE)
    experiment = preset("bytes-small").changed(data=HOSTILE, regime=HOSTILE)
    record = planted_record(notes=(HOSTILE,), experiment=experiment, manifest={"a": HOSTILE})
    for page in (page_of(StudyResult(study.dataset, (f"{HOSTILE}.csv",))), page_of(record)):
        assert "alert(1)</script>" not in page
        assert "<script>alert" not in page
        assert not re.search("[\x00\u202e]", page)
        assert "‹U+202E›evil" in page


@pytest.mark.long
def test_a_page_that_would_be_too_large_is_not_written(tmp_path: Path) -> None:
    study = planted_study({"baseline": BASE[:2], "divergence": BASE[:2]}, steps=1, depth=1)
    with pytest.raises(ArgumentValueError, match="max_bytes"):
        write(study, tmp_path / "study.html", max_bytes=100)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_finished_says_what_it_reached(run_page: str) -> None:
    record = planted_record()
    assert run_words.answer(record) == "3.073 bits per byte on the test split, after 600 steps."
    findings = run_words.findings(record)
    assert findings[0] == "3.044 bits per byte on the validation split, which serves to choose recipes."
    for entry in findings:
        assert f"<li>{entry}</li>" in unescape(run_page)
    assert section_table(run_page, "measures") == [["validation", "2.11", "3.044"], ["test", "2.13", "3.073"]]
    assert "4 layers × 4 heads × 64 dim, regime convergence, no remedy" in run_page
    assert ["seed", "3"] in section_table(run_page, "experiment")
    assert ["recipe.steps", "600"] in section_table(run_page, "experiment")


def test_a_run_that_broke_off_names_the_likely_causes() -> None:
    notes = ("the loss is not finite in step 37", "gradients are not clipped: try clip = 1.0")
    record = planted_record(
        status="not finite", steps=36, measures={}, layers={}, notes=notes, history=(), validation=()
    )
    assert run_words.answer(record) == "Not finite: the run ended after 36 of 600 steps."
    assert run_words.findings(record) == ["The loss is not finite in step 37.", f"G{notes[1][1:]}."]
    page = page_of(record)
    assert "Not measured, because a run is measured when it finishes." in page
    assert "Not plotted because no number was measured." in page
    assert page.count("above zero was measured.</p>") == 2
    assert 'id="conditioning"' not in page


@pytest.mark.parametrize(
    ("losses", "wanted_words"),
    [
        ((3.0, 2.5, 2.0), "The validation loss is lowest at the last evaluation: 2 nats."),
        ((3.0, 2.0, 2.5), "The validation loss was lowest at step 200 (2 nats) and rose to 2.5 at step 300."),
        ((3.0, 2.0, None), "The validation loss is lowest at the last evaluation: 2 nats."),
    ],
)
def test_whether_the_loss_was_lowest_at_the_end(losses: tuple[float | None, ...], wanted_words: str) -> None:
    validation = [{"step": 100 * place, "loss": loss} for place, loss in enumerate(losses, start=1)]
    assert wanted_words in run_words.findings(planted_record(validation=tuple(validation)))


@pytest.mark.parametrize(("loss", "word"), [(1.9, "lower than"), (2.5, "higher than"), (2.13, "the same as")])
def test_averaged_weights_are_held_against_the_last_ones(loss: float, word: str) -> None:
    record = planted_record()
    averaged = {"test, averaged": {"loss": loss, "bits_per_byte": 3.0}}
    message = (
        f"With averaged weights the loss on the test split is {loss:g} nats, {word} that of the last weights, 2.13."
    )
    assert message in run_words.findings(replace(record, measures={**record.measures, **averaged}))
    assert "averaged" not in " ".join(run_words.findings(record))


@pytest.mark.parametrize(
    ("distances", "how"),
    [
        ((1.0, 1.5, 2.5), "it grows in every layer"),
        ((1.0, 0.5, 0.25), "it shrinks in every layer"),
        ((1.0, 0.5, 0.75), "the layers do not all change it the same way"),
        ((1.0, 1.0, 0.75), "the layers do not all change it the same way"),
        ((1.0, 1.0, 1.25), "the layers do not all change it the same way"),
    ],
)
@pytest.mark.parametrize(
    ("state", "whose"),
    [("full", "In the whole network,"), ("bare", "With attention alone (no norms, no feed-forward parts),")],
)
def test_what_layers_do_to_the_distance_of_tokens(distances: tuple, how: str, state: str, whose: str) -> None:
    layers = {state: {"norm": [1.0, 1.0, 1.0], "distance": list(distances)}}
    goes = f"is 1 at the embedding and {distances[-1]:g} after layer 2"
    findings = run_words.findings(planted_record(layers=layers))
    assert findings[-1] == f"{whose} the mean distance of two tokens {goes}: {how}."


def test_the_curves_of_a_run_are_those_of_its_record(run_page: str) -> None:
    record = planted_record()
    heads, *rows = saved(run_page, "loss")
    assert heads == ["Step", "training", "validation"]
    by_step = {int(row[0]): row[1:] for row in rows}
    for column, entries in enumerate((record.history, record.validation)):
        assert [float(by_step[int(entry["step"])][column]) for entry in entries] == [entry["loss"] for entry in entries]
    rates = [1000 * entry["learning_rate"] for entry in record.history]
    np.testing.assert_allclose([float(row[1]) for row in saved(run_page, "learning-rate")[1:]], rates)
    assert saved(run_page, "conditions")[:2] == [["Step", "Q", "A", "V"], ["100", "2.0", "10.0", "20.0"]]
    assert saved(run_page, "real-parts")[1] == ["100", "-0.5", "-0.1"]
    layers = saved(run_page, "layers-distance")
    assert layers[0] == ["Layer", "this network, as it is", "this network, attention alone"]
    assert [[float(cell) for cell in row[1:]] for row in layers[1:]] == [[1, 1], [1.5, 0.5], [2, 0.25], [2.5, 0.125]]


def test_a_long_training_is_drawn_by_means_that_lose_no_step() -> None:
    drawn = np.random.default_rng(0).random(1000)
    history = tuple({"step": 10 * place, "loss": float(loss)} for place, loss in enumerate(drawn, start=1))
    figure = losses(planted_record(history=history, validation=()))
    assert figure.table is not None
    shown = np.array([[float(cell.value or 0) for cell in row[:2]] for row in figure.table.rows])
    np.testing.assert_allclose(shown[:, 1], drawn.reshape(200, 5).mean(axis=1))
    assert shown[[0, -1], 0].tolist() == [50.0, 10_000.0]
    assert "Training: the mean over the steps since the last point, 5 of these together." in figure.caption


def section_table(page: str, ident: str) -> list[list[str]]:
    """The texts of the rows of the first table that a section shows in full."""
    part = page[page.index(f'<section id="{ident}"') :]
    part = part[part.index('<div class="scroll wide"') :]
    body = part[part.index("<tbody>") : part.index("</tbody>")]
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [[unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]
