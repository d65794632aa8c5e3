"""Points in a plane: still pictures side by side on the same axes, and the paths of tokens from start to end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokendynamics.figures.axes import Axis
from tokendynamics.figures.palette import AXIS, BLUE, GRID, INK, MUTED, PAPER, POSITIONS
from tokendynamics.figures.svg import WIDE, Key, Specification, alt, inline, layered
from tokendynamics.words import UNDEFINED

_COLUMNS, _GAP = 3, 18


def _fifths(of: str) -> list[Key]:
    labels = (f"first fifth of the {of}", "second", "third", "fourth", "last fifth")
    return [Key(label, "dot", colour) for label, colour in zip(labels, POSITIONS, strict=True)]


@dataclass(frozen=True)
class Still:
    """One picture.

    Attributes:
        name: Above it.
        points: (token, 2); NaN for a token that is not drawn. Tokens are shaded by their order.
        note: Beside its name; empty for none.
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
        return _fifths("prompt")

    def chart(self, width: float = WIDE) -> Specification:
        """Return the chart for a width of its plotting area."""
        columns = _COLUMNS if width >= WIDE else 1
        size = ((width + 55 - (columns - 1) * _GAP) / columns, 185 if width >= WIDE else 130)
        domains = self._domains(size[0] / size[1])
        panels = [_panel(picture, size, domains) for picture in self.pictures]
        return {"concat": panels, "columns": columns, "spacing": _GAP}

    def _domains(self, aspect: float) -> tuple[list[float], list[float]]:
        finite = self.within[np.isfinite(self.within).all(axis=-1)]
        if finite.size == 0:
            return [-aspect, aspect], [-1.0, 1.0]
        low, high = finite.min(axis=0), finite.max(axis=0)
        middle, half = (low + high) / 2, np.maximum((high - low) / 2, 1e-3) * 1.1
        tall = max(float(half[1]), float(half[0]) / aspect)
        x, y = float(middle[0]), float(middle[1])
        return [x - tall * aspect, x + tall * aspect], [y - tall, y + tall]


def _panel(picture: Still, size: tuple[float, float], domains: tuple[list[float], list[float]]) -> Specification:
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
        # Beside the name, above all dots.
        layers.append(blank.mark_text(text=picture.note, x=width, y=-10, align="right", color=MUTED, fontSize=11))
    elif not points:
        layers.append(blank.mark_text(text=UNDEFINED, x=width / 2, y=height / 2, color=MUTED, fontSize=12))
    title = {"text": picture.name, "anchor": "start", "frame": "group", "offset": 4}
    return layered(*layers, width=width, height=height, title=title)


def _cross(domains: tuple[list[float], list[float]], x: alt.X, y: alt.Y) -> Specification:
    """Draw lines through the origin, the point that unit vectors reach only where they cancel."""
    lines = []
    if domains[0][0] < 0 < domains[0][1]:
        lines.append(alt.Chart(alt.Data(values=[{"x": 0}])).mark_rule(color=GRID).encode(x=x))
    if domains[1][0] < 0 < domains[1][1]:
        lines.append(alt.Chart(alt.Data(values=[{"y": 0}])).mark_rule(color=GRID).encode(y=y))
    return layered(*lines) if lines else layered(alt.Chart(alt.Data(values=[])).mark_rule(color=AXIS))


_TALL, _TALL_NARROW = 460, 258


