"""What a trace shows over depth: shares and their changes by part, norms, updates, attention, further measures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import altair as alt
import numpy as np
import xarray as xr

from tokendynamics.diagnosis.network import PART_NAMES, parts_there
from tokendynamics.diagnosis.tracing.layer_states import CONSENSUS, SPREAD
from tokendynamics.diagnosis.tracing.words import (
    ATTENTION_SINK,
    LEAST_UPDATE,
    TIMES_UNIFORM,
    UPDATE_JUMP,
    attention_sinks,
    jumps,
)
from tokendynamics.figures.curves import (
    Column,
    Curve,
    Mark,
    Part,
    Rule,
    curve_keys,
    curves_chart,
    depth_axis,
    hover,
    stacked_chart,
)
from tokendynamics.figures.figure import Figure, Given, Table, cells, nothing
from tokendynamics.figures.palette import (
    ATTENTION,
    AXIS,
    BLUE,
    COMMON,
    FEED_FORWARD,
    INK,
    MUTED,
    NORM,
    OF_PROMPT,
    ORANGE,
    OWN,
    PAPER,
)
from tokendynamics.figures.svg import WIDE, Drawing, Key, draw, draw_for_screens
from tokendynamics.report._page import token_label
from tokendynamics.words import UNDEFINED, factor, number, percent, plural, signed

_OFFSET = {"attention": -0.5, "feed_forward": 0.0, "final_norm": 0.5}


@dataclass(frozen=True)
class Step:
    """One measured state: after a component of a layer; layer 0 is the embedding."""

    layer: int
    site: str
    alone: bool = False
    """Whether the layer has only an attention, which then wrote its output."""

    @property
    def x(self) -> float:
        """Place on the depth axis: attention half a layer early, the final norm half a layer late."""
        return self.layer + _OFFSET[self.site]

    @property
    def after(self) -> str:
        """The component that wrote this state."""
        if self.layer == 0:
            return "embedding"
        return {"attention": "attention", "feed_forward": "feed-forward", "final_norm": "final norm"}[self.part]

    @property
    def part(self) -> str:
        """The label of that component in the data."""
        return "attention" if self.alone and self.site == "feed_forward" else self.site

    @property
    def name(self) -> str:
        """The state in words."""
        return "Embedding" if self.layer == 0 else f"Layer {self.layer}, after {self.after}"


@dataclass(frozen=True)
class Spread:
    """A quantity over prompts: its values (None where undefined), mean, lowest and highest."""

    values: tuple[float | None, ...]
    mean: float | None
    low: float | None
    high: float | None


def steps(trace: xr.Dataset) -> list[Step]:
    """Return the states that were measured for at least one prompt, in order of depth.

    A layer with only an attention has one state, its output.
    """
    measured = trace["norm_median"].notnull().any(["prompt", "sinks"]).transpose("layer", "site").values
    alone = [False, *~parts_there(trace)["feed_forward"]]
    found = [
        Step(int(layer), str(site), bool(alone[i]))
        for i, layer in enumerate(trace["layer"].values)
        for j, site in enumerate(trace["site"].values)
        if measured[i, j] and not (alone[i] and site == "attention")
    ]
    return sorted(found, key=lambda step: step.x)


def spread(values: np.ndarray) -> Spread:
    """Summarise one value per prompt; undefined ones are left out of the summary."""
    each = tuple(float(v) if math.isfinite(v) else None for v in values)
    defined = [v for v in each if v is not None]
    if not defined:
        return Spread(each, None, None, None)
    return Spread(each, float(np.mean(defined)), min(defined), max(defined))


def by_depth(trace: xr.Dataset, variable: str, sinks: str, where: list[Step]) -> list[Spread]:
    """Return the spread over prompts of `variable` at each step, with the sinks ``"kept"`` or ``"removed"``."""
    values = trace[variable].sel(sinks=sinks).transpose("layer", "site", "prompt")
    return at_steps(values, where)


def at_steps(values: xr.DataArray, where: list[Step]) -> list[Spread]:
    """Return the spread of `values` (layer, site, …) at each step."""
    layers = {int(layer): index for index, layer in enumerate(values["layer"].values)}
    sites = {str(site): index for index, site in enumerate(values["site"].values)}
    return [spread(np.atleast_1d(values.values[layers[step.layer], sites[step.site]])) for step in where]


def undrawn(trace: xr.Dataset) -> str:
    """Return why a measure of pairs is not plotted."""
    prompts = "the prompt does not have" if trace.sizes["prompt"] == 1 else "no prompt has"
    return f"Not plotted because {prompts} two tokens that count, and a pair needs two."


SHARES_QUESTION = "How is a token's direction composed?"
SECOND_QUESTION = "Do the tokens of a prompt converge?"
SHARES_AXIS = "Share of a token's direction"
SHARES_HEIGHT = 300

_SHARES_COLOURS = {"common": COMMON, "prompt": OF_PROMPT, "own": OWN}
_SHARES_NAMES = {"common": "common to all prompts", "prompt": "shared within its prompt", "own": "its own"}
_KEYS = [Key(_SHARES_NAMES[name], "box", colour) for name, colour in _SHARES_COLOURS.items()]
_SHARES_MEASURES = {"consensus_relative": "κ′", "centred_cos2": "centred cos²"}

_RULES = (
    Rule(SPREAD, f"spread below {SPREAD:g}", "right", below=True),
    Rule(CONSENSUS, f"consensus from {CONSENSUS:g}"),
)


@dataclass(frozen=True)
class Estimates:
    """A quantity with its interval at each step; NaN where undefined."""

    values: np.ndarray
    low: np.ndarray
    high: np.ndarray


def estimates(trace: xr.Dataset, variable: str, where: list[Step], **chosen: str) -> Estimates:
    """Return a variable of the trace that is one number for all prompts, with its interval, at each step.

    Args:
        trace: From `tokendynamics.trace`.
        variable: Its name.
        where: From `steps`.
        chosen: Further coordinates, such as ``share="common"``.
    """
    layers = xr.DataArray([step.layer for step in where], dims="step")
    sites = xr.DataArray([step.site for step in where], dims="step")
    at = {"layer": layers, "site": sites, **chosen}
    bounds = trace[f"{variable}_interval"].sel(at).transpose("step", "bound")
    values = np.atleast_1d(trace[variable].sel(at).values)
    return Estimates(values, *(bounds.sel(bound=end).values for end in ("low", "high")))


def shares_figure(trace: xr.Dataset) -> Figure:
    """Draw the three shares as areas that add up to 1: the picture of the whole page.

    Args:
        trace: From `tokendynamics.trace`.
    """
    where, found = _shares_of(trace)
    if not _any_defined(found):
        return nothing("shares-chart", SHARES_QUESTION, unshared(trace))
    return Figure(
        ident="shares-chart",
        question=SHARES_QUESTION,
        svg=draw_for_screens(
            lambda width: _stacked(where, found, width),
            ident="shares-chart",
            title=f"{SHARES_QUESTION} Three shares over depth that add up to 1",
            description=_shares_description(where, found, trace.sizes["prompt"]),
            keys=_KEYS,
        ),
        caption=_shares_caption(found, trace.sizes["prompt"]),
        table=_shares_table(
            "Shares of a token's direction", where, {_SHARES_NAMES[name]: each for name, each in found.items()}
        ),
    )


def shares_sketch(trace: xr.Dataset, ident: str) -> Figure:
    """Draw the shares once, small, without table and without text for the pointer: for a notebook.

    Args:
        trace: From `tokendynamics.trace`.
        ident: Prefix of every id inside.
    """
    where, found = _shares_of(trace)
    if not _any_defined(found):
        return nothing(ident, SHARES_QUESTION, unshared(trace))
    svg = draw(
        _stacked(where, found, WIDE),
        ident=ident,
        title=SHARES_QUESTION,
        description=_shares_description(where, found, trace.sizes["prompt"]),
        keys=_KEYS,
        screen="notebook",
    )
    return Figure(ident, SHARES_QUESTION, svg, _shares_caption(found, trace.sizes["prompt"]), None)


def shares_drawing(trace: xr.Dataset, width: float = WIDE) -> Drawing | None:
    """Return the shares as a chart that names its parts itself; None where there are none.

    Args:
        trace: From `tokendynamics.trace`.
        width: Of its plotting area.
    """
    where, found = _shares_of(trace)
    return _stacked(where, found, width, legend=True) if _any_defined(found) else None


def _shares_of(trace: xr.Dataset) -> tuple[list[Step], dict[str, Estimates]]:
    where = steps(trace)
    return where, {str(name): estimates(trace, "shares", where, share=str(name)) for name in trace.share.values}


def consensus_figure(trace: xr.Dataset) -> Figure:
    """Draw κ′ and centred cos² with their intervals, and the thresholds of the states.

    Args:
        trace: From `tokendynamics.trace`.
    """
    where = steps(trace)
    found = {name: estimates(trace, name, where) for name in _SHARES_MEASURES}
    if not _any_defined(found):
        return nothing("shares-consensus", SECOND_QUESTION, unshared(trace))
    curves = consensus_curves(where, found)
    last = max(step.layer for step in where)
    return Figure(
        ident="shares-consensus",
        question=SECOND_QUESTION,
        svg=draw_for_screens(
            lambda width: curves_chart(
                curves,
                last=last,
                title="κ′ and centred cos²",
                width=width,
                domain=(0.0, 1.0),
                rules=_RULES,
                columns=_shares_columns(where, {_SHARES_MEASURES[name]: each for name, each in found.items()}),
            ),
            ident="shares-consensus",
            title=f"{SECOND_QUESTION} κ′ and centred cos² over depth",
            description=_described(where, found),
            keys=curve_keys(curves),
        ),
        caption="Within-prompt similarity κ′: what the tokens of one prompt share beyond what all prompts share, "
        "relative to the embedding. 0 is the embedding's value, 1 is one point per prompt. Centred cos² also detects a "
        "collapse to a line or to few directions, where it is far above κ′²."
        f"{_interval(found, trace.sizes['prompt'])}",
        table=_shares_table(
            "κ′ and centred cos²", where, {_SHARES_MEASURES[name]: each for name, each in found.items()}
        ),
    )


def consensus_curves(where: list[Step], found: dict[str, Estimates], of: str = "") -> list[Curve]:
    """Return the curves of one network; `of` names it, where there are several on one axis.

    Args:
        where: From `steps`.
        found: Estimates of "consensus_relative" and "centred_cos2".
        of: Added to the names of the curves.
    """
    looks: dict[str, tuple[str, tuple[float, ...], Mark]] = {
        "centred_cos2": (ORANGE, (5, 3), ""), "consensus_relative": (BLUE, (), "disc")
    }  # fmt: skip
    x, known = [step.x for step in where], f"90 % CI of {_SHARES_MEASURES['consensus_relative']}"
    return [
        Curve(
            f"{_SHARES_MEASURES[name]}{of}", x, _plain(found[name].values), colour, _plain(found[name].low),
            _plain(found[name].high), known if name == "consensus_relative" else "", dash, 2.2, mark,
        )
        for name, (colour, dash, mark) in looks.items()
    ]  # fmt: skip


def unshared(trace: xr.Dataset) -> str:
    """Return why there are no shares.

    Args:
        trace: From `tokendynamics.trace`.
    """
    if trace.sizes["prompt"] == 1:
        return (
            "Not plotted because one prompt cannot show which similarity is its own and which all prompts share. "
            "Shares need at least two prompts, their intervals three."
        )
    return "Not plotted because every prompt has fewer than two tokens that count, so there are no pairs."


def _any_defined(found: dict[str, Estimates]) -> bool:
    return any(np.isfinite(each.values).any() for each in found.values())


def _plain(values: np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _stacked(where: list[Step], found: dict[str, Estimates], width: float, *, legend: bool = False) -> Drawing:
    parts = [Part(_SHARES_NAMES[name], _plain(found[name].values), colour) for name, colour in _SHARES_COLOURS.items()]
    return stacked_chart(
        [step.x for step in where],
        parts,
        last=max(step.layer for step in where),
        title=SHARES_AXIS,
        width=width,
        height=SHARES_HEIGHT,
        columns=_shares_columns(where, {_SHARES_NAMES[name]: each for name, each in found.items()}),
        legend=legend,
    )


def _shares_columns(where: list[Step], found: dict[str, Estimates]) -> list[Column]:
    columns = []
    for place, step in enumerate(where):
        lines = [f"{name}: {_known(each, place)}" for name, each in found.items()]
        columns.append((step.x - 0.25, step.x + 0.25, "\n".join([step.name, *lines])))
    return columns


def _known(each: Estimates, place: int) -> str:
    text = number(float(each.values[place]))
    if np.isfinite(each.low[place]):
        text += f" (90 % CI {number(float(each.low[place]))} to {number(float(each.high[place]))})"
    return text


def _shares_description(where: list[Step], found: dict[str, Estimates], prompts: int) -> str:
    def at(place: int) -> str:
        parts = ", ".join(f"{_SHARES_NAMES[name]} {number(float(each.values[place]))}" for name, each in found.items())
        return f"{where[place].name}: {parts}."

    over = plural(prompts, "prompt")
    return f"Shares of a token's direction over {over}. {at(0)} {at(-1)} The table holds every value."


def _described(where: list[Step], found: dict[str, Estimates]) -> str:
    texts = [
        f"{_SHARES_MEASURES[name]}: {number(float(each.values[0]))} at the embedding, "
        f"{number(float(each.values[-1]))} at {where[-1].name}."
        for name, each in found.items()
    ]
    return " ".join([*texts, "The table holds every value."])


def _shares_caption(found: dict[str, Estimates], prompts: int) -> str:
    text = (
        "Three shares that add up to 1: common to tokens of different prompts, shared beyond that by tokens of one "
        "prompt, and shared with no other token. Massive tokens are excluded."
    )
    if any((each.values < 0).any() for each in found.values()):
        text += " A share is an estimate and may be below 0; it is then not drawn, and the table gives the number."
    if any(np.isfinite(each.low).any() for each in found.values()):
        return f"{text} Over {plural(prompts, 'prompt')}; the table gives 90 % confidence intervals."
    return f"{text} Over {plural(prompts, 'prompt')}, too few for a confidence interval."


def _interval(found: dict[str, Estimates], prompts: int) -> str:
    if any(np.isfinite(each.low).any() for each in found.values()):
        return " Bands: 90 % confidence intervals over prompts."
    return f" There are no bands because {plural(prompts, 'prompt')} are too few for a confidence interval."


def _shares_table(caption: str, where: list[Step], found: dict[str, Estimates]) -> Table:
    columns = ["Layer", "After"]
    for name in found:
        columns += [name[0].upper() + name[1:], "from", "to"]
    rows = []
    for place, step in enumerate(where):
        row: list[Given] = [step.layer, step.after]
        for each in found.values():
            row += [float(values[place]) for values in (each.values, each.low, each.high)]
        rows.append(cells(row))
    return Table(f"{caption}, each with its 90 % confidence interval", tuple(columns), tuple(rows))


COMPONENTS_QUESTION = "Which parts cause it?"
COMPONENTS_HEIGHT = 300
_PLUS = "datum.value === 0 ? '0' : format(datum.value, '+.2~f')"
_COMPONENTS_COLOURS = {"attention": ATTENTION, "feed_forward": FEED_FORWARD, "final_norm": NORM}
_COMPONENTS_NAMES = {"attention": "attention", "feed_forward": "feed-forward", "final_norm": "final norm"}
_BARS = {"attention": (-0.38, -0.02), "feed_forward": (0.02, 0.38), "final_norm": (0.46, 0.82)}
"""Horizontal extent of a part's bar relative to its layer, in the order in which the parts run."""


