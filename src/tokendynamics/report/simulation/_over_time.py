"""One observable over time: a curve for each of a few lines, or the median of many with all that they span."""

from __future__ import annotations

from itertools import pairwise

import altair as alt
import numpy as np

from tokendynamics.figures.figure import Figure, Table, cells, nothing
from tokendynamics.figures.lines import Column, Curve, curve_keys, curves_chart, time_axis
from tokendynamics.figures.palette import BLUE, GREEN, INK, MUTED, NEGATIVE, ORANGE
from tokendynamics.figures.svg import WIDE, Drawing, draw_for_screens
from tokendynamics.report.simulation._measures import Measure
from tokendynamics.report.simulation._shown import Shown
from tokendynamics.words import number, plural

LOOKS: tuple[tuple[str, tuple[float, ...]], ...] = (
    (BLUE, ()), (ORANGE, (5, 3)), (GREEN, (2, 2)), (NEGATIVE, (7, 3, 2, 3)), (INK, (1.5, 3)), (MUTED, (9, 4)),
)  # fmt: skip
"""Colour and dash of each of a few lines."""

_HEIGHT = 250
_DECADES = 100.0
"""From this ratio of largest to smallest on, the axis is logarithmic."""

_CONSTANT = 1e-9
"""What varies by less than this share of its size is said to stay: a curve of it would show rounding."""


def over_time(run: Shown, measure: Measure) -> Figure:
    """Draw one observable over time, or say in words that it stays as it is.

    Args:
        run: What is shown.
        measure: One of its observables.
    """
    defined = measure.values[np.isfinite(measure.values)]
    low, high = float(defined.min()), float(defined.max())
    table = _table(run, measure)
    if high - low <= _CONSTANT * max(abs(low), abs(high)):
        why = f"Nothing is drawn: it is {number(low)} at all times, to within rounding. {measure.caption}"
        return nothing(measure.ident, measure.question, why)
    drawn = run.drawn
    log = low >= 0 and high > _DECADES * float(defined[defined > 0].min())
    curves = _curves(run, measure, drawn)
    title = measure.axis + (" (log scale)" if log else "")
    columns = _columns(run, measure, drawn)

    def chart(width: float) -> Drawing:
        axis = clock(run, width)
        return curves_chart(curves, x=axis, title=title, width=width, height=_HEIGHT, log=log, columns=columns)

    left_out = " Zeros have no place on the logarithmic axis and are left out." if log and low == 0 else ""
    return Figure(
        ident=measure.ident,
        question=measure.question,
        svg=draw_for_screens(
            chart,
            ident=measure.ident,
            title=measure.question,
            description=f"{measure.axis} over time: {_described(measure)} The table below holds every value drawn.",
            keys=curve_keys(curves),
        ),
        caption=f"{measure.caption}{_lines_in_words(measure)}{_early(run, measure)}{left_out}",
        table=table,
    )


def clock(run: Shown, width: float = WIDE) -> alt.X:
    """Return the axis of time, or of layers where these were counted.

    Args:
        run: What is shown.
        width: Of the plotting area.
    """
    times = run.times[run.drawn]
    name = "Layer" if run.engine == "layers" else "Time t"
    if run.log_times:
        zero = ", without t = 0" if run.times[0] == 0 else ""
        name = f"{name} (log scale{zero})"
    return time_axis(float(times[0]), float(times[-1]), name, log=run.log_times, width=width)


def _few(measure: Measure) -> bool:
    return len(measure.values) <= len(LOOKS)


def _summary(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return lowest, median and highest of the lines at each time; NaN where undefined."""
    some = np.isfinite(values).any(axis=0)
    found = np.full((3, values.shape[1]), np.nan)
    found[:, some] = [f(values[:, some], axis=0) for f in (np.nanmin, np.nanmedian, np.nanmax)]
    return found[0], found[1], found[2]


def _curves(run: Shown, measure: Measure, drawn: np.ndarray) -> list[Curve]:
    x = run.times[drawn].tolist()
    if _few(measure):
        alone = len(measure.values) == 1
        return [
            Curve(
                measure.axis if alone else f"{measure.lines} {name}", x, values[drawn].tolist(), colour, dash=dash,
                stepped=measure.whole,
            )
            for name, values, (colour, dash) in zip(measure.names, measure.values, LOOKS, strict=False)
        ]  # fmt: skip
    low, middle, high = (each[drawn].tolist() for each in _summary(measure.values))
    many = plural(len(measure.values), measure.lines)
    return [Curve(f"median of {many}", x, middle, BLUE, low, high, "lowest to highest", stepped=measure.whole)]


def _columns(run: Shown, measure: Measure, drawn: np.ndarray) -> list[Column]:
    """Return what is said of each time on hover; at most a hundred columns, or they are thinner than a pointer."""
    drawn = drawn[:: max(1, len(drawn) // 100)]
    times = run.times[drawn]
    if len(times) < 2:
        return []
    between = np.sqrt(times[1:] * times[:-1]) if run.log_times else (times[1:] + times[:-1]) / 2
    edges = [float(times[0]), *between.tolist(), float(times[-1])]
    said = []
    for place, (left, right) in zip(drawn, pairwise(edges), strict=True):
        values = measure.values[:, place]
        known = values[np.isfinite(values)]
        when = f"t = {number(float(run.times[place]), 4)}: "
        if not _few(measure) and known.size:
            low, middle, high = (number(float(each)) for each in (known.min(), np.median(known), known.max()))
            text = f"median {middle}, {low} to {high}"
        elif len(measure.values) == 1:
            text = number(float(values[0]))
        else:
            text = ", ".join(number(float(value)) for value in values) if known.size else "all had ended"
        said.append((left, right, when + text))
    return said


def _described(measure: Measure) -> str:
    first, last = (np.flatnonzero(np.isfinite(measure.values).any(axis=0))[place] for place in (0, -1))
    ends = [float(np.nanmedian(measure.values[:, place])) for place in (first, last)]
    of = "" if len(measure.values) == 1 else f" (median of {plural(len(measure.values), measure.lines)})"
    return f"from {number(ends[0])} to {number(ends[1])}{of}."


def _lines_in_words(measure: Measure) -> str:
    if _few(measure):
        return ""
    return f" The line is the median of {plural(len(measure.values), measure.lines)}, the band spans all of them."


def _early(run: Shown, measure: Measure) -> str:
    """Say that a system counts as long as it runs, where some end before the horizon."""
    if run.reached.all():
        return ""
    if _few(measure):
        return " What is drawn ends with the run."
    return (
        " A system counts up to the end of its run: towards the right they become fewer, which alone can move the "
        "median, and the table says how many are left."
    )


def _table(run: Shown, measure: Measure) -> Table:
    if _few(measure):
        columns = ("Time", *(f"{measure.lines} {name}".capitalize() for name in measure.names))
        columns = ("Time", measure.axis) if len(measure.values) == 1 else columns
        rows = [[float(time), *map(float, values)] for time, values in zip(run.times, measure.values.T, strict=True)]
        return Table(f"{measure.axis} over time", columns, tuple(cells(row) for row in rows))
    low, middle, high = _summary(measure.values)
    counted = np.isfinite(measure.values).sum(axis=0)
    columns = ("Time", "Median", "Lowest", "Highest", f"{measure.lines.capitalize()}s that count")
    numbers = zip(run.times, middle, low, high, strict=True)
    found = [cells([*(float(each) for each in row), int(many)]) for row, many in zip(numbers, counted, strict=True)]
    return Table(f"{measure.axis} over time", columns, tuple(found))
