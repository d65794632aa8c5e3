"""The share of each outcome over two parameters: a map of cells with the border of its half; or over one, curves."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np
import xarray as xr
from contourpy import contour_generator

from tokendynamics.figures.figure import Figure, Table, cells
from tokendynamics.figures.palette import GRID, ORANGE, PAPER, POSITIONS
from tokendynamics.figures.parameter import Parameter
from tokendynamics.figures.svg import WIDE, Drawing, Key, draw_for_screens, inline
from tokendynamics.report.sweep._axes import axis, parameter_of, shortened, value_of
from tokendynamics.report.sweep._curves import curves
from tokendynamics.report.sweep._shares import SystemShare, kind_of, summed, words_of

MOST_WORDS = 6
"""Words that have a diagram."""

_STEPS = (0.2, 0.4, 0.6, 0.8)
_HALF = 0.5
_CAPTION = "Each cell is a point that was run; its colour is the share of its systems that ended as “{word}”."
_BORDER = (
    " The line shows where this share is 1/2, straight between the middles of cells; the dashed ones where an end of "
    "its 95 % Wilson interval is: the border is between these."
)


def diagrams(shares: xr.Dataset) -> list[Figure]:
    """Return the diagrams of a design: one of curves, or one map for each outcome.

    Args:
        shares: Counts over one parameter or more; of more than two the further ones are counted together.
    """
    axes = [str(axis) for axis in shares.total.dims if shares.sizes[axis] > 1][:2]
    if not axes:
        return []
    over = summed(shares, axes).transpose(*axes, ...)
    across = parameter_of(over, axes[0])
    words = words_of(shares)[:MOST_WORDS]
    if len(axes) == 1:
        return [curves(over, across, words)]
    up = parameter_of(over, axes[1])
    over = over.isel({across.name: across.order, up.name: up.order})
    return [_map(over, across, up, word) for word in words]


def _map(over: xr.Dataset, across: Parameter, up: Parameter, word: str) -> Figure:
    ident = f"share-of-{word.replace(' ', '-')}"
    one = over.sel({kind_of(over): word})
    rows = [
        _cell(across, up, place, word, SystemShare(int(one["count"][place]), int(one.total[place])))
        for place in np.ndindex(len(across.values), len(up.values))
    ]
    borders = _borders(one, across, up)
    keys = [Key(label, "box", colour) for label, colour in _classes()]
    keys += [Key("no system was run", "box", GRID)] if bool((one.total == 0).any()) else []
    keys += [Key("share 1/2", "line", ORANGE)] if any(not each["dashed"] for each in borders) else []
    dashed = any(each["dashed"] for each in borders)
    keys += [Key("an end of its interval is 1/2", "line", ORANGE, dash="4 3", width=1.3)] if dashed else []
    return Figure(
        ident=ident,
        question=f"Where do systems end as “{word}”?",
        svg=draw_for_screens(
            lambda width: _drawn(rows, borders, across, up, width),
            ident=ident,
            title=f"Share of “{word}” over {across.name} and {up.name}",
            description=_described(one, word, across, up),
            keys=keys,
        ),
        caption=_CAPTION.format(word=word) + (_BORDER if borders else ""),
        table=_table(one, across, up, word),
        label=word,
    )


def _classes() -> list[tuple[str, str]]:
    bounds = [0.0, *_STEPS, 1.0]
    steps = [f"to {100 * high:.0f} %" for high in bounds[1:]]
    return [("0", PAPER), *zip(steps, POSITIONS, strict=True)]


def _colour(share: SystemShare) -> str:
    if not share.total:
        return GRID
    if not share.count:
        return PAPER
    return POSITIONS[int(np.searchsorted(_STEPS, share.count / share.total))]


def _cell(across: Parameter, up: Parameter, place: tuple[int, ...], word: str, share: SystemShare) -> dict[str, object]:
    x, y = place
    where = f"{across.name} = {across.labels[x]}, {up.name} = {up.labels[y]}"
    said = f"{word} {share.count} of {share.total}: {share}" if share.total else "no system was run"
    return {
        "x": across.edges[x], "x2": across.edges[x + 1], "y": up.edges[y], "y2": up.edges[y + 1],
        "colour": _colour(share), "text": f"{where}: {said}",
    }  # fmt: skip


def _borders(one: xr.Dataset, across: Parameter, up: Parameter) -> list[dict[str, object]]:
    """Return the points of the lines at which a share, or an end of its interval, is one half."""
    if across.words or up.words:
        return []
    x, y = (np.log(axis.places) if axis.log else axis.places for axis in (across, up))
    found: list[dict[str, object]] = []
    for name in ("fraction", "low", "high"):
        numbers = np.ma.masked_invalid(one[name].values.T)
        for line in map(np.asarray, contour_generator(x, y, numbers).lines(_HALF)):
            places = [np.exp(line[:, side]) if axis.log else line[:, side] for side, axis in ((0, across), (1, up))]
            ident = len({each["line"] for each in found})
            dashed = name != "fraction"
            found += [
                {"line": ident, "order": order, "x": px, "y": py, "dashed": dashed}
                for order, (px, py) in enumerate(zip(*(each.tolist() for each in places), strict=True))
            ]
    return found


def _drawn(
    rows: Sequence[dict[str, object]],
    borders: Sequence[dict[str, object]],
    across: Parameter,
    up: Parameter,
    width: float,
) -> Drawing:
    height = min(0.62 * width, 420.0) if width >= WIDE else 0.95 * width
    x, y = axis(alt.X, "x", across, width), axis(alt.Y, "y", up, 2 * height)
    layers: list[alt.Chart] = [
        alt.Chart(inline(rows), name="hover")
        .mark_rect(stroke=GRID, strokeWidth=0.5)
        .encode(x=x, x2="x2:Q", y=y, y2="y2:Q", fill=alt.Fill("colour:N", scale=None), description="text:N")
    ]
    for dashed, look in (
        (False, {"color": ORANGE, "strokeWidth": 2.2}),
        (True, {"color": ORANGE, "strokeWidth": 1.3, "strokeDash": [4, 3]}),
    ):
        points = [each for each in borders if each["dashed"] == dashed]
        if points:
            base = alt.Chart(inline(points)).encode(x=x, y=y, detail="line:N", order="order:Q")
            # The paper below, or the line would be lost on dark cells.
            layers += [base.mark_line(color=PAPER, strokeWidth=look["strokeWidth"] + 2.4), base.mark_line(**look)]
    return alt.layer(*layers, width=width, height=height)


def _described(one: xr.Dataset, word: str, across: Parameter, up: Parameter) -> str:
    fraction = one.fraction.values
    best = np.unravel_index(np.nanargmax(fraction), fraction.shape)
    worst = np.unravel_index(np.nanargmin(fraction), fraction.shape)
    ends = (
        f"{100 * fraction[place]:.3g} % at {across.name} = {across.labels[place[0]]}, {up.name} = {up.labels[place[1]]}"
        for place in (best, worst)
    )
    highest, lowest = ends
    return f"The share of “{word}” is highest, {highest}, and lowest, {lowest}. The table below holds every cell."


def _table(one: xr.Dataset, across: Parameter, up: Parameter, word: str) -> Table:
    rows = []
    for x, y in np.ndindex(len(across.values), len(up.values)):
        numbers = (one[name][x, y].item() for name in ("fraction", "low", "high"))
        values = (value_of(across, x), value_of(up, y), int(one["count"][x, y]), int(one.total[x, y]))
        rows.append(cells([*values, *numbers]))
    columns = (across.name, up.name, word, "Systems", "Share", "Low", "High")
    return shortened(f"Systems that ended as “{word}”, with 95 % intervals", columns, rows)