@dataclass(frozen=True)
class _ComponentsMeasure:
    """A measure whose changes are attributed to the parts."""

    ident: str
    label: str
    axis: str
    caption: str
    undefined: str


@dataclass(frozen=True)
class _ComponentsLayer:
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
    kappa = _ComponentsMeasure(
        "components-chart",
        "Consensus κ",
        "Change in κ",
        f"Over {trace.sizes['prompt']} prompts, without massive tokens. Whiskers: 90 % confidence intervals over "
        "prompts, if there are at least three.",
        unshared(trace),
    )
    cosine = _ComponentsMeasure(
        "components-cosine",
        "Mean pair cosine",
        "Change in mean pair cosine",
        f"{several} Measured on the tokens that are massive in no layer, so that all layers compare the same tokens. A "
        "direction common to all prompts counts here but not in κ.".strip(),
        undrawn(trace),
    )
    return _components_figure(kappa, _of_kappa(trace)), _components_figure(cosine, _of_cosine(trace))


def _components_figure(measure: _ComponentsMeasure, layers: list[_ComponentsLayer]) -> Figure:
    if all(layer.total is None for layer in layers):
        return nothing(measure.ident, COMPONENTS_QUESTION, measure.undefined, measure.label)
    return Figure(
        ident=measure.ident,
        question=COMPONENTS_QUESTION,
        svg=draw_for_screens(
            lambda width: _components_chart(measure, layers, width),
            ident=measure.ident,
            title=f"{COMPONENTS_QUESTION} {measure.axis} per layer, split by part",
            description=_components_description(layers),
            keys=_components_keys(layers),
        ),
        caption=_components_caption(measure, layers),
        table=_components_table(measure, layers),
        label=measure.label,
    )


