"""The page of a comparison: findings, states, curves, first difference, weights, texts, versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from tokendynamics.diagnosis import Comparison
from tokendynamics.diagnosis.comparing.words import part_named
from tokendynamics.diagnosis.network import PART_NAMES
from tokendynamics.diagnosis.tracing.prompts import noun_in
from tokendynamics.figures.axes import Axis
from tokendynamics.figures.curves import Curve, Curves, described, styled, table
from tokendynamics.figures.figure import Figure, Section, Table, cells
from tokendynamics.figures.maps import SignedMap, Tile
from tokendynamics.report._page import page_of, render
from tokendynamics.words import duration, moment, number, written

HEIGHT = 240


def curves_figure(
    ident: str,
    question: str,
    axis: str,
    caption: str,
    lines: Sequence[Curve],
    depth: str,
    *,
    deepest: Sequence[int] = (),
    log: bool = False,
) -> Figure:
    """Return one figure of several curves over layers.

    Args:
        ident: For links.
        question: The question that it answers.
        axis: Title of the vertical axis.
        caption: The convention in words.
        lines: One for each model, over layers.
        depth: Title of the horizontal axis.
        deepest: The last layer of each model if depth relative to it is drawn; empty for layers.
        log: Whether the vertical axis is logarithmic; values that are not above zero are not drawn.
    """
    numbers = table(axis, "Place", lines, named=lambda place: f"layer {place:.0f}")
    if not any(line.shown(log) for line in lines):
        text = f"Not plotted because no value is {'above zero' if log else 'defined'}. {caption}"
        return Figure(ident, question, text, table=numbers)
    scaled = zip(lines, deepest or [1] * len(lines), strict=True)
    drawn = [replace(line, x=np.asarray(line.x) / last, mark="disc") for line, last in scaled]
    # Layers are whole numbers; depths between 0 and 1 are those of networks that are not equally deep.
    places = [x for curve in drawn for x in curve.x]
    if all(float(x).is_integer() for x in places) and max(places, default=0) > 1:
        depth_axis = Axis(depth, layers=(int(min(places)), int(max(places))), most=(15, 8), form="d")
    else:
        depth_axis = Axis(depth, most=(7, 4))
    return Figure(
        ident,
        question,
        caption,
        Curves(drawn, axis, axis=depth_axis, height=HEIGHT, log=log),
        numbers,
        description=f"{axis}. {described(lines)} The table below holds every value.",
    )


def halved_section(comparison: Comparison) -> Section | None:
    """Return the section; None where parts were not halved.

    Args:
        comparison: From `tokendynamics.compare`.
    """
    halved = comparison.halved
    if halved is None:
        return None
    sentences = tuple(finding.text for finding in comparison.sentences if finding.figure == "halved")
    figures = [_changes(comparison, halved, part) for part in PART_NAMES]
    figures += [_differences(comparison, halved, part) for part in PART_NAMES]
    return Section(
        "halved", "How important is each part?", sentences, figures=tuple(figure for figure in figures if figure)
    )


def _changes(comparison: Comparison, halved: xr.Dataset, part: str) -> Figure | None:
    """Return a curve for each model that has a loss."""
    lines, deepest = [], []
    depths = [int(facts["layers"]) for facts in comparison.descriptions]
    for name, depth in zip(comparison.models, depths, strict=True):
        layers = np.arange(1, depth + 1)
        values = halved.loss_change.sel(model=name, part=part, layer=layers).mean("prompt").values
        if not np.isnan(values).all():
            lines.append(styled(name, len(lines), layers, values))
            deepest.append(depth)
    if not lines:
        return None
    alike = len(set(depths)) == 1
    return curves_figure(
        f"halved-{part.replace('_', '-')}",
        f"What is the cost of halving the {PART_NAMES[part]}?",
        "Change of the loss, nats",
        f"Loss with the update of the {PART_NAMES[part]} of this layer times 0.5, less the loss of the unchanged "
        f"network; mean over {_noun(comparison)}s of the mean over tokens.",
        lines,
        "Layer" if alike else "Relative depth (1: last layer)",
        deepest=() if alike else deepest,
    )


def _differences(comparison: Comparison, halved: xr.Dataset, part: str) -> Figure | None:
    """Return a curve for each model that has differences from the first, over the first's layers."""
    layers, noun = np.arange(1, int(comparison.descriptions[0]["layers"]) + 1), _noun(comparison)
    changes = halved.sel(part=part, layer=layers)
    lines = [
        styled(
            name, place, layers, changes.difference.sel(other=name).values,
            *(changes.difference_interval.sel(other=name, bound=bound).values for bound in ("low", "high")),
        )
        for place, name in enumerate(comparison.models[1:], start=1)
    ]  # fmt: skip
    if not any(line.shown() for line in lines):
        return None
    return curves_figure(
        f"halved-difference-{part.replace('_', '-')}",
        f"In which layers does the cost of halving the {PART_NAMES[part]} differ?",
        "Difference of the changes, nats",
        f"Change of the loss of each model less that of {comparison.models[0]}, paired over {noun}s, by the layers of "
        f"{comparison.models[0]}. Band: 90 % confidence interval of each separately, over at least three {noun}s.",
        lines,
        "Layer",
    )


