"""Charts over depth or time from plain arrays: curves with bands on one axis, how they look, and their table."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np

from tokendynamics.figures.axes import Axis, Column, depth_axis, hover, log_ticks
from tokendynamics.figures.figure import Given, Table, cells
from tokendynamics.figures.palette import BLUE, GREEN, INK, MUTED, NEGATIVE, ORANGE, PAPER
from tokendynamics.figures.svg import WIDE, Key, Specification, alt, inline, layered
from tokendynamics.words import number, power_of_ten

HEIGHT = 270
"""Of a chart's plotting area in CSS pixels."""

_MOST_TICKS = 9
"""On a logarithmic axis: norms that run from 1 to 1e100 have a power of ten for every line of text otherwise."""

Number: TypeAlias = float | None
Numbers: TypeAlias = Sequence[Number] | np.ndarray
Mark: TypeAlias = Literal["", "disc", "ring", "diamond", "triangle"]

_SHAPES: dict[str, dict[str, Any]] = {
    "disc": {"shape": "circle", "strokeWidth": 0, "size": 26},
    "ring": {"shape": "circle", "fill": PAPER, "strokeWidth": 1.5, "size": 26},
    "diamond": {"shape": "diamond", "stroke": PAPER, "size": 90},
    "triangle": {"shape": "triangle-up", "stroke": PAPER, "strokeWidth": 0.6, "size": 64},
}
_KEYS: dict[str, Literal["line", "disc", "circle", "diamond", "triangle"]] = {
    "": "line", "disc": "disc", "ring": "circle", "diamond": "diamond", "triangle": "triangle"
}  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """One line over depth, or over time.

    Attributes:
        label: Its name in the legend.
        x: Places on the axis.
        values: What it shows there; None or NaN where there is nothing.
        colour: Of line, band and marks; from the palette, so that it has a dark twin.
        low: Lower ends of its band.
        high: Upper ends.
        band: The band's name in the legend.
        dash: Lengths of strokes and gaps.
        width: Of the line; 0 for marks alone.
        mark: What stands at each place.
        stepped: Whether it stays as it is up to the next place: a count has no values between whole numbers.
    """

    label: str
    x: Sequence[float] | np.ndarray
    values: Numbers
    colour: str
    low: Numbers | None = None
    high: Numbers | None = None
    band: str = ""
    dash: tuple[float, ...] = ()
    width: float = 2.2
    mark: Mark = ""
    stepped: bool = False

    def shown(self, log: bool = False) -> bool:
        """Tell whether an axis, logarithmic or not, has something of it."""
        return any(drawable(value, log) for value in self.values)

    @property
    def has_band(self) -> bool:
        """Whether its band is anywhere defined."""
        return self.low is not None and self.high is not None and any(drawable(value) for value in self.low)


@dataclass(frozen=True)
class Rule:
    """A value that is marked across the chart, with its name at one end, above the line or below it."""

    value: float
    label: str
    side: Literal["left", "right"] = "left"
    below: bool = False


@dataclass(frozen=True)
class Curves:
    """Curves, of one network or of several, on one pair of axes.

    Attributes:
        curves: The first is drawn lowest.
        title: Of the y axis.
        last: The last layer, where the axis is depth.
        axis: Another horizontal axis than depth.
        height: Of the plotting area.
        domain: Of the y axis, widened to what is drawn; None: what is drawn.
        log: Whether the y axis is logarithmic; what is not positive is then left out.
        rules: Values marked across.
        columns: Texts shown on hover.
    """

    curves: Sequence[Curve]
    title: str
    last: int = 0
    axis: Axis | None = None
    height: int = HEIGHT
    domain: tuple[float, float] | None = None
    log: bool = False
    rules: Sequence[Rule] = ()
    columns: Sequence[Column] = ()

    @property
    def keys(self) -> list[Key]:
        """The legend: each line, and each band, that has a name."""
        return curve_keys(self.curves)

    def chart(self, width: float = WIDE) -> Specification:
        """Return the chart for a width of its plotting area."""
        whole = all(curve.stepped for curve in self.curves)
        numbers = [values for curve in self.curves for values in (curve.values, curve.low, curve.high)]
        values = [
            value for some in numbers if some is not None for value in some if value is not None and drawable(value)
        ]
        y = _y_axis(values, self.title, self.domain, self.log, whole)
        axis = depth_axis(self.last) if self.axis is None else self.axis
        x = axis.x(width)
        layers: list[alt.Chart] = [
            alt.Chart(alt.Data(values=[{"y": rule.value}])).mark_rule(color=MUTED, strokeDash=[2, 3]).encode(y=y("y"))
            for rule in self.rules
        ]
        bases = [alt.Chart(inline(_rows(curve, self.log))).encode(x=x) for curve in self.curves]
        for curve, base in zip(self.curves, bases, strict=True):
            if curve.has_band:
                band = base.mark_area(color=curve.colour, opacity=0.16, **_between(curve))
                layers.append(band.encode(y=y("low"), y2="high:Q"))
        for curve, base in zip(self.curves, bases, strict=True):
            if curve.width:
                dash: dict[str, Any] = {"strokeDash": list(curve.dash)} if curve.dash else {}
                line = base.mark_line(color=curve.colour, strokeWidth=curve.width, **dash, **_between(curve))
                layers.append(line.encode(y=y("mid")))
            if curve.mark:
                look: dict[str, Any] = {"fill": curve.colour, "stroke": curve.colour} | _SHAPES[curve.mark]
                points = base.transform_filter("isValid(datum.mid)").mark_point(opacity=1, **look)
                layers.append(points.encode(y=y("mid")))
        layers += [name for rule in self.rules for name in _name(rule, y, width)]
        layers += [hover(self.columns, axis, self.height, width)] if self.columns else []
        return layered(*layers, width=width, height=self.height)


