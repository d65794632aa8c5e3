"""The page of a comparison: findings, states, curves, first difference, weights, texts, versions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import altair as alt
import numpy as np
import xarray as xr

from tokendynamics.diagnosis import Comparison
from tokendynamics.diagnosis.comparing.words import part_named
from tokendynamics.diagnosis.network import PART_NAMES
from tokendynamics.figures.figure import Figure, Section, Table, cells, nothing
from tokendynamics.figures.lines import Curve, curve_keys, curves_chart, drawable, ticks
from tokendynamics.figures.palette import BLUE, GREEN, INK, MUTED, NEGATIVE, ORANGE
from tokendynamics.figures.svg import WIDE, draw_for_screens
from tokendynamics.report._page import render
from tokendynamics.report._registry import page_of
from tokendynamics.words import duration, moment, number, written

HEIGHT = 240

LOOKS: tuple[tuple[str, tuple[float, ...]], ...] = (
    (BLUE, ()), (ORANGE, (5, 3)), (GREEN, (2, 2)), (NEGATIVE, (7, 3, 2, 3)), (INK, (1.5, 3)), (MUTED, (9, 4)),
)  # fmt: skip
"""Colour and dash of each model in turn."""


@dataclass(frozen=True)
class ModelCurve:
    """Values of one model over depth.

    Attributes:
        name: The model.
        x: Positions on the axis.
        places: Names of these positions.
        values: NaN where undefined.
        low: Lower end of the interval; None for no band.
        high: Upper end.
    """

    name: str
    x: Sequence[float]
    places: Sequence[str]
    values: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def curves_figure(
    ident: str,
    question: str,
    axis: str,
    caption: str,
    curves: Sequence[ModelCurve],
    depth: str,
    *,
    logarithmic: bool = False,
    without_first: bool = False,
) -> Figure:
    """Return one figure of several curves.

    Args:
        ident: For links.
        question: The question that it answers.
        axis: Title of the vertical axis.
        caption: The convention in words.
        curves: One for each model.
        depth: Title of the horizontal axis.
        logarithmic: Whether the vertical axis is logarithmic; values that are not above zero are not drawn.
        without_first: Whether the curves are those of all models but the first, so that each keeps its look.
    """
    looks = [LOOKS[(place + without_first) % len(LOOKS)] for place in range(len(curves))]
    drawn = [_as_drawn(curve, *look) for curve, look in zip(curves, looks, strict=True)]
    if not any(drawable(value) and (not logarithmic or (value or 0) > 0) for each in drawn for value in each.values):
        why = "above zero" if logarithmic else "defined"
        text = f"Not plotted because no value is {why}. {caption}"
        return replace(nothing(ident, question, text), table=_table(axis, curves))
    return Figure(
        ident=ident,
        question=question,
        svg=draw_for_screens(
            lambda width: curves_chart(
                drawn, x=_depth_axis(curves, depth, width), title=axis, width=width, height=HEIGHT, log=logarithmic
            ),
            ident=ident,
            title=question,
            description=f"{axis}. {_described(curves)} The table below holds every value.",
            keys=curve_keys(drawn),
        ),
        caption=caption,
        table=_table(axis, curves),
    )


def _as_drawn(curve: ModelCurve, colour: str, dash: tuple[float, ...]) -> Curve:
    values, low, high = (None if each is None else each.tolist() for each in (curve.values, curve.low, curve.high))
    return Curve(curve.name, curve.x, values or [], colour, low=low, high=high, dash=dash, mark="disc")


def _depth_axis(curves: Sequence[ModelCurve], title: str, width: float) -> alt.X:
    """Layers are whole numbers; depths between 0 and 1 are those of networks that are not equally deep."""
    places = [x for curve in curves for x in curve.x]
    most = 15 if width >= WIDE else 8
    if all(float(x).is_integer() for x in places) and max(places, default=0) > 1:
        labelled = [tick for tick in ticks(int(max(places)), most) if tick >= min(places)]
        return alt.X("x:Q", axis=alt.Axis(title=title, values=labelled, format="d"))
    return alt.X("x:Q", axis=alt.Axis(title=title, tickCount=most // 2))


def _described(curves: Sequence[ModelCurve]) -> str:
    parts = []
    for curve in curves:
        known = [float(each) for each in curve.values if math.isfinite(each)]
        parts.append(
            f"{curve.name}: {number(known[0])} at first, {number(known[-1])} at the end."
            if known
            else f"{curve.name}: undefined."
        )
    return " ".join(parts)


def _table(axis: str, curves: Sequence[ModelCurve]) -> Table:
    places = list(dict.fromkeys(place for curve in curves for place in curve.places))
    columns = ["Place"]
    for curve in curves:
        columns += [curve.name] + ([f"{curve.name}, low", f"{curve.name}, high"] if curve.low is not None else [])
    rows = []
    for place in places:
        row: list[float | str | None] = [place]
        for curve in curves:
            at = list(curve.places).index(place) if place in curve.places else None
            columns_of = [curve.values] + ([curve.low, curve.high] if curve.low is not None else [])
            row += [None if at is None or each is None else float(each[at]) for each in columns_of]
        rows.append(cells(row))
    return Table(axis, tuple(columns), tuple(rows))


def halved_section(comparison: Comparison) -> Section | None:
    """Return the section; None where parts were not halved.

    Args:
        comparison: From `tokendynamics.compare`.
    """
    table = comparison.halved
    if table is None:
        return None
    sentences = tuple(each.text for each in comparison.sentences if each.figure == "halved")
    figures = [_changes(comparison, table, part) for part in PART_NAMES]
    figures += [_differences(comparison, table, part) for part in PART_NAMES]
    return Section("halved", "How important is each part?", sentences, figures=tuple(each for each in figures if each))


def _changes(comparison: Comparison, table: xr.Dataset, part: str) -> Figure | None:
    """Return a curve for each model that has a loss."""
    curves = []
    depths = [int(facts["layers"]) for facts in comparison.descriptions]
    alike = len(set(depths)) == 1
    for name, depth in zip(comparison.models, depths, strict=True):
        layers = np.arange(1, depth + 1)
        values = table.loss_change.sel(model=name, part=part, layer=layers).mean("prompt").values
        if not np.isnan(values).all():
            curves.append(ModelCurve(name, (layers / (1 if alike else depth)).tolist(), _places(layers), values))
    if not curves:
        return None
    return curves_figure(
        f"halved-{part.replace('_', '-')}",
        f"What is the cost of halving the {PART_NAMES[part]}?",
        "Change of the loss, nats",
        f"Loss with the update of the {PART_NAMES[part]} of this layer times 0.5, less the loss of the unchanged "
        "network; mean over texts of the mean over tokens.",
        curves,
        "Layer" if alike else "Relative depth (1: last layer)",
    )


def _differences(comparison: Comparison, table: xr.Dataset, part: str) -> Figure | None:
    """Return a curve for each model that has differences from the first, over the first's layers."""
    layers = np.arange(1, int(comparison.descriptions[0]["layers"]) + 1)
    own = table.sel(part=part, layer=layers)
    curves = [
        ModelCurve(
            name, layers.tolist(), _places(layers), own.difference.sel(other=name).values,
            *(own.difference_interval.sel(other=name, bound=bound).values for bound in ("low", "high")),
        )
        for name in comparison.models[1:]
    ]  # fmt: skip
    if all(np.isnan(curve.values).all() for curve in curves):
        return None
    return curves_figure(
        f"halved-difference-{part.replace('_', '-')}",
        f"In which layers does the cost of halving the {PART_NAMES[part]} differ?",
        "Difference of the changes, nats",
        f"Change of the loss of each model less that of {comparison.models[0]}, paired over texts, by the layers of "
        f"{comparison.models[0]}. Band: 90 % confidence interval of each separately, over at least three texts.",
        curves,
        "Layer",
        without_first=True,
    )