def heads_section(comparison: Comparison) -> Section | None:
    """Return the section; None where κ′ differs significantly in no model, or heads were left out.

    Args:
        comparison: From `tokendynamics.compare`.
    """
    sentences = tuple(finding.text for finding in comparison.sentences if finding.figure == "heads")
    if not sentences:
        return None
    figures = []
    for place, name in enumerate(comparison.models[1:]):
        if comparison.heads is None or bool(comparison.heads.sel(model=name).consensus_sensitivity.isnull().all()):
            continue
        effects = comparison.heads.consensus_sensitivity
        change = effects.sel(model=name) - effects.sel(model=comparison.models[0])
        figures.append(
            _head_map(
                f"heads-effect-{place}",
                f"Which heads of {name} raise similarity more?",
                "Change of the effect",
                f"∂κ/∂a after the last layer by a gate a = 1 on the output of a head, {name} less "
                f"{comparison.models[0]}.",
                change.values,
            )
        )
    return Section("heads", "Which heads make tokens more alike?", sentences, figures=tuple(figures))


def _head_map(
    ident: str, question: str, name: str, caption: str, values: np.ndarray, signs: np.ndarray | None = None
) -> Figure:
    """Return a map layers × heads; `signs` colour values that have none."""
    largest = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    coloured = values if signs is None else np.where(signs < 0, -values, values)
    rows = [(layer + 1, head, float(values[layer, head])) for layer, head in np.ndindex(values.shape)]
    tiles = [
        Tile(layer, head, float(coloured[layer - 1, head]), f"Layer {layer}, head {head}: {number(value)}")
        for layer, head, value in rows
    ]
    return Figure(
        ident,
        question,
        caption,
        SignedMap(tiles, "Head", list(range(values.shape[1])), largest),
        Table(name, ("Layer", "Head", name), tuple(cells(row) for row in rows)),
        title=f"{question} {name}, layers × heads",
        description=f"{name}: largest {number(largest)}. The table below holds every value.",
    )


def _noun(comparison: Comparison) -> str:
    return noun_in(comparison.traces[0])


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
        _states(comparison), _shares(comparison), heads_section(comparison), _parting(comparison),
        halved_section(comparison), _weights(comparison), _texts(comparison),
    )  # fmt: skip
    record = comparison.manifest
    return render(
        "comparison.html.jinja",
        title=f"Comparison of {names}",
        verdict_title="Differences",
        sections=tuple(section for section in sections if section is not None),
        conventions=comparison.conventions,
        manifest=comparison.manifest,
        files=comparison.files,
        models=names,
        facts=[
            ("Reference", comparison.models[0]),
            ("Measured", f"{moment(record.get('started'))}, in {duration(record.get('duration_seconds'))}"),
            ("With", written(record.get("versions"))),
        ],
        findings=[finding.text for finding in comparison.sentences],
    )


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
    states = Table("State of the tokens in each model", columns, tuple(rows))
    return Section("states", "In which states do the tokens end?", tables=(states,))


