"""Which parts cause it: the changes by attention, feed-forward part and final norm of each layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import altair as alt
import numpy as np
import xarray as xr

from tokendynamics.figures.figure import Figure, Given, Table, cells, nothing
from tokendynamics.figures.lines import depth_axis, hover
from tokendynamics.figures.palette import ATTENTION, AXIS, FEED_FORWARD, INK, NORM, PAPER
from tokendynamics.figures.svg import WIDE, Drawing, Key, draw_for_screens
from tokendynamics.report.diagnosis._depth import steps, undrawn
from tokendynamics.report.diagnosis._shares import unshared
from tokendynamics.words import UNDEFINED, number, plural, signed

QUESTION = "Which parts cause it?"
HEIGHT = 300
_PLUS = "datum.value === 0 ? '0' : format(datum.value, '+.2~f')"
_COLOURS = {"attention": ATTENTION, "feed_forward": FEED_FORWARD, "final_norm": NORM}
_NAMES = {"attention": "attention", "feed_forward": "feed-forward", "final_norm": "final norm"}
_BARS = {"attention": (-0.38, -0.02), "feed_forward": (0.02, 0.38), "final_norm": (0.46, 0.82)}
"""Horizontal extent of a part's bar relative to its layer, in the order in which the parts run."""


@dataclass(frozen=True)
class _Measure:
    """A measure whose changes are attributed to the parts."""

    ident: str
    label: str
    axis: str
    caption: str
    undefined: str


@dataclass(frozen=True)
class _Layer:
    layer: int
    parts: dict[str, float]
    ends: dict[str, tuple[float, float]]

    @property
    def total(self) -> float | None:
        return sum(self.parts.values()) if self.parts else None


def components_figures(trace: xr.Dataset) -> tuple[Figure, ...]:
    """Draw signed bars per layer, for κ and for the mean pair cosine; the bars of a layer add up to its total.

    Args:
        trace: From `tokendynamics.trace`.
    """
    several = "" if trace.sizes["prompt"] == 1 else f" Means over {trace.sizes['prompt']} prompts."
    kappa = _Measure(
        "components-chart",
        "Consensus κ",
        "Change in κ",
        f"Over {trace.sizes['prompt']} prompts, without massive tokens. Whiskers: 90 % confidence intervals over "
        "prompts, if there are at least three.",
        unshared(trace),
    )
    cosine = _Measure(
        "components-cosine",
        "Mean pair cosine",
        "Change in mean pair cosine",
        f"{several} Measured on the tokens that are massive in no layer, so that all layers compare the same tokens. A "
        "direction common to all prompts counts here but not in κ.".strip(),
        undrawn(trace),
    )
    return _figure(kappa, _of_kappa(trace)), _figure(cosine, _of_cosine(trace))


def _figure(measure: _Measure, layers: list[_Layer]) -> Figure:
    if all(layer.total is None for layer in layers):
        return nothing(measure.ident, QUESTION, measure.undefined, measure.label)
    return Figure(
        ident=measure.ident,
        question=QUESTION,
        svg=draw_for_screens(
            lambda width: _chart(measure, layers, width),
            ident=measure.ident,
            title=f"{QUESTION} {measure.axis} per layer, split by part",
            description=_description(layers),
            keys=_keys(layers),
        ),
        caption=_caption(measure, layers),
        table=_table(measure, layers),
        label=measure.label,
    )


def _of_kappa(trace: xr.Dataset) -> list[_Layer]:
    change = trace.kappa_change.transpose("layer", "component")
    bounds = trace.kappa_change_interval.transpose("layer", "component", "bound").sel(bound=["low", "high"])

    def at(layer: int, part: int) -> tuple[float, tuple[float, float]]:
        low, high = bounds.values[layer, part]
        return float(change.values[layer, part]), (float(low), float(high))

    return _layers(trace, [str(name) for name in change.component.values], at)


def _of_cosine(trace: xr.Dataset) -> list[_Layer]:
    """Return means over prompts: unlike medians, the means of the parts add up to the mean of the total."""
    change = trace.component_change.transpose("layer", "component", "prompt")

    def at(layer: int, part: int) -> tuple[float, tuple[float, float]]:
        defined = change.values[layer, part][np.isfinite(change.values[layer, part])]
        return (float(defined.mean()) if defined.size else np.nan), (np.nan, np.nan)

    return _layers(trace, [str(name) for name in change.component.values], at)


def _layers(
    trace: xr.Dataset, names: list[str], at: Callable[[int, int], tuple[float, tuple[float, float]]]
) -> list[_Layer]:
    measured = {(step.layer, step.part) for step in steps(trace)}
    found = []
    for place, layer in enumerate(trace.layer.values):
        if int(layer) == 0:
            continue
        here = {name: at(place, names.index(name)) for name in _COLOURS if (int(layer), name) in measured}
        known = {name: each for name, each in here.items() if np.isfinite(each[0])}
        ends = {name: interval for name, (_, interval) in known.items() if np.isfinite(interval).all()}
        found.append(_Layer(int(layer), {name: value for name, (value, _) in known.items()}, ends))
    return found


