"""Which parts change the similarity of the tokens, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from tokendynamics.diagnosis import Diagnosis
from tokendynamics.diagnosis.tracing.prompts import noun_in
from tokendynamics.figures.figure import Figure, Given, Section, Table, columns_table
from tokendynamics.figures.maps import SignedMap, Tile
from tokendynamics.figures.palette import ATTENTION, FEED_FORWARD, NORM
from tokendynamics.figures.parts import Bar, Bars
from tokendynamics.report.diagnosis._states import Band, layer_columns, over_prompts, steps_of, undrawn, unshared
from tokendynamics.words import UNDEFINED, number, plural, signed

_QUESTION = "Which parts and heads cause it?"
PARTS = {
    "attention": ("attention", ATTENTION, (-0.38, -0.02)),
    "feed_forward": ("feed-forward", FEED_FORWARD, (0.02, 0.38)),
    "final_norm": ("final norm", NORM, (0.46, 0.82)),
}
"""Name, colour and horizontal extent relative to its layer of each part's bar, in the order in which the parts run."""

_HEADS = {
    "consensus_sensitivity": (
        "heads-kappa",
        "Which heads make the tokens alike, to first order?",
        "∂κ/∂a",
        "Derivative of κ with respect to a gate a on the output of each head, at a = 1. Positive: the head makes the "
        "tokens of one {noun} more alike; negative: less alike. × marks layers without such a head. The QK and OV "
        "balances of the same heads are in the section on the weights.",
        "Heads, first order",
    ),
    "consensus_effect": (
        "heads-effect",
        "Which heads make the tokens alike, when removed?",
        "Effect on κ",
        "κ of the network minus κ without the head, for the heads that were removed one at a time, on {noun}s that did "
        "not choose them. Positive: the head makes the tokens of one {noun} more alike. × marks heads that were not "
        "removed. The table gives 95 % confidence intervals, not corrected for the number of heads.",
        "Heads, removed",
    ),
}
"""Identifier, question, name, caption and label of the map of each variable of the effects of heads."""


@dataclass(frozen=True)
class _Changes:
    """The change of a measure by each part that has any, over layers, and the total of each layer."""

    layers: Sequence[int]
    parts: Mapping[str, Band]
    totals: np.ndarray

    @property
    def sums(self) -> dict[str, float]:
        """The change by each part over all layers, by the part's name."""
        return {PARTS[name][0]: sum(np.nan_to_num(band.values).tolist()) for name, band in self.parts.items()}


def section(diagnosis: Diagnosis) -> Section:
    """Return the section: signed bars for κ and for the mean pair cosine; the drawn ones come first."""
    trace, prompts = diagnosis.trace, diagnosis.trace.sizes["prompt"]
    noun = noun_in(trace)
    kappa = _figure(
        "components-chart", "Consensus κ", "Change in κ", _changes(trace, _of_kappa(trace)), unshared(trace),
        f"Over {plural(prompts, noun)}, without massive tokens. Whiskers: 90 % confidence intervals over {noun}s, if "
        "there are at least three.",
    )  # fmt: skip
    cosine = _figure(
        "components-cosine", "Mean pair cosine", "Change in mean pair cosine", _changes(trace, _of_cosine(trace)),
        undrawn(trace),
        f"{'' if prompts == 1 else f'Means over {prompts} {noun}s. '}Measured on the tokens that are massive in no "
        f"layer, so that all layers compare the same tokens. A direction common to all {noun}s counts here but not "
        "in κ.",
    )  # fmt: skip
    heads = (
        [_heads_map(diagnosis.heads, name, noun) for name in _HEADS] if isinstance(diagnosis.heads, xr.Dataset) else []
    )
    variants = sorted((kappa, cosine, *heads), key=lambda figure: not figure.drawn)
    return Section("components", _QUESTION, variants=tuple(variants))


def _heads_map(effects: xr.Dataset, variable: str, noun: str) -> Figure:
    """Draw a number of each head, layers × heads; the table of measured effects has those that were removed."""
    ident, question, name, caption, label = _HEADS[variable]
    values, where = effects[variable].transpose("layer", "head").values, effects.attrs["where"]
    layers, heads = (effects[axis].values for axis in ("layer", "head"))
    places, known = list(np.ndindex(values.shape)), np.isfinite(values)
    if not known.any():
        return Figure(ident, question, f"Not plotted because {name} is undefined for every head.", label=label)
    texts = np.where(known, np.vectorize(number, otypes=[object])(values), "not available")
    tiles = [
        Tile(int(layers[i]), int(heads[j]), float(values[i, j]), f"Layer {layers[i]}, head {heads[j]}: {texts[i, j]}")
        for i, j in places
    ]
    shown = [place for place in places if known[place]]
    columns: list[tuple[str, Sequence[float]]] = [(name, [float(values[place]) for place in shown])]
    if f"{variable}_interval" in effects:
        bounds = effects[f"{variable}_interval"].transpose("layer", "head", "bound").values
        columns += [(end, [float(bounds[place][k]) for place in shown]) for k, end in enumerate(("from", "to"))]
    of = (("Layer", [int(layers[i]) for i, _ in shown]), ("Head", [int(heads[j]) for _, j in shown]))
    high, low = (max(shown, key=lambda place: sign * values[place]) for sign in (1, -1))
    return Figure(
        ident,
        question,
        f"{caption.format(noun=noun)} κ is read after layer {where}.",
        SignedMap(tiles, "Head", heads.tolist(), float(np.nanmax(np.abs(values))) or 1.0),
        columns_table(f"{name} of each head, κ after layer {where}", [*of, *columns]),
        title=f"{question} {name}, layers × heads",
        description=f"{name} of {plural(len(shown), 'head')} is largest for layer {layers[high[0]]} head "
        f"{heads[high[1]]} ({number(float(values[high]))}) and smallest for layer {layers[low[0]]} head "
        f"{heads[low[1]]} ({number(float(values[low]))}). The table below holds every value.",
        label=label,
    )


