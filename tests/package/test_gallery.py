"""The gallery has every kind of figure, and a page for every figure of the papers."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from reproductions.figures import FIGURES
from reproductions.ledger import ledger_records, ledger_rows
from tokendynamics import figures

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = sorted((DOCS / "gallery").glob("*.py"))
MOST_LINES, MOST_BYTES = 60, 60_000


@pytest.fixture(scope="module")
def paper_scripts() -> ModuleType:
    spec = importlib.util.spec_from_file_location("paper_scripts", DOCS / "_site" / "paper_scripts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def scripts(paper_scripts: ModuleType) -> dict[str, str]:
    rows, records = ledger_rows(), ledger_records()
    return {
        name: paper_scripts.script(name, records[name], [row for row in rows if row.record == name], records)
        for name in FIGURES
    }


def code_of(source: str) -> str:
    """A script without its text."""
    return "\n".join(map(ast.unparse, ast.parse(source).body[1:]))


def read_names(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id


def test_every_kind_of_figure_has_an_example() -> None:
    drawn = {name for path in EXAMPLES for name in read_names(path.read_text(encoding="utf-8"))}
    assert {name for name in figures.__all__ if name[0].islower()} <= drawn


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_begins_with_text(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert source.count("\n") <= MOST_LINES
    assert ast.get_docstring(ast.parse(source))


def test_every_figure_of_the_papers_has_a_page_that_computes_it(scripts: dict[str, str]) -> None:
    assert set(scripts) == set(FIGURES)
    for name, source in scripts.items():
        assert f"FIGURES['{name}']" in code_of(source)
        assert len(code_of(source).splitlines()) <= MOST_LINES


def test_a_page_states_claim_verdict_numbers_inventions_and_its_place_in_the_ledger(scripts: dict[str, str]) -> None:
    for name, source in scripts.items():
        for part in ("**Claim** (:ref:`", "**Verdict:** ", "comes out", "**What was invented:** ", "<ledger-"):
            assert part in source, name


def test_what_a_quick_build_does_not_run_has_a_small_picture(paper_scripts: ModuleType) -> None:
    pictures = {path.stem: path.stat().st_size for path in (DOCS / "gallery" / "thumbs").iterdir()}
    assert set(pictures) == set(FIGURES) - paper_scripts.FAST
    assert max(pictures.values()) <= MOST_BYTES
    assert all(paper_scripts.place_of(name).name.startswith("slow_") for name in pictures)


def test_text_is_not_read_as_markup(paper_scripts: ModuleType) -> None:
    assert paper_scripts.plain("|P_2| grows like $e^{2s}$") == r"\|P\_2\| grows like :math:`e^{2s}`"
