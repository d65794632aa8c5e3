"""Still pictures of points in one plane, side by side on the same axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import numpy as np

from tokendynamics.figures.palette import AXIS, BLUE, GRID, MUTED, POSITIONS
from tokendynamics.figures.svg import WIDE, Drawing, Key
from tokendynamics.words import UNDEFINED

_COLUMNS, _GAP = 3, 18
_FIFTHS = ("first fifth of the prompt", "second", "third", "fourth", "last fifth")


@dataclass(frozen=True)
class Still:
    """One picture.

    Attributes:
        name: Above it.
        points: (token, 2); NaN for a token that is not drawn. Tokens are shaded by their order.
        note: Within it; empty for none.
    """

    name: str
    points: np.ndarray
    note: str = ""


@dataclass(frozen=True)
class Stills:
    """Pictures with one unit of the same length along both axes of all.

    Attributes:
        pictures: In order.
        within: (…, 2), the points that all pictures must have room for.
    """

    pictures: Sequence[Still]
    within: np.ndarray

    @property
    def keys(self) -> list[Key]:
        """The legend: the shades of the tokens."""
        return [Key(label, "dot", colour) for label, colour in zip(_FIFTHS, POSITIONS, strict=True)]

    def chart(self, width: float = WIDE) -> Drawing:
        """Return the chart for a width of its plotting area."""
        columns = _COLUMNS if width >= WIDE else 1
        size = ((width + 55 - (columns - 1) * _GAP) / columns, 185 if width >= WIDE else 130)
        domains = self._domains(size[0] / size[1])
        panels = [_panel(picture, size, domains) for picture in self.pictures]
        return alt.concat(*panels, columns=columns, spacing=_GAP)

    def _domains(self, aspect: float) -> tuple[list[float], list[float]]:
        finite = self.within[np.isfinite(self.within).all(axis=-1)]
        if finite.size == 0:
            return [-aspect, aspect], [-1.0, 1.0]
        low, high = finite.min(axis=0), finite.max(axis=0)
        middle, half = (low + high) / 2, np.maximum((high - low) / 2, 1e-3) * 1.1
        tall = max(float(half[1]), float(half[0]) / aspect)
        x, y = float(middle[0]), float(middle[1])
        return [x - tall * aspect, x + tall * aspect], [y - tall, y + tall]


def _panel(picture: Still, size: tuple[float, float], domains: tuple[list[float], list[float]]) -> Drawing:
    width, height = size
    points = [
        {"x": x, "y": y, "part": min(5 * place // len(picture.points), 4)}
        for place, (x, y) in enumerate(picture.points.astype(float).tolist())
        if math.isfinite(x) and math.isfinite(y)
    ]
    axis = alt.Axis(title=None, labels=False, ticks=False, grid=False, domain=False, minExtent=0)
    x = alt.X("x:Q", scale=alt.Scale(domain=domains[0], nice=False), axis=axis)
    y = alt.Y("y:Q", scale=alt.Scale(domain=domains[1], nice=False), axis=axis)
    shade = alt.Fill("part:O", scale=alt.Scale(domain=list(range(5)), range=list(POSITIONS)), legend=None)
    dots = (
        alt.Chart(alt.Data(values=points))
        .mark_point(shape="circle", size=46, stroke=BLUE, strokeWidth=0.7, opacity=1)
        .encode(x=x, y=y, fill=shade)
    )
    blank = alt.Chart(alt.Data(values=[{}]))
    frame = blank.mark_rect(fillOpacity=0, stroke=GRID, x=0, x2=width, y=0, y2=height)
    layers = [frame, _cross(domains, x, y), dots]
    if picture.note:
        layers.append(blank.mark_text(text=picture.note, x=width - 6, y=11, align="right", color=MUTED, fontSize=11))
    elif not points:
        layers.append(blank.mark_text(text=UNDEFINED, x=width / 2, y=height / 2, color=MUTED, fontSize=12))
    title = alt.TitleParams(text=picture.name, anchor="start", frame="group", offset=4)
    return alt.layer(*layers, width=width, height=height, title=title)


def _cross(domains: tuple[list[float], list[float]], x: alt.X, y: alt.Y) -> Drawing:
    """Draw lines through the origin, the point that unit vectors reach only where they cancel."""
    lines = []
    if domains[0][0] < 0 < domains[0][1]:
        lines.append(alt.Chart(alt.Data(values=[{"x": 0}])).mark_rule(color=GRID).encode(x=x))
    if domains[1][0] < 0 < domains[1][1]:
        lines.append(alt.Chart(alt.Data(values=[{"y": 0}])).mark_rule(color=GRID).encode(y=y))
    return alt.layer(*lines) if lines else alt.layer(alt.Chart(alt.Data(values=[])).mark_rule(color=AXIS))
