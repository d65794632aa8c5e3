"""Curves of several arms or quantities on one axis: how each looks, and the words and the table of its numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from tokendynamics.figures.axes import Column
from tokendynamics.figures.curves import Curve, Mark, drawable
from tokendynamics.figures.figure import Given, Table, cells
from tokendynamics.figures.palette import BLUE, GREEN, INK, MUTED, NEGATIVE, ORANGE
from tokendynamics.words import number

MOST_POINTS = 200
"""Points of a curve that are drawn and tabulated: as many as a drawing can show."""

_MARKED = 30
"""Most points of a curve that are marked."""
_MARKS: tuple[Mark, ...] = ("disc", "ring", "triangle")
_MOST_COLUMNS = 100


def evenly(count: int, most: int) -> np.ndarray:
    """Return at most `most` of the numbers from 0 to `count` − 1, evenly, with both ends.

    >>> evenly(9, 3).tolist(), evenly(3, 5).tolist()
    ([0, 4, 8], [0, 1, 2])
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


LOOKS: tuple[tuple[str, tuple[float, ...]], ...] = (
    (BLUE, ()), (ORANGE, (5, 3)), (GREEN, (2, 2)), (NEGATIVE, (7, 3, 2, 3)), (INK, (1.5, 3)), (MUTED, (9, 4)),
)  # fmt: skip
"""Colour and dash of each of a few curves."""


def styled(
    label: str, place: int, x: np.ndarray, values: np.ndarray, low: np.ndarray | None = None,
    high: np.ndarray | None = None,
) -> Curve:  # fmt: skip
    """Return the curve of one of several arms; beyond the first few, colours come again with other dashes.

    Args:
        label: See `Curve`.
        place: Which of the looks it has: an arm has the same in all figures of a page.
        x: Places on the axis, rising.
        values: NaN where undefined.
        low: See `Curve`.
        high: See `Curve`.

    >>> looks = [(curve.colour, curve.dash) for curve in (styled("", n, np.zeros(1), np.zeros(1)) for n in range(36))]
    >>> looks[0][0] == looks[6][0], looks[0][1] == looks[6][1], len(set(looks))
    (True, False, 36)
    """
    many = len(LOOKS)
    colour, dash = LOOKS[place % many][0], LOOKS[(place + place // many) % many][1]
    mark = _MARKS[place % len(_MARKS)] if len(x) <= _MARKED else ""
    return Curve(label, x, values, colour, low, high, dash=dash, mark=mark)


def thinned(curve: Curve) -> Curve:
    """Return a curve at no more than `MOST_POINTS` of its places, evenly, with both ends."""
    kept = evenly(len(curve.x), MOST_POINTS)
    low, high = (None if end is None else np.asarray(end)[kept] for end in (curve.low, curve.high))
    return replace(curve, x=np.asarray(curve.x)[kept], values=np.asarray(curve.values)[kept], low=low, high=high)


def columns(curves: Sequence[Curve], heading: str, first: float, last: float) -> list[Column]:
    """Return what is shown of each place on hover.

    Args:
        curves: All of the drawing.
        heading: What a place is, such as "step".
        first: Where the drawing begins.
        last: Where it ends.
    """
    places = _places(curves)
    places = places[evenly(len(places), _MOST_COLUMNS)]
    if len(places) < 2:
        return []
    edges = [first, *((places[1:] + places[:-1]) / 2).tolist(), last]
    texts = []
    for place, (left, right) in zip(places, pairwise(edges), strict=True):
        at = [(curve, np.flatnonzero(np.asarray(curve.x) == place)) for curve in curves]
        values = [f"{curve.label}: {_with_band(curve, int(entry[0]))}" for curve, entry in at if len(entry)]
        texts.append((left, right, "\n".join([f"{heading} {number(float(place), 7)}", *values])))
    return texts


def described(curves: Sequence[Curve]) -> str:
    """Return where each curve begins and ends, in words."""
    parts = []
    for curve in curves:
        known = [value for value in curve.values if drawable(value)]
        ends = f"{number(known[0])} at first, {number(known[-1])} at last" if known else "none"
        parts.append(f"{curve.label}: {ends}")
    return "; ".join(parts) + "."


def table(
    caption: str,
    heading: str,
    curves: Sequence[Curve],
    ends: tuple[str, str] = ("low", "high"),
    named: Callable[[float], Given] = lambda place: int(place) if place.is_integer() else place,
) -> Table:
    """Return every number drawn.

    Args:
        caption: What they are.
        heading: What a place is.
        curves: Those of the drawing.
        ends: What the ends of a band are called.
        named: What the first cell of a row says of its place.
    """
    names: list[str] = [heading]
    numbers: list[dict[float, float]] = []
    for curve in curves:
        names += [curve.label] + ([] if curve.low is None else [f"{curve.label}, {end}" for end in ends])
        drawn = [values for values in (curve.values, curve.low, curve.high) if values is not None]
        numbers += [dict(zip(map(float, curve.x), np.asarray(values, float).tolist(), strict=True)) for values in drawn]
    places = map(float, _places(curves))
    rows = [cells([named(place), *(column.get(place) for column in numbers)]) for place in places]
    return Table(caption, tuple(names), tuple(rows))


def _places(curves: Sequence[Curve]) -> np.ndarray:
    return np.unique(np.concatenate([np.asarray(curve.x, dtype=float) for curve in curves])) if curves else np.array([])


def _with_band(curve: Curve, at: int) -> str:
    low, high = (None if end is None else end[at] for end in (curve.low, curve.high))
    value = number(curve.values[at])
    return f"{value} ({number(low)} to {number(high)})" if drawable(low) else value
