"""Curves over depth of several models on one axis, with their intervals, and the numbers behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import numpy as np

from tokendynamics.report.kit._curves import ticks
from tokendynamics.report.kit._figure import Figure, Table, cells
from tokendynamics.report.kit._palette import BLUE, GREEN, INK, MUTED, NEGATIVE, ORANGE
from tokendynamics.report.kit._svg import WIDE, Drawing, Key, draw_for_screens, inline
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

    def drawn(width: float) -> Drawing:
        x = _depth_axis(curves, depth, width)
        pairs = (_chart(curve, look, x, axis, logarithmic) for curve, look in zip(curves, looks, strict=True))
        return alt.layer(*(each for pair in pairs for each in pair), width=width, height=HEIGHT)

    keys = [Key(curve.name, "line", colour, dash) for curve, (colour, dash) in zip(curves, looks, strict=True)]
    return Figure(
        ident=ident,
        question=question,
        svg=draw_for_screens(
            drawn,
            ident=ident,
            title=question,
            description=f"{axis}. {_described(curves)} The table below holds every value.",
            keys=keys,
        ),
        caption=caption,
        table=_table(axis, curves),
    )


def _depth_axis(curves: Sequence[Curve], title: str, width: float) -> alt.X:
    """Layers are whole numbers; depths between 0 and 1 are those of networks that are not equally deep."""
    places = [x for curve in curves for x in curve.x]
    most = 15 if width >= WIDE else 8
    if all(float(x).is_integer() for x in places) and max(places, default=0) > 1:
        labelled = [tick for tick in ticks(int(max(places)), most) if tick >= min(places)]
        return alt.X("x:Q", axis=alt.Axis(title=title, values=labelled, format="d"))
    return alt.X("x:Q", axis=alt.Axis(title=title, tickCount=most // 2))


def _chart(curve: Curve, look: tuple[str, str], x: alt.X, axis: str, logarithmic: bool) -> list[alt.Chart]:
    colour, dash = look
    rows = []
    for index, (place, value) in enumerate(zip(curve.x, curve.values, strict=True)):
        drawn = math.isfinite(value) and not (logarithmic and value <= 0)
        row: dict[str, float | None] = {"x": float(place), "value": float(value) if drawn else None}
        if curve.low is not None and curve.high is not None:
            ends = float(curve.low[index]), float(curve.high[index])
            row |= dict(zip(("low", "high"), ends if all(map(math.isfinite, ends)) else (None, None), strict=True))
        rows.append(row)
    base = alt.Chart(inline(rows)).encode(x=x)

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
