"""The page as text: escaping, policy, self-containment, figures with their descriptions, tables with their numbers."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from report.reading import AFTER, close, figure_of, page_of, plain_spaces, ragged, table_of
from tokendynamics.diagnosis.result import Diagnosis
from tokendynamics.figures.figure import Cell, Table
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.report import write
from tokendynamics.words import UNDEFINED, moment

FETCHING = {"src", "href", "xlink:href", "srcset", "action", "data", "poster", "background", "formaction"}
SECTIONS = [
    "shares", "components", "levers", "deeper", "updates", "norms", "attention", "agreement", "weights", "paths",
]  # fmt: skip
VOID = {"meta", "link", "input", "br", "hr", "img"}


class Reader(HTMLParser):
    """Collects elements in order, as (tag, attributes), and checks that they nest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.mark.long
def test_the_page_is_well_formed_and_says_its_language(page: str) -> None:
    reader = Reader(page)
    assert reader.open == []
    assert reader.all("html") == [{"lang": "en"}]
    identifiers = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))


def test_text_from_outside_never_becomes_markup_or_script(page: str, hostile: str) -> None:
    reader = Reader(page)
    assert len(reader.all("script")) == 2
    assert "alert(1)</script>" not in page
    assert "<script>alert" not in page
    assert len(reader.all("style")) == 1
    shown = "&lt;script&gt;alert(1)&lt;/script&gt;&lt;/style&gt;&#34;&#39;&amp;amp;"
    shown += "␀␛[31m‹U+202E›evil‹U+2066› مرحبا 👩‍👩‍👧 ‹U+FEFF›"
    assert page.count(shown) >= 10
    assert hostile not in page


def test_no_control_or_bidirectional_character_is_left(page: str) -> None:
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff]", page)


def test_the_policy_allows_nothing_but_the_inlined_script_and_style(page: str) -> None:
    (policy,) = [m["content"] for m in Reader(page).all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    directives = dict(part.split(" ", 1) for part in policy.split("; "))
    assert directives["default-src"] == "'none'"
    assert "unsafe" not in policy
    assert "http" not in policy
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    style = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    for texts, directive in ((script, "script-src"), (style, "style-src")):
        digests = [base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in texts]
        assert directives[directive] == " ".join(f"'sha256-{digest}'" for digest in digests)
    assert page.index("Content-Security-Policy") < page.index("<style>")


def test_no_element_has_an_inline_style_or_handler(page: str) -> None:
    for _, attributes in Reader(page).elements:
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]


