"""The page of a monitor: what it says of trainings whose course is known, and what its maps and curves hold."""

from __future__ import annotations

import base64
import hashlib
import re
from html import unescape
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

import numpy as np
import pytest

import tokendynamics.report
from report.reading import close, figure_of, page_of, plain_spaces, saved, table_of
from tokendynamics.diagnosis.tracing.layer_states import State
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.report.diagnosis._page import _GLYPHS
from tokendynamics.report.training._monitor_page import _COLOURS, MOST_LOOKS, Scale
from tokendynamics.training import Monitor
from tokendynamics.training.monitor.looks import Look
from tokendynamics.training.monitor.series import Series
from training.monitored import drive_together, language_model, look, of_one_topic_each

SPREAD, TOGETHER, CONSENSUS = (0.1, 0.01, 0.0), (0.1, 0.3, 0.0), (0.1, 0.9, 0.0)
_OVER_STEPS = {"consensus-relative-over-steps": "consensus_relative", "share-common-over-steps": "share_common"}
MAPS = {"consensus-map": "consensus_relative", "cos2-map": "centred_cos2", "common-map": "share_common"}


def series_of(*looks: Look, **facts: Any) -> Series:
    result = Series(
        {"model": "a network", "every": 500, **facts},
        [["prompt 1", "one text"], ["prompt 2", "another"], ["prompt 3", "a third"]],
    )
    for entry in looks:
        result.add(entry)
    return result


def findings(page: str, part: str = '<ol class="findings">') -> list[str]:
    listed = page[page.index(part) :]
    return [unescape(one) for one in re.findall(r"<li>(.*?)</li>", listed[: listed.index("</ol>")])]


def answer(page: str) -> str:
    match = re.search(r'<p class="answer"><strong>(.*?)</strong>', page)
    assert match is not None
    return unescape(match[1])


@pytest.fixture(scope="module")
def monitor() -> Monitor:
    """Of a training that drives the tokens of each text together."""
    model, monitor = language_model(dropout=0.0, norms="none"), Monitor(of_one_topic_each(), every=10)
    drive_together(model, 30, monitor.step)
    return monitor


@pytest.fixture(scope="module")
def page(monitor: Monitor) -> str:
    return page_of(monitor.series)


@pytest.mark.long
def test_a_training_that_collapses_is_said_to(monitor: Monitor, page: str) -> None:
    assert answer(page) == "Consensus"
    sentences = findings(page)
    assert sentences[0].startswith(
        "At step 30 the state after the last layer is consensus, with a within-text similarity κ′ of 1.00 (90 % CI 0.9"
    )
    assert "at step 1 (6 texts)." in sentences[0]
    assert sentences[-len(monitor.changes) :] == [line[0].upper() + line[1:] + "." for line in monitor.changes]
    assert "changes in 4 measurements from step 1 to step 30" in sentences[-len(monitor.changes) - 1]
    assert "No layer changed" not in page


@pytest.mark.long
def test_a_training_that_leaves_tokens_apart_is_said_to() -> None:
    page = page_of(series_of(*(look(step, SPREAD, SPREAD) for step in (0, 500, 1000))))
    assert answer(page) == "Spread"
    assert findings(page) == [
        "At step 1,000 the state after the last layer is spread, with a within-text similarity κ′ of 0.01 (90 % CI "
        "0.01–0.01), 0.01 at step 0 (3 texts).",
        "All 2 layers are in this state.",
        "No layer changed significantly in 3 measurements from step 0 to step 1,000.",
    ]


@pytest.mark.long
def test_a_page_says_how_often_it_was_measured_and_after_what() -> None:
    looks = [look(step, SPREAD, (0.1, 0.99, 0.0), half=0.05) for step in (0, 1)]
    plain, normed = series_of(*looks, every=1), series_of(look(0, SPREAD, CONSENSUS, after_norm=CONSENSUS))
    every_step, seldom = page_of(plain), page_of(normed)
    assert "2, one every step" in every_step
    assert "1, one every 500 steps" in seldom
    assert "κ′ of 0.99 (90 % CI 0.94–1.00)" in findings(every_step)[0]  # κ′ is at most 1
    for page, where in (
        (every_step, "after the last layer"),
        (seldom, "after the last layer and after the final norm"),
    ):
        assert f"κ′: {where}, with 90 % confidence intervals over texts" in figure_of(
            page, "consensus-relative-over-steps"
        )
    images = page_of(series_of(*looks, prompt_noun="image"))
    assert "Within-image similarity κ′: after the last layer, with 90 % confidence intervals over images" in images
    assert "on 3 images" in images