def _of_kappa(trace: xr.Dataset) -> list[_ComponentsLayer]:
    change = trace.kappa_change.transpose("layer", "component")
    bounds = trace.kappa_change_interval.transpose("layer", "component", "bound").sel(bound=["low", "high"])

    def at(layer: int, part: int) -> tuple[float, tuple[float, float]]:
        low, high = bounds.values[layer, part]
        return float(change.values[layer, part]), (float(low), float(high))

    return _layers(trace, [str(name) for name in change.component.values], at)


def _of_cosine(trace: xr.Dataset) -> list[_ComponentsLayer]:
    """Return means over prompts: unlike medians, the means of the parts add up to the mean of the total."""
    change = trace.component_change.transpose("layer", "component", "prompt")

    def at(layer: int, part: int) -> tuple[float, tuple[float, float]]:
        defined = change.values[layer, part][np.isfinite(change.values[layer, part])]
        return (float(defined.mean()) if defined.size else np.nan), (np.nan, np.nan)

    return _layers(trace, [str(name) for name in change.component.values], at)


def _layers(
    trace: xr.Dataset, names: list[str], at: Callable[[int, int], tuple[float, tuple[float, float]]]
) -> list[_ComponentsLayer]:
    measured = {(step.layer, step.part) for step in steps(trace)}
    found = []
    for place, layer in enumerate(trace.layer.values):
        if int(layer) == 0:
            continue
        here = {name: at(place, names.index(name)) for name in _COMPONENTS_COLOURS if (int(layer), name) in measured}
        known = {name: each for name, each in here.items() if np.isfinite(each[0])}
        ends = {name: interval for name, (_, interval) in known.items() if np.isfinite(interval).all()}
        found.append(_ComponentsLayer(int(layer), {name: value for name, (value, _) in known.items()}, ends))
    return found


