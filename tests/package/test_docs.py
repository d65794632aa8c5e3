"""What the documents say of the package is so: references, statements, names."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tokendynamics import observables
from tokendynamics.theorems import ATLAS, PAPERS, STATEMENTS

ROOT = Path(__file__).parents[2]
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "built" not in path.parts]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", *(path.relative_to(ROOT).as_posix() for path in PAGES)]
SOURCES = [path for folder in ("src", "reproductions", "tests") for path in sorted((ROOT / folder).rglob("*.py"))]


def test_every_statement_stands_in_a_paper() -> None:
    for statement in (*STATEMENTS, *ATLAS):
        assert statement.paper.key == statement.name.split("-")[0]
        assert statement.paper.title in str(statement)


@pytest.mark.parametrize("key", PAPERS)
def test_readme_citation_and_theorems_name_the_same_papers(key: str) -> None:
    paper = PAPERS[key]
    names = [f"{given} {family}" for given, family in paper.authors]
    rows = re.findall(
        r"^\| `(\w+)` \| \*(.+)\* \| (.+?) \| (\d+) \| \[([\w.]+)\]\((\S+)\) \|$", _read("README.md"), re.M
    )
    assert {row[0] for row in rows} == set(PAPERS)
    row = next(row for row in rows if row[0] == key)
    address = f"https://arxiv.org/abs/{paper.arxiv}"
    assert row[1:] == (paper.title, ", ".join(names), str(paper.year), paper.arxiv, address)

    references = yaml.safe_load(_read("CITATION.cff"))["references"]
    assert {reference["title"] for reference in references} == {entry.title for entry in PAPERS.values()}
    reference = next(reference for reference in references if reference["title"] == paper.title)
    assert [f"{author['given-names']} {author['family-names']}" for author in reference["authors"]] == names
    assert reference.get("year") == paper.year
    arxiv = [entry["value"] for entry in reference.get("identifiers", []) if entry["type"] == "other"]
    assert arxiv == ([f"arXiv:{paper.arxiv}"] if paper.arxiv else [])


def test_mathematics_has_every_statement_and_none_that_is_not_there() -> None:
    message = re.findall(r"^### ((?:asymptotic|positional|logical)-\S+)$", _read("docs/mathematics.md"), re.MULTILINE)
    assert message == [statement.name for statement in STATEMENTS]


def test_the_atlas_has_every_statement_and_says_how_its_source_was_read() -> None:
    text = _read("docs/atlas.md")
    assert re.findall(r"^### (\S+)$", text, re.MULTILINE) == [statement.name for statement in ATLAS]
    rows = re.findall(r"^\| `(\w+)` \| \*(.+)\* \| (.+) \| (\d+) \| (\S+) \| (.+) \|$", text, re.MULTILINE)
    sources = {statement.paper.key: statement.paper for statement in ATLAS}
    assert {key for key, *_ in rows} == set(sources)
    for key, *row in rows:
        source = sources[key]
        names = ", ".join(f"{given} {family}" for given, family in source.authors)
        assert row == [source.title, names, str(source.year), source.arxiv, source.read]


def test_mathematics_has_every_observable() -> None:
    message = set(re.findall(r"`(?:td\.observables\.)?(\w+)`", _read("docs/mathematics.md")))
    assert set(observables.__all__) - {"Hemisphere"} <= message


def test_every_section_of_mathematics_that_is_referred_to_exists() -> None:
    sections = set(re.findall(r"^## (\d+)\. ", _read("docs/mathematics.md"), re.MULTILINE))
    reference = re.compile(r"sections? (\d+) of\s+(?:docs/)?mathematics|mathematics(?:\.md)?,? section (\d+)")
    values = [match for path in SOURCES for match in reference.findall(path.read_text(encoding="utf-8"))]
    assert {number for pair in values for number in pair if number} <= sections
    assert len(values) >= 3


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_name_in_the_documents_can_be_imported(name: str) -> None:
    for dotted in set(re.findall(r"`(?:td|tokendynamics)((?:\.\w+)+)", _read(name))):
        assert _resolved(f"tokendynamics{dotted}") is not None, dotted


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_test_and_file_in_the_documents_exists(name: str) -> None:
    text = _read(name)
    tests = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    for test in set(re.findall(r"`(test_\w+)`", text)):
        assert f"def {test}(" in tests, test
    for path in set(re.findall(r"`((?:src|tests|docs|bench|reproductions)/[\w./-]+)`", text)):
        assert (ROOT / path).exists(), path
    for path in set(re.findall(r"\]\((?!http|#|(?:\.\./)*built/)([^)#]+)", text)):
        assert ((ROOT / name).parent / path).exists(), path


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_section_that_is_linked_to_exists(name: str) -> None:
    for path, section in set(re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", _read(name))):
        document = (ROOT / name).parent / path if path else ROOT / name
        headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert section in anchors, f"{path}#{section}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_code_is_at_most_88_columns_wide(name: str) -> None:
    """Wider code scrolls sideways on a phone. Blocks whose language stands in braces are text."""
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```$", _read(name), re.MULTILINE | re.DOTALL)
    code = [block for language, block in blocks if not language.startswith("{")]
    assert [line for block in code for line in block.splitlines() if len(line) > 88] == []


def test_the_glossary_explains_terms_as_pages_do() -> None:
    text = _read("docs/glossary.md")
    terms = tomllib.loads(_read("src/tokendynamics/report/glossary.toml"))["terms"]
    assert [term["key"] for term in terms if f"  {term['definition']}" not in text] == []


def _resolved(dotted: str) -> object:
    """What a dotted name stands for: a module, or an attribute of one."""
    parts = dotted.split(".")
    result = importlib.import_module(parts[0])
    for index, part in enumerate(parts[1:], start=2):
        result = getattr(result, part) if hasattr(result, part) else importlib.import_module(".".join(parts[:index]))
    return result


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


LINK = re.compile(r"(?<![\w`])\w+_(?=[\s'\")\]}>/\\:.,;!?*-]|$)")
"""A word with an underscore at its end, which reStructuredText takes for a link."""


@pytest.mark.parametrize("path", sorted((ROOT / "src" / "tokendynamics").rglob("*.py")), ids=lambda path: path.stem)
def test_no_word_of_a_docstring_is_taken_for_a_link(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) or getattr(node, "name", "a")[0] == "_":
            continue
        text = re.sub(r"``.*?``|`[^`]*`|^ *(>>>|\.\.\.).*$", "", ast.get_docstring(node) or "", flags=re.M | re.S)
        assert not LINK.search(text), (path.name, LINK.search(text))


def test_a_link_in_a_docstring_would_be_seen() -> None:
    assert LINK.search("the root β_* of")
    assert LINK.search("as in x_.")
    assert not LINK.search("K_# and x_i")
