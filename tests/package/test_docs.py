"""What the documents say of the package is so: references, statements, names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tokendynamics.theorems import PAPERS, STATEMENTS

ROOT = Path(__file__).parents[2]


def test_every_statement_stands_in_a_paper() -> None:
    for statement in STATEMENTS:
        assert statement.paper.key == statement.name.split("-")[0]
        assert statement.paper.title in str(statement)


@pytest.mark.parametrize("key", PAPERS)
def test_readme_citation_and_theorems_name_the_same_papers(key: str) -> None:
    paper = PAPERS[key]
    names = [f"{given} {family}" for given, family in paper.authors]
    rows = re.findall(r"^\| `(\w+)` \| \*(.+)\* \| (.+?) \| (\d*) ?\| ?([\w./]*) ?\|$", _read("README.md"), re.M)
    assert {row[0] for row in rows} == set(PAPERS)
    row = next(row for row in rows if row[0] == key)
    assert row[1:] == (paper.title, ", ".join(names), str(paper.year or ""), paper.arxiv or "")

    references = yaml.safe_load(_read("CITATION.cff"))["references"]
    assert {reference["title"] for reference in references} == {each.title for each in PAPERS.values()}
    reference = next(reference for reference in references if reference["title"] == paper.title)
    assert [f"{author['given-names']} {author['family-names']}" for author in reference["authors"]] == names
    assert reference.get("year") == paper.year
    arxiv = [each["value"] for each in reference.get("identifiers", []) if each["type"] == "other"]
    assert arxiv == ([f"arXiv:{paper.arxiv}"] if paper.arxiv else [])


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
