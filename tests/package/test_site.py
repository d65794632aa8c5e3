"""What the extensions of the site make of pages, docstrings, formulas and records, and what the check of it refuses."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from pathlib import Path
from subprocess import CalledProcessError
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr

import tokendynamics as td
from reproductions.figures import FIGURES
from reproductions.ledger import VERDICTS, ledger_records, ledger_rows
from reproductions.record import Quantity, Record
from tokendynamics import observables
from tokendynamics.theorems import PAPERS

SITE = Path(__file__).parents[2] / "docs" / "_site"


def extension(name: str) -> ModuleType:
    """Load a file of the site; without Sphinx those that need it are skipped."""
    if name != "check":
        pytest.importorskip("sphinx", reason="the extra docs is not installed")
    spec = importlib.util.spec_from_file_location(f"site_{name}", SITE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The check of the finished site.

GOOD = '<h1 id="top"></h1><a name="old"></a><a href="#top">a</a><a href="b%20c.html#it">b</a><a href="https://x.org/y">x</a>'


def built(folder: Path, page: str) -> Path:
    (folder / "a.html").write_text(page, encoding="utf-8")
    (folder / "b c.html").write_text('<p id="it"></p><a href="a.html">a</a>', encoding="utf-8")
    (folder / "picture.svg").write_text("<svg/>", encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "page",
    [
        GOOD,
        '<a href="picture.svg#part"></a><img src="picture.svg"><a href="mailto:a@b.c"></a><a href=""></a>',
        '<p id="term-κ"></p><a href="#term-%CE%BA"></a>',
        '<a name="old"></a><a href="#old"></a><link rel="canonical" href="https://x.org/a.html">',
    ],
)
def test_a_good_site_has_no_problem(page: str, tmp_path: Path) -> None:
    assert extension("check").problems(built(tmp_path, page)) == []


@pytest.mark.parametrize(
    ("page", "line"),
    [
        ('<a href="c.html"></a>', "a.html: c.html leads nowhere"),
        ('<a href="#none"></a>', "a.html: #none leads nowhere"),
        ('<a href="b%20c.html#none"></a>', "a.html: b%20c.html#none leads nowhere"),
        ('<img src="none.png">', "a.html: none.png leads nowhere"),
        ('<script src="https://cdn.org/x.js"></script>', "a.html: requests https://cdn.org/x.js"),
        ('<img src="//cdn.org/x.png">', "a.html: requests //cdn.org/x.png"),
        ('<iframe src="https://cdn.org/"></iframe>', "a.html: requests https://cdn.org/"),
        ('<link rel="stylesheet" href="https://cdn.org/x.css">', "a.html: requests https://cdn.org/x.css"),
        ('<link rel="icon" href="none.ico">', "a.html: none.ico leads nowhere"),
        ('<video><source src="https://cdn.org/x.mp4"></video>', "a.html: requests https://cdn.org/x.mp4"),
    ],
)
def test_a_link_that_leads_nowhere_and_a_request_to_another_host_are_said(
    page: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = extension("check")
    assert check.problems(built(tmp_path, page)) == [line]
    monkeypatch.setattr("sys.argv", ["check.py", str(tmp_path)])
    assert check.main() == 1
    assert capsys.readouterr().err == f"{line}\n"


def test_a_site_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = extension("check")
    built(tmp_path, GOOD)
    assert check.LARGEST == 40e6
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    monkeypatch.setattr(check, "LARGEST", size)
    assert check.problems(tmp_path) == []
    monkeypatch.setattr(check, "LARGEST", size - 1)
    (line,) = check.problems(tmp_path)
    assert line.startswith("the site has 0 MB, at most 0 MB")
    monkeypatch.setattr("sys.argv", ["check.py", str(tmp_path)])
    monkeypatch.setattr(check, "LARGEST", size)
    assert check.main() == 0


# Pages for a keyboard and a voice.


def test_pages_are_mended_once_and_for_all() -> None:
    accessible = extension("accessible").accessible
    page = (
        '<pre>code</pre><pre class="x">code</pre><aside class="sidebar-drawer"><aside class="toc-drawer no-toc">'
        '<th class="head"><p></p></th><th><p>axis</p></th><div class="table-wrapper docutils container">'
        '<div class="math"><math></math></div><p class="caption" role="heading">Part</p>'
    )
    mended = accessible(page)
    assert mended == (
        '<pre tabindex="0">code</pre><pre tabindex="0" class="x">code</pre>'
        '<aside class="sidebar-drawer" aria-label="Pages"><aside aria-label="On this page" class="toc-drawer no-toc">'
        '<td class="head"></td><th><p>axis</p></th><div class="table-wrapper docutils container" tabindex="0">'
        '<div class="math" tabindex="0"><math></math></div><p class="caption" role="heading" aria-level="2">Part</p>'
    )
    assert accessible('<pre class="x" tabindex="0">') == '<pre class="x" tabindex="0">'


def test_parameters_of_a_signature_are_lines_and_other_definitions_stay() -> None:
    accessible = extension("accessible").accessible
    parameters = '<dl>\n<dd><em class="sig-param">x</em>,</dd>\n<dd><em class="sig-param">y</em>,</dd>\n</dl>'
    lines = '<div><em class="sig-param">x</em>,</div>\n<div><em class="sig-param">y</em>,</div>\n'
    assert accessible(parameters) == f'<div class="sig-parameters">\n{lines}</div>'
    assert accessible("<dl>\n<dt>a</dt><dd>b</dd>\n</dl>") == "<dl>\n<dt>a</dt><dd>b</dd>\n</dl>"


@pytest.mark.parametrize(("name", "heading"), [("search.html", True), ("other.html", False)])
def test_a_finished_build_is_rewritten_and_a_failed_one_is_not(name: str, heading: bool, tmp_path: Path) -> None:
    rewrite = extension("accessible").rewrite
    page = '<div id="furo-main-content"><pre>x</pre>'
    for path in (tmp_path / name, tmp_path / "explorer-presets.html"):
        path.write_text(page, encoding="utf-8")
    app: Any = SimpleNamespace(builder=SimpleNamespace(format="html"), outdir=tmp_path)
    other: Any = SimpleNamespace(builder=SimpleNamespace(format="latex"), outdir=tmp_path)
    rewrite(app, ValueError("failed"))
    rewrite(other, None)
    assert (tmp_path / name).read_text(encoding="utf-8") == page
    rewrite(app, None)
    written = (tmp_path / name).read_text(encoding="utf-8")
    assert '<pre tabindex="0">' in written
    assert ("<h1>Search</h1>" in written) is heading
    assert (tmp_path / "explorer-presets.html").read_text(encoding="utf-8") == page
    (tmp_path / "search.html").write_text(f"{page}<h1>Search</h1>", encoding="utf-8")
    rewrite(app, None)
    assert (tmp_path / "search.html").read_text(encoding="utf-8").count("<h1>") == 1


# Formulas.


def formula(source: str, *, block: bool = False, number: str | None = None) -> str:
    mathml = extension("mathml")
    from docutils import nodes

    node = nodes.math_block(source, source) if block else nodes.math(source, source)
    node.source, node.line = "page.md", 7
    if block:
        node["number"] = number
    translator: Any = SimpleNamespace(body=[])
    with pytest.raises(nodes.SkipNode):
        (mathml._block if block else mathml._inline)(translator, node)
    return "".join(translator.body)


def test_formulas_are_mathml_with_the_commands_that_the_converter_lacks() -> None:
    assert "<math" in formula("x^2")
    assert formula(r"a\thinspace b") == formula(r"a\, b")
    assert formula(r"1 \dots n") == formula(r"1 \ldots n")
    dotted = formula(r"\dot x_i")
    assert "<munderover>" not in dotted
    assert re.search(
        r'<msub><mover accent="true"><mi>x</mi><mo stretchy="false">˙</mo></mover><mi>i</mi></msub>', dotted
    )
    assert "<munderover>" in formula(r"\sum_{i=1}^n x", block=True)
    assert 'display="block"' in formula("x", block=True)
    assert 'display="block"' not in formula("x")


PAGES = [path for path in sorted(SITE.parent.rglob("*.md")) if "built" not in path.parts]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_formula_of_a_page_becomes_mathml(path: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for block, inline in re.findall(r"\$\$(.+?)\$\$|\$([^$\n]+(?:\n[^$\n]+)?)\$", text, re.DOTALL):
        assert "<math" in formula(block or inline, block=bool(block))


def test_a_block_has_its_number_and_an_unknown_command_names_its_place() -> None:
    assert formula("x", block=True, number="3").startswith('<div class="math"><span class="eqno">(3)</span>')
    assert "eqno" not in formula("x", block=True)
    from sphinx.errors import ExtensionError

    with pytest.raises(ExtensionError, match=r"page\.md:7: \\nosuchcommand x"):
        formula(r"\nosuchcommand x")
    with pytest.raises(ExtensionError, match="crossing"):  # and is not read as \cr
        formula(r"\crossing")


# The reference.


@pytest.fixture(scope="module")
def api() -> ModuleType:
    return extension("api_pages")


def test_every_public_name_is_on_one_page_and_described_once(api: ModuleType) -> None:
    packages = api.public_packages()
    assert {"tokendynamics", "tokendynamics.numerics", "tokendynamics.results", "tokendynamics.report"} <= set(packages)
    assert set(packages["tokendynamics.observables"]) == set(observables.__all__)
    assert packages["tokendynamics"]["trace"] is td.trace
    assert not any(isinstance(value, ModuleType) for names in packages.values() for value in names.values())
    places = api.homes(packages)
    pages = {package: api._page(package, names, places) for package, names in packages.items()}
    described = Counter(
        f"{package}.{name}"
        for package, page in pages.items()
        for name in re.findall(r"^\.\. (?:auto\w+|py:data):: (\w+)$", page, re.MULTILINE)
    )
    assert max(described.values()) == 1
    named = {f"{package}.{name}" for package, names in packages.items() for name in names}
    linked = {
        f"{package}.{name}" for package, page in pages.items() for name in re.findall(r"^- ``(\w+)``:", page, re.M)
    }
    assert set(described) | linked == named
    assert set(described) & linked == set()


def test_a_name_of_the_root_is_described_in_the_package_below(api: ModuleType) -> None:
    packages = api.public_packages()
    places = api.homes(packages)
    assert places[id(td.Sphere)] == "tokendynamics.spaces.Sphere"
    assert "- ``Sphere``: :py:obj:`tokendynamics.spaces.Sphere`" in api._page(
        "tokendynamics", packages["tokendynamics"], places
    )


def test_a_mapping_is_described_by_its_keys(api: ModuleType) -> None:
    page = api._page("tokendynamics.theorems", {"PAPERS": PAPERS}, {})
    assert f".. py:data:: PAPERS\n\n   Its keys: {', '.join(f'``{key}``' for key in PAPERS)}." in page


def test_docstrings_are_plain_text_outside_of_code(api: ModuleType) -> None:
    lines = ["|x| of a * b, `|y|`", " * a bullet", ">>> f(|x|)", "    ... a * b"]
    api.escape(None, "", "", None, None, lines)
    assert lines == [r"\|x\| of a \* b, `|y|`", " * a bullet", ">>> f(|x|)", "    ... a * b"]


# The ledger.


@pytest.fixture(scope="module")
def ledger() -> ModuleType:
    return extension("ledger")


def test_the_table_of_the_ledger_counts_every_row_once_and_links_it(ledger: ModuleType) -> None:
    rows, records = ledger_rows(), ledger_records()
    text = "\n".join(ledger.table(rows, records))
    counts = re.findall(r"^\| \[.+\]\(#(.+)\) \|([\d| ]+)\|$", text, re.MULTILINE)
    assert len(counts) == len(VERDICTS)
    assert sum(int(cells.split("|")[-1]) for _, cells in counts) == len(rows)
    for (anchor, cells), verdict in zip(counts, VERDICTS, strict=True):
        *parts, total = map(int, cells.split("|"))
        decided = [row for row in rows if row.decided(records) == verdict]
        assert sum(parts) == total == len(decided)
        listed = text.split(f"\n### {VERDICTS[verdict][0].upper()}{VERDICTS[verdict][1:]}\n")[1].split("\n###")[0]
        assert re.findall(r"#ledger-([\w.-]+)\)", listed) == [
            row.key for part in ledger.PARTS for row in decided if row.part == part
        ]
        assert anchor == re.sub(r"[^\w\- ]", "", VERDICTS[verdict]).replace(" ", "-")
    claims = text.split("## Claims by verdict")[0]
    assert Counter(re.findall(r"#ledger-([\w.-]+)\)", claims)) == Counter(row.key for row in rows)


def test_the_page_of_a_paper_has_what_a_row_holds(ledger: ModuleType) -> None:
    rows, records = ledger_rows(), ledger_records()
    row = next(row for row in rows if row.record and row.tests)
    text = "\n".join(ledger.page(row.part, [row], records, {row.record: "abc1234"}))
    for part in (f"(ledger-{row.key})=", row.says, f"**Verdict:** {row.words(records)}.", "commit `abc1234`"):
        assert part in text
    assert f"python -m reproductions {row.record}" in text
    assert f"$ pytest {' '.join(map(str, dict.fromkeys((*row.tests, *row.against))))}" in text
    assert text.count("<details>") == text.count("</details>") == 2


def record_of(*quantities: Quantity) -> Record:
    return Record("asymptotic", "Figure 0", "s", quantities, "i", None, {}, seconds=75.0, ran_on={})


def test_a_record_says_how_many_come_out_and_lists_those_that_do_not(ledger: ModuleType) -> None:
    good = Quantity("good", 1.0, 1.0, 0.1)
    bad = Quantity("a|b", 1.0, 2.0, 0.1, reason="because")
    row = next(row for row in ledger_rows() if row.record)
    row = type(row)(row.paper, row.key, row.number, row.says, row.given, record="asymptotic-fig1")
    text = "\n".join(ledger._of_record(row, record_of(good, bad), ""))
    assert "1 of 2 quantities come out" in text
    assert "commit" not in text
    assert "<summary>Quantities that do not come out or are not decided</summary>" in text
    assert re.findall(r"^\| (\S+) \| 1 \|", text, re.MULTILINE) == [r"a\|b"]
    text = "\n".join(ledger._of_record(row, record_of(good), ""))
    assert "<summary>Quantities</summary>" in text
    assert re.findall(r"^\| (\S+) \| 1 \|", text, re.MULTILINE) == ["good"]
    trained = Quantity("seconds of training in all", 0.0, 120.0, 0.0, "measured")
    assert "besides 120 s for training" in "\n".join(ledger._of_record(row, record_of(good, trained), ""))


def test_the_time_of_tests_is_given_where_all_are_known(ledger: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    row = next(row for row in ledger_rows() if len(row.tests) >= 2)
    known = {str(test): 0.02 for test in (*row.tests, *row.against)}
    monkeypatch.setattr(ledger, "SECONDS", known)
    monkeypatch.setattr(ledger, "_time", lambda seconds: f"{seconds:.2f}")
    assert ledger._took(row) == f" ({0.02 * len(known):.2f})"
    known.popitem()
    assert ledger._took(row) == ""


def test_a_short_time_is_no_zero(ledger: ModuleType) -> None:
    assert ledger._time(0.05) == "less than 0.1 s"
    assert ledger._time(0.1) != "less than 0.1 s"
    assert ledger._before(record_of(Quantity("other", 0, 9.0, 0))) == ""


def test_a_claim_of_a_record_has_its_bound_and_the_reason_why_it_is_open(ledger: ModuleType) -> None:
    bound = Quantity("slope", 2.0, 1.0, 0.1, "≤")
    assert ledger._quantity("asymptotic-fig1", bound) == "| slope | ≤ 2 | 1 | 0.1 | yes |  |"
    unsettled = Quantity("slope", 2.0, 5.0, 0.1, unsettled="too few draws")
    assert ledger._quantity("x", unsettled) == "| slope | 2 | 5 | 0.1 | cannot tell | too few draws |"


def test_numbers_and_their_units_stay_on_one_line(
    ledger: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "FOLDER", tmp_path / "ledger")
    monkeypatch.setattr(ledger, "commits_of_records", dict)
    ledger.write_ledger(None)
    pages = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "ledger").iterdir()}
    assert set(pages) == {"table.txt", *(f"{part}.md" for part in ledger.PARTS)}
    assert not any(re.search(r"\d %|\d s\b", text) for text in pages.values())
    assert any("\u00a0s" in text for text in pages.values())


@pytest.mark.parametrize("error", [OSError("no git"), CalledProcessError(128, "git")])
def test_without_git_no_commit_is_named(error: Exception, ledger: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(ledger.subprocess, "run", failing)
    assert ledger.commits_of_records() == {}


# The formats, and the pages of the papers.


def test_a_store_is_a_table_with_its_types_in_order(tmp_path: Path) -> None:
    formats = extension("format_pages")
    values = {
        "share": ("layer", np.zeros(2)),
        "code": ("layer", np.zeros(2, dtype=np.uint8)),
        "known": ("layer", np.zeros(2, dtype=bool)),
        "name": ("layer", np.array(["a", "b"], dtype=object)),
    }
    xr.Dataset(values, attrs={"unit": "1"}).to_zarr(tmp_path / "b.zarr", consolidated=False)
    (tmp_path / "c.json").write_text('{"state": 1, "lines": 2}', encoding="utf-8")
    (tmp_path / "a.html").write_text("", encoding="utf-8")
    text = "\n".join(formats._described(tmp_path))
    assert re.findall(r"^\*\*`(.+?)`\*\*", text, re.MULTILINE) == ["a.html", "b.zarr", "c.json"]
    assert "Attributes: `unit`." in text
    assert "`state`, `lines`" in text
    assert re.findall(r"^\| `(\w+)` \| layer \| (.+) \|$", text, re.MULTILINE) == [
        ("code", "integer (8 bits)"),
        ("known", "boolean"),
        ("name", "text"),
        ("share", "float (64 bits)"),
    ]


def test_a_page_of_a_paper_shows_six_quantities_those_that_fail_first() -> None:
    scripts = extension("paper_scripts")
    quantities = [Quantity(f"good {index}", 1.0, 1.0, 0.1) for index in range(9)]
    text = "\n".join(scripts._numbers("x", record_of(*quantities, Quantity("bad", 1.0, 2.0, 0.1))))
    assert text.startswith("9 of 10 quantities come out (:doc:`all numbers </papers/papers>`). Some of them:")
    assert re.findall(r"^   \* - (.+)$", text, re.MULTILINE) == ["quantity", "bad", *(f"good {i}" for i in range(5))]
    assert "Some of them" not in "\n".join(scripts._numbers("x", record_of(*quantities[:6])))


def test_the_page_of_a_figure_that_is_gone_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = extension("paper_scripts")
    monkeypatch.setattr(scripts, "FOLDER", tmp_path)
    (tmp_path / "logical").mkdir()
    (tmp_path / "logical" / "logical_gone.py").write_text("", encoding="utf-8")
    scripts.write_scripts(None)
    assert set(tmp_path.rglob("*.py")) == set(map(scripts.place_of, FIGURES))


def test_a_picture_is_shown_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sphinx_gallery", reason="the extra docs is not installed")
    monkeypatch.syspath_prepend(SITE)
    pages = extension("gallery_pages")
    picture, words = tmp_path / "film.gif", tmp_path / "words.txt"
    for path in (picture, words):
        path.write_bytes(b"x")

    def shown(value: object) -> str:
        block = {"example_globals": {"___": value}, "image_path_iterator": iter([str(tmp_path / "out_1.png")])}
        return pages.scrape(None, block, {"src_dir": str(tmp_path)})

    assert "out_1.gif" in shown(picture)
    assert (tmp_path / "out_1.gif").read_bytes() == b"x"
    assert shown(picture) == ""
    assert shown(words) == shown(3) == ""
    order = pages.InOrder(str(tmp_path))
    names = [pages.place_of(name).name for name in FIGURES]
    assert sorted(names, key=order) == names
