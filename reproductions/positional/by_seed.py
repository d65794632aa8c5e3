"""Curves through the layers of trained networks, and claims about them that every seed or their mean must hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from reproductions.drawing import footnote, layer_lines
from reproductions.positional.depth import MEASURES
from reproductions.positional.trained import PROJECTIONS
from reproductions.record import Quantity, Record, Relation, measured
from tokendynamics import figures
from tokendynamics.sweeps.study.paired import interval
from tokendynamics.training import Record as Training

CONFIDENCE = 0.95
SAID = {"yes": "so", "no": "not so", "cannot tell": "not decided by these seeds"}

OVERSHOOTS = -2.0
"""Of x ← (1 + λ)x: |1 + λ| < 1 for real λ between this and 0."""

Key = tuple[str, str, int]
"""Projection, name (of a regime or of positions) and seed."""
Curves = Mapping[str, np.ndarray]
"""Logarithms (seed, layer) of a measure, by name; NaN throughout for a training that did not finish."""


def curves_of(trainings: Mapping[Key, Training]) -> dict[str, dict[str, dict[str, np.ndarray]]]:
    """Return the curves of networks without norms and feed-forward parts, by projection, measure and name."""
    outputs = dict.fromkeys(output for output, _, _ in trainings)
    names = dict.fromkeys(name for _, name, _ in trainings)
    seeds = dict.fromkeys(seed for _, _, seed in trainings)
    return {
        output: {
            measure: {name: logs_by_layer([trainings[output, name, seed] for seed in seeds], measure) for name in names}
            for measure in MEASURES
        }
        for output in outputs
    }


def logs_by_layer(trainings: Sequence[Training], measure: str) -> np.ndarray:
    """Return the logarithm of the "norm" or "distance" by layer without norms and feed-forward parts, (seed, layer).

    NaN where a number is too large, and throughout for a training that did not finish, so that rows stay paired.
    """
    rows = [training.layers["bare"][measure] if training.finished else [] for training in trainings]
    depth = max((len(row) for row in rows), default=0)
    return np.log(np.array([row or [np.nan] * depth for row in rows], dtype=np.float64).reshape(len(rows), depth))


def of_trainings(trainings: Mapping[Key, Training]) -> list[Quantity]:
    """Return how many trainings did not end with all their steps, and what all took, now or when they were kept."""
    return [
        measured("trainings that did not finish", float(sum(not training.finished for training in trainings.values()))),
        measured("seconds of training in all", sum(training.seconds for training in trainings.values())),
    ]


def lowest_of_values(trainings: Mapping[Key, Training], output: str, name: str) -> float:
    """Return the lowest Re λ(V) of any layer after the trainings of one projection and name; NaN if none finished."""
    ended = [
        training
        for (projection, called, _), training in trainings.items()
        if (projection, called) == (output, name) and training.finished
    ]
    lowest = [training.validation[-1].get("value_real_lowest") for training in ended]
    return min((value for value in lowest if value is not None), default=math.nan)


def why_not(output: str, lowest: float = math.nan) -> str:
    """Return why a regime need not come out although W and A have its signs; empty where that is not known.

    Args:
        output: "identity" or "free".
        lowest: Re λ(V), see `lowest_of_values`, where tokens should contract; NaN elsewhere.
    """
    if output == "free":
        return "a free projection stands outside the constraint: what the heads give can be turned about"
    return f"Re λ(V) reaches {lowest:.2g}: below −2 a layer of size 1 overshoots" if lowest < OVERSHOOTS else ""


def finished(logs: np.ndarray) -> np.ndarray:
    """Return the rows (seed, layer) of the trainings that finished."""
    return logs[~np.isnan(logs).all(axis=1)]


def growth(logs: np.ndarray) -> np.ndarray:
    """Return how much the logarithm (seed, layer) gains from the embedding to the last layer, (seed,)."""
    return logs[:, -1] - logs[:, 0] if logs.shape[1] else np.full(len(logs), np.nan)


def gains(words: str, curves: Curves) -> list[Quantity]:
    """Return how much ln gains over all layers, as a mean of seeds, for each name; nothing is expected of it."""
    gained = {name: growth(logs) for name, logs in curves.items()}
    return [
        measured(f"{words}, {name}: gain of ln over all layers, mean of seeds", float(np.nanmean(values)))
        for name, values in gained.items()
        if not np.isnan(values).all()
    ]


def falls(name: str, logs: np.ndarray, reason: str = "") -> Quantity:
    """Hold a curve (seed, layer) against falling from each layer to the next, in every training that finished."""
    return _steps(f"{name}: largest change of ln in a layer, any seed", logs, "≤", reason)


def rises(name: str, logs: np.ndarray, reason: str = "") -> Quantity:
    """Hold a curve (seed, layer) against rising from each layer to the next, in every training that finished."""
    return _steps(f"{name}: smallest change of ln in a layer, any seed", logs, "≥", reason)


def _steps(name: str, logs: np.ndarray, relation: Relation, reason: str) -> Quantity:
    known = finished(logs)
    if not known.size:
        return _compared(name, math.nan, relation, reason, unsettled="no training finished")
    if np.isnan(known).any():
        return _compared(name, math.nan, relation, reason, unsettled="states are beyond what a number can hold")
    steps = np.diff(known, axis=1)
    return _compared(name, float(steps.max() if relation == "≤" else steps.min()), relation, reason)


def mean_of_seeds(name: str, values: np.ndarray, relation: Relation, reason: str = "") -> Quantity:
    """Hold the mean over seeds against 0; where its 95 % t-interval holds 0, these seeds cannot tell.

    Args:
        name: What it is.
        values: One for each seed; NaN for one that did not finish.
        relation: "≥" or "≤" 0, as is claimed.
        reason: Why it does not come out, if it does not.

    >>> mean_of_seeds("rise", np.array([0.1, -0.1, 0.2]), "≥").verdict
    'cannot tell'
    """
    known = values[~np.isnan(values)]
    if len(known) < 2:
        average = float(known[0]) if len(known) else math.nan
        return _compared(
            name, average, relation, reason, unsettled=f"{len(known)} of {len(values)} seeds have a number"
        )
    mean, low, high = interval(known, CONFIDENCE)
    words = f"95 % interval {low:.3g} … {high:.3g} over {len(known)} seeds" if low <= 0 <= high else ""
    return _compared(name, mean, relation, reason, unsettled=words)


def _compared(name: str, value: float, relation: Relation, reason: str, unsettled: str = "") -> Quantity:
    quantity = Quantity(name, 0.0, value, 0.0, relation, "reading", unsettled=unsettled)
    return replace(quantity, reason=reason) if quantity.verdict == "no" else quantity


def draw_by_projection(record: Record) -> Figure:
    """Draw distance and norm by layer, a row of panels for each projection.

    Args:
        record: Whose results have ``found``: curves by projection and measure.
    """
    curves: Mapping[str, Mapping[str, Curves]] = record.results["found"]
    labels = {"distance": "mean distance", "norm": "mean token norm"}
    places = [(output, measure) for output in curves for measure in labels]
    titles = [PROJECTIONS[output] for output, _ in places]
    figure, panels = figures.panels(2, len(curves), width=figures.DOUBLE, height=2.5 * len(curves), titles=titles)
    for panel, (output, measure) in zip(panels, places, strict=True):
        there = {name: finished(logs) for name, logs in curves[output][measure].items()}
        layer_lines(panel, {name: logs for name, logs in there.items() if len(logs)}, labels[measure])
    return footnote(figure, record, f"{record.statement} Lines: medians of seeds; bands: middle 80 %.")
