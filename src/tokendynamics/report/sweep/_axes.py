"""How a parameter stands on the axis of a chart, and the table behind one."""

from __future__ import annotations

import json
from typing import TypeVar

import altair as alt
import numpy as np
import xarray as xr

from tokendynamics.figures.figure import Cell, Table
from tokendynamics.figures.parameter import MOST_TICKS, Parameter, parameter, ticks
from tokendynamics.figures.svg import WIDE

MOST_ROWS = 400
"""Rows of a table that are read on the page; the file has all."""


def parameter_of(shares: xr.Dataset, name: str) -> Parameter:
    """Return a parameter of the design as an axis."""
    return parameter(name, shares[name].values if name in shares.coords else np.arange(shares.sizes[name]))


C = TypeVar("C", alt.X, alt.Y)


def axis(kind: type[C], field: str, over: Parameter, length: float) -> C:
    """Return the axis of a chart.

    Args:
        kind: Which: alt.X or alt.Y.
        field: Of the rows.
        over: What stands on it.
        length: Of the axis: a short one has fewer ticks.
    """
    ends = over.edges[[0, -1]].tolist()
    scale = alt.Scale(type="log" if over.log else "linear", domain=ends, nice=False, zero=False)
    if not over.words and len(over.places) > MOST_TICKS:
        shown = alt.Axis(title=over.name, tickCount=10 if length >= WIDE else 5, format="~g")
        return kind(f"{field}:Q", scale=scale, axis=shown)
    at, labels = ticks(over)
    near = (f"abs(datum.value - {place!r}) <= {1e-9 * abs(place)!r}" for place in at)
    named = "".join(f"{test} ? {json.dumps(label)} : " for test, label in zip(near, labels, strict=True))
    return kind(f"{field}:Q", scale=scale, axis=alt.Axis(title=over.name, values=at, labelExpr=f"{named}''"))


def value_of(over: Parameter, place: int) -> str | float | int:
    """Return a value of a parameter for a table."""
    value = over.values[place]
    return str(value) if over.words else value.item()


def shortened(caption: str, columns: tuple[str, ...], rows: list[tuple[Cell, ...]]) -> Table:
    """Return a table of which the first rows are read."""
    if len(rows) <= MOST_ROWS:
        return Table(caption, columns, tuple(rows))
    return Table(f"{caption}; the first {MOST_ROWS} of {len(rows):,}", columns, tuple(rows), tuple(rows[:MOST_ROWS]))