def _components_chart(measure: _ComponentsMeasure, layers: list[_ComponentsLayer], width: float = WIDE) -> Drawing:
    last = max(layer.layer for layer in layers)
    y = alt.Y("y:Q", axis=alt.Axis(title=measure.axis, labelExpr=_PLUS, tickCount=7))
    x = depth_axis(last, width)
    bars, ends = _bars(layers)
    drawn = [
        alt.Chart(alt.Data(values=[bar for bar in bars if bar["part"] == component]))
        .mark_rect(fill=colour, stroke=INK, strokeWidth=0.5)
        .encode(x=x, x2="x2:Q", y=y, y2="y2:Q")
        for component, colour in _COMPONENTS_COLOURS.items()
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
    shown = [*drawn, zero, *([whiskers] if ends else []), total, hover(columns, last, COMPONENTS_HEIGHT, width)]
    return alt.layer(*shown, width=width, height=COMPONENTS_HEIGHT)


def _bars(layers: list[_ComponentsLayer]) -> tuple[list[dict], list[dict]]:
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


def _sentence(layer: _ComponentsLayer) -> str:
    if layer.total is None:
        return f"Layer {layer.layer}: {UNDEFINED}"
    lines = [f"Layer {layer.layer}: {signed(layer.total)} in total"]
    for name, value in layer.parts.items():
        low, high = layer.ends.get(name, (None, None))
        interval = f" (90 % CI {number(low)} to {number(high)})" if low is not None else ""
        lines.append(f"{_COMPONENTS_NAMES[name]}: {signed(value)}{interval}")
    return "\n".join(lines)


def _present(layers: list[_ComponentsLayer]) -> list[str]:
    return [name for name in _COMPONENTS_COLOURS if any(name in layer.parts for layer in layers)]


def _components_keys(layers: list[_ComponentsLayer]) -> list[Key]:
    return [Key(_COMPONENTS_NAMES[name], "box", _COMPONENTS_COLOURS[name]) for name in _present(layers)] + [
        Key("total of the layer", "diamond", INK)
    ]


def _sums(layers: list[_ComponentsLayer]) -> dict[str, float]:
    return {name: sum(layer.parts.get(name, 0.0) for layer in layers) for name in _present(layers)}


def _components_caption(measure: _ComponentsMeasure, layers: list[_ComponentsLayer]) -> str:
    sums = _sums(layers)
    parts = ", ".join(f"{_COMPONENTS_NAMES[name]} {signed(value)}" for name, value in sums.items())
    return (
        "Above zero a part draws the tokens of a prompt together, below zero it drives them apart. The bars of a layer "
        f"add up to its diamond, and the diamonds to {signed(sum(sums.values()))} over all layers ({parts})."
        f" {measure.caption.strip()}"
    )


def _components_description(layers: list[_ComponentsLayer]) -> str:
    defined = [layer for layer in layers if layer.total is not None]
    strongest = max(defined, key=lambda layer: layer.total or 0.0)
    weakest = min(defined, key=lambda layer: layer.total or 0.0)
    counts = ", ".join(
        f"{_COMPONENTS_NAMES[name]} draws together in {sum(layer.parts.get(name, 0.0) > 0 for layer in defined)}"
        for name in _present(layers)
        if name != "final_norm"
    )
    least = f", layer {weakest.layer} least ({signed(weakest.total)})" if len(defined) > 1 else ""
    return (
        f"Of {plural(len(defined), 'layer')}, {counts}. Layer {strongest.layer} contributes most "
        f"({signed(strongest.total)}){least}. The table below holds every value."
    )


def _components_table(measure: _ComponentsMeasure, layers: list[_ComponentsLayer]) -> Table:
    names = _present(layers)
    known = any(layer.ends for layer in layers)
    columns = ["Layer"]
    for name in names:
        columns += [_COMPONENTS_NAMES[name].capitalize(), *(["from", "to"] if known else [])]
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


AGREEMENT_QUESTION = "Do the tokens draw together with depth?"
MOST_PROMPT_COLUMNS = 8
"""With more prompts than this the table holds only their mean and range; the data files hold every value."""


@dataclass(frozen=True)
class _AgreementMeasure:
    variable: str
    label: str
    axis: str
    meaning: str
    bounds: tuple[float, float | None]


_AGREEMENT_MEASURES = (
    _AgreementMeasure(
        "mean_pair_cosine",
        "Mean pair cosine",
        "Mean pair cosine (1: all point the same way)",
        "Mean cosine over all pairs of different tokens of a prompt. The dotted line is the mean cosine between tokens "
        "of different prompts at the same layer (the common share). A direction common to all prompts is not "
        "consensus; the gap between the two lines is what the tokens of one prompt share beyond it.",
        (0.0, 1.0),
    ),
    _AgreementMeasure(
        "consensus_first",
        "E, first token",
        "E against the first token (0: consensus)",
        "E = 1 − mean of |cos(first token, token i)|, the consensus functional (asymptotic, eq. 25). An opposite pair "
        "counts as agreement.",
        (0.0, 1.0),
    ),
    _AgreementMeasure(
        "consensus_first_signed",
        "E, first token, signed",
        "Signed E against the first token (0: consensus)",
        "1 − mean of cos(first token, token i), without the absolute value of eq. 25. An opposite pair counts as "
        "disagreement, so the range is 0 to 2.",
        (0.0, 1.0),
    ),
    _AgreementMeasure(
        "consensus_last",
        "E, last token",
        "E against the last token (0: consensus)",
        "E = 1 − mean of |cos(last token, token i)|: eq. 25 with the last token as reference, which attends to all "
        "others in a causal model.",
        (0.0, 1.0),
    ),
    _AgreementMeasure(
        "effective_rank_unit_rows",
        "Effective rank, unit rows",
        "Effective rank of unit rows (1: one direction)",
        "Number of directions that the tokens span: exp of the entropy of the squared singular values, normalised to "
        "sum 1. Each token is scaled to length 1, so that no large token dominates.",
        (0.0, None),
    ),
    _AgreementMeasure(
        "effective_rank",
        "Effective rank, raw",
        "Effective rank of raw rows (1: one direction)",
        "As on unit rows, with each token at its own norm: one large token lowers it to 1 although the others are "
        "spread.",
        (0.0, None),
    ),
    _AgreementMeasure(
        "rank_one_distance",
        "Distance to identical tokens",
        "‖X − 1x̄ᵀ‖ / ‖X‖ (0: all tokens identical)",
        "Relative Frobenius distance to the nearest matrix with identical rows; 0 is rank collapse in the literature.",
        (0.0, 1.0),
    ),
)


def agreement_figures(trace: xr.Dataset) -> list[Figure]:
    """Return one figure per measure, the default first."""
    where = steps(trace)
    return [_agreement_figure(trace, measure, where) for measure in _AGREEMENT_MEASURES if measure.variable in trace]


def _agreement_figure(trace: xr.Dataset, measure: _AgreementMeasure, where: list[Step]) -> Figure:
    removed = by_depth(trace, measure.variable, "removed", where)
    kept = by_depth(trace, measure.variable, "kept", where)
    between = _between(trace, where) if measure.variable == "mean_pair_cosine" else None
    ident = f"agreement-{measure.variable.replace('_', '-')}"
    prompts = trace.sizes["prompt"]
    if all(each.mean is None for each in (*removed, *kept)):
        return nothing(ident, AGREEMENT_QUESTION, undrawn(trace), measure.label)
    curves = _agreement_curves(where, removed, kept, between, prompts)
    return Figure(
        ident=ident,
        question=AGREEMENT_QUESTION,
        svg=draw_for_screens(
            lambda width: curves_chart(
                # What the mean is compared with lies below it.
                [*curves[1:-3], curves[0], *curves[-3:]], last=where[-1].layer, title=measure.axis, width=width,
                domain=_agreement_domain(measure, curves), columns=_agreement_columns(where, removed, kept, between),
            ),
            ident=ident,
            title=f"{AGREEMENT_QUESTION} {measure.label}",
            description=_agreement_description(measure, where, removed, prompts),
            keys=curve_keys(curves),
        ),
        caption=f"{measure.meaning} {_convention(prompts)}",
        table=_agreement_table(measure, where, removed, kept, between, [str(p) for p in trace["prompt"].values]),
        label=measure.label,
    )  # fmt: skip


def _between(trace: xr.Dataset, where: list[Step]) -> list[Spread] | None:
    values = at_steps(trace["shares"].sel(share="common").transpose("layer", "site"), where)
    return values if any(value.mean is not None for value in values) else None


def _convention(prompts: int) -> str:
    massive = (
        "Massive tokens, much larger than the rest of their prompt, are excluded; the thin dashed line includes them."
    )
    if prompts == 1:
        return f"One prompt. {massive}"
    return f"Line: mean over {prompts} prompts; band: lowest to highest prompt. {massive}"


def _agreement_curves(
    where: list[Step], removed: list[Spread], kept: list[Spread], between: list[Spread] | None, prompts: int
) -> list[Curve]:
    """Return the mean with its band, what it is compared with, and a mark for each part that wrote a state."""
    x, mean = [step.x for step in where], [each.mean for each in removed]
    main = Curve("massive tokens removed" if prompts == 1 else "mean, massive tokens removed", x, mean, BLUE)
    if prompts > 1:
        low, high = [each.low for each in removed], [each.high for each in removed]
        main = replace(main, low=low, high=high, band="range over prompts")
    curves = [
        main,
        Curve("massive tokens kept", x, [each.mean for each in kept], MUTED, dash=(5, 3), width=1.3),
    ]
    if between:
        curves.append(Curve("between prompts", x, [each.mean for each in between], ORANGE, dash=(1.5, 2.5)))
    disc = "after feed-forward" if any(step.layer and step.part == "feed_forward" for step in where) else "embedding"
    marks: tuple[tuple[str, str, str, Mark], ...] = (
        ("attention", "after attention", BLUE, "ring"), ("feed_forward", disc, BLUE, "disc"),
        ("final_norm", "after the final norm", INK, "diamond"),
    )  # fmt: skip
    for part, label, colour, mark in marks:
        at = [value if step.part == part else None for step, value in zip(where, mean, strict=True)]
        curves.append(Curve(label, x, at, colour, width=0, mark=mark))
    return curves


def _agreement_domain(measure: _AgreementMeasure, curves: list[Curve]) -> tuple[float, float]:
    low, high = measure.bounds
    values = [value for curve in curves for value in (*curve.values, *(curve.high or ())) if value is not None]
    return low, high or 1.04 * max([1.0, *values])


def _agreement_columns(
    where: list[Step], removed: list[Spread], kept: list[Spread], between: list[Spread] | None
) -> list[tuple[float, float, str]]:
    columns = []
    for i, step in enumerate(where):
        text = f"{step.name}: {number(removed[i].mean)}"
        if len(removed[i].values) > 1 and removed[i].low is not None:
            text += f" ({number(removed[i].low)} to {number(removed[i].high)})"
        text += f"\nmassive tokens kept: {number(kept[i].mean)}"
        text += f"\nbetween prompts: {number(between[i].mean)}" if between else ""
        columns.append((step.x - 0.25, step.x + 0.25, text))
    return columns


def _agreement_description(measure: _AgreementMeasure, where: list[Step], removed: list[Spread], prompts: int) -> str:
    drawn = [(step, value.mean) for step, value in zip(where, removed, strict=True) if value.mean is not None]
    if not drawn:
        return f"{measure.axis}: undefined because no prompt has two tokens that count."
    high = max(drawn, key=lambda pair: pair[1])
    low = min(drawn, key=lambda pair: pair[1])
    (first, start), (final, end) = drawn[0], drawn[-1]
    return (
        f"{measure.axis}. Mean over {plural(prompts, 'prompt')}, massive tokens removed: {number(start)} at "
        f"{first.name}, "
        f"highest {number(high[1])} at {high[0].name}, lowest {number(low[1])} at {low[0].name}, "
        f"{number(end)} at {final.name}. The table below holds every value."
    )


def _agreement_table(
    measure: _AgreementMeasure,
    where: list[Step],
    removed: list[Spread],
    kept: list[Spread],
    between: list[Spread] | None,
    prompts: list[str],
) -> Table:
    single = len(prompts) == 1
    columns = ["Layer", "After", "Mean" if not single else "Massive removed"]
    columns += [] if single else ["Lowest", "Highest"]
    columns += ["Massive kept"] + (["Between prompts"] if between else [])
    each = [] if single or len(prompts) > MOST_PROMPT_COLUMNS else prompts
    rows = []
    for i, step in enumerate(where):
        row: list[float | int | str | None] = [step.layer, step.after, removed[i].mean]
        row += [] if single else [removed[i].low, removed[i].high]
        row += [kept[i].mean] + ([between[i].mean] if between else [])
        rows.append(cells(row + (list(removed[i].values) if each else [])))
    caption = f"{measure.label}, massive tokens removed unless stated otherwise"
    return Table(caption + (" (prompts by name)" if each else ""), tuple(columns + each), tuple(rows))


NORMS_QUESTION = "Do the token norms grow?"


def norms_figure(trace: xr.Dataset) -> Figure:
    """Draw median and quartiles of the tokens' norms, and the largest massive norm, at each state of the model."""
    where = steps(trace)
    bands = {
        name: by_depth(trace, f"norm_{name}", "removed", where)
        for name in ("lower_quartile", "median", "upper_quartile")
    }
    sinks = _sinks(trace)
    prompts = trace.sizes["prompt"]
    if all(each.mean is None for each in bands["median"]) and all(sink.norm.mean is None for sink in sinks.values()):
        return nothing("norms-chart", NORMS_QUESTION, "Not plotted because no token has a known norm.")
    curves = _norms_curves(where, bands, sinks)
    return Figure(
        ident="norms-chart",
        question=NORMS_QUESTION,
        svg=draw_for_screens(
            lambda width: curves_chart(
                curves, last=max(sinks), title="Norm of a token (log scale)", width=width, log=True,
                columns=_norms_columns(where, bands, sinks),
            ),
            ident="norms-chart",
            title=f"{NORMS_QUESTION} Norm of the tokens over depth, on a log axis",
            description=_norms_description(where, bands["median"], sinks, prompts),
            keys=curve_keys(curves),
        ),
        caption=_norms_caption(prompts, where, sinks),
        table=_norms_table(where, bands, sinks),
    )  # fmt: skip


@dataclass(frozen=True)
class _Sink:
    norm: Spread
    share: Spread
    many: Spread


def _sinks(trace: xr.Dataset) -> dict[int, _Sink]:
    names = ("massive_norm", "massive_share", "massive_count")
    values = [trace[name].transpose("layer", "prompt").values.astype(float) for name in names]
    return {int(layer): _Sink(*(spread(each[i]) for each in values)) for i, layer in enumerate(trace["layer"].values)}


def _norms_curves(where: list[Step], bands: dict[str, list[Spread]], sinks: dict[int, _Sink]) -> list[Curve]:
    x = [step.x for step in where]
    low, median, high = ([each.mean for each in bands[name]] for name in ("lower_quartile", "median", "upper_quartile"))
    last = [value if step.site == "final_norm" else None for step, value in zip(where, median, strict=True)]
    largest = [sink.norm.mean for sink in sinks.values()]
    return [
        Curve("median over tokens", x, median, BLUE, low, high, "quartiles over tokens"),
        Curve("after the final norm", x, last, INK, width=0, mark="diamond"),
        Curve("", list(sinks), largest, ORANGE, dash=(1.5, 2.5), width=1.6),
        Curve("largest massive token of the layer", list(sinks), largest, ORANGE, width=0, mark="triangle"),
    ]


def _norms_columns(
    where: list[Step], bands: dict[str, list[Spread]], sinks: dict[int, _Sink]
) -> list[tuple[float, float, str]]:
    columns = []
    for i, step in enumerate(where):
        low, mid, high = (bands[name][i].mean for name in ("lower_quartile", "median", "upper_quartile"))
        text = f"{step.name}: median norm {number(mid)}, quartiles {number(low)} and {number(high)}"
        sink = sinks[step.layer]
        if step.site == "feed_forward" and sink.norm.mean is not None:
            text += f"\nlargest massive token: {number(sink.norm.mean)}"
        columns.append((step.x - 0.25, step.x + 0.25, text))
    return columns


def _norms_caption(prompts: int, where: list[Step], sinks: dict[int, _Sink]) -> str:
    over = "" if prompts == 1 else f" Means over {prompts} prompts."
    both = any(step.layer and step.part == "feed_forward" for step in where)
    parts = "after attention and after the feed-forward part" if both else "after the attention"
    text = f"Euclidean norms {parts} of each layer, without massive tokens.{over}"
    with_sink = {layer: sink for layer, sink in sinks.items() if sink.norm.mean is not None}
    if not with_sink:
        return f"{text} No token is massive: no norm stands out."
    layer, top = max(with_sink.items(), key=lambda item: item[1].norm.mean or 0.0)
    share = top.share.mean
    total = f"; massive tokens have {percent(share)} of the total norm there" if share is not None else ""
    return (
        f"{text} Massive tokens are drawn separately: the largest norm is {number(top.norm.mean)}, after layer "
        f"{layer}{total}."
    )


def _norms_description(where: list[Step], medians: list[Spread], sinks: dict[int, _Sink], prompts: int) -> str:
    drawn = [(s.name, m.mean) for s, m in zip(where, medians, strict=True) if m.mean is not None]
    if not drawn:
        return "Norms are undefined because every token of these prompts is massive."
    text = f"Median norm, {plural(prompts, 'prompt')}: {number(drawn[0][1])} at {drawn[0][0]}"
    text += f", {number(drawn[-1][1])} at {drawn[-1][0]}."
    found = [layer for layer, sink in sinks.items() if sink.norm.mean is not None]
    text += f" There are massive tokens in {plural(len(found), 'layer')}." if found else " No token is massive."
    return f"{text} The table below holds every value."


def _norms_table(where: list[Step], bands: dict[str, list[Spread]], sinks: dict[int, _Sink]) -> Table:
    rows = []
    for i, step in enumerate(where):
        row: list[float | int | str | None] = [step.layer, step.after]
        row += [bands[name][i].mean for name in ("lower_quartile", "median", "upper_quartile")]
        sink = sinks[step.layer]
        if step.site == "feed_forward":
            share = None if sink.share.mean is None else 100 * sink.share.mean
            none = "no token" if sink.norm.mean is None else sink.norm.mean
            row += [sink.many.mean, none, share if sink.norm.mean is not None else "no token"]
        else:
            row += ["", "", ""]
        rows.append(cells(row))
    columns = ("Layer", "After", "Lower quartile", "Median", "Upper quartile", "Massive tokens", "Largest", "Share (%)")
    return Table("Norms of the tokens, massive ones removed; means over prompts", columns, tuple(rows))


ATTENTION_QUESTION = "Which tokens receive the attention?"


@dataclass(frozen=True)
class _AttentionLayer:
    """The most attended token of each prompt in one layer."""

    layer: int
    weight: Spread
    uniform: Spread
    token: str
    sinks: int
    massive: int


def attention_figure(trace: xr.Dataset) -> Figure:
    """Draw the attention received by the most attended token of each layer; words where it is not accessible.

    Args:
        trace: From `tokendynamics.trace`.
    """
    if not bool(trace.attention_received.notnull().any()):
        return nothing(
            "attention-chart",
            ATTENTION_QUESTION,
            "Not plotted because the attention weights of this network are not accessible, or no prompt has tokens at "
            "least four positions apart. Attention sinks are then undefined.",
        )
    layers = [most for layer in trace.layer.values if (most := _layer(trace, int(layer)))]
    curves = _attention_curves(layers, trace.sizes["prompt"])
    return Figure(
        ident="attention-chart",
        question=ATTENTION_QUESTION,
        svg=draw_for_screens(
            lambda width: curves_chart(
                curves,
                last=int(trace.layer.values[-1]),
                title="Attention received by one token",
                width=width,
                domain=(0.0, 1.0),
                rules=(Rule(ATTENTION_SINK, f"attention sink from {ATTENTION_SINK:g}"),),
                columns=_attention_columns(layers),
            ),
            ident="attention-chart",
            title=f"{ATTENTION_QUESTION} Attention received by the most attended token, over depth",
            description=_attention_description(layers),
            keys=curve_keys(curves),
        ),
        caption=_attention_caption(trace.sizes["prompt"]),
        table=_attention_table(layers, trace.sizes["prompt"]),
    )


def _layer(trace: xr.Dataset, layer: int) -> _AttentionLayer | None:
    received = trace.attention_received.transpose("prompt", "layer", "token").values[:, layer]
    uniform = trace.attention_uniform.transpose("prompt", "layer", "token").values[:, layer]
    seen = np.flatnonzero(np.isfinite(received).any(axis=1))
    if not seen.size:
        return None
    most = np.nanargmax(received[seen], axis=1)
    massive = trace.massive_position.transpose("prompt", "layer").values[seen, layer]
    texts = trace.token_text.transpose("prompt", "token").values[seen, most]
    position, many = Counter(most.tolist()).most_common(1)[0]
    text = Counter(str(each) for each, at in zip(texts, most, strict=True) if at == position).most_common(1)[0][0]
    return _AttentionLayer(
        layer,
        spread(received[seen, most]),
        spread(uniform[seen, most]),
        f"{position} ({token_label(text)})" + ("" if many == len(seen) else f", in {many} of {len(seen)} prompts"),
        int(attention_sinks(trace)[:, layer].any(axis=1).sum()),
        int((massive == most).sum()),
    )


def _attention_curves(layers: list[_AttentionLayer], prompts: int) -> list[Curve]:
    x = [each.layer for each in layers]
    weights = [each.weight.mean for each in layers]
    several = {}
    if prompts > 1:
        band = {"low": [each.weight.low for each in layers], "high": [each.weight.high for each in layers]}
        several = {**band, "band": "range over prompts"}
    also = [each.weight.mean if 2 * each.massive >= prompts else None for each in layers]
    return [
        Curve("uniform attention", x, [each.uniform.mean for each in layers], MUTED, dash=(5, 3), width=1.5),
        Curve("most attended token", x, weights, BLUE, mark="disc", **several),
        Curve("also massive", x, also, ORANGE, width=0, mark="triangle"),
    ]


def _attention_columns(layers: list[_AttentionLayer]) -> list[Column]:
    return [
        (
            each.layer - 0.5,
            each.layer + 0.5,
            f"Layer {each.layer}: {number(each.weight.mean)}, {number(each.uniform.mean)} under uniform attention\n"
            f"token {each.token}\nattention sinks in {plural(each.sinks, 'prompt')}",
        )
        for each in layers
    ]


def _attention_caption(prompts: int) -> str:
    over = "" if prompts == 1 else f" Line: mean over {prompts} prompts; band: lowest to highest."
    return (
        "Attention received by the most attended token of each prompt: mean over heads and over the tokens at least "
        f"four positions away that can attend to it.{over} An attention sink receives at least {ATTENTION_SINK:g} and "
        f"{factor(TIMES_UNIFORM)} its share under uniform attention. A massive token has a large norm; either occurs "
        "without the other."
    )


def _attention_description(layers: list[_AttentionLayer]) -> str:
    highest = max(layers, key=lambda each: each.weight.mean or 0.0)
    return (
        f"The most attended token receives most in layer {highest.layer}, {number(highest.weight.mean)} compared with "
        f"{number(highest.uniform.mean)} under uniform attention: token {highest.token}. There are attention sinks "
        f"in {sum(each.sinks > 0 for each in layers)} of {plural(len(layers), 'layer')}. The table below holds every "
        "value."
    )


def _attention_table(layers: list[_AttentionLayer], prompts: int) -> Table:
    several = ["Lowest prompt", "Highest prompt"] if prompts > 1 else []
    rows = []
    for each in layers:
        row: list[Given] = [each.layer, each.token, each.weight.mean]
        row += [each.weight.low, each.weight.high] if prompts > 1 else []
        rows.append(cells([*row, each.uniform.mean, each.sinks, each.massive]))
    columns = (
        "Layer",
        "Most attended token",
        "Weight",
        *several,
        "Uniform",
        "With a sink",
        "Also massive",
    )
    return Table(
        "Attention received by the most attended token; number of prompts in which it is a sink, and massive",
        columns,
        tuple(rows),
    )


UPDATES_QUESTION = "How large are the updates?"
_UPDATES_COLOURS = {"attention": BLUE, "feed_forward": ORANGE}


def updates_figure(trace: xr.Dataset) -> Figure:
    """Draw the update ratio over depth, and mark the unusually large ones.

    Args:
        trace: From `tokendynamics.trace`.
    """
    layers = [int(layer) for layer in trace.layer.values[1:]]
    found = {name: _ratios(trace, name, there) for name, there in parts_there(trace).items() if there.any()}
    medians = {name: [_median(row) for row in values] for name, values in found.items()}
    spreads = {name: [spread(row) for row in values] for name, values in found.items()}
    if all(value is None for each in medians.values() for value in each):
        return nothing(
            "updates-chart",
            UPDATES_QUESTION,
            "Not plotted because no update was measured relative to the residual stream.",
        )
    prompts = trace.sizes["prompt"]
    curves = _updates_curves(layers, medians, spreads, prompts)
    return Figure(
        ident="updates-chart",
        question=UPDATES_QUESTION,
        svg=draw_for_screens(
            lambda width: curves_chart(
                curves, last=layers[-1], title="|update| / |residual before it| (log)", width=width, log=True,
                columns=_updates_columns(layers, medians, spreads),
            ),
            ident="updates-chart",
            title=f"{UPDATES_QUESTION} Update relative to the residual stream, over depth",
            description=_updates_description(layers, medians),
            keys=curve_keys(curves),
        ),
        caption=_updates_caption(prompts),
        table=_updates_table(layers, medians, spreads, prompts),
    )  # fmt: skip


def _median(values: np.ndarray) -> float | None:
    return float(np.nanmedian(values)) if np.isfinite(values).any() else None


def _ratios(trace: xr.Dataset, component: str, there: np.ndarray) -> np.ndarray:
    ratios = trace.update_ratio.sel(component=component).transpose("layer", "prompt").values[1:]
    return np.where(there[:, None], ratios, np.nan)


def _updates_curves(
    layers: list[int], medians: dict[str, list[float | None]], spreads: dict[str, list[Spread]], prompts: int
) -> list[Curve]:
    curves = []
    for name in medians:
        label = PART_NAMES[name]
        low, high = [each.low for each in spreads[name]], [each.high for each in spreads[name]]
        dash = () if name == "attention" else (5.0, 3.0)
        several = {"low": low, "high": high, "band": f"range over prompts, {label}"} if prompts > 1 else {}
        curves.append(Curve(label, layers, medians[name], _UPDATES_COLOURS[name], dash=dash, mark="disc", **several))
    for name in medians:
        label = f"{PART_NAMES[name]}: unusually large"
        sizes = np.array([np.nan if value is None else value for value in medians[name]])
        standing = [medians[name][place] if place in jumps(sizes) else None for place in range(len(layers))]
        curves.append(Curve(label, layers, standing, INK, width=0, mark="diamond"))
    return curves


def _updates_columns(
    layers: list[int], medians: dict[str, list[float | None]], spreads: dict[str, list[Spread]]
) -> list[Column]:
    columns = []
    for place, layer in enumerate(layers):
        lines = [f"Layer {layer}"]
        for name in medians:
            each = spreads[name][place]
            text = f"{PART_NAMES[name]}: {number(medians[name][place])}"
            several = len(each.values) > 1 and each.low is not None
            lines.append(text + (f" ({number(each.low)} to {number(each.high)})" if several else ""))
        columns.append((layer - 0.5, layer + 0.5, "\n".join(lines)))
    return columns


def _updates_caption(prompts: int) -> str:
    over = "" if prompts == 1 else f" Line: median over {prompts} prompts; band: lowest to highest prompt."
    return (
        "Norm of a part's update divided by the norm of the residual stream before it, median over tokens without "
        f"massive ones.{over} An update is unusually large if it is at least {factor(UPDATE_JUMP)} the median of the "
        f"neighbouring layers and at least {LEAST_UPDATE:g}."
    )


def _updates_description(layers: list[int], medians: dict[str, list[float | None]]) -> str:
    texts = []
    for name in medians:
        drawn = [(value, layer) for value, layer in zip(medians[name], layers, strict=True) if value is not None]
        if drawn:
            (low, at_low), (high, at_high) = min(drawn), max(drawn)
            texts.append(
                f"The update of the {PART_NAMES[name]} is largest in layer {at_high} ({number(high)}) and smallest in "
                f"layer {at_low} ({number(low)})."
            )
    return " ".join([*texts, "The table below holds every value."])


def _updates_table(
    layers: list[int], medians: dict[str, list[float | None]], spreads: dict[str, list[Spread]], prompts: int
) -> Table:
    columns = ["Layer"]
    for name in medians:
        columns += [PART_NAMES[name].capitalize(), *(["lowest prompt", "highest prompt"] if prompts > 1 else [])]
    rows = []
    for place, layer in enumerate(layers):
        row: list[Given] = [layer]
        for name in medians:
            each = spreads[name][place]
            row += [medians[name][place], *([each.low, each.high] if prompts > 1 else [])]
        rows.append(cells(row))
    over = ": median over prompts" if prompts > 1 else ""
    return Table(f"|update| / |residual before it|{over}", tuple(columns), tuple(rows))