def _places(layers: np.ndarray) -> list[str]:
    return [f"layer {layer}" for layer in layers]


_LAYER, _DEPTH = "Layer (0 = embedding)", "Relative depth (0: embedding, 1: last layer)"


@page_of.register(Comparison)
def comparison_page(comparison: Comparison) -> str:
    """Return the page as self-contained HTML.

    Args:
        comparison: From `tokendynamics.compare`.

    Returns:
        HTML, to be stored as UTF-8; all text from a user or a checkpoint is escaped.
    """
    names = ", ".join(comparison.models)
    sections = (
        _states(comparison), _shares(comparison), _parting(comparison), halved_section(comparison),
        _weights(comparison), _texts(comparison),
    )  # fmt: skip
    return render(
        "comparison.html.jinja",
        title=f"Comparison of {names}",
        verdict_title="Differences",
        sections=tuple(each for each in sections if each is not None),
        conventions=comparison.conventions,
        manifest=comparison.manifest,
        files=comparison.files,
        scripts=("shared.js",),
        sheets=("page.css",),
        models=names,
        facts=_facts(comparison),
        findings=[finding.text for finding in comparison.sentences],
    )


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    record = comparison.manifest
    return [
        ("Reference", comparison.models[0]),
        ("Measured", f"{moment(record.get('started'))}, in {duration(record.get('duration_seconds'))}"),
        ("With", written(record.get("versions"))),
    ]