def test_nothing_refers_to_the_network(page: str) -> None:
    addresses = {
        value for _, attributes in Reader(page).elements for name, value in attributes.items() if name in FETCHING
    }
    assert all(address.startswith(("#", "data:,", "data:text/csv;charset=utf-8,", "./")) for address in addresses)
    rest = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|url\((?!#)|@import", rest)


def test_every_link_inside_the_page_leads_somewhere(page: str) -> None:
    reader = Reader(page)
    targets = {f"#{attributes['id']}" for _, attributes in reader.elements if "id" in attributes}
    inner = {a["href"] for a in reader.all("a") if a["href"].startswith("#")}
    assert {*(f"#{name}" for name in SECTIONS), "#verdict", "#measured"} <= inner <= targets


def test_data_files_are_linked_as_relative_addresses(page: str) -> None:
    assert 'href="./a%20folder/su%3Fmmary.json"' in page


def test_every_figure_has_a_described_drawing_a_caption_and_a_table(page: str) -> None:
    figures = re.findall(r'<figure id="([^"]+)">(.*?)</figure>', page, re.DOTALL)
    assert len(figures) == 2 + 2 + 2 + 3 + 1 + 1 + 1 + 7 + 3 + 1
    for ident, content in figures:
        drawings = re.findall(r"<svg [^>]*>", content)
        assert len(drawings) == 2
        for drawing, screen, name in zip(drawings, ("wide", "narrow"), (ident, f"{ident}-narrow"), strict=True):
            assert f'class="{screen}"' in drawing
            assert 'role="img"' in drawing
            assert f'aria-labelledby="{name}-title {name}-desc"' in drawing
            title = re.search(rf'<title id="{name}-title">([^<]+)</title>', content)
            description = re.search(rf'<desc id="{name}-desc">([^<]+)</desc>', content)
            assert title is not None
            assert "?" in title[1]
            assert description is not None
            assert re.search(r"\d", description[1])
        assert "<table" in content
        assert re.search(r"<figcaption>[^<]{40}", content)


def test_the_sections_come_in_order_with_the_verdict_first(page: str) -> None:
    matches = re.findall(r'<section id="(\w+)" aria-labelledby="\1-heading">', page)
    assert matches == ["verdict", *SECTIONS, "measured"]


def test_every_variant_has_the_rule_that_shows_it(page: str) -> None:
    offered = re.findall(r'class="(pick-\d+)" id="(\w+)-\1"', page)
    assert len(offered) == 2 + 2 + 3 + 7
    assert all(f".{name}:checked ~ .panels > :nth-child({name.removeprefix('pick-')})" in page for name, _ in offered)


@pytest.mark.parametrize(
    "measure",
    [
        "mean_pair_cosine",
        "consensus_first",
        "consensus_first_signed",
        "consensus_last",
        "effective_rank_unit_rows",
        "effective_rank",
        "rank_one_distance",
    ],
)
def test_the_depth_tables_hold_the_datasets_numbers(page: str, diagnosis: Diagnosis, measure: str) -> None:
    rows = table_of(page, f"agreement-{measure.replace('_', '-')}")
    trace = diagnosis.trace
    assert len(rows) == 1 + 2 * 30 + 1
    for row in rows:
        at = trace[measure].sel(layer=int(row[0]), site=AFTER[row[1]])
        removed, kept = at.sel(sinks="removed").values, at.sel(sinks="kept").values
        wanted = [np.mean(removed), removed.min(), removed.max(), np.mean(kept)]
        if measure == "mean_pair_cosine":
            wanted.append(trace["shares"].sel(layer=int(row[0]), site=AFTER[row[1]], share="common").item())
        assert close(row[2:], np.array([*wanted, *removed]))


def test_the_norm_table_holds_the_datasets_numbers(page: str, diagnosis: Diagnosis) -> None:
    trace = diagnosis.trace.sel(site="feed_forward", sinks="removed").mean("prompt")
    rows = [row for row in table_of(page, "norms-chart") if row[1] in {"embedding", "feed-forward"}]
    names = ("norm_lower_quartile", "norm_median", "norm_upper_quartile")
    assert close([cell for row in rows for cell in row[2:5]], np.stack([trace[n].values for n in names], 1).ravel())
    assert [row[6] for row in rows[:3]] == ["no token"] * 3
    assert close([row[6] for row in rows[3:]], trace["massive_norm"].values[3:])


@pytest.mark.slow
def test_the_numbers_of_a_column_have_one_number_of_places(page: str, defined_page: str) -> None:
    assert ragged(page) == []
    assert ragged(defined_page) == []
    table = "<table><tbody><tr><th>{}</th></tr><tr><th>{}</th></tr></tbody></table>"
    assert [ragged(table.format(*pair)) != [] for pair in (("1.0", "2.25"), ("1.0", "2.2"), ("10.0", "0.05"))] == [
        True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("circuit", ["qk", "ov"])
def test_the_heat_map_tables_hold_every_head(page: str, diagnosis: Diagnosis, circuit: str) -> None:
    rows = table_of(page, f"weights-{circuit}")
    balance = diagnosis.audit[f"{circuit}_balance"]
    assert [(int(r[0]), int(r[1])) for r in rows] == [(layer, head) for layer in range(1, 31) for head in range(9)]
    assert close([r[2] for r in rows], balance.values.ravel())
    assert {tuple(r[3:]) for r in rows} == {("64", "64", "448")}


def test_heat_map_strength_and_sign_are_those_of_the_balance(page: str, diagnosis: Diagnosis) -> None:
    part = page[page.index('<figure id="weights-qk">') : page.index('<figure id="weights-ov">')]
    part = part[: part.index('class="narrow"')]
    tiles = re.findall(r'<path class="tip"[^>]*>|<path [^>]*class="tip"[^>]*>', part)
    assert len(tiles) == 270
    values = diagnosis.audit["qk_balance"].values.ravel()
    for tile, value in zip(tiles, values, strict=True):
        opacity = re.search(r'fill-opacity="([\d.]+)"', tile)
        assert opacity is not None
        assert float(opacity[1]) == pytest.approx(abs(value), abs=6e-3)
        assert ('fill="#c9600a"' in tile) == (value >= 0)


def _regimes(page: str) -> str:
    section = page[page.index('<section id="weights"') : page.index('<figure id="weights-qk">')]
    return section.partition("scroll wide")[2]


def test_an_undefined_a_is_written_with_its_rank_and_given_no_number(page: str) -> None:
    wide = _regimes(page)
    assert wide.count("undefined (rank 192/576)") == 1
    assert "undefined (rank 192/576) in 30 of 30 layers" in page


def test_a_criterion_that_never_says_the_opposite_is_not_printed(page: str, diagnosis: Diagnosis) -> None:
    """Some Re λ(V) is positive in every network: the audit keeps what that says of a free flow, the page does not."""
    assert isinstance(diagnosis.audit, xr.Dataset)
    assert "diverges for most starts" in str(diagnosis.audit.regime_by_spectrum.values[0])
    assert "diverges for most starts" not in page
    assert "Observed criterion" not in page
    assert "By the signs of W and A" in page


@pytest.mark.long
def test_a_defined_a_is_written_with_its_signs(defined_page: str) -> None:
    wide = _regimes(defined_page)
    assert wide.count("290/286/0") == 1
    assert "undefined" not in wide
    assert "random (seed 7)" in defined_page


def test_the_token_table_holds_positions_and_norms(page: str, diagnosis: Diagnosis) -> None:
    rows = table_of(page, "paths-stills")
    paths = diagnosis.paths
    assert [int(row[0]) for row in rows[::12]] == [0, 6, 12, 18, 24, 30]
    for row in rows:
        at = paths.isel(token=int(row[1])).sel(layer=int(row[0]))
        assert close(row[5:], at["norm"].values[None])
        if bool(at["is_sink"]):
            assert row[3:5] == ["massive", "massive"]
        else:
            assert close(row[3:5], at["position"].values)


SHAPES = {
    "one prompt": {"prompts": 1, "layers": 4},
    "one token": {"prompts": 1, "layers": 4, "tokens": 1, "pairs": False},
    "no final norm": {"layers": 4, "final_norm": False},
    "one layer": {"layers": 1, "heads": 1, "prompts": 2},
    "some layers audited": {"layers": 12, "audited": [2, 11], "prompts": 2},
    "many prompts": {"layers": 3, "prompts": 12},
    "a long prompt": {"layers": 3, "tokens": 300, "prompts": 1},
}


QUICK = ("one token", "one layer")


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "shape", [pytest.param(shape, marks=() if shape in QUICK else pytest.mark.slow) for shape in SHAPES]
)
def test_every_shape_of_diagnosis_gives_a_whole_page_without_nan(build: Callable[..., Diagnosis], shape: str) -> None:
    page = page_of(build(**SHAPES[shape]))
    assert Reader(page).open == []
    markup = re.sub(r"(?s)<script.*?</script>|<style.*?</style>", "", page)
    assert "NaN" not in markup
    text = re.sub(r"<[^>]*>", " ", markup)
    assert not re.search(r"\b(nan|inf|none|null|undefined undefined)\b", text, re.IGNORECASE)
    words = page.count('class="nothing"')
    assert page.count("<svg ") == 2 * (len(re.findall("<figure ", page)) - words)


@pytest.mark.long
def test_measures_of_pairs_are_words_where_there_is_no_pair(build: Callable[..., Diagnosis]) -> None:
    page = page_of(build(**SHAPES["one token"]))
    part = figure_of(page, "agreement-mean-pair-cosine")
    assert "Not plotted because the text does not have two tokens that count" in part
    assert "<svg" not in part
    assert "NaN" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


@pytest.mark.slow
def test_a_model_without_a_final_norm_has_no_bar_for_it(build: Callable[..., Diagnosis]) -> None:
    page = page_of(build(**SHAPES["no final norm"]))
    part = page[page.index('id="components"') : page.index('id="norms"')]
    assert "final norm" not in part.lower()


@pytest.mark.long
@pytest.mark.usefixtures("undrawn")
def test_long_prompts_are_cut_and_say_so(build: Callable[..., Diagnosis]) -> None:
    page = page_of(build(**SHAPES["a long prompt"]))
    assert "The first 256 of 300 tokens are drawn." in page
    assert page.count('class="token"') == 256


@pytest.mark.slow
def test_the_page_is_small_and_the_same_each_time(page: str, diagnosis: Diagnosis) -> None:
    assert len(page.encode()) < 1_500_000
    assert page_of(diagnosis) == page


@pytest.mark.long
@pytest.mark.usefixtures("undrawn")
def test_the_file_is_written_whole(build: Callable[..., Diagnosis], tmp_path: Path) -> None:
    result = build(layers=2, prompts=1)
    path = write(result, tmp_path / "new folder" / "report.html")
    assert plain_spaces(path.read_text(encoding="utf-8")) == page_of(result)
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


@pytest.mark.usefixtures("undrawn")
def test_a_failure_leaves_the_old_report_and_nothing_else(
    build: Callable[..., Diagnosis], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    result = build(layers=2, prompts=1)

    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        write(result, path)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "old"


@pytest.mark.long
@pytest.mark.usefixtures("undrawn")
def test_too_large_a_page_and_a_folder_are_refused(build: Callable[..., Diagnosis], tmp_path: Path) -> None:
    result = build(layers=2, prompts=1)
    with pytest.raises(ArgumentValueError, match="max_bytes: expected at most 1000, got a page of"):
        write(result, tmp_path / "report.html", max_bytes=1000)
    with pytest.raises(ArgumentValueError, match="path: expected a file name"):
        write(result, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_times_that_are_no_iso_dates_are_shown_as_they_are() -> None:
    assert moment("yesterday") == "yesterday"


def test_columns_of_words_begin_at_one_edge_and_numbers_end_at_one() -> None:
    rows = [
        [Cell("attention"), Cell("0.5", value=0.5), Cell("not reached", sort="inf"), Cell(UNDEFINED, undefined=True)],
        [Cell("feed-forward"), Cell("−1"), Cell("pass 2", sort="2"), Cell("yes")],
    ]
    table = Table("", ("Part", "κ", "Passes", "Answer"), tuple(map(tuple, rows)))
    assert table.words == (1, 4)
    assert Table("", ("κ",), ((Cell(UNDEFINED, undefined=True),),)).words == ()
    assert Table("", ("Instrument", "CI"), ((Cell("1. variance shares"), Cell("0.3 to 1")),)).words == (1,)


def test_every_column_of_words_has_its_rule(diagnosis: Diagnosis) -> None:
    page = page_of(diagnosis)
    places = {int(place) for place in re.findall(r"<table class=\"[^\"]*words-(\d+)", page)}
    assert places
    assert all(f".words-{place} tr > :nth-child({place})" in page for place in places)
