"""The measure over learning rates: how each arm was tuned, and whether the best lies within the grid."""

from __future__ import annotations

import math
from collections.abc import Mapping

import altair as alt
import numpy as np

from tokendynamics.figures.figure import Figure, Given, Table, cells, nothing
from tokendynamics.figures.lines import Curve, curve_keys, curves_chart
from tokendynamics.figures.palette import INK
from tokendynamics.figures.svg import WIDE, Drawing, Key, draw_for_screens
from tokendynamics.numerics.printable import printable
from tokendynamics.report.training._lines import Line, curve, described, look
from tokendynamics.report.training._study_figures import places_of
from tokendynamics.sweeps.study import StudyResult

_QUESTION = "Was every arm tuned well enough?"
_HEIGHT = 280
_MARGIN = 1.15
"""Factor by which the axis is wider than the grid."""


def tuning(result: StudyResult) -> Figure:
    """Draw the measure of each arm over the learning rates that were tried.

    Args:
        result: What a study with tuning found.
    """
    lines, seeds = _lines(result), ", ".join(map(str, result.dataset["tuning_seed"].values))
    if not lines:
        return nothing("learning-rates", _QUESTION, "Nothing is drawn: no learning rate was finished on all seeds.")
    keys = [
        *curve_keys([curve(line) for line in lines.values()]),
        Key("one seed", "circle", INK),
        Key("chosen", "diamond", INK),
    ]
    return Figure(
        ident="learning-rates",
        question=_QUESTION,
        svg=draw_for_screens(
            lambda width: _chart(result, lines, width),
            ident="learning-rates",
            title=f"{_QUESTION} {result.unit.capitalize()} over learning rates",
            description=f"{described(list(lines.values()))} The table below holds every run.",
            keys=keys,
        ),
        caption=f"On the validation split at the end of training. Line: mean over the seeds {seeds} where all "
        "finished; rings: each of them; diamond: chosen.",
        table=_table(result),
    )


def _lines(result: StudyResult) -> dict[str, Line]:
    """Return the means of each arm that has any."""
    rates = result.dataset["rate"].values.astype(np.float64)
    order = np.argsort(rates)
    means = result.dataset["tuning"].mean("tuning_seed", skipna=False)
    lines = {
        arm: Line(printable(arm), place, rates[order], means.sel(arm=arm).values[order])
        for arm, place in places_of(result).items()
    }
    return {arm: line for arm, line in lines.items() if line.drawn(log=False)}


def _chart(result: StudyResult, lines: Mapping[str, Line], width: float) -> Drawing:
    means, tried, chosen = [], [], []
    for arm, line in lines.items():
        colour, dash = look(line.place)
        each = result.dataset["tuning"].sel(arm=arm, rate=line.x).transpose("tuning_seed", "rate").values
        at = line.x == float(result.dataset["learning_rate"].sel(arm=arm))
        means.append(Curve(line.name, line.x.tolist(), line.values.tolist(), colour, dash=dash))
        tried.append(
            Curve("", np.tile(line.x, len(each)).tolist(), each.ravel().tolist(), colour, width=0, mark="ring")
        )
        chosen.append(Curve("", line.x[at].tolist(), line.values[at].tolist(), colour, width=0, mark="diamond"))
    x, title = _axis(next(iter(lines.values())).x, width), result.unit.capitalize()
    return curves_chart([*means, *tried, *chosen], x=x, title=title, width=width, height=_HEIGHT)


def _axis(rates: np.ndarray, width: float) -> alt.X:
    """Return an axis that names the rates that were tried."""
    scale = alt.Scale(type="log", domain=[rates[0] / _MARGIN, rates[-1] * _MARGIN], nice=False)
    named = rates[:: math.ceil(len(rates) / (10 if width >= WIDE else 5))].tolist()
    return alt.X("x:Q", scale=scale, axis=alt.Axis(title="Learning rate (log scale)", values=named, format="~g"))


def _table(result: StudyResult) -> Table:
    dataset = result.dataset
    seeds = dataset["tuning_seed"].values.tolist()
    rows = []
    for arm in places_of(result):
        chosen = float(dataset["learning_rate"].sel(arm=arm))
        for rate in dataset["rate"].values.tolist():
            runs = dataset["tuning"].sel(arm=arm, rate=rate).values
            status = [str(word) for word in dataset["tuning_status"].sel(arm=arm, rate=rate).values]
            each: list[Given] = [
                float(value) if np.isfinite(value) else word for value, word in zip(runs, status, strict=True)
            ]
            rows.append(cells([arm, rate, float(runs.mean()), *each, "chosen" if rate == chosen else ""]))
    columns = ("Arm", "Learning rate", "Mean", *(f"Seed {seed}" for seed in seeds), "Choice")
    return Table(f"{result.unit.capitalize()} on the validation split for each learning rate", columns, tuple(rows))
