"""Signed bars that add up to a total, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import numpy as np

from tokendynamics.figures.axes import Column, depth_axis, hover
from tokendynamics.figures.palette import AXIS, INK, PAPER
from tokendynamics.figures.svg import WIDE, Drawing, Key

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

    def chart(self, width: float = WIDE) -> Drawing:
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
        return alt.layer(
            *drawn, zero, *([whiskers] if ends else []), total, over, width=width, height=self.height
        )  # fmt: skip

    def _rows(self, bar: Bar) -> list[dict]:
        left, right = bar.span
        return [
            {"x": layer + left, "x2": layer + right, "y": 0.0, "y2": value}
            for layer, value in zip(self.layers, bar.values.tolist(), strict=True)
            if np.isfinite(value)
        ]