@dataclass(frozen=True)
class Paths:
    """The paths of tokens, shaded by their number.

    Attributes:
        tokens: Their numbers, from 0.
        points: (time, token, axis).
        names: Of the two axes.
        clock: The first axis where it is time; None: one unit is as long on both axes.
        circle: Whether the outline of the unit sphere is drawn.
    """

    tokens: np.ndarray
    points: np.ndarray
    names: tuple[str, str]
    clock: Axis | None = None
    circle: bool = False

    @property
    def keys(self) -> list[Key]:
        """The legend: the shades of the tokens, where there are enough of them."""
        return _fifths("tokens") if len(self.tokens) >= len(POSITIONS) else []

    def chart(self, width: float = WIDE) -> Specification:
        """Return the chart for a width of its plotting area."""
        height = _TALL if width >= WIDE else _TALL_NARROW
        x, y = self._plane(width, height) if self.clock is None else (self.clock.x(width), self._values())
        most = int(self.tokens[-1]) + 1
        shades = [min(len(POSITIONS) * int(token) // most, len(POSITIONS) - 1) for token in self.tokens]
        scale = alt.Scale(domain=list(range(len(POSITIONS))), range=list(POSITIONS))
        shade = {"scale": scale, "legend": None}
        lines = [
            {"x": float(a), "y": float(b), "token": int(token), "part": shades[place], "n": step}
            for place, token in enumerate(self.tokens)
            for step, (a, b) in enumerate(self.points[:, place])
        ]
        ends = {
            name: [
                {"x": float(a), "y": float(b), "part": shades[place], "text": f"token {self.tokens[place] + 1}, {name}"}
                for place, (a, b) in enumerate(self.points[step])
            ]
            for name, step in (("start", 0), ("end", -1))
        }
        layers: list[alt.Chart] = [_circle(x, y)] if self.circle else []
        base = alt.Chart(inline(lines)).mark_line(strokeWidth=1.1, opacity=0.8)
        layers.append(base.encode(x=x, y=y, detail="token:N", order="n:Q", stroke=alt.Stroke("part:O", **shade)))
        rings = alt.Chart(inline(ends["start"]), name="hover-starts")
        discs = alt.Chart(inline(ends["end"]), name="hover-ends")
        layers += [
            rings.mark_point(shape="circle", fill=PAPER, size=34, strokeWidth=1.3, opacity=1).encode(
                x=x, y=y, stroke=alt.Stroke("part:O", **shade), description="text:N"
            ),
            discs.mark_point(shape="circle", size=52, stroke=INK, strokeWidth=0.7, opacity=1).encode(
                x=x, y=y, fill=alt.Fill("part:O", **shade), description="text:N"
            ),
        ]
        return layered(*layers, width=width, height=height)

    def _values(self) -> alt.Y:
        return alt.Y("y:Q", scale=alt.Scale(zero=False), axis=alt.Axis(title=capital(self.names[1]), tickCount=6))

    def _plane(self, width: float, height: float) -> tuple[alt.X, alt.Y]:
        """Return axes on which one unit is as long either way, with what is drawn in the middle."""
        low, high = self.points.min(axis=(0, 1)), self.points.max(axis=(0, 1))
        if self.circle:
            low, high = np.minimum(low, -1.0), np.maximum(high, 1.0)
        middle, half = (low + high) / 2, (high - low) / 2
        tall = 1.08 * max(float(half[1]), float(half[0]) * height / width)
        wide, most = tall * width / height, (8 if width >= WIDE else 4, 6)
        x, y = (
            {
                "scale": alt.Scale(domain=[centre - room, centre + room], nice=False),
                "axis": alt.Axis(title=capital(name), tickCount=ticks),
            }
            for centre, room, name, ticks in zip(middle, (wide, tall), self.names, most, strict=True)
        )
        return alt.X("x:Q", **x), alt.Y("y:Q", **y)


def _circle(x: alt.X, y: alt.Y) -> alt.Chart:
    """Draw the outline of the unit sphere."""
    turn = np.linspace(0, 2 * math.pi, 121)
    rows = [{"x": float(np.cos(a)), "y": float(np.sin(a)), "n": n} for n, a in enumerate(turn)]
    return alt.Chart(alt.Data(values=rows)).mark_line(color=GRID, strokeWidth=1.5).encode(x=x, y=y, order="n:Q")


def capital(words: str) -> str:
    """Begin with a capital letter, but for the name of a variable.

    >>> capital("time"), capital("x[0]")
    ('Time', 'x[0]')
    """
    return words[:1].upper() + words[1:] if words[1:2].isalpha() else words