@pytest.mark.long
def test_what_differs_between_layers_is_said_the_worst_first() -> None:
    looks = [look(0, SPREAD, SPREAD, SPREAD), look(500, TOGETHER, CONSENSUS, TOGETHER, half=0.05)]
    assert findings(page_of(series_of(*looks))) == [
        "At step 500 the state after the last layer is drawing together, with a within-text similarity κ′ of 0.30 "
        "(90 % CI 0.25–0.35), 0.01 at step 0 (3 texts).",
        "Consensus after layer 2; drawing together after layers 1, 3.",
        "2 significant changes in 2 measurements from step 0 to step 500:",
        "Step 500: layer 2 went from spread to consensus (κ′ 0.01 → 0.90).",
        "Step 500: layers 1, 3 went from spread to drawing together (κ′ 0.01 → 0.30).",
    ]


@pytest.mark.long
def test_states_that_are_not_finite_are_said_to_be_with_their_steps() -> None:
    lost = [Look(step, "not finite at layer 2") for step in (1000, 1500)]
    page = page_of(series_of(look(0, SPREAD, SPREAD), look(500, SPREAD, SPREAD), *lost))
    assert answer(page) == "Not finite at layer 2"
    assert findings(page)[0].startswith("At step 500 the state after the last layer is spread")
    assert findings(page)[-1] == "From step 1,000 to step 1,500: not finite at layer 2."
    assert [row[1:] for row in table_of(page, "states-map")][-2:] == [["not measured"] * 2] * 2
    assert "not measured" in figure_of(page, "states-map").split("<details>")[0]  # in the legend


def test_nothing_measured_has_no_figures() -> None:
    page = page_of(Series())
    assert (answer(page), findings(page)) == ("Not measured", [])
    page = page_of(series_of(Look(0, "not measured: a custom network <b>")))
    assert answer(page) == "Not measured: a custom network <b>"
    assert findings(page) == ["At step 0: not measured: a custom network <b>."]
    assert "<figure" not in page
    assert "<b>" not in page
    assert '<p class="shape">on 3 texts</p>' in page
    assert '<p class="shape">2 layers, on 3 texts</p>' in page_of(series_of(layers=2))


def test_one_look_says_nothing_of_changes_and_one_layer_nothing_of_others() -> None:
    page = page_of(series_of(look(0, (0.1, np.nan, np.nan))))
    assert answer(page) == "Undetermined"
    assert findings(page) == [
        "At step 0 the state after the last layer is undetermined (3 texts).",
        "There is one measurement, at step 0, so changes are unknown.",
    ]


@pytest.mark.long
def test_what_changes_again_and_again_is_shown_in_part_and_kept_whole() -> None:
    looks = [look(100 * place, CONSENSUS if place % 2 else SPREAD) for place in range(12)]
    page = page_of(series_of(*looks))
    first, more = findings(page), findings(page, '<ol class="findings details">')
    assert "11 significant changes in 12 measurements from step 0 to step 1,100 (the 8 largest first):" in first
    assert [line.partition(":")[0] for line in more] == ["Step 900", "Step 1,000", "Step 1,100"]


@pytest.mark.long
@pytest.mark.parametrize("ident", MAPS)
def test_a_map_has_every_number_and_a_colour_for_each_class(ident: str, monitor: Monitor, page: str) -> None:
    values, rows = monitor.dataset[MAPS[ident]], table_of(page, ident)
    assert [int(row[0]) for row in rows] == monitor.dataset.step.values.tolist()
    for row, line in zip(rows, values.values, strict=True):
        assert close(row[1:], line)
    kept = np.array([[float(entry) for entry in row[1:]] for row in saved(page, ident)[1:]])
    np.testing.assert_allclose(kept, values.values, rtol=1e-12, atol=1e-15)


def test_classes_begin_at_their_bounds() -> None:
    scale = Scale((0.06, 0.2, 0.72))
    names = [key.label for key in scale.keys]
    assert names == ["below 0.06", "to 0.2", "to 0.72", "from 0.72"]
    colours = [key.colour for key in scale.keys]
    for value, place in ((-0.5, 0), (0.0599, 0), (0.06, 1), (0.1999, 1), (0.2, 2), (0.72, 3), (1.0, 3)):
        assert scale.colour(value) == colours[place]
    assert scale.colour(float("nan")) not in colours
    assert len(set(colours)) == 4


