"""The share of each outcome over one parameter: curves with bands, or bars where its values are words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import altair as alt
import xarray as xr

from tokendynamics.figures.figure import Figure, cells
from tokendynamics.figures.palette import BLUE, GREEN, INK, MUTED, NEGATIVE, ORANGE
from tokendynamics.figures.parameter import Parameter
from tokendynamics.figures.svg import Drawing, Key, draw_for_screens, inline
from tokendynamics.report.sweep._axes import axis, shortened, value_of
from tokendynamics.report.sweep._shares import SystemShare, kind_of
from tokendynamics.words import number

_LOOKS: tuple[tuple[str, tuple[float, ...]], ...] = (
    (BLUE, ()), (ORANGE, (5, 3)), (GREEN, (2, 2)), (NEGATIVE, (7, 3, 2, 3)), (INK, (1.5, 3)), (MUTED, (9, 4)),
)  # fmt: skip
_COLUMNS = ("End", "Count", "Systems", "Share", "Low", "High")


def curves(over: xr.Dataset, along: Parameter, words: Sequence[str]) -> Figure:
    """Draw the shares of some words over one parameter.

    Args:
        over: Their counts.
        along: The parameter.
        words: At most six.
    """
    over = over.isel({along.name: along.order})
    found = {word: over.sel({kind_of(over): word}) for word in words}
    mark: Literal["disc", "line"] = "disc" if along.words else "line"
    looks = zip(words, _LOOKS, strict=False)
    ends = "; ".join(
        f"{word} {number(one.fraction[0].item())} at first and {number(one.fraction[-1].item())} at last"
        for word, one in found.items()
    )
    joined = "" if along.words else "; lines join the points that were run"
    return Figure(
        ident="shares",
        question=f"How often does each outcome occur along {along.name}?",
        svg=draw_for_screens(
            lambda width: _chart(found, along, width),
            ident="shares",
            title=f"Share of each outcome over {along.name}",
            description=f"Shares of systems: {ends}. The table below holds every value drawn.",
            keys=[Key(word, mark, colour, dash=" ".join(map(str, dash))) for word, (colour, dash) in looks],
        ),
        caption=f"The share of systems that ended in each way, with its 95 % Wilson interval{joined}.",
        table=shortened("Shares with 95 % intervals", (along.name, *_COLUMNS), _rows(found, along)),
    )


def _rows(found: Mapping[str, xr.Dataset], along: Parameter) -> list:
    names = ("fraction", "low", "high")
    return [
        cells(
            [value_of(along, place), word, int(one["count"][place]), int(one.total[place])]
            + [one[name][place].item() for name in names]
        )
        for place in range(len(along.values))
        for word, one in found.items()
    ]


def _chart(found: Mapping[str, xr.Dataset], along: Parameter, width: float) -> Drawing:
    x = axis(alt.X, "x", along, width)
    bands: list[alt.Chart] = []
    points: list[alt.Chart] = []
    for number_of, (word, one) in enumerate(found.items()):
        colour, dash = _LOOKS[number_of]
        rows = _drawn(word, one, along)
        base = alt.Chart(inline(rows)).encode(x=x)
        # Words have no values between; their bars stand side by side, or they would cover each other.
        aside: dict[str, Any] = {"xOffset": 9.0 * (number_of - (len(found) - 1) / 2)} if along.words else {}
        if along.words:
            bands.append(base.mark_rule(color=colour, strokeWidth=1.4, **aside).encode(y=_share("low"), y2="high:Q"))
        else:
            stroke: dict[str, Any] = {"strokeDash": list(dash)} if dash else {}
            bands.append(base.mark_area(color=colour, opacity=0.16).encode(y=_share("low"), y2="high:Q"))
            bands.append(base.mark_line(color=colour, strokeWidth=2.2, **stroke).encode(y=_share("fraction")))
        dots = alt.Chart(inline(rows), name=f"hover-{number_of}").encode(x=x, description="text:N")
        look: dict[str, Any] = {"shape": "circle", "filled": True, "size": 40, "opacity": 1, "fill": colour, **aside}
        points.append(dots.mark_point(**look).encode(y=_share("fraction")))
    return alt.layer(*bands, *points, width=width, height=280)


def _share(field: str) -> alt.Y:
    scale = alt.Scale(domain=[0, 1], nice=False)
    return alt.Y(f"{field}:Q", scale=scale, axis=alt.Axis(title="Share of systems", tickCount=6))


def _drawn(word: str, one: xr.Dataset, along: Parameter) -> list[dict[str, object]]:
    rows = []
    for place, label in enumerate(along.labels):
        share = SystemShare(int(one["count"][place]), int(one.total[place]))
        numbers = {name: one[name][place].item() for name in ("fraction", "low", "high")}
        if share.total:
            text = f"{along.name} = {label}: {word} {share.count} of {share.total}, {share}"
            rows.append({"x": along.places[place].item(), **numbers, "text": text})
    return rows
