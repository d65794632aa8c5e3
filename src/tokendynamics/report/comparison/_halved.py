"""The section of a comparison on halved parts: the change of each model's loss, and the differences."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tokendynamics.diagnosis._comparison import Comparison
from tokendynamics.diagnosis._figure_names import PART_NAMES
from tokendynamics.report.comparison._curves import ModelCurve, curves_figure
from tokendynamics.report.kit._figure import Figure, Section


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
