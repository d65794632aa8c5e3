"""The verdict, the shares, updates and attention on the page; files that are saved from it; and what notebooks show."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import altair as alt
import numpy as np
import pytest
import xarray as xr

from report.reading import AFTER, close, figure_of, page_of, saved, table_of, value_of
from tokendynamics.diagnosis.result import Diagnosis
from tokendynamics.diagnosis.tracing.layer_states import CONSENSUS, SPREAD
from tokendynamics.figures.curves import Curve, Curves, Rule, curve_keys
from tokendynamics.figures.figure import Table, cells, fold
from tokendynamics.figures.parts import Part, Stack
from tokendynamics.report import notebook_html
from tokendynamics.report.diagnosis._states import different_prompts, unshared, without_intervals
from tokendynamics.report.diagnosis._updates import updates_figure


@pytest.fixture(scope="module")
def alone(build: Callable[..., Diagnosis]) -> Diagnosis:
    """Of one prompt, and without attention."""
    return build(layers=4, prompts=1, attention=False)


def test_why_there_are_no_shares_or_intervals_is_what_the_prompts_are(diagnosis: Diagnosis) -> None:
    """Equal prompts have pairs, and are one prompt of which no other counts."""
    trace = diagnosis.trace
    ends = {trace.sizes["prompt"]: "they are undefined"}
    equal = trace.assign(repeats=("prompt", np.where(np.arange(trace.sizes["prompt"]) == 0, -1, 0)))
    ends[1] = "1 different text is too few for a confidence interval"
    assert {different_prompts(table): without_intervals(table) for table in (trace, equal)} == ends
    assert unshared(equal).startswith("Not plotted because all texts are identical, and one text cannot show")
    assert unshared(trace) == "Not plotted because the numbers are undefined after every layer."
    assert "fewer than two tokens" in unshared(trace.assign(mean_pair_cosine=trace.mean_pair_cosine * np.nan))


def test_the_verdict_says_its_state_sentences_details_and_layers(page: str, diagnosis: Diagnosis) -> None:
    verdict = page[page.index('id="verdict"') : page.index('id="shares"')]
    assert f"<strong>{diagnosis.verdict.state.capitalize()}</strong>" in verdict
    places = [verdict.index(finding.text[:22]) for finding in diagnosis.verdict.sentences + diagnosis.verdict.details]
    assert places == sorted(places)
    for finding in diagnosis.verdict.details:
        assert re.search(rf'{finding.text[:22]}[^\n]* <a href="#{finding.figure}">', verdict)
    badges = re.findall(
        r'<span class="layer"><span class="hidden">(?:Layer|Final) </span>(\w+)<span class="hidden"> ([\w ]+)[,<]',
        verdict,
    )
    layers = [(str(i), state) for i, state in enumerate(diagnosis.verdict.layers, start=1)]
    final = diagnosis.verdict.final_norm
    assert badges == [*layers, *([] if final is None else [("norm", final)])]
    assert set(re.findall(r'aria-hidden="true">([^<]+)<', verdict)) == {"⁘", "›‹", "●", "│", "↗"}
    assert "consensus: layers 4, 10, 16, 22, 28" in verdict


@pytest.mark.long
@pytest.mark.usefixtures("undrawn")
def test_the_last_badge_is_the_final_norm_and_badges_say_what_else_is_possible(diagnosis: Diagnosis) -> None:
    trace = diagnosis.trace.copy(deep=True)
    here = {"layer": trace.layer[-1], "site": "final_norm"}
    trace.shares_interval.loc[{**here, "share": "common"}] = [0.1, 0.2]
    trace.consensus_relative_interval.loc[here] = [0.01, 0.3]
    trace.line_excess_interval.loc[here] = [0.0, 0.0]
    verdict = replace(diagnosis.verdict, final_norm="drawing together")
    page = page_of(replace(diagnosis, trace=trace, verdict=verdict))
    assert "State after each layer and the final norm" in page
    badge = page[page.index('<span class="hidden">Final </span>norm') - 250 :][:400]
    assert 'title="within the confidence intervals also spread"' in badge
    assert 'class="badge drawing-together unsure"' in badge
    assert 'norm<span class="hidden"> drawing together, within the confidence intervals also spread</span>' in badge
    assert ", and the final norm</li>" in page
    assert "Dashed: the interval reaches another state." in page


def test_facts_versions_and_prompts_come_last(page: str) -> None:
    start = page[page.index("<body") : page.index("<nav")]
    assert "30 layers × 9 heads (3 for keys and values) × dim 576, on 5 texts" in start
    assert "134,515,008" not in start
    end = page[page.index('<section id="measured"') :]
    assert "134,515,008" in end
    assert "torch 2.13.0" in end
    assert "Read the 5 texts" in end


def test_the_shares_table_and_its_file_hold_the_traces_numbers(page: str, diagnosis: Diagnosis) -> None:
    shown, (heads, *rows) = table_of(page, "shares-chart"), saved(page, "shares-chart")
    assert heads == [
        "Layer", "After", "Common to all texts", "from", "to", "Shared within its text", "from", "to", "Its own",
        "from", "to",
    ]  # fmt: skip
    assert len(shown) == len(rows) == 1 + 2 * 30 + 1
    for text, row in zip(shown, rows, strict=True):
        at = diagnosis.trace.sel(layer=int(row[0]), site=AFTER[row[1]])
        ends = at.shares_interval.transpose("share", "bound").values
        wanted = np.column_stack([at.shares.values, ends]).ravel()
        assert close(text[2:], wanted)
        assert [float(cell) for cell in row[2:]] == wanted.tolist()
        assert sum(float(row[column]) for column in (2, 5, 8)) == pytest.approx(1)
    assert shown[0][5] == "−0.0300"
    assert "may be below 0" in figure_of(page, "shares-chart")


def test_a_negative_share_takes_no_room_in_the_drawing() -> None:
    parts = [Part("a", [0.5, -0.1], "#000000"), Part("b", [-0.2, 0.4], "#000000"), Part("c", [0.7, 0.7], "#000000")]
    drawn = Stack([0.0, 1.0], parts, last=1, title="Share").chart().to_dict()
    rows = drawn["data"]["values"]
    assert [row["part"] for row in rows] == ["a", "b", "c"] * 2
    assert [row["y"] for row in rows] == pytest.approx([0, 0.5, 0.5, 0, 0, 0.3])
    assert [row["y2"] for row in rows] == pytest.approx([0.5, 0.5, 1, 0, 0.3, 1])


def test_kappa_and_its_thresholds_are_those_of_the_trace(page: str, diagnosis: Diagnosis) -> None:
    for row in saved(page, "shares-consensus")[1:]:
        at = diagnosis.trace.sel(layer=int(row[0]), site=AFTER[row[1]])
        wanted = [at.consensus_relative.item(), *at.consensus_relative_interval.values]
        wanted += [at.centred_cos2.item(), *at.centred_cos2_interval.values]
        assert [float(cell) for cell in row[2:]] == wanted
    part = figure_of(page, "shares-consensus")
    for name in (f"spread below {SPREAD:g}", f"consensus from {CONSENSUS:g}"):
        assert part.count(f">{name}</text>") == 4  # the letters and the paper behind them, on each of two screens


@pytest.mark.long
def test_the_untrained_network_is_drawn_beside_the_network(diagnosis: Diagnosis, page: str) -> None:
    baseline = diagnosis.trace[["consensus_relative", "consensus_relative_interval"]] / 3
    html = page_of(replace(diagnosis, baseline=baseline))
    for row, plain in zip(saved(html, "shares-consensus")[1:], saved(page, "shares-consensus")[1:], strict=True):
        assert row[: len(plain)] == plain
        at = baseline.sel(layer=int(row[0]), site=AFTER[row[1]])
        wanted = [at.consensus_relative.item(), *at.consensus_relative_interval.values]
        assert [float(cell) for cell in row[len(plain) :]] == wanted
    for text in ("dash-dotted line", "κ′ of the untrained network"):
        assert text in figure_of(html, "shares-consensus")
        assert text not in figure_of(page, "shares-consensus")


def test_several_networks_fit_on_one_axis() -> None:
    curves = [
        Curve(f"κ′ of {name}", [0, 1, 2], [0.1, None, value], colour, low=[0.0] * 3, high=[1.0] * 3, band=band)
        for name, value, colour, band in (("one", 0.2, "#1f5a99", "its interval"), ("other", 0.9, "#b8520a", ""))
    ]
    drawn = Curves(curves, last=2, title="κ′", rules=[Rule(0.5, "half")]).chart()
    marks = [layer["mark"]["type"] for layer in drawn["layer"]]
    assert (marks.count("area"), marks.count("line"), marks.count("rule")) == (2, 2, 1)
    assert [key.label for key in curve_keys(curves)] == ["κ′ of one", "its interval", "κ′ of other"]
    assert curve_keys([replace(curves[0], values=[None] * 3)]) == []


def test_the_component_bars_add_up_to_their_totals(page: str, diagnosis: Diagnosis) -> None:
    rows, trace = table_of(page, "components-chart"), diagnosis.trace
    assert len(rows) == 30
    for layer, row in enumerate(rows, start=1):
        at = trace.kappa_change.sel(layer=layer)
        assert close([row[1], row[4]], at.sel(component=["attention", "feed_forward"]).values)
        assert close(row[2:4], trace.kappa_change_interval.sel(layer=layer, component="attention").values)
        assert (row[7] == "") == (layer < 30)
        assert close([row[10]], np.array([float(at.sum())]))
    caption = re.search(r"diamonds to ([+−][\d.]+)", page)
    assert caption is not None
    assert value_of(caption[1].lstrip("+")) == pytest.approx(float(trace.kappa_change_sum.sum()), abs=5e-3)


def test_the_parts_are_credited_by_the_mean_pair_cosine_on_request(page: str, diagnosis: Diagnosis) -> None:
    mean = diagnosis.trace["component_change"].mean("prompt")
    for layer, row in enumerate(table_of(page, "components-cosine"), start=1):
        assert close(row[1:3], mean.sel(layer=layer, component=["attention", "feed_forward"]).values)
        assert (row[3] == "") == (layer < 30)
        assert close([row[4]], np.array([float(mean.sel(layer=layer).sum())]))


def test_updates_are_medians_over_prompts(page: str, diagnosis: Diagnosis) -> None:
    ratio = diagnosis.trace.update_ratio.sel(layer=slice(1, None))
    rows = saved(page, "updates-chart")[1:]
    for column, part in ((1, "attention"), (4, "feed_forward")):
        assert [float(row[column]) for row in rows] == ratio.sel(component=part).median("prompt").values.tolist()
        assert [float(row[column + 1]) for row in rows] == ratio.sel(component=part).min("prompt").values.tolist()


def test_an_update_that_stands_out_is_marked(build: Callable[..., Diagnosis]) -> None:
    result = build(layers=6, prompts=3)
    name = "attention: unusually large"
    calm = str(updates_figure(result.trace).svg).replace("&#39;", "&#x27;").replace("'", "&#x27;")
    result.trace.update_ratio.loc[{"layer": 4, "component": "attention"}] = 9.0
    jump = str(updates_figure(result.trace).svg).replace("&#39;", "&#x27;").replace("'", "&#x27;")
    assert name not in calm
    assert name in jump


def test_the_attention_figure_names_who_is_attended_to(page: str) -> None:
    heads, *rows = saved(page, "attention-chart")
    assert heads[-3:] == ["Uniform", "With a sink", "Also massive"]
    assert {(row[1], row[2]) for row in rows[1:]} == {("0 ([CLS])", "0.6")}
    assert [row[-2:] for row in rows[:4]] == [["0", "0"], ["5", "0"], ["5", "5"], ["5", "5"]]


def test_every_figure_with_numbers_can_be_saved(page: str) -> None:
    for ident, content in re.findall(r'<figure id="([^"]+)">(.*?)</figure>', page, re.DOTALL):
        assert f'data-figure="{ident}"' in content
        assert len(saved(page, ident)) > 1


def test_what_has_nothing_to_show_says_so_in_words(alone: Diagnosis) -> None:
    page = page_of(alone)
    for ident, why in (
        ("shares-chart", "one text cannot show which similarity is its own"),
        ("shares-consensus", "one text cannot show which similarity is its own"),
        ("components-chart", "one text cannot show which similarity is its own"),
        ("attention-chart", "the attention weights between the tokens are not accessible"),
    ):
        part = figure_of(page, ident)
        assert why in part
        assert "<svg" not in part
        assert "download" not in part
    assert "<svg" in figure_of(page, "components-cosine")


@pytest.mark.usefixtures("undrawn")
def test_two_prompts_have_shares_and_no_intervals(build: Callable[..., Diagnosis]) -> None:
    page = page_of(build(layers=4, prompts=2))
    assert "Over 2 texts, without intervals because 2 texts are too few for a confidence interval." in page
    assert {row[3] for row in saved(page, "shares-chart")[1:]} == {""}
    assert "90 % CI of" not in page


def test_layers_that_say_the_same_are_one_line_and_the_file_has_each(page: str, diagnosis: Diagnosis) -> None:
    part = page[page.index('<section id="weights"') :]
    body = part[part.index("<tbody>") : part.index("</tbody>")]
    assert body.count("<tr>") == 1
    assert ">1–30</th>" in body
    heads, *rows = saved(page, "weights-table-1")
    assert [row[0] for row in rows] == [str(layer) for layer in range(1, 31)]
    assert isinstance(diagnosis.audit, xr.Dataset)
    largest = [float(row[heads.index("max Re λ")]) for row in rows]
    assert largest == diagnosis.audit.V_max_real.values.tolist()
    assert {row[1] for row in rows} == {"300/276/0"}


def test_folding_keeps_rows_that_differ_and_ranges_of_numbers() -> None:
    given = [(1, 0.5, "a"), (2, -3.0, "a"), (3, 1.0, "b"), (4, 2.0, "a"), (5, float("nan"), "a")]
    table = fold(Table("", ("Layer", "Number", "Word"), tuple(cells(row) for row in given)), [2])
    shown = [[cell.text for cell in row] for row in table.shown]
    assert shown == [["1–2", "−3.0 to 0.5", "a"], ["3", "1.0", "b"], ["4–5", "2.0, in part undefined", "a"]]
    assert len(table.rows) == 5
    assert table.shown[0][1].sort == "-3"


def test_a_notebook_shows_the_verdict_and_the_shares(diagnosis: Diagnosis, hostile: str) -> None:
    shown = diagnosis._repr_html_()
    assert shown == notebook_html(diagnosis)
    assert len(shown) < 40_000
    for finding in diagnosis.verdict.sentences:
        assert finding.text[:22] in shown
    assert shown.count("<svg ") == 1
    assert hostile not in shown
    assert "<script" not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown


def test_two_notebook_pictures_share_no_name(diagnosis: Diagnosis, build: Callable[..., Diagnosis]) -> None:
    names = [set(re.findall(r' id="([^"]+)"', entry._repr_html_())) for entry in (diagnosis, build(layers=3))]
    assert names[0]
    assert not names[0] & names[1]


def test_a_notebook_says_in_words_what_one_prompt_cannot_tell(alone: Diagnosis) -> None:
    shown = alone._repr_html_()
    assert "one text cannot show which similarity is its own" in shown
    assert "<svg" not in shown
    words = alone.plot().to_dict()["mark"]["text"]
    assert "one text cannot show" in " ".join(words)


def test_the_plot_is_a_chart_of_the_shares(diagnosis: Diagnosis) -> None:
    chart = diagnosis.plot()
    assert isinstance(chart, alt.LayerChart)
    rows = chart.to_dict()["layer"][0]["data"]["values"]
    last = [row for row in rows if row["x"] == 30]
    wanted = diagnosis.trace.shares.sel(layer=30, site="feed_forward").values
    assert [row["y2"] - row["y"] for row in last] == pytest.approx(wanted.tolist())


def test_symbols_have_no_capitals(page: str) -> None:
    """Κ is another letter than κ, and looks like a K."""
    assert "<th>κ′</th>" in page.replace(' scope="col"', "")
    assert not re.search(r"Κ|\bQk\b|\bOv\b", page)
