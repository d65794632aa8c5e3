"""A matrix as coloured cells, with borders between its blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from tokendynamics.figures._print import SIGNED, colour_bar, draw
from tokendynamics.figures.matrix import Panel, Side
from tokendynamics.figures.palette import INK, PAPER
from tokendynamics.figures.recording import to_numpy
from tokendynamics.figures.style import SINGLE, panel_for, paper_style
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_tensor
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.words import number

Cells: TypeAlias = Literal["plain", "signs", "numbers"]
"""What is written into a cell: nothing, a minus where it is negative, or its value."""

_DARK = 0.55
"""Share of the scale beyond which a cell needs white letters."""

_SEEN = 0.08
"""Share of the scale below which a cell looks white, and its sign is not marked."""

_LARGEST = 1e300
"""Scale beyond which the difference of the ends of the colour bar overflows."""


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
    """Draw a matrix: white is zero, orange positive, purple (darker in grey) negative; row 1 is at the top.

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
    values = to_numpy(as_tensor(matrix, "matrix", ndim_at_least=2, axes="(row, column)"))
    if values.ndim != 2 or not values.size:
        raise ArgumentValueError("matrix", "one matrix (row, column)", f"shape {values.shape}")
    if cells not in get_args(Cells):
        raise ArgumentValueError("cells", "one of " + ", ".join(map(repr, get_args(Cells))), repr(cells))
    if scale is not None and not 0 < scale <= _LARGEST:
        raise ArgumentValueError("scale", f"a positive number of at most {_LARGEST:g}", scale)
    if column_blocks is None and values.shape[0] == values.shape[1]:
        column_blocks = blocks
    sides = ((row_label, blocks, "blocks"), (column_label, column_blocks, "column_blocks"))
    rows, columns = (_side(*side, total) for side, total in zip(sides, values.shape, strict=True))
    drawn = Panel("", values, rows, columns, scale=scale)
    figure, panel = panel_for(axes, width, 0.95 * width if axes is None else None)
    draw(drawn, panel)
    if cells != "plain":
        _write(panel, values, drawn.limit, cells)
    if label:
        colour_bar(figure, [panel], SIGNED, Normalize(-drawn.limit, drawn.limit), label)
    return figure


def _side(title: str, blocks: Mapping[str, int] | None, argument: str, total: int) -> Side:
    if blocks is None:
        return Side(title, (("", total),))
    sizes = list(blocks.values())
    if min(sizes, default=0) < 1 or sum(sizes) != total:
        raise ArgumentValueError(argument, f"positive sizes that add up to {total}", sizes)
    return Side(title, tuple(blocks.items()))


def _write(axes: Axes, values: np.ndarray, limit: float, cells: Cells) -> None:
    for (row, column), value in np.ndenumerate(values):
        text = number(float(value)) if cells == "numbers" else "−" if value < -_SEEN * limit else ""
        if text:
            colour = PAPER if abs(value) > _DARK * limit else INK
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=6, color=colour)