def _states(comparison: Comparison) -> Section:
    columns = ("Model", "Parameters", "Layers", "Dim", "κ′ at the end", "End state", "Worst state", "First difference")
    partings = (None, *comparison.partings)
    rows = []
    for place, (name, facts) in enumerate(zip(comparison.models, comparison.descriptions, strict=True)):
        trace, verdict, parting = comparison.traces[place], comparison.verdicts[place], partings[place]
        first = "—" if place == 0 else "not located" if parting is None else part_named(parting.first)
        end = float(trace.consensus_relative.sel(site="feed_forward")[-1])
        sizes = (int(facts["parameters"]), int(facts["layers"]), int(facts["dim"]))
        rows.append(cells([name, *sizes, end, verdict.state, str(verdict.worst), first]))
    table = Table("State of the tokens in each model", columns, tuple(rows))
    return Section("states", "In which states do the tokens end?", tables=(table,))


def _axis(comparison: Comparison) -> tuple[str, list[np.ndarray]]:
    depths = [trace.sizes["layer"] for trace in comparison.traces]
    if len(set(depths)) == 1:
        return _LAYER, [np.arange(depth, dtype=float) for depth in depths]
    return _DEPTH, [np.linspace(0.0, 1.0, depth) for depth in depths]


_CURVES = (
    ("consensus_relative", None, "Within-text similarity κ′ (0: embedding)", "Do the tokens of a text draw together?"),
    ("shares", "common", "Share common to all texts", "What do all texts share?"),
    ("shares", "prompt", "Share within the text", "What do the tokens of one text share?"),
    ("shares", "own", "Share of the token alone", "What is left to a single token?"),
    ("line_excess", None, "Line excess", "Do the tokens end on a line or in few directions?"),
)


def _shares(comparison: Comparison) -> Section:
    depth, where = _axis(comparison)
    figures = []
    for variable, share, axis, question in _CURVES:
        curves = [
            _model_curve(name, x, trace, variable, share)
            for name, x, trace in zip(comparison.models, where, comparison.traces, strict=True)
        ]
        caption = "After the feed-forward part of each layer. Band: 90 % confidence interval over at least three texts."
        ident = f"curve-{variable}-{share or 'all'}".replace("_", "-")
        figures.append(curves_figure(ident, question, axis, caption, curves, depth))
    return Section("shares", "What do their tokens share?", figures=tuple(figures))


def _model_curve(name: str, x: np.ndarray, trace: xr.Dataset, variable: str, share: str | None) -> ModelCurve:
    chosen = {"site": "feed_forward"} | ({} if share is None else {"share": share})
    values, interval = trace[variable].sel(chosen), trace[f"{variable}_interval"].sel(chosen)
    low, high = (interval.sel(bound=bound).values for bound in ("low", "high"))
    return ModelCurve(name, x.tolist(), [f"layer {layer}" for layer in range(len(x))], values.values, low, high)


