"""Shares of systems that ended in each way: curves over one parameter, a map over two."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from contourpy import contour_generator

from tokendynamics.figures.axes import MOST_TICKS, Parameter
from tokendynamics.figures.curves import LOOKS
from tokendynamics.figures.palette import GRID, ORANGE, PAPER, POSITIONS
from tokendynamics.figures.svg import WIDE, Key, Specification, alt, inline, layered

_STEPS = (0.2, 0.4, 0.6, 0.8)
_HALF = 0.5


@dataclass(frozen=True)
class Shares:
    """The share of one outcome at each value of a parameter, or of two (x, y), with its interval.

    Attributes:
        word: The outcome.
        fraction: NaN where no system was run.
        low: Lower ends of the intervals.
        high: Upper ends.
        texts: What is shown of each on hover, in the order of the entries.
    """

    word: str
    fraction: np.ndarray
    low: np.ndarray
    high: np.ndarray
    texts: Sequence[str] = ()


@dataclass(frozen=True)
class OutcomeCurves:
    """Shares of a few outcomes over one parameter.

    Attributes:
        along: The parameter.
        shares: At most six.
    """

    along: Parameter
    shares: Sequence[Shares]

    @property
    def keys(self) -> list[Key]:
        """The legend: each outcome."""
        looks = zip(self.shares, LOOKS, strict=False)
        mark = "disc" if self.along.words else "line"
        return [Key(share.word, mark, colour, dash=" ".join(map(str, dash))) for share, (colour, dash) in looks]

    def chart(self, width: float = WIDE) -> Specification:
        """Return the chart for a width of its plotting area."""
        along, x = self.along, _axis("x", self.along, width)
        bands: list[alt.Chart] = []
        points: list[alt.Chart] = []
        for place, (share, (colour, dash)) in enumerate(zip(self.shares, LOOKS, strict=False)):
            rows = self._rows(share)
            base = alt.Chart(inline(rows)).encode(x=x)
            # Words have no values between; their bars stand side by side, or they would cover each other.
            aside: dict[str, Any] = {"xOffset": 9.0 * (place - (len(self.shares) - 1) / 2)} if along.words else {}
            if along.words:
                bands.append(base.mark_rule(color=colour, strokeWidth=1.4, **aside).encode(y=_y("low"), y2="high:Q"))
            else:
                stroke: dict[str, Any] = {"strokeDash": list(dash)} if dash else {}
                bands.append(base.mark_area(color=colour, opacity=0.16).encode(y=_y("low"), y2="high:Q"))
                bands.append(base.mark_line(color=colour, strokeWidth=2.2, **stroke).encode(y=_y("fraction")))
            dots = alt.Chart(inline(rows), name=f"hover-{place}").encode(x=x, description="text:N")
            look: dict[str, Any] = {
                "shape": "circle",
                "filled": True,
                "size": 40,
                "opacity": 1,
                "fill": colour,
                **aside,
            }
            points.append(dots.mark_point(**look).encode(y=_y("fraction")))
        return layered(*bands, *points, width=width, height=280)

    def _rows(self, share: Shares) -> list[dict[str, object]]:
        columns = (self.along.places, share.fraction, share.low, share.high)
        rows = zip(*(column.tolist() for column in columns), share.texts, strict=True)
        names = ("x", "fraction", "low", "high", "text")
        return [dict(zip(names, row, strict=True)) for row in rows if np.isfinite(row[1])]


def _y(field: str) -> alt.Y:
    scale = alt.Scale(domain=[0, 1], nice=False)
    return alt.Y(f"{field}:Q", scale=scale, axis=alt.Axis(title="Share of systems", tickCount=6))


@dataclass(frozen=True)
class OutcomeMap:
    """The share of one outcome over two parameters: a cell for each point, and the line at which the share is 1/2.

    Attributes:
        across: The parameter of the horizontal axis.
        up: That of the vertical axis.
        shares: (across, up).
    """

    across: Parameter
    up: Parameter
    shares: Shares

    @property
    def keys(self) -> list[Key]:
        """The legend: the classes of shares, and the lines."""
        names = ["0", *(f"to {100 * high:.0f} %" for high in (*_STEPS, 1.0))]
        keys = [Key(name, "box", colour) for name, colour in zip(names, (PAPER, *POSITIONS), strict=True)]
        keys += [Key("no system was run", "box", GRID)] if np.isnan(self.shares.fraction).any() else []
        dashes = {dashed for dashed, _ in self.borders}
        keys += [Key("share 1/2", "line", ORANGE)] if False in dashes else []
        keys += [Key("an end of its interval is 1/2", "line", ORANGE, dash="4 3", width=1.3)] if True in dashes else []
        return keys

    @cached_property
    def borders(self) -> list[tuple[bool, np.ndarray]]:
        """Lines (point, 2) at which the share is one half, and dashed ones at which an end of its interval is."""
        axes, fraction = (self.across, self.up), self.shares.fraction
        if self.across.words or self.up.words or min(fraction.shape) < 2:
            return []
        x, y = (np.log(axis.places) if axis.log else axis.places for axis in axes)
        borders = []
        for values in (fraction, self.shares.low, self.shares.high):
            for line in map(np.asarray, contour_generator(x, y, np.ma.masked_invalid(values.T)).lines(_HALF)):
                places = [np.exp(line[:, n]) if axis.log else line[:, n] for n, axis in enumerate(axes)]
                borders.append((values is not fraction, np.stack(places, axis=-1)))
        return borders

    def chart(self, width: float = WIDE) -> Specification:
        """Return the chart for a width of its plotting area."""
        across, up = self.across, self.up
        height = min(0.62 * width, 420.0) if width >= WIDE else 0.95 * width
        x, y = _axis("x", across, width), _axis("y", up, 2 * height)
        places = np.ndindex(self.shares.fraction.shape)
        rows = [
            {
                "x": across.edges[i], "x2": across.edges[i + 1], "y": up.edges[j], "y2": up.edges[j + 1],
                "colour": _colour(float(self.shares.fraction[i, j])), "text": text,
            }
            for (i, j), text in zip(places, self.shares.texts, strict=True)
        ]  # fmt: skip
        layers: list[alt.Chart] = [
            alt.Chart(inline(rows), name="hover")
            .mark_rect(stroke=GRID, strokeWidth=0.5)
            .encode(
                x=x,
                x2="x2:Q",
                y=y,
                y2="y2:Q",
                fill=alt.Fill("colour:N", scale=None),
                description="text:N",
            )
        ]
        for dashed, look in (
            (False, {"color": ORANGE, "strokeWidth": 2.2}),
            (True, {"color": ORANGE, "strokeWidth": 1.3, "strokeDash": [4, 3]}),
        ):
            points = [
                {"line": number, "order": order, "x": px, "y": py}
                for number, (kind, line) in enumerate(self.borders)
                for order, (px, py) in enumerate(line.tolist())
                if kind == dashed
            ]
            if points:
                base = alt.Chart(inline(points)).encode(x=x, y=y, detail="line:N", order="order:Q")
                # The paper below, or the line would be lost on dark cells.
                layers += [base.mark_line(color=PAPER, strokeWidth=look["strokeWidth"] + 2.4), base.mark_line(**look)]
        return layered(*layers, width=width, height=height)


def _colour(fraction: float) -> str:
    if np.isnan(fraction):
        return GRID
    return POSITIONS[int(np.searchsorted(_STEPS, fraction))] if fraction else PAPER


def _axis(field: str, over: Parameter, length: float) -> Any:
    """Return the axis x or y of a parameter; a short one has fewer ticks."""
    kind = alt.X if field == "x" else alt.Y
    ends = over.edges[[0, -1]].tolist()
    scale = alt.Scale(type="log" if over.log else "linear", domain=ends, nice=False, zero=False)
    if not over.words and len(over.places) > MOST_TICKS:
        shown = alt.Axis(title=over.name, tickCount=10 if length >= WIDE else 5, format="~g")
        return kind(f"{field}:Q", scale=scale, axis=shown)
    at, labels = over.ticks
    near = (f"abs(datum.value - {place!r}) <= {1e-9 * abs(place)!r}" for place in at)
    named = "".join(f"{test} ? {json.dumps(label)} : " for test, label in zip(near, labels, strict=True))
    return kind(f"{field}:Q", scale=scale, axis=alt.Axis(title=over.name, values=at, labelExpr=f"{named}''"))
