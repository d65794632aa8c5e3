"""Curves over depth of several models on one axis, with their intervals, and the numbers behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import numpy as np

from tokendynamics.report.kit._figure import Figure, Table, cells
from tokendynamics.report.kit._palette import BLUE, GREEN, INK, MUTED, NEGATIVE, ORANGE
from tokendynamics.report.kit._svg import Key, draw_for_screens, inline
from tokendynamics.report.kit._text import number

HEIGHT = 240

LOOKS = ((BLUE, ""), (ORANGE, "5,3"), (GREEN, "2,2"), (NEGATIVE, "7,3,2,3"), (INK, "1.5,3"), (MUTED, "9,4"))
"""Colour and dash of each model in turn."""


@dataclass(frozen=True)
class Curve:
    """One model's numbers.

    Attributes:
        name: The model.
        x: Where on the axis.
        places: What a place is called, in words.
        values: NaN where there is none.
        low: Lower end of the interval; None for no band.
        high: Upper end.
    """

    name: str
    x: Sequence[float]
    places: Sequence[str]
    values: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def curves_figure(
    ident: str,
    question: str,
    axis: str,
    caption: str,
    curves: Sequence[Curve],
    depth: str,
    *,
    logarithmic: bool = False,
    without_first: bool = False,
) -> Figure:
    """Return one figure of several curves.

    Args:
        ident: For links.
        question: What it answers.
        axis: What the numbers are.
        caption: The convention in words.
        curves: One for each model.
        depth: What the horizontal axis is.
        logarithmic: Whether the vertical axis is; numbers that are not above zero are not drawn.
        without_first: Whether the curves are of all models but the first, so that each keeps its look.
    """
    looks = [LOOKS[(place + without_first) % len(LOOKS)] for place in range(len(curves))]
    charts = [_chart(curve, look, axis, depth, logarithmic) for curve, look in zip(curves, looks, strict=True)]
    keys = [Key(curve.name, "line", colour, dash) for curve, (colour, dash) in zip(curves, looks, strict=True)]
    return Figure(
        ident=ident,
        question=question,
        svg=draw_for_screens(
            lambda width: alt.layer(*(each for pair in charts for each in pair), width=width, height=HEIGHT),
            ident=ident,
            title=question,
            description=f"{axis}. {_described(curves)} The table below holds every value.",
            keys=keys,
        ),
        caption=caption,
        table=_table(axis, curves),
    )


def _chart(curve: Curve, look: tuple[str, str], axis: str, depth: str, logarithmic: bool) -> list[alt.Chart]:
    colour, dash = look
    rows = []
    for index, (x, value) in enumerate(zip(curve.x, curve.values, strict=True)):
        drawn = math.isfinite(value) and not (logarithmic and value <= 0)
        row: dict[str, float | None] = {"x": float(x), "value": float(value) if drawn else None}
        if curve.low is not None and curve.high is not None:
            ends = float(curve.low[index]), float(curve.high[index])
            row |= dict(zip(("low", "high"), ends if all(map(math.isfinite, ends)) else (None, None), strict=True))
        rows.append(row)
    base = alt.Chart(inline(rows)).encode(x=alt.X("x:Q", axis=alt.Axis(title=depth, tickCount=10)))

    def y(field: str) -> alt.Y:
        scale = alt.Scale(type="log") if logarithmic else alt.Scale(zero=False)
        return alt.Y(f"{field}:Q", scale=scale, axis=alt.Axis(title=axis, tickCount=6))

    line = base.mark_line(color=colour, strokeWidth=2.2, strokeDash=[float(each) for each in dash.split(",") if each])
    charts = [line.encode(y=y("value")), base.mark_point(color=colour, filled=True, size=22).encode(y=y("value"))]
    if curve.low is not None:
        charts.insert(0, base.mark_area(color=colour, opacity=0.14).encode(y=y("low"), y2="high:Q"))
    return charts


def _described(curves: Sequence[Curve]) -> str:
    parts = []
    for curve in curves:
        known = [float(each) for each in curve.values if math.isfinite(each)]
        parts.append(
            f"{curve.name}: {number(known[0])} at first, {number(known[-1])} at the end."
            if known
            else f"{curve.name}: none."
        )
    return " ".join(parts)


def _table(axis: str, curves: Sequence[Curve]) -> Table:
    places = list(dict.fromkeys(place for curve in curves for place in curve.places))
    columns = ["Place"]
    for curve in curves:
        columns += [curve.name] + ([f"{curve.name}, low", f"{curve.name}, high"] if curve.low is not None else [])
    rows = []
    for place in places:
        row: list[float | str | None] = [place]
        for curve in curves:
            at = list(curve.places).index(place) if place in curve.places else None
            columns_of = [curve.values] + ([curve.low, curve.high] if curve.low is not None else [])
            row += [None if at is None or each is None else float(each[at]) for each in columns_of]
        rows.append(cells(row))
    return Table(axis, tuple(columns), tuple(rows))