@pytest.mark.long
def test_the_strip_shows_the_states_that_sentences_speak_of(monitor: Monitor, page: str) -> None:
    rows = table_of(page, "states-map")
    assert [row[1:] for row in rows] == monitor.dataset.state.values[:, 1:].tolist()
    assert rows[-1][-1] == answer(page).lower()
    words = re.findall(r"<text[^>]*>([^<]*)</text>", figure_of(page, "states-map").split("</svg>")[0])
    states = monitor.dataset.state.values[:, 1:]
    begun = int((states[1:] != states[:-1]).sum()) + 3  # those of the first look
    assert len([word for word in words if word in ("⁘", "›‹", "●")]) == begun


@pytest.mark.long
def test_the_headline_is_the_state_now_though_its_change_is_within_the_intervals() -> None:
    """A fresh monitor, and a diagnosis, would call it so; the list of changes keeps what noise cannot have made."""
    collapsed = (0.1, 0.3, 0.25)
    page = page_of(series_of(look(0, TOGETHER, half=0.1), look(500, collapsed, half=0.1)))
    assert answer(page) == answer(page_of(series_of(look(500, collapsed, half=0.1)))) == "Rank collapse"
    assert findings(page) == [
        "At step 500 the state after the last layer is rank collapse, with a within-text similarity κ′ of 0.30 (90 % "
        "CI 0.20–0.40), 0.30 at step 0 (3 texts).",
        "No layer changed significantly in 2 measurements from step 0 to step 500.",
    ]
    assert [row[1:] for row in table_of(page, "states-map")] == [["drawing together"], ["rank collapse"]]


@pytest.mark.long
def test_two_texts_make_no_state_and_the_page_says_why() -> None:
    result = series_of(look(0, SPREAD, half=np.nan), look(500, CONSENSUS, half=np.nan))
    del result.texts[2]
    page = page_of(result)
    assert answer(page) == "Undetermined"
    assert findings(page) == [
        "At step 500 the state after the last layer is undetermined, because a state needs three different texts, "
        "with a within-text similarity κ′ of 0.90, 0.01 at step 0 (2 texts).",
        "Changes in 2 measurements from step 0 to step 500 are not tested, because this needs three different texts.",
    ]


@pytest.mark.long
def test_the_largest_changes_are_shown_first_and_in_their_order() -> None:
    small, large = [(0.1, 0.1, 0.0), (0.1, 0.01, 0.0)] * 6, [(0.99, 0.01, 0.0)]
    page = page_of(series_of(*(look(100 * place, entry) for place, entry in enumerate([*small, *large]))))
    first = findings(page)
    assert first[-1] == "Step 1,200: layer 1 went from spread to anisotropic (common share 0.10 → 0.99)."
    assert len([line for line in first if line.startswith("Step ")]) == 8


def test_a_state_that_goes_on_after_looks_without_numbers_does_not_begin_again() -> None:
    page = page_of(series_of(look(0, SPREAD), Look(1, "not finite at layer 1"), look(2, SPREAD)))
    drawn = figure_of(page, "states-map").split("</svg>")[0]
    assert re.findall(r">([^<]*⁘[^<]*)<", drawn) == ["⁘", "⁘  spread"]  # once, and in the legend


def test_curves_have_medians_and_ends_of_the_layers(monitor: Monitor, page: str) -> None:
    table = monitor.dataset
    heads, *rows = saved(page, "updates-over-steps")
    part = table.update_ratio.sel(component="feed_forward").values[:, 1:]
    wanted = {"": np.median(part, axis=1), ", lowest layer": part.min(axis=1), ", highest layer": part.max(axis=1)}
    for end, values in wanted.items():
        entries = [float(row[heads.index(f"feed-forward part{end}")]) for row in rows]
        np.testing.assert_allclose(entries, values, rtol=1e-9)
    heads, *rows = saved(page, "sinks-over-steps")
    entries = [float(row[heads.index("highest layer")]) for row in rows]
    np.testing.assert_allclose(entries, table.attention_sink_mass.values[:, 1:].max(axis=1), rtol=1e-9)
    for figure, measure in _OVER_STEPS.items():
        heads, *rows = saved(page, figure)
        low = [float(row[heads.index("after the last layer, low")]) for row in rows]
        np.testing.assert_allclose(low, table[f"{measure}_interval"].values[:, -1, 0], rtol=1e-9)
        last = [float(row[heads.index("after the last layer")]) for row in rows]
        np.testing.assert_allclose(last, table[measure].values[:, -1], rtol=1e-9)
        highest = [float(row[heads.index("highest of any layer")]) for row in rows]
        np.testing.assert_allclose(highest, table[measure].values[:, 1:].max(axis=1), rtol=1e-9)
        assert not any("final norm" in head for head in heads)  # this network has none


