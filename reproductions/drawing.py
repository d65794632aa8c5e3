"""What the figures of the papers share when they are drawn."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from reproductions.record import Record
from tokendynamics.figures.style import AXIS, BAND, END_HIDDEN, INK, LINES, MUTED, PATH, START, THIN, paper_style

_LETTERS_PER_INCH = 20
_ROOM = 0.06
"""Share of a panel left free on each side of its paths."""

_SLIMMEST = 1.8
"""Sides of a plane whose ratio is larger than this are drawn to scales of their own."""

_FILLS = ((PATH, ""), (INK, ""), (BAND, ""), (START, "/////"))
"""Colour and hatch of the parts of a bar; they differ in grey as well."""


@paper_style()
def footnote(figure: Figure, record: Record, *paragraphs: str) -> Figure:
    """Set text small below the panels: what does not come out as printed, and last what in the figure is invented."""
    width = int(_LETTERS_PER_INCH * figure.get_size_inches()[0])
    *before, last = paragraphs or ("",)
    paragraphs = (*before, f"{last} Invented: {record.invented}.".lstrip())
    text = "\n".join(textwrap.fill(paragraph, width) for paragraph in paragraphs)
    figure.supxlabel(text, x=0.01, ha="left", fontsize=6.5, color=MUTED)
    return figure


@paper_style()
def marks(axes: Axes, x: Sequence[float], y: Sequence[float], label: str) -> None:
    """Add open circles to a panel and its legend: what was measured, beside lines that were predicted."""
    axes.plot(x, y, ls="none", marker="o", color=INK, mfc=START, label=label)
    axes.legend(loc="lower left")


@paper_style()
def outputs_over_targets(axes: Axes, targets: Sequence[float], outputs: Mapping[str, Sequence[float]]) -> None:
    """Draw outputs over targets, at most two by name, with the line on which they are equal."""
    low, high = min(targets), max(targets)
    axes.plot([low, high], [low, high], color=AXIS, lw=0.8, zorder=0.9, label="_equal")
    for (name, values), (colour, _), marker in zip(outputs.items(), LINES, (".", "x"), strict=False):
        axes.plot(targets, values, ls="none", marker=marker, ms=3, mew=0.6, color=colour, label=name)
    axes.set(xlabel="target", ylabel="output", aspect="equal")
    axes.legend(loc="upper left")


@paper_style()
def banded(axes: Axes, x: Sequence[float], lines: Mapping[str, np.ndarray], label: str) -> None:
    """Draw the median of several runs for each name, in a band from the least to the largest; logarithmic upwards.

    Args:
        axes: The panel.
        x: Shape (point,).
        lines: (run, point), by name, at most six names.
        label: Of the vertical axis.
    """
    for (name, runs), (colour, dash) in zip(lines.items(), LINES, strict=False):
        axes.fill_between(x, runs.min(axis=0), runs.max(axis=0), fc=colour, ec="none", alpha=0.16, zorder=1)
        axes.plot(x, np.median(runs, axis=0), color=colour, ls=dash, zorder=2, label=name)
    axes.set_yscale("log")
    axes.set_ylabel(label)
    axes.legend()


@paper_style()
def dot_rows(axes: Axes, rows: Mapping[str, Sequence[float]], label: str, *, scale: Literal["linear", "log"]) -> None:
    """Draw the numbers of each row as open circles, from the top, and a bar at their median."""
    for place, values in enumerate(rows.values()):
        axes.plot(values, [place] * len(values), ls="none", marker="o", ms=3.5, color=INK, mfc=START, mew=0.7)
        axes.plot([float(np.median(values))], [place], ls="none", marker="|", ms=13, mew=1.8, color=PATH, zorder=0.9)
    axes.set_xscale(scale)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(label)


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


@paper_style()
def layer_lines(axes: Axes, curves: Mapping[str, np.ndarray], label: str) -> None:
    """Draw the median over sequences by layer, in a band of the middle 80 %, logarithmic upwards.

    Values may be beyond any number, so that it is their logarithms that are drawn, under labels of powers of ten.

    Args:
        axes: The panel.
        curves: Natural logarithms, (sequence, layer), by name, at most six names; layers from 0, the embedding.
        label: Of the vertical axis.
    """
    for (name, logs), (colour, dash) in zip(curves.items(), LINES, strict=False):
        known = np.isfinite(logs).all(axis=0)
        layers, powers = np.flatnonzero(known), logs[:, known] / math.log(10)
        low, middle, high = np.quantile(powers, [0.1, 0.5, 0.9], axis=0)
        axes.fill_between(layers, low, high, fc=colour, ec="none", alpha=0.16, zorder=1)
        axes.plot(layers, middle, color=colour, ls=dash, zorder=2, label=name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _tick_powers(axes)
    axes.yaxis.set_major_formatter(lambda power, _: f"$10^{{{power:g}}}$" if abs(power) > 4 else f"{10**power:.4g}")
    axes.set(xlabel="layer", ylabel=label)
    axes.legend()


def _tick_powers(axes: Axes) -> None:
    """Let ticks of an axis of powers stand at whole powers, or at round numbers where these are less than two apart."""
    low, high = axes.get_ylim()
    if high - low > 2:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        return
    numbers = np.asarray(MaxNLocator(nbins=6).tick_values(10**low, 10**high))
    axes.set_yticks([power for power in np.log10(numbers[numbers > 0]) if low <= power <= high])


_GROUPS = (*(colour for colour, _ in LINES), AXIS, THIN)
"""Colours of up to eight groups."""


@paper_style()
def grouped_paths(axes: Axes, positions: np.ndarray, member: np.ndarray) -> None:
    """Draw tokens' paths in a plane, coloured by group, with an open circle at the end of each.

    Args:
        axes: The panel.
        positions: (layer, token, 2); NaN for a token that is not drawn.
        member: Number of each token's group, 0 to 7, the largest first; −1 for a token that is in none.
    """
    for group in range(int(member.max()) + 1):
        colour, chosen = _GROUPS[group], np.flatnonzero(member == group)
        label = f"group {group + 1}: {len(chosen)} tokens" if member.max() else f"no clear groups: {len(chosen)} tokens"
        for place in chosen:
            axes.plot(*positions[:, place].T, color=colour, lw=0.5, alpha=0.6, zorder=1)
        axes.plot(*positions[-1, chosen].T, ls="none", marker="o", ms=3, mew=0.7, color=colour, mfc=START, label=label)
    axes.set(xlabel="first principal dimension", ylabel="second")
    axes.legend(fontsize=6, frameon=True, framealpha=0.85, edgecolor="none")
