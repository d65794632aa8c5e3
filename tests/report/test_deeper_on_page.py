"""What the page says of a network that was made deeper is what was measured, or why it was not."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from report.conftest import synthetic
from report.reading import close, page_of, ragged, table_of
from tokendynamics.diagnosis import Deeper, Diagnosis
from tokendynamics.figures.figure import Figure, Section
from tokendynamics.report.diagnosis._deeper import section
from tokendynamics.results import Refused


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    return synthetic(layers=2, heads=2, prompts=3)


def _with_table(result: Diagnosis, **changes: Any) -> Diagnosis:
    assert isinstance(result.deeper, Deeper)
    return replace(result, deeper=replace(result.deeper, table=result.deeper.table.assign(changes)))


def parts_of(result: Diagnosis) -> Section:
    made = section(result)
    assert made is not None
    return made


def _figures(result: Diagnosis) -> tuple[Figure, ...]:
    return parts_of(result).variants


@pytest.mark.long
@pytest.mark.usefixtures("undrawn")
def test_the_section_is_there_only_where_it_was_asked_for(diagnosis: Diagnosis) -> None:
    page = page_of(replace(diagnosis, deeper=None))
    assert "deeper" not in re.sub(r"(?s)<style.*?</style>", "", page)
    page = page_of(replace(diagnosis, deeper=Refused("it is streamed")))
    assert "It was not made deeper: it is streamed." in page
    page = page_of(diagnosis)
    assert page.index('<section id="levers"') < page.index('<section id="deeper"') < page.index('<section id="updates"')
    assert "Deeper: weights" in page


@pytest.mark.long
@pytest.mark.usefixtures("undrawn")
def test_the_tables_of_the_figures_hold_the_datasets_numbers(diagnosis: Diagnosis) -> None:
    page = page_of(diagnosis)
    assert isinstance(diagnosis.deeper, Deeper)
    table = diagnosis.deeper.table
    for row in table_of(page, "deeper-consensus"):
        at = table.isel({"pass": int(row[0])})
        entry = [(at.median_consensus, at.consensus.min("prompt"), at.consensus.max("prompt"))]
        wanted = [float(part[place]) for place in range(2) for part in entry[0]]
        wanted[3:] = [np.nan] * 3 if np.isnan(wanted[3]) else wanted[3:]
        assert close(row[1:], np.array(wanted))
    for name, values in (("kappa", 1 - table.consensus_within), ("own", table.share_own)):
        for row in table_of(page, f"deeper-{name}"):
            assert close(row[1:], values.isel({"pass": int(row[0])}).values)


def test_few_points_are_drawn_of_many_passes_and_it_is_said(diagnosis: Diagnosis) -> None:
    figure = _figures(diagnosis)[0]
    assert figure.table is not None
    assert len(figure.table.rows) == 120
    assert "at the rounding floor, 1 × 10⁻¹⁰, or where" in figure.caption
    assert "no curve goes beyond pass 133 of 150. 120 of 133 passes are drawn; the data file has all." in figure.caption
    assert "logarithmic" not in figure.caption
    assert "10⁻⁸" in figure.svg
    assert len(figure.svg) < 100_000


def test_a_short_run_is_drawn_whole(diagnosis: Diagnosis) -> None:
    assert isinstance(diagnosis.deeper, Deeper)
    table = diagnosis.deeper.table.isel({"pass": slice(13)}).assign(fit_last=("variant", [12, 12]))
    short = replace(diagnosis, deeper=replace(diagnosis.deeper, table=table))
    figure = _figures(short)[0]
    assert figure.table is not None
    assert [row[0].value for row in figure.table.rows] == list(range(13))
    assert "are drawn" not in figure.caption
    assert "no curve" not in figure.caption


def test_passes_are_on_a_log_axis_where_curves_end_far_apart(diagnosis: Diagnosis) -> None:
    assert isinstance(diagnosis.deeper, Deeper)
    steps = np.arange(151)
    fall = np.stack([0.5 ** (steps * 10.0), 0.9 * 0.99**steps])
    changed = _with_table(diagnosis, median_consensus=(("variant", "pass"), fall), fit_first=("variant", [0, 1]),
                          fit_last=("variant", [3, 150]))  # fmt: skip
    figure = _figures(changed)[0]
    assert "Both axes are logarithmic because some curves end much earlier" in figure.caption
    assert "Passes through the blocks (log scale)" in figure.svg
    assert figure.table is not None
    assert [row[0].value for row in figure.table.rows][:4] == [0, 1, 2, 3]
    assert figure.table.rows[-1][0].value == 150


@pytest.mark.long
def test_the_bound_is_marked_where_curves_cross_it(diagnosis: Diagnosis) -> None:
    assert "E = 0.001" in _figures(diagnosis)[0].svg
    assert isinstance(diagnosis.deeper, Deeper)
    above = diagnosis.deeper.table.median_consensus.clip(min=0.01)
    assert "E = 0.001" not in _figures(_with_table(diagnosis, median_consensus=above))[0].svg


@pytest.mark.long
@pytest.mark.usefixtures("undrawn")
def test_columns_have_one_number_of_places(diagnosis: Diagnosis) -> None:
    assert ragged(page_of(diagnosis)) == []


def test_variants_stand_side_by_side(diagnosis: Diagnosis) -> None:
    table = parts_of(diagnosis).tables[0]
    rows = [[cell.text for cell in row] for row in table.rows]
    assert rows[0] == ["full", "5.145 × 10⁻¹²", "1.000", "4 (4–4)", "pass 40", "0.9 → 0.2", "all passes done"]
    assert rows[1] == [
        "attention-only", "0.7361", "0.264", "69 (60 or more)", "not reached; extrapolated: 697 (600 or later)",
        "0.5 → 0.5", "not finite from pass 21 on (3 of 3)",
    ]  # fmt: skip
    assert len(table.columns) == 7
    nowhere = (("variant", "estimate"), np.full((2, 3), np.inf))
    flat = _with_table(diagnosis, median_half_life=nowhere, median_collapse_pass=nowhere)
    assert [cell.text for cell in parts_of(flat).tables[0].rows[1]][3:5] == ["does not fall", "not reached"]


def test_decoded_texts_are_shown_with_what_is_invisible(diagnosis: Diagnosis) -> None:
    table = parts_of(diagnosis).tables[1]
    (first, *_), (second, *others) = [[cell.text for cell in row[1:]] for row in table.rows]
    assert table.columns == ("Pass", "full", "attention-only")
    assert first.startswith("one two <script>")  # escaped by the template
    assert "‹U+202E›" in first
    assert second == "one␊one"
    assert others == ["not finite"]
    assert table.rows[0][2].text == "␣␣"
    assert isinstance(diagnosis.deeper, Deeper)
    long = diagnosis.deeper.table.decoded.copy(data=[["word " * 500] * 2] * 2)
    assert len(parts_of(_with_table(diagnosis, decoded=long)).tables[1].rows[0][1].text) == 400


def test_without_texts_there_is_no_table_of_them(diagnosis: Diagnosis) -> None:
    assert isinstance(diagnosis.deeper, Deeper)
    table = diagnosis.deeper.table.drop_vars(["decoded", "distinct_1"])
    parts = parts_of(replace(diagnosis, deeper=replace(diagnosis.deeper, table=table, undecoded="no head")))
    (only,) = parts.tables
    assert "Share of different tokens" not in only.columns
    assert parts.notes == ()


def test_of_one_prompt_there_is_no_kappa_to_draw() -> None:
    consensus, kappa, direct = _figures(synthetic(layers=2, heads=2, prompts=1))
    assert consensus.svg
    assert "bands" not in consensus.caption
    for figure in (kappa, direct):
        assert not figure.svg
        assert figure.caption == "Not plotted because κ and the shares need two texts."
    (consensus, *_) = _figures(synthetic(layers=2, heads=2, prompts=1, pairs=False))
    assert "no value after the embedding is finite and above rounding" in consensus.caption
