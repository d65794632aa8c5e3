"""Draws in print what pages draw as well: the same objects, by Matplotlib, on a panel of a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import singledispatch
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from tokendynamics.figures.axes import MOST_TICKS, Axis, Parameter, depth_axis
from tokendynamics.figures.curves import Curve, Curves
from tokendynamics.figures.matrix import Panel, Side
from tokendynamics.figures.outcomes import OutcomeCurves, OutcomeMap
from tokendynamics.figures.palette import GRID, INK, MUTED, NEGATIVE, ORANGE, PAPER, POSITIONS, POSITIVE, PRINTED

SIGNED = LinearSegmentedColormap.from_list("signed", [NEGATIVE, "#ffffff", POSITIVE])
SHARES = LinearSegmentedColormap.from_list("share", ["#ffffff", *POSITIONS[::2]]).with_extremes(bad=GRID)
BORDERS: dict[bool, dict[str, Any]] = {False: {"lw": 1.2}, True: {"lw": 0.8, "ls": (0, (3, 1.6))}}
"""How the line looks at which a share is 1/2, and, dashed, those at which an end of its interval is."""

_POINTS = 0.55
"""Width of a line in print, in points, for each pixel on a page."""
_MARKS: dict[str, dict[str, Any]] = {
    "": {}, "disc": {"marker": "o", "ms": 2.5}, "ring": {"marker": "o", "ms": 3.0, "mfc": "#ffffff"},
    "diamond": {"marker": "D", "ms": 4.0}, "triangle": {"marker": "^", "ms": 3.5},
}  # fmt: skip


@singledispatch
def draw(drawn: object, panel: Axes) -> None:
    """Draw on a panel; the legend is left to the caller, who knows what else the figure holds.

    Args:
        drawn: `Curves`, `OutcomeCurves`, an `OutcomeMap` or the `Panel` of a matrix.
        panel: Of a figure; see `tokendynamics.figures.panels`.
    """
    raise TypeError(f"{type(drawn).__name__} is not drawn in print")


@draw.register
def _(drawn: Curves, panel: Axes) -> None:
    for curve in drawn.curves:
        if curve.has_band:
            low, high = (np.asarray(end, float) for end in (curve.low, curve.high))
            look = {"step": "post" if curve.stepped else None, "label": curve.band or "_band"}
            panel.fill_between(curve.x, low, high, fc=curve.colour, ec="none", alpha=0.16, zorder=1, **look)
    for number, curve in enumerate(drawn.curves, start=1):
        stroke = (0, curve.dash) if curve.dash else "solid"
        look = {"ls": stroke if curve.width else "none", "lw": _POINTS * curve.width}
        look |= {"ds": "steps-post"} if curve.stepped else {}
        values, label = np.asarray(curve.values, float), curve.label or f"_line {number}"
        panel.plot(curve.x, values, color=curve.colour, label=label, **look, **_MARKS[curve.mark])
    for rule in drawn.rules:
        panel.axhline(rule.value, color=MUTED, lw=0.6, ls=(0, (2, 2)), zorder=0.9, label=f"_reference {rule.label}")
        place = {"xycoords": panel.get_yaxis_transform(), "xytext": (3, 0), "textcoords": "offset points"}
        panel.annotate(rule.label, (1.0, rule.value), ha="left", va="center", fontsize=7, color=MUTED, **place)
    axis = depth_axis(drawn.last) if drawn.axis is None else drawn.axis
    if drawn.log:
        panel.set_yscale("log", nonpositive="mask")
    if axis.log:
        panel.set_xscale("log", nonpositive="mask")
    if axis.ends is not None:
        panel.set_xlim(*axis.ends)
    if drawn.domain is not None:
        low, high = panel.get_ylim()
        panel.set_ylim(min(low, drawn.domain[0]), max(high, drawn.domain[1]))
    panel.set(xlabel=axis.title, ylabel=drawn.title)


@draw.register
def _(drawn: OutcomeCurves, panel: Axes) -> None:
    along, curves = drawn.along, []
    mark = "disc" if along.words or len(along.places) < 20 else ""
    for number, (share, (colour, dash)) in enumerate(zip(drawn.shares, PRINTED, strict=False)):
        curve = Curve(share.word, along.places, share.fraction, colour, share.low, share.high, dash=dash, mark=mark)
        if along.words:
            # Words have no values between; their bars stand side by side, or they would cover each other.
            x = along.places + 0.06 * (number - (len(drawn.shares) - 1) / 2)
            panel.vlines(x, share.low, share.high, color=colour, lw=0.8)
            curve = replace(curve, x=x, low=None, width=0.0)
        curves.append(curve)
    draw(Curves(curves, "share of systems", axis=Axis(along.name, log=along.log), domain=(-0.02, 1.02)), panel)
    _name_values(panel.xaxis, along)


@draw.register
def _(drawn: OutcomeMap, panel: Axes) -> None:
    across, up = drawn.across, drawn.up
    cells = np.ma.masked_invalid(drawn.shares.fraction.T)
    panel.pcolormesh(across.edges, up.edges, cells, cmap=SHARES, norm=Normalize(0, 1))
    for dashed, line in drawn.borders:
        look = BORDERS[dashed]
        # The paper below, or the line would be lost on dark cells.
        paper = withStroke(linewidth=look["lw"] + 1.3, foreground=PAPER)
        panel.add_collection(LineCollection([line], colors=ORANGE, path_effects=[paper], **look))
    panel.set_facecolor(GRID)
    panel.set(xlabel=across.name, ylabel=up.name, xscale=_scale(across), yscale=_scale(up))
    _name_values(panel.xaxis, across)
    _name_values(panel.yaxis, up)
    panel.set(xlim=across.edges[[0, -1]], ylim=up.edges[[0, -1]])
    panel.tick_params(which="both", top=False, right=False)
    panel.spines[["top", "right"]].set_visible(True)


def _scale(over: Parameter) -> str:
    return "log" if over.log else "linear"


def _name_values(axis: Any, over: Parameter) -> None:
    """Name the values of a parameter where they are few or words; many have the ticks of their numbers."""
    if over.words or len(over.places) <= MOST_TICKS:
        axis.set_ticks(*over.ticks)
        axis.set_ticks([], minor=True)


@draw.register
def _(drawn: Panel, panel: Axes) -> None:
    rows, columns = drawn.values.shape
    limits = Normalize(-drawn.limit, drawn.limit)
    panel.pcolormesh(drawn.values, cmap=SIGNED, norm=limits, edgecolors="face", linewidth=0.1)
    panel.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal", xlabel=drawn.columns.title, ylabel=drawn.rows.title)
    panel.spines[["top", "right"]].set_visible(True)
    for edge in drawn.rows.edges[1:-1]:
        panel.axhline(edge, color=INK, lw=0.8)
    for edge in drawn.columns.edges[1:-1]:
        panel.axvline(edge, color=INK, lw=0.8)
    panel.tick_params(length=0)
    panel.set_xticks(*_entries(drawn.columns))
    upright = "vertical" if drawn.rows.blocks[0][0] else "horizontal"
    panel.set_yticks(*_entries(drawn.rows), rotation=upright, va="center")


def _entries(side: Side) -> tuple[list[float], list[str]]:
    """Return where names stand, and the names: of the blocks, or numbers that are not too dense."""
    names, total = [name for name, _ in side.blocks], side.edges[-1]
    if any(names):
        return [(first + last) / 2 for first, last in pairwise(side.edges)], names
    step = max(1, -(-total // 10))
    numbers = [1, *range(step, total + 1, step)] if step > 1 else range(1, total + 1)
    return [number - 0.5 for number in numbers], [str(number) for number in numbers]


def colour_bar(figure: Figure, panels: Sequence[Axes], colours: Colormap, limits: Normalize, label: str) -> None:
    """Draw the scale of the colours beside panels."""
    bar = figure.colorbar(ScalarMappable(limits, colours), ax=panels, shrink=0.75, aspect=20, pad=0.02)
    bar.set_label(label, fontsize=7)
    bar.outline.set_linewidth(0.4)
