"""Estimates with their intervals, one a row: under headings, or with the values that each is the mean of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokendynamics.figures.palette import AXIS, BLUE, INK, ORANGE, PAPER
from tokendynamics.figures.svg import WIDE, Key, Specification, alt, inline, layered

_ROW, _LETTER, _LEAST = 21, 7.0, 140.0


@dataclass(frozen=True)
class Row:
    """One line of the drawing.

    Attributes:
        label: What is estimated, or a heading.
        value: None for a heading.
        low: Lower end of the interval; None without one.
        high: Upper end.
        written: What stands at the right.
        colour: Of a bar.
    """

    label: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    written: str = ""
    colour: str = BLUE


@dataclass(frozen=True)
class Intervals:
    """Rows of estimates on one axis; what lies beyond its ends stands there.

    Attributes:
        rows: In order from the top.
        domain: Of the axis.
        rule: A value marked across, and its name.
        bars: Whether values are bars from zero instead of points.
        percent: Whether the axis is in percent.
        keys: The legend.
    """

    rows: Sequence[Row]
    domain: tuple[float, float]
    rule: tuple[float, str] | None = None
    bars: bool = False
    percent: bool = False
    keys: Sequence[Key] = ()

    def chart(self, width: float = WIDE) -> Specification:
        """Return the chart for the width of the whole drawing but for its margin; names and numbers take part of it."""
        rows = self.rows
        names = max((_LETTER * len(row.label) for row in rows), default=0.0) + 10
        written = max((_LETTER * len(row.written) for row in rows), default=0.0) + 10
        room = width + 50 - names
        # Where the numbers would leave the marks no room they are left to the table.
        inner = room - written if room - written >= _LEAST else room
        form = "%" if self.percent else "~g"
        ticks = alt.Axis(title=None, grid=True, tickCount=8 if width >= WIDE else 4, format=form)
        x = alt.X("x:Q", scale=alt.Scale(domain=list(self.domain), nice=False), axis=ticks)
        headings = [n + 0.5 for n, row in enumerate(rows) if row.value is None]
        weight: Any = {"condition": {"test": f"indexof({headings}, datum.value) >= 0", "value": 600}, "value": 400}
        labels = [row.label for row in rows]
        y = _names(labels, names, labelLimit=400, labelOverlap=False, labelFontWeight=weight)
        layers: list[alt.Chart] = []
        if self.rule is not None:
            at_rule = alt.Chart(inline([{"x": self.rule[0]}]))
            look: dict[str, Any] = {"align": "left", "dx": 5, "y": -8, "color": ORANGE, "fontSize": 11}
            layers += [
                at_rule.mark_rule(color=ORANGE, strokeWidth=1.4, strokeDash=[5, 3]).encode(x=x),
                at_rule.mark_text(text=self.rule[1], **look).encode(x=x),
            ]
        layers += _marks(rows, self.domain, x, y, self.bars)
        notes = [{"y": n + 0.5, "text": row.written} for n, row in enumerate(rows) if row.written]
        if notes and inner < room:
            base = alt.Chart(inline(notes))
            base = base.mark_text(x=inner + 10, align="left", fontSize=12, color=INK, baseline="middle")
            layers.append(base.encode(y=y, text="text:N"))
        return layered(*layers, width=inner, height=_ROW * len(rows))


def _names(names: Sequence[str], extent: float, **look: Any) -> alt.Y:
    """Return an axis with the name of each row, as wide as browsers' letters may be."""
    places = [n + 0.5 for n in range(len(names))]
    labels = json.dumps(dict(zip(map(str, places), names, strict=True)))
    axis = alt.Axis(
        title=None, values=places, labelExpr=f"({labels})[datum.value]", labelColor=INK, grid=False, labelPadding=8,
        minExtent=extent, **look,
    )  # fmt: skip
    return alt.Y("y:Q", scale=alt.Scale(domain=[len(names), 0], nice=False), axis=axis)