_GAP = 75
"""Between two charts beside each other, with the axis of the second."""


@dataclass(frozen=True)
class Panels:
    """Charts of the same curves beside each other, or one below the other on a phone.

    Attributes:
        charts: By the name above each.
    """

    charts: Mapping[str, Curves]

    @property
    def keys(self) -> list[Key]:
        """The legend: that of the first."""
        return next(iter(self.charts.values())).keys

    def chart(self, width: float = WIDE) -> Specification:
        """Return the charts for a width of the plotting area."""
        beside = width >= WIDE and len(self.charts) > 1
        chart_width = (width - _GAP) / 2 if beside else width
        named = [
            curves.chart(chart_width) | {"title": {"text": name, "anchor": "start", "offset": 6}}
            for name, curves in self.charts.items()
        ]
        return {"hconcat": named, "spacing": 16} if beside else {"vconcat": named, "spacing": 18}


def curve_keys(curves: Sequence[Curve]) -> list[Key]:
    """Return the legend of curves: each line, and each band, that has a name.

    Args:
        curves: As they are drawn.
    """
    keys = []
    for curve in curves:
        dash = ",".join(f"{length:g}" for length in curve.dash)
        if not (curve.shown() and curve.label):
            continue
        mark = "line" if curve.width else _KEYS[curve.mark]
        keys.append(Key(curve.label, mark, curve.colour, dash=dash, width=curve.width or 1.5))
        if curve.band and curve.has_band:
            keys.append(Key(curve.band, "band", curve.colour))
    return keys


def drawable(value: Number, log: bool = False) -> bool:
    """Tell whether an axis, logarithmic or not, has a place for a number."""
    return value is not None and math.isfinite(value) and not (log and value <= 0)


def _rows(curve: Curve, log: bool) -> list[dict]:
    def drawn(values: Numbers | None, place: int) -> Number:
        value = None if values is None else values[place]
        return float(value) if value is not None and drawable(value, log) else None

    return [
        {"x": float(x), "mid": drawn(curve.values, n), "low": drawn(curve.low, n), "high": drawn(curve.high, n)}
        for n, x in enumerate(curve.x)
    ]


def _between(curve: Curve) -> dict[str, Any]:
    return {"interpolate": "step-after"} if curve.stepped else {}


def _name(rule: Rule, y: Callable[[str], alt.Y], width: float) -> list[alt.Chart]:
    base = alt.Chart(alt.Data(values=[{"y": rule.value}]))
    left = rule.side == "left"
    place = {
        "x": 4 if left else width - 4,
        "align": "left" if left else "right",
        "dy": 7 if rule.below else -6,
        "fontSize": 11,
    }
    # The paper behind the letters, so that a curve may pass under them.
    halo = base.mark_text(text=rule.label, stroke=PAPER, strokeWidth=4, **place).encode(y=y("y"))
    return [halo, base.mark_text(text=rule.label, color=INK, **place).encode(y=y("y"))]


def _y_axis(
    values: list[float], title: str, domain: tuple[float, float] | None, log: bool, whole: bool
) -> Callable[[str], alt.Y]:
    if log:
        positive = [value for value in values if value > 0] or [1.0]
        low, high = min(positive) / 1.25, max(positive) * 1.25
        scale = alt.Scale(type="log", domain=[low, high], nice=False)
        marks = log_ticks(low, high)
        shown = marks[:: math.ceil(len(marks) / _MOST_TICKS) or 1]
        # Six zeros would run into the title.
        labels: dict[str, Any] = {"format": ","} if low >= 1e-4 and high < 1e6 else _labels(shown)
        axis = alt.Axis(title=title, values=shown, **labels)
    else:
        low, high = min([*values, *(domain or ())], default=0.0), max([*values, *(domain or ())], default=1.0)
        within = domain is not None and (low, high) == domain
        scale = alt.Scale(domain=[low, high if high > low else low + 1], nice=not within)
        form: dict[str, Any] = {"tickMinStep": 1} if whole else {"format": "~e"} if max(-low, high) >= 1e6 else {}
        axis = alt.Axis(title=title, tickCount=6, **form)
    return lambda field: alt.Y(f"{field}:Q", scale=scale, axis=axis)


def _labels(marks: Sequence[float]) -> dict[str, Any]:
    """Return how marks are written that are very large or small: as powers of ten, where all of them are."""
    powers = {mark: round(math.log10(mark)) for mark in marks}
    if any(not math.isclose(mark, 10.0**power) for mark, power in powers.items()):
        return {"format": "~e"}
    words = json.dumps({str(power): power_of_ten(power) for power in powers.values()}, ensure_ascii=False)
    return {"labelExpr": f"{words}['' + round(log(datum.value) / LN10)]"}


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
        ends = f"{number(known[0])} at first, {number(known[-1])} at the end" if known else "undefined"
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
