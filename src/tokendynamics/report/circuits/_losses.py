"""The loss during learning: a line for each seed, and reference losses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import altair as alt
import numpy as np

from tokendynamics.circuits.learning import LearningRecord
from tokendynamics.circuits.learning.record import SOLVED
from tokendynamics.figures.figure import Figure, Table, cells
from tokendynamics.figures.lines import log_ticks
from tokendynamics.figures.palette import AXIS, BLUE, GREEN, INK, ORANGE
from tokendynamics.figures.svg import Drawing, Key, draw_for_screens
from tokendynamics.words import number, plural

_HEIGHT = 340


def loss_curves(records: Sequence[LearningRecord]) -> Figure:
    """Draw the loss on fresh sequences over outer steps, log scale.

    Args:
        records: Runs of one model that differ by their seed.
    """
    curves = [_positive((*record.losses, record.final_loss)) for record in records]
    task = records[0].task
    marks = {
        "best sum of two functions (no logic)": (task.interaction_variance, ORANGE, "5 3"),
        "best constant": (task.variance, AXIS, "1 3"),
        "solved": (SOLVED * task.variance, GREEN, "9 3"),
    }
    drawn = {name: mark for name, mark in marks.items() if 0 < mark[0] < math.inf}
    question = "How fast do the models learn, and do all seeds solve the task?"
    keys = [Key("one seed", "line", BLUE, width=1.0), Key("median over seeds", "line", INK)]
    keys += [Key("lowest to highest", "band", BLUE)] if len(records) > 1 else []
    keys += [Key(name, "line", colour, dash=dash, width=1.4) for name, (_, colour, dash) in drawn.items()]
    solved = sum(record.solved for record in records)
    finals = np.array([record.final_loss for record in records])
    return Figure(
        ident="learning-losses",
        question=question,
        svg=draw_for_screens(
            lambda width: _chart(curves, drawn, width),
            ident="learning-losses",
            title=f"{question} Mean squared error over outer steps",
            description=f"{plural(len(records), 'seed')}: median of the final loss {number(float(np.median(finals)))}, "
            f"from {number(float(finals.min()))} to {number(float(finals.max()))}; {solved} solved. "
            "The table below lists every value.",
            keys=keys,
        ),
        caption="Mean squared error over the tokens from the second on, without penalty, log scale. It is measured on "
        "fresh sequences before each outer step of L-BFGS and after the last one. Solved: at most 1 % of the variance "
        "of the targets remains.",
        table=_table(records),
    )


def _chart(curves: list[list[float | None]], marks: dict[str, tuple[float, str, str]], width: float) -> Drawing:
    present = [loss for curve in curves for loss in curve if loss is not None] + [mark[0] for mark in marks.values()]
    low, high = min(present, default=1.0) / 1.6, max(present, default=1.0) * 1.6
    last = max(len(curve) for curve in curves) - 1
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    axis = alt.Axis(title="Mean squared error (log scale)", values=_ticks(low, high), format=".0e")
    y, middle, bottom = (alt.Y(f"{name}:Q", scale=scale, axis=axis) for name in ("loss", "median", "low"))
    x = alt.X(
        "step:Q", scale=alt.Scale(domain=[0, max(last, 1)], nice=False), axis=alt.Axis(title="Outer step", format="d")
    )
    rows = [
        {"step": step, "loss": loss, "seed": seed}
        for seed, curve in enumerate(curves)
        for step, loss in enumerate(curve)
        if loss is not None
    ]
    lines = alt.Chart(alt.Data(values=rows)).mark_line(color=BLUE, strokeWidth=1.0, opacity=0.75)
    rules = [
        alt.Chart(alt.Data(values=[{"loss": value}]))
        .mark_rule(color=colour, strokeWidth=1.4, strokeDash=_dash(dash))
        .encode(y=y)
        for value, colour, dash in marks.values()
    ]
    summary = alt.Chart(alt.Data(values=_summary(curves)))
    layers = [
        summary.mark_area(color=BLUE, opacity=0.16).encode(x=x, y=bottom, y2="high:Q"),
        *rules,
        lines.encode(x=x, y=y, detail="seed:N"),
        summary.mark_line(color=INK, strokeWidth=2.2).encode(x=x, y=middle),
    ]
    return alt.layer(*layers, width=width, height=_HEIGHT)


def _dash(dash: str) -> list[float]:
    return [float(part) for part in dash.split()]


def _ticks(low: float, high: float) -> list[float]:
    ticks = log_ticks(low, high)
    return ticks[:: math.ceil(len(ticks) / 9)]


def _summary(curves: list[list[float | None]]) -> list[dict[str, float]]:
    rows = []
    for step in range(max(len(curve) for curve in curves)):
        present = [loss for curve in curves for loss in curve[step : step + 1] if loss is not None]
        if present:
            rows.append({"step": step, "low": min(present), "median": float(np.median(present)), "high": max(present)})
    return rows


def _positive(losses: Sequence[float]) -> list[float | None]:
    """Replace zero and values that are not finite by None: a log axis cannot show them."""
    return [loss if math.isfinite(loss) and loss > 0 else None for loss in losses]


def _table(records: Sequence[LearningRecord]) -> Table:
    steps = max(len(record.losses) for record in records)
    rows = []
    for step in range(steps):
        losses = [record.losses[step] if step < len(record.losses) else None for record in records]
        rows.append(cells([step, *losses]))
    rows.append(cells(["end", *(record.final_loss for record in records)]))
    columns = ("Outer step", *(f"Seed {record.seed}" for record in records))
    return Table("Mean squared error before each outer step, and at the end", columns, tuple(rows))
