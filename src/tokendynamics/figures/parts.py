"""Parts of a whole over depth: stacked to 1, or as signed bars that add up to a total."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokendynamics.figures.axes import Column, depth_axis, hover
from tokendynamics.figures.curves import HEIGHT, Numbers, drawable
from tokendynamics.figures.palette import AXIS, INK, PAPER
from tokendynamics.figures.svg import WIDE, Drawing, Key, Specification, alt, layered


@dataclass(frozen=True)
class Part:
    """One part of a whole over depth; a negative value takes no room."""

    label: str
    values: Numbers
    colour: str


@dataclass(frozen=True)
class Stack:
    """Parts of 1 over depth, one upon the other; estimates below 0 or beyond 1 are clipped to what there is.

    Attributes:
        x: Places on the depth axis.
        parts: The first is lowest.
        last: The last layer.
        title: Of the y axis.
        height: Of the plotting area.
        columns: Texts shown on hover.
        legend: Whether the chart names its parts itself, as it must where no page does.
    """

    x: Sequence[float]
    parts: Sequence[Part]
    last: int
    title: str
    height: int = HEIGHT
    columns: Sequence[Column] = ()
    legend: bool = False

    @property
    def keys(self) -> list[Key]:
        """The legend: each part."""
        return [Key(part.label, "box", part.colour) for part in self.parts]

    def chart(self, width: float = WIDE) -> Drawing:
        """Return the chart for a width of its plotting area."""
        names, colours = [part.label for part in self.parts], [part.colour for part in self.parts]
        shown = alt.Legend(title=None, orient="top") if self.legend else None
        axis = depth_axis(self.last)
        rows = []
        for place, at in enumerate(self.x):
            values = [part.values[place] for part in self.parts]
            if not all(drawable(value) for value in values):
                continue
            bottom = total = 0.0
            for number, (part, value) in enumerate(zip(self.parts, values, strict=True)):
                total += value or 0.0
                top = 1.0 if number == len(self.parts) - 1 else min(max(total, bottom), 1.0)
                rows.append({"x": at, "part": part.label, "y": bottom, "y2": top})
                bottom = top
        areas = (
            alt.Chart(alt.Data(values=rows))
            .mark_area(stroke=PAPER, strokeWidth=1)
            .encode(
                x=axis.x(width),
                y=alt.Y(
                    "y:Q",
                    scale=alt.Scale(domain=[0, 1], nice=False),
                    axis=alt.Axis(title=self.title, tickCount=6),
                    stack=None,
                ),
                y2="y2:Q",
                fill=alt.Fill("part:N", scale=alt.Scale(domain=names, range=colours), legend=shown),
            )
        )
        layers = [areas, *([hover(self.columns, axis, self.height, width)] if self.columns else [])]
        return alt.layer(*layers, width=width, height=self.height)


_PLUS = "datum.value === 0 ? '0' : format(datum.value, '+.2~f')"


@dataclass(frozen=True)
class Bar:
    """The bars of one part.

    Attributes:
        label: Its name in the legend.
        colour: Of its bars.
        span: Horizontal extent of a bar relative to its layer.
        values: One for each layer; NaN for no bar.
        low: Lower ends of the whiskers; NaN for none.
        high: Upper ends.
    """

    label: str
    colour: str
    span: tuple[float, float]
    values: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class Bars:
    """Bars from zero, beside each other in each layer, and a mark for their total.

    Attributes:
        layers: Where they stand.
        bars: In the order in which they stand.
        totals: One for each layer; NaN for no mark.
        title: Of the y axis.
        columns: Texts shown on hover.
        height: Of the plotting area.
    """

    layers: Sequence[int]
    bars: Sequence[Bar]
    totals: np.ndarray
    title: str
    columns: Sequence[Column]
    height: int = 300

    @property
    def keys(self) -> list[Key]:
        """The legend: each part that has a bar, and the total."""
        shown = [bar for bar in self.bars if np.isfinite(bar.values).any()]
        return [*(Key(bar.label, "box", bar.colour) for bar in shown), Key("total of the layer", "diamond", INK)]

    def chart(self, width: float = WIDE) -> Specification:
        """Return the chart for a width of its plotting area."""
        last = max(self.layers)
        y = alt.Y("y:Q", axis=alt.Axis(title=self.title, labelExpr=_PLUS, tickCount=7))
        axis = depth_axis(last)
        x = axis.x(width)
        drawn = [
            alt.Chart(alt.Data(values=self._rows(bar)))
            .mark_rect(fill=bar.colour, stroke=INK, strokeWidth=0.5)
            .encode(x=x, x2="x2:Q", y=y, y2="y2:Q")
            for bar in self.bars
        ]
        zero = alt.Chart(alt.Data(values=[{"y": 0}])).mark_rule(color=AXIS).encode(y=y)
        ends = [
            {"x": layer + sum(bar.span) / 2, "y": float(bar.low[place]), "y2": float(bar.high[place])}
            for place, layer in enumerate(self.layers)
            for bar in self.bars
            if np.isfinite([bar.low[place], bar.high[place]]).all()
        ]
        whiskers = alt.Chart(alt.Data(values=ends)).mark_rule(color=INK, strokeWidth=1.2).encode(x=x, y=y, y2="y2:Q")
        totals = zip(self.layers, self.totals.tolist(), strict=True)
        size = 60 if width / (last + 1.6) > 14 else 22
        total = (
            alt.Chart(alt.Data(values=[{"x": layer, "y": total} for layer, total in totals if np.isfinite(total)]))
            .mark_point(shape="diamond", fill=INK, stroke=PAPER, strokeWidth=1, size=size, opacity=1)
            .encode(x=x, y=y)
        )
        over = hover(self.columns, axis, self.height, width)
        return layered(
            *drawn, zero, *([whiskers] if ends else []), total, over, width=width, height=self.height
        )  # fmt: skip

    def _rows(self, bar: Bar) -> list[dict]:
        left, right = bar.span
        return [
            {"x": layer + left, "x2": layer + right, "y": 0.0, "y2": value}
            for layer, value in zip(self.layers, bar.values.tolist(), strict=True)
            if np.isfinite(value)
        ]
