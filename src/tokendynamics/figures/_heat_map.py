"""A matrix as coloured cells, with borders between its blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from tokendynamics.figures import style as style
from tokendynamics.figures.recording import to_numpy
from tokendynamics.figures.style import SINGLE, panel_for, paper_style
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_tensor
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.words import number

Cells: TypeAlias = Literal["plain", "signs", "numbers"]
"""What is written into a cell: nothing, a minus where it is negative, or its value."""

NEGATIVE, POSITIVE = "#e08214", "#174a80"
"""Full colours of the two signs. The positive one is much darker, so that the extremes differ in grey."""

_COLOURS = LinearSegmentedColormap.from_list("signed", [NEGATIVE, "#ffffff", POSITIVE])
_DARK = 0.55
"""Share of the scale beyond which a positive cell needs white letters."""

_SEEN = 0.08
"""Share of the scale below which a cell looks white, and its sign is not marked."""


@paper_style()
@typed_arguments
def heat_map(
    matrix: ArrayLike,
    *,
    blocks: Mapping[str, int] | None = None,
    column_blocks: Mapping[str, int] | None = None,
    cells: Cells = "plain",
    scale: float | None = None,
    label: str = "",
    row_label: str = "",
    column_label: str = "",
    axes: Axes | None = None,
    width: float = SINGLE,
) -> Figure:
    """Draw a matrix: white is zero, blue positive, orange (lighter in grey) negative; row 1 is at the top.

    Args:
        matrix: Shape (row, column).
        blocks: Sizes of the blocks from the top, by name, such as ``{"category": 4, "position": 6}``: borders are
            drawn between them and their names stand at the side. None: rows are numbered from 1.
        column_blocks: The same for the columns; None for those of the rows if the matrix is square, and else for
            columns that are numbered from 1.
        cells: "plain"; "signs" writes a minus into negative cells, for matrices up to about 20 × 20 that shall be
            read in grey; "numbers" writes the values, for matrices up to about 12 × 12.
        scale: The absolute value of full colour; None for the largest of the matrix.
        label: What the values are: a colour bar is drawn and says so. Empty for none.
        row_label: The label of the vertical axis.
        column_label: The label of the horizontal axis.
        axes: A panel to draw on; None for a new figure.
        width: Width in inches of a new figure.

    Returns:
        The figure.

    Raises:
        ArgumentTypeError, ArgumentValueError: Not a finite real matrix, blocks whose sizes are not positive or do not
            add up, an unknown `cells`, or a scale that is not positive.

    >>> figure = heat_map([[0.0, 2.0], [-1.0, 0.0]], blocks={"category": 1, "position": 1}, cells="numbers")
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['0', '2', '−1', '0']
    """
    values = _checked_matrix(matrix)
    if cells not in get_args(Cells):
        raise ArgumentValueError(expected("cells", "one of " + ", ".join(map(repr, get_args(Cells))), repr(cells)))
    limit = _limit(values, scale)
    rows, columns = values.shape
    if column_blocks is None and rows == columns:
        column_blocks = blocks
    figure, panel = panel_for(axes, width, 0.95 * width if axes is None else None)
    mesh = panel.pcolormesh(values, cmap=_COLOURS, norm=Normalize(-limit, limit), edgecolors="face", linewidth=0.1)
    panel.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal", xlabel=column_label, ylabel=row_label)
    panel.spines[["top", "right"]].set_visible(True)
    _borders(panel, _sizes(blocks, rows, "blocks"), _sizes(column_blocks, columns, "column_blocks"))
    _name_blocks(panel, blocks, column_blocks, rows, columns)
    if cells != "plain":
        _write(panel, values, limit, cells)
    if label:
        _colour_bar(figure, panel, mesh, label)
    return figure


def _colour_bar(figure: Figure, panel: Axes, mesh: QuadMesh, label: str) -> None:
    bar = figure.colorbar(mesh, ax=panel, shrink=0.75, aspect=18, pad=0.02)
    bar.set_label(label, fontsize=7)
    bar.outline.set_linewidth(0.4)


def _checked_matrix(matrix: ArrayLike) -> np.ndarray:
    values = to_numpy(as_tensor(matrix, "matrix", ndim_at_least=2, axes="(row, column)"))
    if values.ndim != 2 or not values.size:
        raise ArgumentValueError(expected("matrix", "one matrix (row, column)", f"shape {values.shape}"))
    return values


def _limit(values: np.ndarray, scale: float | None) -> float:
    if scale is None:
        return float(np.abs(values).max()) or 1.0
    if not scale > 0:
        raise ArgumentValueError(expected("scale", "a positive number", scale))
    return scale


def _sizes(blocks: Mapping[str, int] | None, total: int, argument: str) -> list[int]:
    if blocks is None:
        return [total]
    sizes = list(blocks.values())
    if min(sizes, default=0) < 1 or sum(sizes) != total:
        raise ArgumentValueError(expected(argument, f"positive sizes that add up to {total}", sizes))
    return sizes


def _borders(axes: Axes, rows: list[int], columns: list[int]) -> None:
    for edge in np.cumsum(rows)[:-1]:
        axes.axhline(float(edge), color=style.INK, lw=0.8)
    for edge in np.cumsum(columns)[:-1]:
        axes.axvline(float(edge), color=style.INK, lw=0.8)


def _name_blocks(
    axes: Axes, blocks: Mapping[str, int] | None, column_blocks: Mapping[str, int] | None, rows: int, columns: int
) -> None:
    axes.tick_params(length=0)
    places, names = _ticks(column_blocks, columns)
    axes.set_xticks(places, names)
    places, names = _ticks(blocks, rows)
    axes.set_yticks(places, names, rotation="vertical" if blocks else "horizontal", va="center")


def _ticks(blocks: Mapping[str, int] | None, total: int) -> tuple[list[float], list[str]]:
    """Return where names stand, and the names: of the blocks, or numbers that are not too dense."""
    if blocks is None:
        step = max(1, -(-total // 10))
        numbers = [1, *range(step, total + 1, step)] if step > 1 else list(range(1, total + 1))
        return [number - 0.5 for number in numbers], [str(number) for number in numbers]
    sizes = np.array(list(blocks.values()))
    return (np.cumsum(sizes) - sizes / 2).tolist(), list(blocks)


def _write(axes: Axes, values: np.ndarray, limit: float, cells: Cells) -> None:
    for (row, column), value in np.ndenumerate(values):
        text = number(float(value)) if cells == "numbers" else "−" if value < -_SEEN * limit else ""
        if text:
            colour = style.START if value > _DARK * limit else style.INK
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=6, color=colour)