def _marks(rows: Sequence[Row], domain: tuple[float, float], x: alt.X, y: alt.Y, bars: bool) -> list[alt.Chart]:
    def within(value: float) -> float:
        return min(max(value, domain[0]), domain[1])

    values = [
        {"x": within(row.value), "zero": 0.0, "y": n + 0.5, "top": n + 0.05, "foot": n + 0.95, "colour": row.colour}
        for n, row in enumerate(rows)
        if row.value is not None
    ]
    spans = [
        {"x": within(row.low), "x2": within(row.high), "y": n + 0.5, "top": n + 0.32, "foot": n + 0.68}
        for n, row in enumerate(rows)
        if row.low is not None and row.high is not None
    ]
    layers: list[alt.Chart] = []
    fill = alt.Fill("colour:N", scale=None)
    if bars:
        base = alt.Chart(inline(values)).mark_rect(fillOpacity=0.55)
        layers.append(base.encode(x=x, x2="zero:Q", y=_at(y, "top"), y2="foot:Q", fill=fill))
    ink = INK if bars else BLUE
    if spans:
        base = alt.Chart(inline(spans))
        layers.append(base.mark_rule(color=ink, strokeWidth=1.6 if bars else 2.4).encode(x=x, x2="x2:Q", y=y))
        for end in ("x", "x2"):
            cap = base.mark_rule(color=ink, strokeWidth=1.6)
            layers.append(cap.encode(x=_at(x, end), y=_at(y, "top"), y2="foot:Q"))
    if not bars:
        points = alt.Chart(inline(values)).mark_point(shape="circle", size=55, opacity=1, strokeWidth=0)
        layers.append(points.encode(x=x, y=y, fill=fill))
    return layers


def _at(axis: Any, field: str) -> Any:
    """Return the same axis for another field."""
    made = axis.copy()
    made.shorthand = f"{field}:Q"
    return made


_TALL, _NARROW_LETTER = 44, 6.6


@dataclass(frozen=True)
class Difference:
    """A mean with its interval, and what it is the mean of.

    Attributes:
        name: Of its row.
        mean: Its mark.
        low: Lower end of the interval; None without one.
        high: Upper end.
        text: What is shown of it on hover.
        values: Rings beside each other in its row, each with a text.
    """

    name: str
    mean: float | None
    low: float | None
    high: float | None
    text: str
    values: Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Differences:
    """Rows of differences on one axis, on which zero always is.

    Attributes:
        rows: In order from the top.
        titles: Of the axis on the page, and on a phone.
        keys: The legend.
    """

    rows: Sequence[Difference]
    titles: tuple[str, str]
    keys: Sequence[Key]

    def chart(self, width: float = WIDE) -> Specification:
        """Return the chart for the width of the whole drawing but for its margin; names take part of it."""
        rings, means = [], []
        for n, row in enumerate(self.rows):
            means.append({"x": row.mean, "low": row.low, "high": row.high, "y": n + 0.5, "text": row.text})
            many = len(row.values)
            # Seeds stand apart from the middle of their row, so that they do not cover each other.
            asides = [0.0 if many == 1 else 0.62 * (place / (many - 1) - 0.5) for place in range(many)]
            rings += [
                {"x": value, "y": n + 0.5 + aside, "text": text}
                for aside, (value, text) in zip(asides, row.values, strict=True)
            ]
        known = [ring["x"] for ring in rings] + [
            end for row in self.rows for end in (row.low, row.high) if end is not None
        ]
        title = self.titles[0] if width >= WIDE else self.titles[1]
        names = min(max(_NARROW_LETTER * len(row.name) for row in self.rows) + 16, 150)
        x, y = self._axis([0.0, *known], title, width), _names([row.name for row in self.rows], names, labelLimit=names)
        zero = alt.Chart(inline([{"x": 0.0}])).mark_rule(color=AXIS, strokeWidth=1.5).encode(x=x)
        bar = alt.Chart(inline(means)).encode(y=y).transform_filter("isValid(datum.low)")
        bar = bar.mark_rule(color=INK, strokeWidth=2.4)
        seeds = alt.Chart(inline(rings), name="hover-seeds").encode(x=x, y=y, description="text:N")
        middle = alt.Chart(inline(means), name="hover-means").encode(x=x, y=y, description="text:N")
        return layered(
            zero,
            bar.encode(x=_at(x, "low"), x2="high:Q"),
            seeds.mark_point(shape="circle", fill=PAPER, stroke=BLUE, strokeWidth=1.5, size=44, opacity=1),
            middle.mark_point(shape="diamond", fill=INK, stroke=PAPER, size=110, opacity=1),
            width=width + 40 - names,
            height=_TALL * len(self.rows),
        )

    def _axis(self, values: Sequence[float], title: str, width: float) -> alt.X:
        """Return an axis with room beyond the last mark."""
        low, high = min(values), max(values)
        room = 0.06 * (high - low) or 1.0
        scale = alt.Scale(domain=[low - room * (low < 0), high + room * (high > 0)], nice=False)
        return alt.X(
            "x:Q", scale=scale, axis=alt.Axis(title=title, grid=True, tickCount=8 if width >= WIDE else 4, format="~g")
        )
