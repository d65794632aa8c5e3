"""The measure over learning rates: how each arm was tuned, and whether the best lies within the grid."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokendynamics.report.kit._curves import Curve, curve_keys, curves_chart, time_axis
from tokendynamics.report.kit._figure import Figure, Given, Table, cells, nothing
from tokendynamics.report.kit._palette import INK
from tokendynamics.report.kit._svg import Drawing, Key, draw_for_screens
from tokendynamics.report.training._lines import Line, curve, described, look
from tokendynamics.report.training._study_figures import places_of
from tokendynamics.report.training._study_result import Study, unit_of

_QUESTION = "Was every arm tuned well enough?"
_HEIGHT = 280
_MARGIN = 1.15
"""Factor by which the axis is wider than the grid."""


def tuning(result: Study) -> Figure:
    """Draw the measure of each arm over the learning rates that were tried.

    Args:
        result: What a study with tuning found.
    """
    table, seeds = _table(result), result.dataset["tuning_seed"].values.tolist()
    lines = _lines(result)
    shown = [line for line in lines if line.drawn(log=False)]
    if not shown:
        return nothing("tuning", _QUESTION, "Nothing is drawn: no learning rate was finished on all seeds.")
    keys = [*curve_keys([curve(line) for line in shown]), Key("one seed", "circle", INK), Key("chosen", "diamond", INK)]
    return Figure(
        ident="tuning",
        question=_QUESTION,
        svg=draw_for_screens(
            lambda width: _chart(result, shown, width),
            ident="tuning",
            title=f"{_QUESTION} {unit_of(result).capitalize()} over learning rates",
            description=f"{described(shown)} The table below holds every run.",
            keys=keys,
        ),
        caption=f"On the validation split at the end of training. Line: mean over the seeds {_listed(seeds)} where all "
        "finished; rings: each of them; diamond: chosen.",
        table=table,
    )


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def _lines(result: Study) -> list[Line]:
    rates = result.dataset["rate"].values.astype(np.float64)
    order = np.argsort(rates)
    means = result.dataset["tuning"].mean("tuning_seed", skipna=False)
    return [
        Line(arm, place, rates[order], means.sel(arm=arm).values[order]) for arm, place in places_of(result).items()
    ]


def _chart(result: Study, lines: Sequence[Line], width: float) -> Drawing:
    rates = lines[0].x
    curves = []
    for line in lines:
        colour, dash = look(line.place)
        curves.append(Curve(line.name, line.x.tolist(), line.values.tolist(), colour, dash=dash))
    for line in lines:
        tried = result.dataset["tuning"].sel(arm=line.name)
        spread = [(float(rate), float(value)) for rate in line.x for value in tried.sel(rate=rate).values]
        where, values = zip(*spread, strict=True)
        curves.append(Curve("", where, values, look(line.place)[0], width=0, mark="ring"))
    for line in lines:
        at = line.x == float(result.dataset["learning_rate"].sel(arm=line.name))
        curves.append(
            Curve("", line.x[at].tolist(), line.values[at].tolist(), look(line.place)[0], width=0, mark="diamond")
        )
    x = time_axis(rates[0] / _MARGIN, rates[-1] * _MARGIN, "Learning rate (log scale)", log=True, width=width)
    return curves_chart(curves, x=x, title=unit_of(result).capitalize(), width=width, height=_HEIGHT)


def _table(result: Study) -> Table:
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
    return Table(f"{unit_of(result).capitalize()} on the validation split for each learning rate", columns, tuple(rows))
