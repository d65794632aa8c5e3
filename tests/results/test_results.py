"""Every kind of result says what it is in one line, in at most 15 lines, and in a notebook; each has its page."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from markdown_it import MarkdownIt

import tokendynamics as td
from diagnosis.planted_damage import damaged, network
from report.conftest import synthetic
from report.planted_study import full_study, planted_record
from report.test_monitor_page import SPREAD, TOGETHER, look, series_of
from report.test_sweep_page import swept
from tokendynamics.circuits import PairTask, functionals
from tokendynamics.circuits.constructions import compare, solution_2
from tokendynamics.circuits.evidence import evidence
from tokendynamics.circuits.landscape import survey
from tokendynamics.circuits.learning import learn
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.printable import printable
from tokendynamics.report import page, write
from tokendynamics.results import Result
from tokendynamics.results.result import LINES, Readable
from tokendynamics.results.tables import Format, open_table, save_tables
from tokendynamics.specification import parse, run
from tokendynamics.specification.examples import example_text
from tokendynamics.sweeps.systems.results import SweepResult, counted
from tokendynamics.words import Finding

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e\n\n"
PROMPTS = {"one": [5, 9, 33, 21, 7, 50], "two": [12, 3, 44, 18, 40], "three": [20, 31, 8, 6]}


def _comparison() -> td.Comparison:
    whole = network("gpt2")
    return td.compare(whole, damaged(whole, "down_proj × 3", (2,)), texts=PROMPTS, names=["a", "b"])


def _trajectory() -> td.Trajectory:
    unit = [[1.0, 0.0], [0.0, 1.0]]
    return td.simulate(td.Flow(td.Attention(unit, unit), td.Sphere()), [[1.0, 0.0], [0.6, 0.8]], [0.0, 0.5, 1.0])


def _sweep() -> SweepResult:
    return counted(swept([[3, 3, 0, 5]], scale=[1.0]))


def _task() -> PairTask:
    return PairTask(functionals.random_functional(3, seed=0), positions=4)


MADE: dict[str, Callable[[], Readable]] = {
    "a diagnosis": synthetic,
    "a verdict": lambda: synthetic().verdict,
    "a comparison": _comparison,
    "a run of training": planted_record,
    "what a monitor saw": lambda: series_of(look(0, SPREAD, SPREAD), look(500, SPREAD, TOGETHER)),
    "a trajectory": _trajectory,
    "a simulation": lambda: run(parse(example_text("minimal"), "minimal.toml")),
    "a study": full_study,
    "a sweep": _sweep,
    "a construction": lambda: compare(solution_2(_task()), []),
    "evidence": lambda: evidence(solution_2(_task()), _task(), samples=50, resamples=20),
    "a learned model": lambda: learn(_task(), "solution-1", steps=2, inner=2, batch=20),
    "a landscape": lambda: survey("3.1", categories=3, positions=4, starts=1),
    "basins": lambda: survey("3.1", categories=3, positions=4, starts=1).basins,
}


@pytest.fixture(scope="module")
def results() -> dict[str, Readable]:
    return {}


def _of(name: str, results: dict[str, Readable]) -> Readable:
    if name not in results:
        results[name] = MADE[name]()
    return results[name]


@pytest.mark.long
@pytest.mark.few(7)
@pytest.mark.parametrize("name", MADE)
def test_a_result_is_printed_in_few_lines(name: str, results: dict[str, Readable]) -> None:
    result = _of(name, results)
    for text in (str(result), repr(result), result.summary()):
        assert 1 <= len(text.splitlines()) <= LINES
        assert printable(text, keep="\n") == text
    assert len(repr(result).splitlines()) == 1
    assert repr(result).startswith(f"<{type(result).__name__}: ")
    assert len(repr(result)) <= 300
    assert result.summary().split("\n")[0] == repr(result)[len(type(result).__name__) + 3 : -1]


@pytest.mark.long
@pytest.mark.parametrize("name", MADE)
def test_a_notebook_shows_every_finding(name: str, results: dict[str, Readable]) -> None:
    result = _of(name, results)
    shown = unescape(re.sub(r"<[^>]+>", " ", Readable._repr_html_(result)))
    for finding in result.findings:
        assert printable(finding.text if isinstance(finding, Finding) else finding) in shown
    assert "<li>" in Readable._repr_html_(result)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", [name for name in MADE if name not in ("a verdict", "basins")])
def test_a_result_writes_its_page(name: str, results: dict[str, Readable], tmp_path: Path) -> None:
    result = _of(name, results)
    assert isinstance(result, Result)
    html = result.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert html == page(result)
    assert "http-equiv" in html
    assert not re.search(r"</h[23]>\s*(</section>|<dl[^>]*>\s*</dl>)", html), "a heading with nothing below it"
    with pytest.raises(ArgumentValueError, match="max_bytes: expected at most 100"):
        result.report(tmp_path / "other.html", max_bytes=100)
    assert not (tmp_path / "other.html").exists()


class Hostile(Readable):
    """Says what is meant to act on a terminal or a page."""

    @property
    def headline(self) -> str:
        return HOSTILE

    @property
    def findings(self) -> list[Finding]:
        return [Finding(f"{place}{HOSTILE}", "shares") for place in range(40)]


@pytest.mark.parametrize("name", MADE)
def test_markdown_is_a_list_of_every_finding(name: str, results: dict[str, Readable]) -> None:
    result = _of(name, results)
    texts = [finding.text if isinstance(finding, Finding) else finding for finding in result.findings]
    assert rendered(result.markdown()) == [printable(text).strip() for text in (result.headline, *texts)]


def rendered(markdown: str) -> list[str]:
    """The paragraph and the items that a parser of CommonMark makes of a text, as plain text."""
    tokens = MarkdownIt("commonmark").parse(markdown)
    allowed = {"inline", "paragraph_open", "paragraph_close", "bullet_list_open", "bullet_list_close"}
    assert {token.type for token in tokens} <= allowed | {"list_item_open", "list_item_close"}
    blocks = [token.children or [] for token in tokens if token.type == "inline"]
    assert {child.type for child in blocks[0]} <= {"text", "strong_open", "strong_close"}
    assert {child.type for block in blocks[1:] for child in block} <= {"text"}
    return ["".join(child.content for child in block) for block in blocks]


MARKS = (
    "a*b*_c_ [x](http://y) @someone $x$ #1 | ~~z~~ `code` \\ <b>&amp;",
    "- no list",
    "+ no list",
    "1. one",
    "12) two",
    "# no title",
    "===",
    "> no quotation",
    "    no code",
)


@pytest.mark.parametrize("text", MARKS)
def test_no_text_is_a_mark_of_markdown(text: str) -> None:
    class Marked(Hostile):
        @property
        def findings(self) -> list[Finding]:
            return [Finding(text, "shares")] * 2

    assert rendered(Marked().markdown()) == [printable(HOSTILE).strip(), text.strip(), text.strip()]
    assert "<script" not in MarkdownIt("commonmark").render(Marked().markdown())


def test_foreign_text_acts_on_no_terminal_and_no_page() -> None:
    result = Hostile()
    assert "<script" not in result._repr_html_()
    assert "\x1b" not in result._repr_html_() + str(result) + repr(result)
    assert result._repr_html_().count("<li>") == 40
    lines = str(result).split("\n")
    assert len(lines) == LINES
    assert lines[-1] == "… and 27 more findings"


def test_what_has_no_page_is_refused_by_name(tmp_path: Path) -> None:
    class Unknown(Hostile, Result):
        pass

    values: tuple[Any, ...] = (None, 3, "text", xr.Dataset(), np.zeros(3), synthetic().verdict)
    for value in values:
        with pytest.raises(ArgumentTypeError, match="result: expected a result that has a page"):
            write(value, tmp_path / "page.html")
    with pytest.raises(ArgumentTypeError, match="result: expected a result that has a page"):
        Unknown().report(tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format_name", ["zarr", "netcdf"])
@pytest.mark.parametrize("texts", [[], ["", "ä\tb"], ["one"]], ids=["none", "odd ones", "one"])
def test_columns_of_texts_open_as_texts_also_where_they_are_empty(
    texts: list[str], format_name: Format, tmp_path: Path
) -> None:
    column = np.array(texts, dtype=str)
    table = xr.Dataset({"change": ("step", column), "kappa": ("step", np.arange(float(len(texts))))}, {"step": column})
    save_tables({"joint": table}, tmp_path, format_name)
    opened = open_table(tmp_path, "joint", {"change": ("step",)}, "a table")
    assert [opened[name].dtype.kind for name in ("change", "step", "kappa")] == ["U", "U", "f"]
    assert opened.change.values.tolist() == opened.step.values.tolist() == texts
