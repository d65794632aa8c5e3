"""What the figures of both papers share when they are drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tokendynamics.plots.style import BAND, END_HIDDEN, INK, MUTED, PATH, START, paper_style

_LETTERS_PER_INCH = 20
_ROOM = 0.06
"""Share of a panel left free on each side of its paths."""

_SLIMMEST = 1.8
"""Sides of a plane whose ratio is larger than this are drawn to scales of their own."""

_FILLS = ((PATH, ""), (INK, ""), (BAND, ""), (START, "/////"))
"""Colour and hatch of the parts of a bar; they differ in grey as well."""


@paper_style()
def footnote(figure: Figure, text: str) -> Figure:
    """Set `text` small below the panels: what in the figure is invented, or does not come out as printed."""
    width = int(_LETTERS_PER_INCH * figure.get_size_inches()[0])
    figure.supxlabel(textwrap.fill(text, width), x=0.01, ha="left", fontsize=6.5, color=MUTED)
    return figure


@paper_style()
def marks(axes: Axes, x: Sequence[float], y: Sequence[float], label: str) -> None:
    """Add open circles to a panel and its legend: what was measured, beside lines that were predicted."""
    axes.plot(x, y, ls="none", marker="o", color=INK, mfc=START, label=label)
    axes.legend(loc="lower left")


def framed(axes: Axes) -> None:
    """Give a plane of tokens room around its circles, and scales of their own to axes of very different lengths."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    across, up = right - left, high - low
    if max(across, up) > _SLIMMEST * min(across, up):
        axes.set_aspect("auto")
    else:
        across = up = max(across, up)
    axes.set_xlim(left - _ROOM * across, right + _ROOM * across)
    axes.set_ylim(low - _ROOM * up, high + _ROOM * up)


def without_legend(axes: Axes) -> None:
    """Take the legend away: a panel beside it has the same."""
    legend = axes.get_legend()
    if legend is not None:
        legend.remove()


@paper_style()
def stacked_shares(axes: Axes, bars: Mapping[str, Mapping[str, float]], *, legend: bool) -> None:
    """Draw one horizontal bar for each entry of `bars`, from the top, divided by share; the same parts in every bar.

    Args:
        axes: The panel.
        bars: Shares that add up to 1, by the bar's name and the part's.
        legend: Whether to say above the panel what the parts are; the bars' names are left out where it does not.
    """
    names = list(bars)
    left = [0.0] * len(names)
    for part, (colour, hatch) in zip(next(iter(bars.values())), _FILLS, strict=True):
        widths = [bars[name][part] for name in names]
        axes.barh(
            names, widths, left=left, height=0.6, fc=colour, ec=END_HIDDEN if hatch else colour, hatch=hatch, label=part
        )
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_xlim(0, 1)
    axes.invert_yaxis()
    axes.set_xlabel("share of draws")
    if legend:
        axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=4)
    else:
        axes.set_yticklabels([])
