"""Who does it? The change in mean pair cosine, layer by layer, split into the components."""

from __future__ import annotations

from dataclasses import dataclass

import altair as alt
import numpy as np
import xarray as xr

from tokendynamics.report.diagnosis._depth import WIDTH, depth_axis, hover, nothing_to_draw, steps
from tokendynamics.report.kit._figure import Figure, Table, cells
from tokendynamics.report.kit._palette import ATTENTION, AXIS, FEED_FORWARD, INK, NORM, PAPER
from tokendynamics.report.kit._svg import Drawing, Key, draw
from tokendynamics.report.kit._text import UNDEFINED, number, signed

QUESTION = "Who does it?"
HEIGHT = 300
_PLUS = "datum.value === 0 ? '0' : format(datum.value, '+.2~f')"
_COLOURS = {"attention": ATTENTION, "feed_forward": FEED_FORWARD, "final_norm": NORM}
_NAMES = {"attention": "attention", "feed_forward": "feed-forward", "final_norm": "final norm"}


@dataclass(frozen=True)
class _Layer:
    layer: int
    parts: dict[str, float]

    @property
    def total(self) -> float | None:
        return sum(self.parts.values()) if self.parts else None


def components_figure(trace: xr.Dataset) -> Figure:
    """Draw signed bars per layer; the bars of a layer add up to its total."""
    layers = _layers(trace)
    return Figure(
        ident="components-chart",
        question=QUESTION,
        svg=draw(
            _chart(layers),
            ident="components-chart",
            title=f"{QUESTION} Change in mean pair cosine per layer, split by component",
            description=_description(layers),
            keys=_keys(layers),
        ),
        caption=_caption(trace, layers),
        table=_table(layers),
    )


def _layers(trace: xr.Dataset) -> list[_Layer]:
    """Return means over prompts: unlike medians, the means of the parts add up to the mean of the total."""
    change = trace["component_change"].transpose("layer", "component", "prompt")
    measured = {(step.layer, step.site) for step in steps(trace)}
    found = []
    names = [str(name) for name in change["component"].values]
    for index, layer in enumerate(change["layer"].values):
        if int(layer) == 0:
            continue
        parts = {}
        for component in (name for name in _COLOURS if (int(layer), name) in measured):
            values = change.values[index, names.index(component)]
            defined = values[np.isfinite(values)]
            if defined.size:
                parts[component] = float(defined.mean())
        found.append(_Layer(int(layer), parts))
    return found


def _boxes(layers: list[_Layer]) -> list[dict]:
    boxes = []
    for layer in layers:
        top = bottom = 0.0
        for component, value in layer.parts.items():
            start = top if value >= 0 else bottom
            end = start + value
            top, bottom = (end, bottom) if value >= 0 else (top, end)
            boxes.append({"x": layer.layer - 0.36, "x2": layer.layer + 0.36, "y": start, "y2": end, "part": component})
    return boxes


def _chart(layers: list[_Layer]) -> Drawing:
    last = max((layer.layer for layer in layers), default=1)
    y = alt.Y("y:Q", axis=alt.Axis(title="Change in mean pair cosine", labelExpr=_PLUS, tickCount=7))
    x = depth_axis(last)
    boxes = _boxes(layers)
    drawn = [
        alt.Chart(alt.Data(values=[box for box in boxes if box["part"] == component]))
        .mark_rect(fill=colour, stroke=INK, strokeWidth=0.5)
        .encode(x=x, x2="x2:Q", y=y, y2="y2:Q")
        for component, colour in _COLOURS.items()
    ]
    zero = alt.Chart(alt.Data(values=[{"y": 0}])).mark_rule(color=AXIS).encode(y=y)
    totals = [{"x": layer.layer, "y": layer.total} for layer in layers if layer.total is not None]
    total = (
        alt.Chart(alt.Data(values=totals))
        .mark_point(shape="diamond", fill=INK, stroke=PAPER, strokeWidth=1, size=60, opacity=1)
        .encode(x=x, y=y)
    )
    if not totals:
        total = nothing_to_draw(HEIGHT)
    columns = [(layer.layer - 0.5, layer.layer + 0.5, _sentence(layer)) for layer in layers]
    return alt.layer(*drawn, zero, total, hover(columns, last, HEIGHT), width=WIDTH, height=HEIGHT)


def _sentence(layer: _Layer) -> str:
    if layer.total is None:
        return f"Layer {layer.layer}: {UNDEFINED}"
    parts = "\n".join(f"{_NAMES[name]}: {signed(value)}" for name, value in layer.parts.items())
    return f"Layer {layer.layer}: {signed(layer.total)} in total\n{parts}"


def _present(layers: list[_Layer]) -> list[str]:
    return [name for name in _COLOURS if any(name in layer.parts for layer in layers)]


def _keys(layers: list[_Layer]) -> list[Key]:
    return [Key(_NAMES[name], "box", _COLOURS[name]) for name in _present(layers)] + [
        Key("total of the layer", "diamond", INK)
    ]


def _sums(layers: list[_Layer]) -> dict[str, float]:
    return {name: sum(layer.parts.get(name, 0.0) for layer in layers) for name in _present(layers)}


def _caption(trace: xr.Dataset, layers: list[_Layer]) -> str:
    text = (
        "Above zero a component pulls the tokens of a prompt together, below zero it pushes them apart. The bars of a "
        "layer add up to its diamond"
    )
    sums = _sums(layers)
    if sums:
        parts = ", ".join(f"{_NAMES[name]} {signed(value)}" for name, value in sums.items())
        text += f", and the diamonds to {signed(sum(sums.values()))} over the whole depth ({parts})"
    over = "" if trace.sizes["prompt"] == 1 else f" Means over {trace.sizes['prompt']} prompts."
    return (
        f"{text}.{over} Measured on the tokens that are a sink at no layer, so that all layers compare the same tokens."
    )


def _description(layers: list[_Layer]) -> str:
    defined = [layer for layer in layers if layer.total is not None]
    if not defined:
        return "The change in mean pair cosine is undefined: no prompt has two tokens that are never a sink."
    strongest = max(defined, key=lambda layer: layer.total or 0.0)
    weakest = min(defined, key=lambda layer: layer.total or 0.0)
    counts = ", ".join(
        f"{_NAMES[name]} pulls together in {sum(layer.parts.get(name, 0.0) > 0 for layer in defined)}"
        for name in ("attention", "feed_forward")
    )
    return (
        f"Of {len(defined)} layers, {counts}. Layer {strongest.layer} contracts most ({signed(strongest.total)}), "
        f"layer {weakest.layer} least ({signed(weakest.total)}). The table below holds every value."
    )


def _table(layers: list[_Layer]) -> Table:
    names = _present(layers) or ["attention", "feed_forward"]
    rows = tuple(
        cells([layer.layer, *(layer.parts.get(name, "" if layer.parts else None) for name in names), layer.total])
        for layer in layers
    )
    columns = ("Layer", *(_NAMES[name].capitalize() for name in names), "Total")
    return Table(
        f"Change in mean pair cosine; all layers together: {number(sum(_sums(layers).values()))}", columns, rows
    )