def _axis(comparison: Comparison) -> tuple[str, tuple[int, ...]]:
    """Return the title of the axis of depth, and the last layer of each model where these differ."""
    deepest = tuple(trace.sizes["layer"] - 1 for trace in comparison.traces)
    return (_LAYER, ()) if len(set(deepest)) == 1 else (_DEPTH, deepest)


_CURVES = (
    (
        "consensus_relative",
        None,
        "Within-{noun} similarity κ′ (0: embedding)",
        "Do the tokens of one {noun} draw together?",
    ),
    ("shares", "common", "Share common to all {noun}s", "What do all {noun}s share?"),
    ("shares", "prompt", "Share within the {noun}", "What do the tokens of one {noun} share?"),
    ("shares", "own", "Share of the token alone", "What is left to a single token?"),
    ("line_excess", None, "Line excess", "Do the tokens end on a line or in few directions?"),
)


def _shares(comparison: Comparison) -> Section:
    (depth, deepest), noun = _axis(comparison), _noun(comparison)
    figures = []
    for variable, share, *words in _CURVES:
        axis, question = (text.format(noun=noun) for text in words)
        lines = [
            _of_trace(place, name, trace, variable, share)
            for place, (name, trace) in enumerate(zip(comparison.models, comparison.traces, strict=True))
        ]
        caption = (
            f"After the feed-forward part of each layer. Band: 90 % confidence interval over at least three {noun}s."
        )
        ident = f"curve-{variable}-{share or 'all'}".replace("_", "-")
        figures.append(curves_figure(ident, question, axis, caption, lines, depth, deepest=deepest))
    return Section("shares", "What do their tokens share?", figures=tuple(figures))


def _of_trace(place: int, name: str, trace: xr.Dataset, variable: str, share: str | None) -> Curve:
    chosen = {"site": "feed_forward"} | ({} if share is None else {"share": share})
    values, interval = trace[variable].sel(chosen), trace[f"{variable}_interval"].sel(chosen)
    return styled(
        name, place, np.arange(len(values)), values.values, *(interval.sel(bound=end).values for end in ("low", "high"))
    )


def _parting(comparison: Comparison) -> Section:
    depth, deepest = _axis(comparison)
    figures: list[Figure] = []
    for component, noun in PART_NAMES.items():
        lines = [
            styled(
                name, place, np.arange(1, trace.sizes["layer"]),
                trace.update_ratio.sel(component=component).median("prompt").values[1:],
            )
            for place, (name, trace) in enumerate(zip(comparison.models, comparison.traces, strict=True))
        ]  # fmt: skip
        caption = f"Median over tokens and {_noun(comparison)}s of |update| / |state before it|."
        ident, question = f"updates-{component.replace('_', '-')}", f"How large are the updates of the {noun}?"
        figures.append(curves_figure(ident, question, "Update ratio", caption, lines, depth, deepest=deepest, log=True))
    if comparison.gaps is not None:
        figures += [_gap(comparison, comparison.gaps, component, noun) for component, noun in PART_NAMES.items()]
    sentences = tuple(finding.text for finding in comparison.sentences if finding.figure == "updates")
    return Section("parting", "Where do they first differ?", sentences, figures=tuple(figures))


def _gap(comparison: Comparison, gaps: xr.Dataset, component: str, noun: str) -> Figure:
    """Draw how much the updates of one part differ from those of the first model."""
    size = np.sqrt((gaps.update_difference.sel(component=component) ** 2).mean("prompt"))
    lines = [
        styled(str(name), place, gaps.layer.values[1:], size.sel(other=name).values[1:])
        for place, name in enumerate(gaps.other.values, start=1)
    ]
    caption = (
        f"‖Δ_b − Δ_a‖ / ‖Δ_a‖ of the updates Δ by the {noun} of each layer on the same tokens, relative to "
        f"{comparison.models[0]}; root mean square over {_noun(comparison)}s. Layers that agree to the last bit are "
        "not drawn."
    )
    ident, question = f"gaps-{component.replace('_', '-')}", f"How much do the updates of the {noun} differ?"
    return curves_figure(ident, question, "Relative difference", caption, lines, "Layer", log=True)


