"""Sizes of the updates by attention and feed-forward part, relative to the residual stream."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.network import PART_NAMES, parts_there
from tokendynamics.diagnosis.tracing.words import LEAST_UPDATE, UPDATE_JUMP, jumps
from tokendynamics.figures.figure import Figure, Given, Table, cells, nothing
from tokendynamics.figures.lines import Column, Curve, curve_keys, curves_chart
from tokendynamics.figures.palette import BLUE, INK, ORANGE
from tokendynamics.figures.svg import draw_for_screens
from tokendynamics.report.diagnosis._depth import Spread, spread
from tokendynamics.words import factor, number

QUESTION = "How large are the updates?"
_COLOURS = {"attention": BLUE, "feed_forward": ORANGE}


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
            "updates-chart", QUESTION, "Not plotted because no update was measured relative to the residual stream."
        )
    prompts = trace.sizes["prompt"]
    curves = _curves(layers, medians, spreads, prompts)
    return Figure(
        ident="updates-chart",
        question=QUESTION,
        svg=draw_for_screens(
            lambda width: curves_chart(
                curves, last=layers[-1], title="|update| / |residual before it| (log)", width=width, log=True,
                columns=_columns(layers, medians, spreads),
            ),
            ident="updates-chart",
            title=f"{QUESTION} Update relative to the residual stream, over depth",
            description=_description(layers, medians),
            keys=curve_keys(curves),
        ),
        caption=_caption(prompts),
        table=_table(layers, medians, spreads, prompts),
    )  # fmt: skip


def _median(values: np.ndarray) -> float | None:
    return float(np.nanmedian(values)) if np.isfinite(values).any() else None


def _ratios(trace: xr.Dataset, component: str, there: np.ndarray) -> np.ndarray:
    ratios = trace.update_ratio.sel(component=component).transpose("layer", "prompt").values[1:]
    return np.where(there[:, None], ratios, np.nan)


def _curves(
    layers: list[int], medians: dict[str, list[float | None]], spreads: dict[str, list[Spread]], prompts: int
) -> list[Curve]:
    curves = []
    for name in medians:
        label = PART_NAMES[name]
        low, high = [each.low for each in spreads[name]], [each.high for each in spreads[name]]
        dash = () if name == "attention" else (5.0, 3.0)
        several = {"low": low, "high": high, "band": f"range over prompts, {label}"} if prompts > 1 else {}
        curves.append(Curve(label, layers, medians[name], _COLOURS[name], dash=dash, mark="disc", **several))
    for name in medians:
        label = f"{PART_NAMES[name]}: unusually large"
        sizes = np.array([np.nan if value is None else value for value in medians[name]])
        standing = [medians[name][place] if place in jumps(sizes) else None for place in range(len(layers))]
        curves.append(Curve(label, layers, standing, INK, width=0, mark="diamond"))
    return curves


def _columns(
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


def _caption(prompts: int) -> str:
    over = "" if prompts == 1 else f" Line: median over {prompts} prompts; band: lowest to highest prompt."
    return (
        "Norm of a part's update divided by the norm of the residual stream before it, median over tokens without "
        f"massive ones.{over} An update is unusually large if it is at least {factor(UPDATE_JUMP)} the median of the "
        f"neighbouring layers and at least {LEAST_UPDATE:g}."
    )


def _description(layers: list[int], medians: dict[str, list[float | None]]) -> str:
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


def _table(
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