def _parting(comparison: Comparison) -> Section:
    depth, where = _axis(comparison)
    figures: list[Figure] = []
    for component, noun in PART_NAMES.items():
        curves = [
            ModelCurve(
                name, x[1:].tolist(), [f"layer {layer}" for layer in range(1, len(x))],
                trace.update_ratio.sel(component=component).median("prompt").values[1:],
            )
            for name, x, trace in zip(comparison.models, where, comparison.traces, strict=True)
        ]  # fmt: skip
        caption = "Median over tokens and texts of |update| / |state before it|."
        ident, question = f"updates-{component.replace('_', '-')}", f"How large are the updates of the {noun}?"
        figures.append(curves_figure(ident, question, "Update ratio", caption, curves, depth, logarithmic=True))
    gaps = comparison.gaps
    if gaps is not None:
        for component, noun in PART_NAMES.items():
            table = np.sqrt((gaps.update_difference.sel(component=component) ** 2).mean("prompt"))
            layers = gaps.layer.values[1:]
            curves = [
                ModelCurve(
                    str(name), layers.tolist(), [f"layer {layer}" for layer in layers], table.sel(other=name).values[1:]
                )
                for name in gaps.other.values
            ]
            caption = (
                f"‖Δ_b − Δ_a‖ / ‖Δ_a‖ of the updates Δ by the {noun} of each layer on the same tokens, relative to "
                f"{comparison.models[0]}; root mean square over texts. Layers that agree to the last bit are not drawn."
            )
            ident = f"gaps-{component.replace('_', '-')}"
            question = f"How much do the updates of the {noun} differ?"
            figures.append(
                curves_figure(
                    ident,
                    question,
                    "Relative difference",
                    caption,
                    curves,
                    "Layer",
                    logarithmic=True,
                    without_first=True,
                )
            )
    sentences = tuple(each.text for each in comparison.sentences if each.figure == "updates")
    return Section("parting", "Where do they first differ?", sentences, figures=tuple(figures))


_PRODUCTS = ("ov_difference", "ov_angle", "qk_difference", "qk_angle", "ff_difference", "ff_angle")
_HEADINGS = ("OV", "OV angle", "QK", "QK angle", "feed-forward", "feed-forward angle")


def _weights(comparison: Comparison) -> Section:
    sentences = tuple(each.text for each in comparison.sentences if each.figure == "weights")
    weights = comparison.weights
    if weights is None:
        return Section("weights", "How do their weights differ?", sentences)
    layers = weights.layer.values
    places = [f"layer {layer}" for layer in layers]
    figures = []
    for name, circuit in (("ov", "OV"), ("qk", "QK"), ("ff", "feed-forward part")):
        norms = [
            ModelCurve(str(model), layers.tolist(), places, weights[f"{name}_norm"].sel(model=model).values)
            for model in weights.model.values
        ]
        what = "matrices of the feed-forward part" if name == "ff" else "heads"
        caption = f"√Σ ‖·‖² over the {what} of each layer, with the gain of the preceding norm folded in."
        question = f"How large is {'the ' * (name == 'ff')}{circuit}?"
        figures.append(
            curves_figure(f"{name}-norm", question, f"‖{circuit}‖", caption, norms, "Layer", logarithmic=True)
        )
    columns = ["Layer"]
    columns += [f"{other}: {what}" for other in weights.other.values for what in _HEADINGS]
    rows = []
    for place, layer in enumerate(layers):
        row: list[float | int | str | None] = [int(layer)]
        for other in range(weights.sizes["other"]):
            row += [float(weights[variable][other, place]) for variable in _PRODUCTS]
        rows.append(cells(row))
    if all(bool(weights[name].isnull().all()) for name in _PRODUCTS):  # the sentence gives the reason
        return Section("weights", "How do their weights differ?", sentences, figures=tuple(figures))
    caption = "Differences of products and matrices, relative to their norm, and angles of leading subspaces in degrees"
    table = Table(caption, tuple(columns), tuple(rows))
    return Section("weights", "How do their weights differ?", sentences, tables=(table,), figures=tuple(figures))


def _texts(comparison: Comparison) -> Section:
    trace = comparison.traces[0]
    counts = [each.token_count.sel(sinks="kept")[:, 0].values for each in comparison.traces]
    rows = []
    for place, (name, text) in enumerate(zip(trace.prompt.values, trace.text.values, strict=True)):
        tokens = list(dict.fromkeys(number(float(each[place])) for each in counts))
        rows.append(cells([str(name), ", ".join(tokens), str(text)]))
    return Section("texts", "Which texts were used?", tables=(Table("Texts", ("Name", "Tokens", "Text"), tuple(rows)),))