_PRODUCTS = ("ov_difference", "ov_angle", "qk_difference", "qk_angle", "ff_difference", "ff_angle")
_HEADINGS = ("OV", "OV angle", "QK", "QK angle", "feed-forward", "feed-forward angle")


def _weights(comparison: Comparison) -> Section:
    sentences = tuple(finding.text for finding in comparison.sentences if finding.figure == "weights")
    weights = comparison.weights
    if weights is None:
        return Section("weights", "How do their weights differ?", sentences)
    layers = weights.layer.values
    figures = []
    for name, circuit in (("ov", "OV"), ("qk", "QK"), ("ff", "feed-forward part")):
        norms = [
            styled(str(model), place, layers, weights[f"{name}_norm"].sel(model=model).values)
            for place, model in enumerate(weights.model.values)
        ]
        what = "matrices of the feed-forward part" if name == "ff" else "heads"
        caption = f"√Σ ‖·‖² over the {what} of each layer, with the gain of the preceding norm folded in."
        question = f"How large is {'the ' * (name == 'ff')}{circuit}?"
        figures.append(curves_figure(f"{name}-norm", question, f"‖{circuit}‖", caption, norms, "Layer", log=True))
    figures += _head_differences(weights)
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
    differences = Table(caption, tuple(columns), tuple(rows))
    tables = (differences, *_tensors(comparison))
    return Section("weights", "How do their weights differ?", sentences, tables=tables, figures=tuple(figures))


def _head_differences(weights: xr.Dataset) -> list[Figure]:
    """Draw by how much the circuits of each head differ; nothing for results of versions without heads."""
    figures = []
    for place, other in enumerate(weights.other.values.tolist() if "head_ov_difference" in weights else ()):
        for circuit in ("ov", "qk"):
            values, scales = (weights[f"head_{circuit}_{kind}"][place].values for kind in ("difference", "scale"))
            if not np.nan_to_num(values).any():
                continue  # equal, or not compared: a sentence says which
            name = circuit.upper()
            figures.append(
                _head_map(
                    f"heads-{circuit}-{place}",
                    f"In which heads does {name} of {other} differ?",
                    f"Difference of {name}",
                    f"‖{name}_b − {name}_a‖ / ‖{name}_a‖ of matched heads, by those of the first model. A dash marks a "
                    "product that became smaller.",
                    values,
                    scales - 1,
                )
            )
    return figures


def _tensors(comparison: Comparison) -> tuple[Table, ...]:
    """Return for each stored tensor of a block by how much it differs, over layers."""
    tables: list[Table] = []
    if comparison.tensors is None:
        return ()
    for name in comparison.tensors.other.values.tolist():
        pair = comparison.tensors.sel(other=name)
        rows = []
        for tensor in pair.tensor.values.tolist():
            differences, scales = (pair[f"tensor_{kind}"].sel(tensor=tensor).values for kind in ("difference", "scale"))
            if not np.nan_to_num(differences).any():
                continue
            at = int(np.nanargmax(differences))
            median = float(np.nanmedian(differences))
            rows.append(cells([tensor, median, float(differences[at]), int(pair.layer[at]), float(scales[at])]))
        columns = ("Tensor", "Median over layers", "Largest", "In layer", "Scale there")
        caption = f"Stored tensors of {name} that differ: difference relative to their norm"
        tables += [Table(caption, columns, tuple(rows))] if rows else []
    return tuple(tables)


def _texts(comparison: Comparison) -> Section:
    trace = comparison.traces[0]
    counts = [measured.token_count.sel(sinks="kept")[:, 0].values for measured in comparison.traces]
    rows = []
    for place, (name, text) in enumerate(zip(trace.prompt.values, trace.text.values, strict=True)):
        tokens = list(dict.fromkeys(number(float(model_counts[place])) for model_counts in counts))
        rows.append(cells([str(name), ", ".join(tokens), str(text)]))
    noun = _noun(comparison)
    table = Table(f"{noun.capitalize()}s", ("Name", "Tokens", noun.capitalize()), tuple(rows))
    return Section("texts", f"Which {noun}s were used?", tables=(table,))