def _of_kappa(trace: xr.Dataset) -> dict[str, Band]:
    bounds = trace.kappa_change_interval.transpose("layer", "component", "bound")
    return {
        name: Band(
            trace.kappa_change.sel(component=name).values,
            *(bounds.sel(component=name, bound=end).values for end in ("low", "high")),
        )
        for name in PARTS
    }


def _of_cosine(trace: xr.Dataset) -> dict[str, Band]:
    """Return means over prompts: unlike medians, the means of the parts add up to the mean of the total."""
    change = trace.component_change.transpose("component", "layer", "prompt")
    none = np.full(trace.sizes["layer"], np.nan)
    return {name: Band(over_prompts(change.sel(component=name).values).values, none, none) for name in PARTS}


def _changes(trace: xr.Dataset, parts: Mapping[str, Band]) -> _Changes:
    """Return the changes in layers 1 … L by the parts whose states were measured."""
    layers = [int(layer) for layer in trace.layer.values]
    measured = {(step.layer, step.part) for step in steps_of(trace)}
    kept = {}
    for name, band in parts.items():
        there = np.array([(layer, name) in measured for layer in layers]) & np.isfinite(band.values)
        whole = there & np.isfinite(band.low) & np.isfinite(band.high)
        cut = Band(*(np.where(at, values, np.nan)[1:] for at, values in (
            (there, band.values), (whole, band.low), (whole, band.high)
        )))  # fmt: skip
        if cut.defined:
            kept[name] = cut
    rows = np.array([band.values for band in kept.values()]).reshape(len(kept), len(layers) - 1).T
    known = [row[np.isfinite(row)].tolist() for row in rows]
    return _Changes(layers[1:], kept, np.array([sum(row) if row else np.nan for row in known]))


def _figure(ident: str, label: str, axis: str, changes: _Changes, undefined: str, caption: str) -> Figure:
    if not changes.parts:
        return Figure(ident, _QUESTION, undefined, label=label)
    sums, totals = changes.sums, changes.totals
    parts = ", ".join(f"{name} {signed(value)}" for name, value in sums.items())
    known = np.flatnonzero(np.isfinite(totals))
    most, least = (int(known[place(totals[known])]) for place in (np.argmax, np.argmin))
    counts = ", ".join(
        f"{PARTS[name][0]} draws together in {int((band.values > 0).sum())}"
        for name, band in changes.parts.items()
        if name != "final_norm"
    )
    last = f", layer {changes.layers[least]} least ({signed(float(totals[least]))})" if len(known) > 1 else ""
    return Figure(
        ident,
        _QUESTION,
        "Above zero a part draws the tokens together, below zero it drives them apart. The bars of a layer "
        f"add up to its diamond, and the diamonds to {signed(sum(sums.values()))} over all layers ({parts}). {caption}",
        Bars(
            changes.layers,
            [Bar(*PARTS[name], band.values, band.low, band.high) for name, band in changes.parts.items()],
            totals,
            axis,
            layer_columns(changes.layers, lambda place, layer: _text(changes, place, layer)),
        ),
        _table(f"{axis}; all layers together: {number(sum(sums.values()))}", changes),
        title=f"{_QUESTION} {axis} per layer, split by part",
        description=f"Of {plural(len(known), 'layer')}, {counts}. Layer {changes.layers[most]} contributes most "
        f"({signed(float(totals[most]))}){last}. The table below holds every value.",
        label=label,
    )


def _text(changes: _Changes, place: int, layer: int) -> str:
    """Return what is shown of a layer on hover."""
    total = float(changes.totals[place])
    if not np.isfinite(total):
        return f"Layer {layer}: {UNDEFINED}"
    lines = [f"Layer {layer}: {signed(total)} in total"]
    for name, band in changes.parts.items():
        if np.isfinite(band.values[place]):
            low, high = float(band.low[place]), float(band.high[place])
            interval = f" (90 % CI {number(low)} to {number(high)})" if np.isfinite(low) else ""
            lines.append(f"{PARTS[name][0]}: {signed(float(band.values[place]))}{interval}")
    return "\n".join(lines)


def _table(caption: str, changes: _Changes) -> Table:
    """Return the changes; a part that a measured layer does not have is blank there."""

    def blanked(values: np.ndarray) -> list[Given]:
        pairs = zip(values.tolist(), np.isfinite(changes.totals), strict=True)
        return [value if np.isfinite(value) else "" if measured else None for value, measured in pairs]

    columns: list[tuple[str, Sequence[Given] | np.ndarray]] = [("Layer", changes.layers)]
    known = any(band.has_ends for band in changes.parts.values())
    for name, band in changes.parts.items():
        columns.append((PARTS[name][0].capitalize(), blanked(band.values)))
        columns += [("from", blanked(band.low)), ("to", blanked(band.high))] if known else []
    return columns_table(caption, [*columns, ("Total", changes.totals)])
