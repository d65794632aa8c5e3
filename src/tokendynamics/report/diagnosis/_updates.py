"""How large the updates of each part are, relative to the residual stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from tokendynamics.diagnosis import Diagnosis
from tokendynamics.diagnosis.network import PART_NAMES, parts_there
from tokendynamics.diagnosis.tracing.prompts import noun_in
from tokendynamics.diagnosis.tracing.words import LEAST_UPDATE, UPDATE_JUMP, jumps
from tokendynamics.figures.curves import Curve, Curves
from tokendynamics.figures.figure import Figure, Section, columns_table
from tokendynamics.figures.palette import INK
from tokendynamics.report.diagnosis._states import LOOKS, Band, extremes, layer_columns, over_prompts
from tokendynamics.words import factor, number

_IDENT, _QUESTION = "updates-chart", "How large are the updates?"


def section(diagnosis: Diagnosis) -> Section:
    """Return the section: the update ratio over depth."""
    return Section("updates", _QUESTION, figures=(updates_figure(diagnosis.trace),))


def updates_figure(trace: xr.Dataset) -> Figure:
    """Draw the update ratio over depth, and mark the unusually large ones.

    Args:
        trace: From `tokendynamics.trace`.
    """
    layers, several = [int(layer) for layer in trace.layer.values[1:]], trace.sizes["prompt"] > 1
    noun = noun_in(trace)
    ratios = trace.update_ratio.transpose("component", "layer", "prompt")[:, 1:]
    bands = {
        name: over_prompts(np.where(there[:, None], ratios.sel(component=name).values, np.nan), np.median)
        for name, there in parts_there(trace).items()
        if there.any()
    }
    if not any(band.defined for band in bands.values()):
        why = "Not plotted because no update was measured relative to the residual stream."
        return Figure(_IDENT, _QUESTION, why)
    columns: list[tuple[str, Sequence | np.ndarray]] = [("Layer", layers)]
    for name, band in bands.items():
        columns.append((PART_NAMES[name].capitalize(), band.values))
        columns += [(f"lowest {noun}", band.low), (f"highest {noun}", band.high)] if several else []
    over = f" Line: median over {trace.sizes['prompt']} {noun}s; band: lowest to highest {noun}." if several else ""
    largest = " ".join(
        f"The update of the {name} is largest in layer {at_high} ({number(high)}) and smallest in layer {at_low} "
        f"({number(low)})."
        for name, ((low, at_low), (high, at_high)) in extremes(
            layers, {name: band.values for name, band in bands.items()}
        ).items()
    )
    return Figure(
        _IDENT,
        _QUESTION,
        "Norm of a part's update divided by the norm of the residual stream before it, median over tokens without "
        f"massive ones.{over} An update is unusually large if it is at least {factor(UPDATE_JUMP)} the median of the "
        f"neighbouring layers and at least {LEAST_UPDATE:g}.",
        Curves(
            _curves(layers, bands, noun if several else ""),
            "|update| / |residual before it| (log)",
            last=layers[-1],
            log=True,
            columns=layer_columns(layers, lambda place, layer: "\n".join(_lines(place, layer, bands, several))),
        ),
        columns_table(f"|update| / |residual before it|{f': median over {noun}s' if several else ''}", columns),
        title=f"{_QUESTION} Update relative to the residual stream, over depth",
        description=f"{largest} The table below holds every value.",
    )


def _curves(layers: Sequence[int], bands: dict[str, Band], over: str) -> list[Curve]:
    curves = []
    for name, band in bands.items():
        label, (colour, dash) = PART_NAMES[name], LOOKS[name]
        curve = Curve(label, layers, band.values, colour, dash=dash, mark="disc")
        if over:
            curve = replace(curve, low=band.low, high=band.high, band=f"range over {over}s, {label}")
        curves.append(curve)
    for name, band in bands.items():
        standing = [value if place in jumps(band.values) else np.nan for place, value in enumerate(band.values)]
        curves.append(Curve(f"{PART_NAMES[name]}: unusually large", layers, standing, INK, width=0, mark="diamond"))
    return curves


def _lines(place: int, layer: int, bands: dict[str, Band], several: bool) -> list[str]:
    texts = {name: band.text(place) if several else number(band.values[place]) for name, band in bands.items()}
    return [f"Layer {layer}", *(f"{PART_NAMES[name]}: {text}" for name, text in texts.items())]
