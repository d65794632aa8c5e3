"""The page on circuits: what the drawings and tables hold is what the model and the records hold."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from report.reading import close, page_of, plain_spaces, ragged
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits.constructions import mixture, softmax_solution_2, solution_1, solution_2
from tokendynamics.circuits.constructions.comparison import compare
from tokendynamics.circuits.evidence import Evidence, evidence
from tokendynamics.circuits.evidence.verdict import Verdict
from tokendynamics.circuits.functionals import positive_functional, random_functional
from tokendynamics.circuits.landscape import PositionsOnly, find_basins, survey
from tokendynamics.circuits.landscape.claims import Section
from tokendynamics.circuits.learning import LearningRecord, learn
from tokendynamics.figures.figure import Figure
from tokendynamics.figures.matrix import Panel, Side, matrices
from tokendynamics.figures.palette import NEGATIVE, POSITIVE
from tokendynamics.report import write
from tokendynamics.report.circuits.landscape import basins_figure, landscape_report
from tokendynamics.report.circuits.models import (
    best_head,
    built_report,
    evidence_report,
    learning_report,
    median_record,
)
from tokendynamics.report.circuits.page import CircuitsReport
from tokendynamics.words import number

HOSTILE = "<script>alert(1)</script></style>\"'&amp;\x00\u202eevil"
SVG = "{http://www.w3.org/2000/svg}"
MANIFEST: dict[str, Any] = {
    "command": f"tokendynamics circuits build '{HOSTILE}'",
    "parameters": {"q_true": HOSTILE},
    "versions": {"tokendynamics": "0.1.0"},
    "started": "2026-11-21T23:35:52+00:00",
    "duration_seconds": 1.5,
}


@pytest.fixture(scope="module")
def task() -> PairTask:
    return PairTask(random_functional(3, seed=1), positions=4)


@pytest.fixture(scope="module")
def built(task: PairTask) -> str:
    model = replace(solution_1(task, form="printed"), name=HOSTILE)
    comparison = compare(model, [[1, 2, 2, 3]])
    return page_of(built_report(comparison, MANIFEST, ["a folder/su?m.json"], meant="wrong"))


@pytest.fixture(scope="module")
def result(task: PairTask) -> Evidence:
    return evidence(mixture(task), task, samples=100, resamples=40)


@pytest.fixture(scope="module")
def examined(task: PairTask, result: Evidence) -> str:
    return page_of(evidence_report(mixture(task), result, MANIFEST, []))


@pytest.fixture(scope="module")
def learned(task: PairTask) -> tuple[list[LearningRecord], str]:
    records = [learn(task, "solution-1", batch=50, steps=4, inner=5, seed=seed) for seed in range(3)]
    evidences = [evidence(record.transformer, task, samples=60, resamples=20) for record in records]
    return records, page_of(learning_report(records, evidences, MANIFEST, []))


@pytest.fixture(scope="module")
def surveyed() -> str:
    return page_of(landscape_report(survey("3.1", categories=3, positions=4, starts=1), MANIFEST, []))


@pytest.fixture(params=["built", "examined", "learned", "surveyed", "study_page", "run_page"])
def page(request: pytest.FixtureRequest) -> str:
    given = request.getfixturevalue(request.param)
    return given if isinstance(given, str) else given[1]


def table(page: str, ident: str) -> list[list[str]]:
    """Texts of the body of the table with that id, or in the figure with that id."""
    part = page[page.index(f'id="{ident}"') :]
    body = re.search(r"<tbody>(.*?)</tbody>", part, re.DOTALL)
    assert body is not None
    rows = re.findall(r"<tr>(.*?)</tr>", body[1], re.DOTALL)
    return [[unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]


def value(text: str) -> float:
    text = re.sub(
        r" × 10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)", lambda m: f"e{m[1].translate(str.maketrans('⁻⁰¹²³⁴⁵⁶⁷⁸⁹', '-0123456789'))}", text
    )
    return float(text.replace("−", "-").replace(",", ""))


def drawing(page: str, ident: str) -> ElementTree.Element:
    match = re.search(rf'<figure id="{ident}">\s*<div class="drawing">(<svg.*?</svg>)', page, re.DOTALL)
    assert match is not None
    return ElementTree.fromstring(match[1])  # noqa: S314  # our own page


@pytest.mark.few(2)
def test_nothing_can_be_requested_and_only_the_page_s_own_script_runs(page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    scripts, styles = (
        re.findall(r"<script>(.*?)</script>", page, re.DOTALL),
        re.findall(r"<style>(.*?)</style>", page, re.DOTALL),
    )
    assert len(scripts) == len(styles) == 1
    for content, directive in ((scripts[0], "script-src"), (styles[0], "style-src")):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in unescape(policy[1])
    assert unescape(policy[1]).startswith("default-src 'none'")
    assert not re.search(r"https?://|url\((?!#)|@import", page.replace("http://www.w3.org/2000/svg", ""))
    assert not re.search(r'<[^>]+ (style|on\w+)="', page)


def test_foreign_text_is_escaped_and_made_visible(built: str) -> None:
    assert "<script>alert" not in built
    assert "\x00" not in built
    assert "\u202e" not in built
    assert "‹U+202E›evil" in built
    assert 'href="./a%20folder/su%3Fm.json"' in built


@pytest.mark.few(1)
def test_every_figure_is_described_and_has_its_numbers(page: str) -> None:
    figures = re.findall(r'<figure id="([^"]+)">(.*?)</figure>', page, re.DOTALL)
    assert len(figures) >= 3
    for ident, content in figures:
        root = drawing(page, ident)
        assert root.get("role") == "img"
        assert root.get("aria-labelledby") == f"{ident}-title {ident}-desc"
        texts = {child.get("id"): child.text or "" for child in root if child.get("id")}
        assert texts[f"{ident}-title"]
        assert re.search(r"\d|all zero", texts[f"{ident}-desc"])
        assert "<table" in content
        assert re.search(r"<figcaption>.{40}", content)
    identifiers = re.findall(r' id="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))


@pytest.mark.few(2)
def test_every_link_and_every_matrix_lead_to_something(page: str) -> None:
    identifiers = set(re.findall(r' id="([^"]+)"', page))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= identifiers
    tables = re.findall(r'data-table="([^"]+)"', page)
    assert bool(tables) == ('class="circuits"' in page)
    assert set(tables) <= identifiers


@pytest.mark.slow
def test_columns_have_one_number_of_places(
    built: str, examined: str, learned: tuple[list[LearningRecord], str]
) -> None:
    for page in (built, examined, learned[1]):
        assert ragged(page) == []


def test_the_tables_hold_the_weights(task: PairTask, built: str) -> None:
    model = solution_1(task, form="printed")
    for ident, wanted in (("weights-attention-table-1", model.qk[0].mT), ("weights-feed-forward-table-1", model.B)):
        assert close([cell for row in table(built, ident) for cell in row[1:]], wanted.numpy().ravel())
    assert close([row[1] for row in table(built, "weights-feed-forward-table-3")], model.C.numpy())
    assert [row[0] for row in table(built, "weights-attention-table-1")] == [
        "category 1", "category 2", "category 3", "position 1", "position 2", "position 3", "position 4",
    ]  # fmt: skip


def test_the_answers_say_where_the_printed_form_fails(task: PairTask, built: str) -> None:
    comparison = compare(solution_1(task, form="printed"), [[1, 2, 2, 3]])
    assert not comparison.exact
    rows = table(built, "answers-section")
    assert len(rows) == len(comparison.wrong) == 9
    for row, pair in zip(rows, comparison.wrong, strict=True):
        assert (int(row[0]), int(row[1])) == (pair.previous, pair.current)
        assert close([row[2]], task.q_true[pair.previous - 1, pair.current - 1].numpy()[None])
    assert "Wrong for 9 pairs" in built


def test_a_comparison_finds_the_one_pair_that_is_spoilt(task: PairTask) -> None:
    right = solution_1(task, form="indicators")
    assert compare(right, []).exact
    # Hidden unit 5 of 'indicators' stands for one pair: (1, 3), after the diagonal and (1, 2).
    C = right.C.clone()
    C[4] += 0.5
    comparison = compare(replace(right, C=C), [])
    assert [(pair.previous, pair.current) for pair in comparison.wrong] == [(1, 3)]
    assert comparison.wrong[0].output - comparison.wrong[0].target == pytest.approx(0.5, abs=1e-12)
    assert comparison.largest_error == pytest.approx(0.5, abs=1e-12)


def test_a_wrong_first_token_is_said_but_not_counted(task: PairTask) -> None:
    shifted = replace(solution_2(task), offset=solution_2(task).offset)
    assert compare(shifted, [[2]]).answers[0].largest_error == 0.0
    spoilt = compare(replace(shifted, offset=shifted.offset + 1.0), [[2]])
    assert spoilt.first_token == pytest.approx(1.0)
    assert spoilt.answers[0].largest_error == 0.0
    assert not spoilt.exact


@pytest.mark.long
def test_the_instruments_are_all_there_with_their_numbers(examined: str, result: Evidence) -> None:
    rows = table(examined, "evidence-section")
    assert [row[0] for row in rows] == [f"{i}. {one.name}" for i, one in enumerate(result.instruments, start=1)]
    assert [row[2] for row in rows] == [one.reading for one in result.instruments]
    assert "<strong>Both parts</strong>" in examined
    numbers = table(examined, "evidence-numbers")
    estimates = [estimate for one in result.instruments for estimate in one.estimates]
    assert len(numbers) == len(estimates)
    for row, estimate in zip(numbers, estimates, strict=True):
        assert row[1] == estimate.name
        assert estimate.value is not None
        assert close([row[2]], np.array([estimate.value]))


@pytest.mark.long
def test_the_head_that_is_most_like_q_true_is_shown(task: PairTask, result: Evidence, examined: str) -> None:
    assert best_head(result) == 0
    block = mixture(task).qk[0, :3, :3].mT
    shown = [cell for row in table(examined, "weights-functional-table-4") for cell in row[1:]]
    assert close(shown, (block - block.mean(dim=0)).numpy().ravel())
    assert "correlation +1.0000" in examined


def test_the_loss_curves_end_with_the_final_losses(learned: tuple[list[LearningRecord], str]) -> None:
    records, page = learned
    rows = table(page, "learning-losses")
    assert len(rows) == 5
    for column, record in enumerate(records, start=1):
        losses = [value(row[column]) for row in rows]
        assert losses == pytest.approx([*record.losses, record.final_loss], rel=1e-3)
    seeds = table(page, "seeds-section")
    assert [row[0] for row in seeds] == ["0", "1", "2"]
    assert [row[3] for row in seeds] == ["yes" if record.solved else "no" for record in records]


def test_the_run_with_the_median_loss_is_shown(learned: tuple[list[LearningRecord], str]) -> None:
    records, page = learned
    shown = median_record(records)
    assert sorted(record.final_loss for record in records)[1] == shown.final_loss
    assert f"The model shown below is that of seed {shown.seed}, which has the median loss" in page
    B = [cell for row in table(page, "weights-feed-forward-table-1") for cell in row[1:]]
    assert close(B, shown.transformer.B.numpy().ravel())
    broken = replace(records[0], final_loss=float("nan"), status="not finite: …")
    assert median_record([broken, records[1]]) is records[1]


def test_what_solved_means_and_which_loss_is_meant_are_said(learned: tuple[list[LearningRecord], str]) -> None:
    records, page = learned
    solved = sum(record.solved for record in records)
    assert f"{solved} of 3 seeds solved the task: at most 1 % of the variance remains" in page
    assert "The median final loss, on fresh test sequences, is" in page
    assert "On the 60 sequences of this evidence the mean squared error of the model is" in page


def test_a_landscape_tells_losses_in_all_and_per_token(surveyed: str) -> None:
    T, M = 2 / 3, 4
    legend = "".join(drawing(surveyed, "endings").itertext())
    assert f"limit at infinity, (M−1)·T/M: {3 * T / M:g} ({number(T / M)} per token)" in legend
    family_b = next(row for row in table(surveyed, "points-section") if row[0] == "B")
    assert value(family_b[2]) == pytest.approx(1 - (1 - 1 / M) * T, rel=1e-3)
    assert "M = 4 positions" in surveyed
    assert "1 start, quasi-newton" in surveyed
    assert "Why 1 run stopped: 1 " in surveyed


@pytest.mark.parametrize(
    ("scale", "words"),
    [(0.5, "normal starts of standard deviation 0.5"), ("fan-in", "uniform starts within ±1/√(number of columns)")],
)
@pytest.mark.usefixtures("undrawn")
def test_the_distribution_of_the_starts_is_stated(scale: Any, words: str) -> None:
    basins = find_basins(PositionsOnly([0.5, 0.5], 3), 1, seed=0, scale=scale, budget=5)
    assert words in basins_figure(basins).caption


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.usefixtures("unchecked")
def test_stalls_are_shown_per_token() -> None:
    landscape_survey = survey("3.2", categories=2, positions=3, starts=1)
    rows = table(page_of(landscape_report(landscape_survey, MANIFEST, [])), "stalls-section")
    assert [value(row[0]) for row in rows] == [2.0, 4.0, 6.0]
    assert [value(row[1]) for row in rows] == pytest.approx([one.loss / 2 for one in landscape_survey.stalls], rel=1e-3)
    # T of two equal categories: the loss per token of always saying the mean.
    assert value(rows[2][1]) == pytest.approx(0.5, rel=1e-3)


@pytest.mark.slow
def test_a_run_that_broke_off_at_once_still_makes_a_page(task: PairTask) -> None:
    record = replace(learn(task, "solution-1", batch=20, steps=1, inner=1), losses=(), final_loss=float("nan"))
    text = evidence(record.transformer, task, samples=60, resamples=20)
    page = page_of(learning_report([record], [text], MANIFEST, []))
    assert "undefined" in page
    assert ">nan<" not in page


def wide_and_narrow(shown: Figure) -> tuple[ElementTree.Element, ElementTree.Element]:
    """The drawing for pages, and that for phones."""
    wide, narrow = ElementTree.fromstring(f"<all>{shown.svg}</all>")  # noqa: S314  # made above
    return wide, narrow


def colours(values: np.ndarray) -> dict[tuple[int, int], tuple[str, float]]:
    """Colour and opacity of each cell (row, column) that is filled."""
    side = Side("", (("category", values.shape[0]),)), Side("", (("category", values.shape[1]),))
    wide, _ = wide_and_narrow(matrices([Panel("m", values, *side)], ident="m", question="?", caption="c"))
    (matrix,) = [group for group in wide.iter(f"{SVG}g") if group.get("stroke-opacity") == "0"] or [wide]
    cells = {}
    for path in matrix.iter(f"{SVG}path") if matrix is not wide else ():
        fill = path.get("fill") or matrix.get("fill", "")
        opacity = path.get("fill-opacity") or matrix.get("fill-opacity", "1")
        for x, y in re.findall(r"M([\d.]+),([\d.]+)h34v34h-34Z", path.get("d", "")):
            cells[int(float(y) / 34), int(float(x) / 34)] = fill, float(opacity)
    return cells


def test_colours_are_centred_at_zero() -> None:
    cells = colours(np.array([[2.0, -2.0, 0.0], [1.0, -1.0, 0.5]]))
    assert cells[0, 0] == (POSITIVE, 1.0)
    assert cells[0, 1] == (NEGATIVE, 1.0)
    assert (0, 2) not in cells
    assert cells[1, 0] == (POSITIVE, 0.5)
    assert cells[1, 1] == (NEGATIVE, 0.5)
    assert cells[1, 2] == (POSITIVE, 0.25)


WRITTEN = ("1", ".006", ".25", "−1", "−.006", "−.25")


def test_numbers_in_cells_are_written_alike_for_both_signs() -> None:
    values = np.array([[1.0, 0.006, 0.25], [-1.0, -0.006, -0.25]])
    sides = Side("", (("category", 2),)), Side("", (("category", 3),))
    shown = matrices([Panel("m", values, *sides)], ident="m", question="?", caption="c")
    for root in wide_and_narrow(shown):
        texts = [text.text for text in root.iter(f"{SVG}text")]
        assert set(WRITTEN) <= set(texts)


@pytest.mark.long
def test_sixty_features_fit_and_stay_small() -> None:
    values = torch.randn(60, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
    side = Side("sender", (("category", 10), ("position", 50)))
    shown = matrices(
        [Panel("q", values, side, side), Panel("v", values, side, side)], ident="m", question="?", caption="c"
    )
    wide, narrow = wide_and_narrow(shown)
    assert len(shown.svg) < 500_000  # on both screens, of which one is shown
    for root, least, most in ((wide, 4.0, 10.0), (narrow, 3.0, 5.0)):
        hits = [path for path in root.iter(f"{SVG}path") if path.get("class") == "hit"]
        assert [hit.get("data-table") for hit in hits] == ["m-table-1", "m-table-2"]
        across = re.fullmatch(r"M0,0h([\d.]+)v[\d.]+h-[\d.]+Z", hits[0].get("d", ""))
        assert across is not None
        assert least < float(across[1]) / 60 < most
        assert float(root.get("width", "0")) < 860
        texts = [text.text for text in root.iter(f"{SVG}text")]
        assert texts.count("position") == 4
        assert not [one for one in texts if one and re.fullmatch(r"−?\d\.\d+", one) and one not in ("−3.5", "+3.5")]
        # One path for each colour and strength at most, in each matrix.
        assert len(list(root.iter(f"{SVG}path"))) < 2 * (2 * 24 + 12)
    assert float(narrow.get("width", "0")) < 330
    assert len(shown.tables[0].rows) == 60


def test_a_matrix_of_zeros_and_one_with_nothing_finite_are_drawn() -> None:
    assert colours(np.zeros((2, 2))) == {}
    assert colours(np.full((2, 2), np.nan)) == {}


@pytest.mark.usefixtures("undrawn")
def test_the_page_is_written_whole_or_not_at_all(
    tmp_path: Path, task: PairTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = built_report(compare(solution_2(task), []), MANIFEST, [], meant="exact")
    path = write(report, tmp_path / "new" / "page.html")
    assert plain_spaces(path.read_text(encoding="utf-8")) == page_of(report)
    before = path.read_bytes()
    monkeypatch.setattr(Path, "replace", lambda self, target: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write(CircuitsReport("q", "n", "a", (), (), ()), path)
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == ["page.html"]


PAIRS = "Yᵢ = q<sub>true</sub>[Xᵢ₋₁, Xᵢ], the previous category first, and Y₁ = 0; "
SIZE = "N = 3 categories equally likely and independent, M = 4 positions"


@pytest.mark.long
@pytest.mark.parametrize("name", ["built", "examined", "learned"])
def test_a_page_on_a_transformer_states_its_task_and_what_interaction_is(
    name: str, request: pytest.FixtureRequest, task: PairTask
) -> None:
    given = request.getfixturevalue(name)
    page = unescape(given if isinstance(given, str) else given[1])
    assert PAIRS + SIZE in page
    variances = f"variance {number(task.variance)}, of which {number(task.interaction_variance)} is interaction"
    assert f"{variances} (the part that is no sum f(previous) + g(current))" in page
    assert "less the means of its rows and of its columns under the law, plus the mean of all" in page


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("section", "predicted"),
    [
        ("3.1", "the one-hot of Xᵢ₋₁ is predicted by v Σⱼ q[j, i] xⱼ"),
        ("3.2", "each column of w a softmax over positions"),
        ("3.3", "Yᵢ = q<sub>true</sub>[Xᵢ₋₁, Xᵢ] is predicted by Σⱼ v[i, j] q[Xⱼ, Xᵢ], q over categories"),
    ],
)
@pytest.mark.usefixtures("undrawn")
def test_a_page_on_a_landscape_states_its_task_and_defines_T(section: Section, predicted: str) -> None:
    landscape_survey = survey(section, law=[0.5, 0.3, 0.2], positions=3, starts=1, budget=5)
    page = unescape(page_of(landscape_report(landscape_survey, MANIFEST, [])))
    assert predicted in page
    assert "N = 3 categories with probabilities 0.5, 0.3, 0.2 and independent, M = 3 positions" in page
    assert ("the loss per token of always predicting the mean" in page) == (section != "3.3")
    assert ("less the means of its rows and of its columns" in page) == (section == "3.3")


def test_the_threshold_table_repeats_the_verdict(examined: str, result: Evidence) -> None:
    caption = "Verdict by threshold: the share of the interaction from which a part counts (10 % here)"
    assert caption in examined
    row = re.search(rf"{re.escape(caption)}.*?<tbody>(.*?)</tbody>", examined, re.DOTALL)
    assert row is not None
    shown = re.findall(r"<td[^>]*>(.*?)</td>", row[1])
    assert shown == list(result.by_threshold.values())


@pytest.mark.parametrize(
    ("verdict", "words"), [("either", "Either part"), ("both", "Both parts"), ("undecided", "Undecided")]
)
@pytest.mark.usefixtures("undrawn")
def test_every_verdict_has_words_of_its_own(result: Evidence, task: PairTask, verdict: Verdict, words: str) -> None:
    report = evidence_report(mixture(task), replace(result, verdict=verdict), MANIFEST, [])
    assert report.answer == words


@pytest.mark.usefixtures("undrawn")
def test_a_construction_that_is_never_exact_is_called_that_and_no_other(task: PairTask) -> None:
    rough = compare(softmax_solution_2(PairTask(positive_functional(3, seed=0), 20)), [])
    report = built_report(rough, MANIFEST, [], meant="approximate")
    assert report.answer == f"Correct up to {number(rough.relative_error)} standard deviations"
    assert any("never exact" in finding for finding in report.findings)
    exact = built_report(compare(solution_2(task), []), MANIFEST, [], meant="exact")
    assert exact.answer == "Exact"
    assert not any("never exact" in finding for finding in exact.findings)
