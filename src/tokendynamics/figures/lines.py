"""Lines of several arms or quantities on one axis: how each looks, what is said of it, and the table of its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tokendynamics.figures.axes import Column
from tokendynamics.figures.curves import Curve, Mark
from tokendynamics.figures.figure import Given, Table, cells
from tokendynamics.figures.palette import BLUE, GREEN, INK, MUTED, NEGATIVE, ORANGE
from tokendynamics.words import number

MOST_POINTS = 200
"""Points of a line that are drawn and tabulated: as many as a drawing can show."""

_MARKED = 30
"""Most points of a line that are marked."""
_MARKS: tuple[Mark, ...] = ("disc", "ring", "triangle")
_MOST_COLUMNS = 100


def evenly(count: int, most: int) -> np.ndarray:
    """Return at most `most` of the numbers from 0 to `count` − 1, evenly, with both ends.

    >>> evenly(9, 3).tolist(), evenly(3, 5).tolist()
    ([0, 4, 8], [0, 1, 2])
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


@dataclass(frozen=True)
class Line:
    """One line.

    Attributes:
        name: In the legend.
        place: Which of the looks it has: an arm has the same in all figures of a page.
        x: Places on the axis, rising.
        values: NaN where undefined.
        low: Lower ends of a band; None for no band.
        high: Upper ends.
    """

    name: str
    place: int
    x: np.ndarray
    values: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None

    def drawn(self, log: bool) -> bool:
        """Whether an axis has something of it."""
        return bool((np.isfinite(self.values) & ((self.values > 0) | (not log))).any())


LOOKS: tuple[tuple[str, tuple[float, ...]], ...] = (
    (BLUE, ()), (ORANGE, (5, 3)), (GREEN, (2, 2)), (NEGATIVE, (7, 3, 2, 3)), (INK, (1.5, 3)), (MUTED, (9, 4)),
)  # fmt: skip
"""Colour and dash of each of a few lines."""


def look(place: int) -> tuple[str, tuple[float, ...]]:
    """Return colour and dash; beyond the first few, colours come again with other dashes.

    >>> look(0)[0] == look(6)[0], look(0)[1] == look(6)[1], len({look(place) for place in range(36)})
    (True, False, 36)
    """
    many = len(LOOKS)
    return LOOKS[place % many][0], LOOKS[(place + place // many) % many][1]


def thinned(line: Line) -> Line:
    """Return the line at no more than `MOST_POINTS` places, evenly, with both ends."""
    kept = evenly(len(line.x), MOST_POINTS) if len(line.x) else slice(0)
    band = [None if each is None else each[kept] for each in (line.low, line.high)]
    return Line(line.name, line.place, line.x[kept], line.values[kept], *band)


def curve(line: Line) -> Curve:
    """Return what is drawn of a line."""
    colour, dash = look(line.place)
    values, low, high = (None if each is None else each.tolist() for each in (line.values, line.low, line.high))
    mark = _MARKS[line.place % len(_MARKS)] if len(line.x) <= _MARKED else ""
    return Curve(line.name, line.x.tolist(), values or [], colour, low=low, high=high, dash=dash, mark=mark)


def columns(lines: Sequence[Line], heading: str, first: float, last: float) -> list[Column]:
    """Return what is said of each place on hover.

    Args:
        lines: All of the drawing.
        heading: What a place is, such as "step".
        first: Where the drawing begins.
        last: Where it ends.
    """
    places = _places(lines)
    places = places[evenly(len(places), _MOST_COLUMNS)] if len(places) else places
    if len(places) < 2:
        return []
    edges = [first, *((places[1:] + places[:-1]) / 2).tolist(), last]
    said = []
    for place, (left, right) in zip(places, pairwise(edges), strict=True):
        at = [(line, np.flatnonzero(line.x == place)) for line in lines]
        told = [f"{line.name}: {_with_band(line, int(found[0]))}" for line, found in at if len(found)]
        said.append((left, right, "\n".join([f"{heading} {number(float(place), 7)}", *told])))
    return said


def described(lines: Sequence[Line]) -> str:
    """Return where each line begins and ends, in words."""
    parts = []
    for line in lines:
        known = line.values[np.isfinite(line.values)]
        ends = f"{number(float(known[0]))} at first, {number(float(known[-1]))} at last" if len(known) else "none"
        parts.append(f"{line.name}: {ends}")
    return "; ".join(parts) + "."


def table(
    caption: str,
    heading: str,
    lines: Sequence[Line],
    ends: tuple[str, str] = ("low", "high"),
    named: Callable[[float], Given] = lambda place: int(place) if place.is_integer() else place,
) -> Table:
    """Return every number drawn.

    Args:
        caption: What they are.
        heading: What a place is.
        lines: Those of the drawing.
        ends: What the ends of a band are called.
        named: What the first cell of a row says of its place.
    """
    names = [heading]
    for line in lines:
        names += [line.name] + ([] if line.low is None else [f"{line.name}, {end}" for end in ends])
    rows = []
    for place in _places(lines):
        row: list[Given] = [named(float(place))]
        for line in lines:
            at = np.flatnonzero(line.x == place)
            given = [line.values] + ([] if line.low is None or line.high is None else [line.low, line.high])
            row += [float(each[at[0]]) if len(at) else None for each in given]
        rows.append(cells(row))
    return Table(caption, tuple(names), tuple(rows))


def _places(lines: Sequence[Line]) -> np.ndarray:
    return np.unique(np.concatenate([line.x for line in lines])) if lines else np.array([])


def _with_band(line: Line, at: int) -> str:
    value = number(float(line.values[at]))
    if line.low is None or line.high is None or not math.isfinite(line.low[at]):
        return value
    return f"{value} ({number(float(line.low[at]))} to {number(float(line.high[at]))})"
