"""Curves over depth of several models on one axis, with their intervals and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import altair as alt
import numpy as np

from tokendynamics.figures.figure import Figure, Table, cells, nothing
from tokendynamics.figures.lines import Curve, curve_keys, curves_chart, drawable, ticks
from tokendynamics.figures.palette import BLUE, GREEN, INK, MUTED, NEGATIVE, ORANGE
from tokendynamics.figures.svg import WIDE, draw_for_screens
from tokendynamics.words import number

HEIGHT = 240

LOOKS: tuple[tuple[str, tuple[float, ...]], ...] = (
    (BLUE, ()), (ORANGE, (5, 3)), (GREEN, (2, 2)), (NEGATIVE, (7, 3, 2, 3)), (INK, (1.5, 3)), (MUTED, (9, 4)),
)  # fmt: skip
"""Colour and dash of each model in turn."""


@dataclass(frozen=True)
class ModelCurve:
    """Values of one model over depth.

    Attributes:
        name: The model.
        x: Positions on the axis.
        places: Names of these positions.
        values: NaN where undefined.
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
    curves: Sequence[ModelCurve],
    depth: str,
    *,
    logarithmic: bool = False,
    without_first: bool = False,
) -> Figure:
    """Return one figure of several curves.

    Args:
        ident: For links.
        question: The question that it answers.
        axis: Title of the vertical axis.
        caption: The convention in words.
        curves: One for each model.
        depth: Title of the horizontal axis.
        logarithmic: Whether the vertical axis is logarithmic; values that are not above zero are not drawn.
        without_first: Whether the curves are those of all models but the first, so that each keeps its look.
    """
    looks = [LOOKS[(place + without_first) % len(LOOKS)] for place in range(len(curves))]
    drawn = [_as_drawn(curve, *look) for curve, look in zip(curves, looks, strict=True)]
    if not any(drawable(value) and (not logarithmic or (value or 0) > 0) for each in drawn for value in each.values):
        why = "above zero" if logarithmic else "defined"
        text = f"Not plotted because no value is {why}. {caption}"
        return replace(nothing(ident, question, text), table=_table(axis, curves))
    return Figure(
        ident=ident,
        question=question,
        svg=draw_for_screens(
            lambda width: curves_chart(
                drawn, x=_depth_axis(curves, depth, width), title=axis, width=width, height=HEIGHT, log=logarithmic
            ),
            ident=ident,
            title=question,
            description=f"{axis}. {_described(curves)} The table below holds every value.",
            keys=curve_keys(drawn),
        ),
        caption=caption,
        table=_table(axis, curves),
    )


def _as_drawn(curve: ModelCurve, colour: str, dash: tuple[float, ...]) -> Curve:
    values, low, high = (None if each is None else each.tolist() for each in (curve.values, curve.low, curve.high))
    return Curve(curve.name, curve.x, values or [], colour, low=low, high=high, dash=dash, mark="disc")


def _depth_axis(curves: Sequence[ModelCurve], title: str, width: float) -> alt.X:
    """Layers are whole numbers; depths between 0 and 1 are those of networks that are not equally deep."""
    places = [x for curve in curves for x in curve.x]
    most = 15 if width >= WIDE else 8
    if all(float(x).is_integer() for x in places) and max(places, default=0) > 1:
        labelled = [tick for tick in ticks(int(max(places)), most) if tick >= min(places)]
        return alt.X("x:Q", axis=alt.Axis(title=title, values=labelled, format="d"))
    return alt.X("x:Q", axis=alt.Axis(title=title, tickCount=most // 2))


def _described(curves: Sequence[ModelCurve]) -> str:
    parts = []
    for curve in curves:
        known = [float(each) for each in curve.values if math.isfinite(each)]
        parts.append(
            f"{curve.name}: {number(known[0])} at first, {number(known[-1])} at the end."
            if known
            else f"{curve.name}: undefined."
        )
    return " ".join(parts)


def _table(axis: str, curves: Sequence[ModelCurve]) -> Table:
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