@pytest.mark.long
def test_the_legend_of_states_has_those_that_occur() -> None:
    content = figure_of(page_of(series_of(look(0, SPREAD, CONSENSUS), look(1, SPREAD, CONSENSUS))), "states-map")
    legend = unescape(content[: content.index("<svg")]) + unescape(
        content[content.index("<svg") :].partition("</svg>")[0]
    )
    assert "spread" in legend
    assert "consensus" in legend
    assert "one point" not in legend


@pytest.mark.long
def test_curves_after_the_final_norm_are_those_of_the_dataset() -> None:
    looks = [look(100 * place, SPREAD, half=0.05, after_norm=(0.2 * place, 0.1 * place, 0.0)) for place in range(4)]
    series = series_of(*looks)
    page = page_of(series)
    for figure, measure in _OVER_STEPS.items():
        heads, *rows = saved(page, figure)
        for end, bound in (("", None), (", low", 0), (", high", 1)):
            numbers = series.dataset[f"final_norm_{measure}" + ("" if bound is None else "_interval")].values
            drawn = [float(row[heads.index(f"after the final norm{end}")]) for row in rows]
            np.testing.assert_allclose(drawn, numbers if bound is None else numbers[:, bound], rtol=1e-9)


@pytest.mark.long
def test_many_looks_have_sixty_columns_and_a_page_of_less_than_a_megabyte() -> None:
    draw = np.random.default_rng(0)
    looks = [look(500 * place, *draw.uniform(0, 1, (16, 3)).tolist(), half=0.1) for place in range(80)]
    page = page_of(series_of(*looks))
    rows = table_of(page, "consensus-map")
    assert len(rows) == MOST_LOOKS
    assert (rows[0][0], rows[-1][0]) == ("0", "39,500")
    assert "60 of 80 measurements are shown; the dataset has all." in page
    assert len(page.encode()) < 2**20


@pytest.mark.long
def test_foreign_text_is_escaped_and_made_visible(hostile: str) -> None:
    result = series_of(look(0, SPREAD), look(1, CONSENSUS), Look(2, f"not measured: {hostile}"), model=hostile,
                      tokenization=hostile)  # fmt: skip
    result.texts[0] = [hostile, hostile]
    page = page_of(result)
    assert "<script>alert" not in page
    assert not {"\x00", "\u202e", "\x1b"} & set(page)
    assert "‹U+202E›evil" in page


def test_nothing_can_be_requested_and_only_the_page_s_own_script_runs(page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in unescape(policy[1])
    assert not re.search(r"https?://|url\((?!#)|@import", page.replace("http://www.w3.org/2000/svg", ""))
    assert not re.search(r'<[^>]+ (style|on\w+)="', page)


def test_every_figure_is_described_and_every_link_leads_somewhere(page: str) -> None:
    figures = re.findall(r'<figure id="([^"]+)">', page)
    assert set(figures) == {"states-map", *_OVER_STEPS, *MAPS, "updates-over-steps", "sinks-over-steps"}
    for ident in figures:
        content = figure_of(page, ident)
        match = re.search(r"<svg.*?</svg>", content, re.DOTALL)
        assert match is not None
        root = ElementTree.fromstring(match[0])  # noqa: S314  # our own page
        assert root.get("role") == "img"
        texts = {child.get("id"): child.text or "" for child in root if child.get("id")}
        assert texts[f"{ident}-title"]
        assert re.search(r"\d", texts[f"{ident}-desc"])
        assert re.search(r"<figcaption>.{40}", content)
        assert "<table" in content
    identifiers = re.findall(r' id="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(identifiers)


@pytest.mark.long
def test_the_page_is_one_file_whole_or_not_at_all(monitor: Monitor, page: str, tmp_path: Path) -> None:
    path = monitor.report(tmp_path / "a" / "seen.html")
    assert plain_spaces(path.read_text(encoding="utf-8")) == page
    assert "have a column" not in page
    with pytest.raises(ArgumentValueError, match="max_bytes"):
        Series().report(tmp_path / "small.html", max_bytes=100)
    with pytest.raises(ArgumentValueError, match="path"):
        Series().report(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a"]


def test_every_state_has_a_sign_a_colour_and_a_badge() -> None:
    assert set(get_args(State)) == set(_GLYPHS) == set(_COLOURS)
    assert len(set(_GLYPHS.values())) == len(_GLYPHS)
    css = (Path(tokendynamics.report.__file__).parent / "template" / "page.css").read_text(encoding="utf-8")
    assert all(f".{state.replace(' ', '-')}" in css for state in get_args(State))