def _chart(measure: _Measure, layers: list[_Layer], width: float = WIDE) -> Drawing:
    last = max(layer.layer for layer in layers)
    y = alt.Y("y:Q", axis=alt.Axis(title=measure.axis, labelExpr=_PLUS, tickCount=7))
    x = depth_axis(last, width)
    bars, ends = _bars(layers)
    drawn = [
        alt.Chart(alt.Data(values=[bar for bar in bars if bar["part"] == component]))
        .mark_rect(fill=colour, stroke=INK, strokeWidth=0.5)
        .encode(x=x, x2="x2:Q", y=y, y2="y2:Q")
        for component, colour in _COLOURS.items()
    ]
    whiskers = alt.Chart(alt.Data(values=ends)).mark_rule(color=INK, strokeWidth=1.2).encode(x=x, y=y, y2="y2:Q")
    zero = alt.Chart(alt.Data(values=[{"y": 0}])).mark_rule(color=AXIS).encode(y=y)
    totals = [{"x": layer.layer, "y": layer.total} for layer in layers if layer.total is not None]
    size = 60 if width / (last + 1.6) > 14 else 22
    total = (
        alt.Chart(alt.Data(values=totals))
        .mark_point(shape="diamond", fill=INK, stroke=PAPER, strokeWidth=1, size=size, opacity=1)
        .encode(x=x, y=y)
    )
    columns = [(layer.layer - 0.5, layer.layer + 0.5, _sentence(layer)) for layer in layers]
    shown = [*drawn, zero, *([whiskers] if ends else []), total, hover(columns, last, HEIGHT, width)]
    return alt.layer(*shown, width=width, height=HEIGHT)


def _bars(layers: list[_Layer]) -> tuple[list[dict], list[dict]]:
    """Return the bars, each from zero, and their whiskers."""
    bars, whiskers = [], []
    for layer in layers:
        for component, value in layer.parts.items():
            left, right = (layer.layer + side for side in _BARS[component])
            bars.append({"x": left, "x2": right, "y": 0.0, "y2": value, "part": component})
            if component in layer.ends:
                low, high = layer.ends[component]
                whiskers.append({"x": (left + right) / 2, "y": low, "y2": high})
    return bars, whiskers


def _sentence(layer: _Layer) -> str:
    if layer.total is None:
        return f"Layer {layer.layer}: {UNDEFINED}"
    lines = [f"Layer {layer.layer}: {signed(layer.total)} in total"]
    for name, value in layer.parts.items():
        low, high = layer.ends.get(name, (None, None))
        interval = f" (90 % CI {number(low)} to {number(high)})" if low is not None else ""
        lines.append(f"{_NAMES[name]}: {signed(value)}{interval}")
    return "\n".join(lines)


def _present(layers: list[_Layer]) -> list[str]:
    return [name for name in _COLOURS if any(name in layer.parts for layer in layers)]


def _keys(layers: list[_Layer]) -> list[Key]:
    return [Key(_NAMES[name], "box", _COLOURS[name]) for name in _present(layers)] + [
        Key("total of the layer", "diamond", INK)
    ]


def _sums(layers: list[_Layer]) -> dict[str, float]:
    return {name: sum(layer.parts.get(name, 0.0) for layer in layers) for name in _present(layers)}


def _caption(measure: _Measure, layers: list[_Layer]) -> str:
    sums = _sums(layers)
    parts = ", ".join(f"{_NAMES[name]} {signed(value)}" for name, value in sums.items())
    return (
        "Above zero a part draws the tokens of a prompt together, below zero it drives them apart. The bars of a layer "
        f"add up to its diamond, and the diamonds to {signed(sum(sums.values()))} over all layers ({parts})."
        f" {measure.caption.strip()}"
    )


def _description(layers: list[_Layer]) -> str:
    defined = [layer for layer in layers if layer.total is not None]
    strongest = max(defined, key=lambda layer: layer.total or 0.0)
    weakest = min(defined, key=lambda layer: layer.total or 0.0)
    counts = ", ".join(
        f"{_NAMES[name]} draws together in {sum(layer.parts.get(name, 0.0) > 0 for layer in defined)}"
        for name in _present(layers)
        if name != "final_norm"
    )
    least = f", layer {weakest.layer} least ({signed(weakest.total)})" if len(defined) > 1 else ""
    return (
        f"Of {plural(len(defined), 'layer')}, {counts}. Layer {strongest.layer} contributes most "
        f"({signed(strongest.total)}){least}. The table below holds every value."
    )


def _table(measure: _Measure, layers: list[_Layer]) -> Table:
    names = _present(layers)
    known = any(layer.ends for layer in layers)
    columns = ["Layer"]
    for name in names:
        columns += [_NAMES[name].capitalize(), *(["from", "to"] if known else [])]
    rows = []
    for layer in layers:
        row: list[Given] = [layer.layer]
        for name in names:
            absent = "" if layer.parts else None
            low, high = layer.ends.get(name, (absent, absent))
            row += [layer.parts.get(name, absent), *([low, high] if known else [])]
        rows.append(cells([*row, layer.total]))
    caption = f"{measure.axis}; all layers together: {number(sum(_sums(layers).values()))}"
    return Table(caption, (*columns, "Total"), tuple(rows))
