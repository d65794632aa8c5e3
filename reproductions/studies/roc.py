"""ROC curves of scores for divergence: points of them in a table, and their picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reproductions.studies.record import Cell, Table
from reproductions.studies.statistics import sensitivity
from tokendynamics.plots._style import DOUBLE, LINES, MUTED, THIN, panels, paper_style

TABLE = "ROC curves"
RATES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
"""Shares of false positives at which the curves are kept."""

Population = tuple[str, Mapping[str, np.ndarray], int]
"""Name of the draws, whether each system diverged and its scores, and the dim."""


def curves(populations: Sequence[Population], scores: Sequence[str]) -> Table:
    """Return points of the ROC curves.

    Args:
        populations: Each with "diverged" and its scores.
        scores: Their names.
    """
    rows: list[tuple[Cell, ...]] = [
        (name, dim, score, *(sensitivity(systems[score], systems["diverged"], rate) for rate in RATES))
        for name, systems, dim in populations
        for score in scores
    ]
    caption = "Share of the diverging systems that a score finds, by the share of the others that it takes for such."
    return Table(TABLE, caption, ("draws", "dim", "score", *(f"at {rate:g}" for rate in RATES)), tuple(rows))


@paper_style()
def roc_picture(table: Table) -> Figure:
    r"""Draw a panel for each kind of draws and score, with a line for each dim and the diagonal of chance.

    >>> row = ("any", 2, "spectrum", *(rate**0.5 for rate in RATES))
    >>> drawn = roc_picture(Table(TABLE, "", ("draws", "dim", "score", *(f"at {rate:g}" for rate in RATES)), (row,)))
    >>> drawn.axes[0].get_title(loc="left"), drawn.axes[0].lines[1].get_ydata()[5].round(3).item()
    ('any\nspectrum', 0.447)
    """
    rows = table.each()
    kinds = list(dict.fromkeys((row["draws"], row["score"]) for row in rows))
    dims = sorted({row["dim"] for row in rows})
    figure, axes = panels(len(kinds), width=DOUBLE, height=DOUBLE / 4 + 0.75)
    for ax, (draws, score) in zip(axes, kinds, strict=True):
        own = {row["dim"]: row for row in rows if (row["draws"], row["score"]) == (draws, score)}
        _panel(
            ax, f"{draws}\n{score}", {dim: [row[f"at {rate:g}"] for rate in RATES] for dim, row in own.items()}, dims
        )
    axes[0].set_ylabel("diverging systems found")
    fullest = max(range(len(axes)), key=lambda number: (len(axes[number].lines), number))
    axes[fullest].legend(title="dim", loc="lower right")
    return figure


def _panel(ax: Axes, title: str, found: Mapping[int, Sequence[float]], dims: Sequence[int]) -> None:
    ax.plot((0, 1), (0, 1), color=THIN, linewidth=0.8)
    for dim, shares in found.items():
        colour, dash = LINES[dims.index(dim) % len(LINES)]
        ax.plot(RATES, shares, color=colour, linestyle=dash, label=str(dim))
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal", xlabel="others taken for such")
    ax.set_title(title, fontsize=7, color=MUTED)
