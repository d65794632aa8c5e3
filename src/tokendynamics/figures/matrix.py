"""Matrices as heat maps: colours centred at zero, borders and names of the blocks, the numbers as tables."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokendynamics.figures.figure import Figure, Table, cells
from tokendynamics.figures.palette import AXIS, GRID, INK, MUTED, NEGATIVE, PAPER, POSITIVE
from tokendynamics.figures.svg import WIDE, Key, Specification, alt, inline, layered, plain
from tokendynamics.words import number, plural, signed

_TALLEST, _LARGEST_CELL, _NUMBERED_CELL, _DASHED_CELL = 600.0, 34.0, 26.0, 9.0
_LEFT, _GAP, _NARROWEST = 52.0, 14.0, 112.0
_AROUND = 55.0
"""What stands beside a chart's plotting area on the page."""

_LEVELS = 24
_LEGEND = (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Side:
    """One side of a matrix: what its entries stand for, block by block.

    Attributes:
        title: What the side is, such as "sender".
        blocks: Name and size of each block, such as ("category", 4).
    """

    title: str
    blocks: tuple[tuple[str, int], ...]

    @property
    def names(self) -> list[str]:
        """Every entry by name, numbered from 1 within its block."""
        return [f"{name} {i}".strip() for name, size in self.blocks for i in range(1, size + 1)]

    @property
    def edges(self) -> list[int]:
        """Where blocks begin and end."""
        return np.cumsum([0, *(size for _, size in self.blocks)]).tolist()


@dataclass(frozen=True)
class Panel:
    """One matrix of a figure.

    Attributes:
        title: Its name.
        values: (row, column).
        rows: The side at the left.
        columns: The side at the top.
        note: A word on it below its title.
        scale: What the strongest colour stands for; None: the largest size of all finite entries, 1 if all are zero.
    """

    title: str
    values: np.ndarray
    rows: Side
    columns: Side
    note: str = ""
    scale: float | None = None

    @property
    def limit(self) -> float:
        """What the strongest colour stands for.

        >>> side = Side("", (("", 1),))
        >>> Panel("", np.array([[-2.0]]), side, side).limit
        2.0
        """
        if self.scale is not None:
            return self.scale
        sizes = np.abs(self.values[np.isfinite(self.values)])
        return float(sizes.max(initial=0.0)) or 1.0


@dataclass(frozen=True)
class Matrices:
    """Matrices side by side with cells of one size, each with a scale of its own.

    Attributes:
        panels: At least one; none may be empty.
        ident: Prefix of the ids of their tables.
        per_row: How many stand side by side; fewer where they do not fit.
        keys: None: each has its scale below it.
    """

    panels: Sequence[Panel]
    ident: str
    per_row: int
    keys: Sequence[Key] = ()

    def chart(self, width: float = WIDE) -> Specification:
        """Return the chart for a width of its plotting area."""
        panels, room = self.panels, width + _AROUND
        rows = _in_rows(panels, self.per_row if width >= WIDE else 1, room)
        cell = min(_cell_of([panels[place] for place in row], room) for row in rows)
        if width < WIDE:
            # A phone has a panel a row; narrow ones share it.
            rows = _in_rows(panels, self.per_row, room, cell)
        drawn = [[_panel(panels[place], cell, f"{self.ident}-table-{place + 1}") for place in row] for row in rows]
        return {"vconcat": [{"hconcat": row, "spacing": _GAP} for row in drawn], "spacing": 22}


def matrices(panels: Sequence[Panel], *, ident: str, question: str, caption: str, per_row: int = 2) -> Figure:
    """Return the figure of `Matrices` with a table of each.

    Args:
        panels: See `Matrices`.
        ident: For links.
        question: What the figure answers.
        caption: What there is to see, and how it is drawn.
        per_row: See `Matrices`.
    """
    description = " ".join(_description(panel) for panel in panels) + " The tables below list every value."
    tables = tuple(_table(panel) for panel in panels)
    drawn = Matrices(panels, ident, per_row)
    return Figure(ident, question, caption, drawn, description=description, tables=tables)


def _in_rows(panels: Sequence[Panel], per_row: int, room: float, cell: float | None = None) -> list[list[int]]:
    """Put panels into rows, as many in each as may be and, with cells of a known size, as fit."""
    rows: list[list[int]] = []
    for place, panel in enumerate(panels):
        full = not rows or len(rows[-1]) == per_row
        if not full and cell is not None:
            full = sum(_width(panels[index], cell) + _GAP for index in rows[-1]) + _width(panel, cell) > room
        if full:
            rows.append([])
        rows[-1].append(place)
    return rows


def _cell_of(row: Sequence[Panel], room: float) -> float:
    """Return the largest cell with which the panels of a row fit on the page."""
    wide = sum(panel.values.shape[1] for panel in row)
    tallest = _TALLEST / max(panel.values.shape[0] for panel in row)
    cell = min(_LARGEST_CELL, (room - len(row) * (_LEFT + _GAP)) / wide, tallest)
    # Narrow strips take the room of their legend, which leaves less for the others.
    while sum(_width(panel, cell) + _GAP for panel in row) > room and cell > 2.0:
        cell -= 0.25
    return round(cell, 2)


def _width(panel: Panel, cell: float) -> float:
    words = max([7.4 * len(panel.title), *(5.8 * len(line) for line in _note(panel))])
    return _LEFT + max(panel.values.shape[1] * _across(panel, cell), words, _NARROWEST)


def _across(panel: Panel, cell: float) -> float:
    """Return the width of a cell: that of a single column is no less than what the eye can hold on to."""
    return max(cell, 18.0) if panel.values.shape[1] == 1 else cell


def _panel(panel: Panel, cell: float, table: str) -> Specification:
    across, largest = _across(panel, cell), panel.limit
    x, y = _axes(panel, across, cell)
    (rows, columns), whole = (
        panel.values.shape,
        {"x": 0, "x2": panel.values.shape[1], "y": 0, "y2": panel.values.shape[0]},
    )
    ground = alt.Chart(inline([whole])).mark_rect(fill=PAPER, stroke=GRID, fillOpacity=1)
    layers: list[alt.Chart] = [ground.encode(x=x, x2="x2:Q", y=y, y2="y2:Q")]
    layers += _cells(panel.values / largest, x, y)
    undefined = [
        {"x": column + 0.5, "y": row + 0.5} for row, column in np.argwhere(~np.isfinite(panel.values)).tolist()
    ]
    mark = {"text": "×", "color": MUTED, "fontSize": max(4.0, 0.6 * cell), "baseline": "middle"}
    layers += [alt.Chart(inline(undefined)).mark_text(**mark).encode(x=x, y=y)] if undefined else []
    if cell >= _NUMBERED_CELL:
        texts = [
            {"x": column + 0.5, "y": row + 0.5, "text": written, "ink": PAPER if abs(value) > 0.55 * largest else INK}
            for (row, column), value in np.ndenumerate(panel.values)
            if (written := _short(float(value), largest))
        ]
        base = alt.Chart(inline(texts)).mark_text(fontSize=9.5, baseline="middle")
        layers.append(base.encode(x=x, y=y, text="text:N", fill=alt.Fill("ink:N", scale=None)))
    elif cell >= _DASHED_CELL:
        # What is clearly negative is dashed: in grey the two hues look alike.
        strengths = panel.values / largest
        dashes = []
        for colour, chosen in ((INK, (strengths < -0.1) & (strengths >= -0.55)), (PAPER, strengths < -0.55)):
            places = [{"x": c + 0.3, "x2": c + 0.7, "y": r + 0.5} for r, c in np.argwhere(chosen).tolist()]
            if places:
                rules = alt.Chart(inline(places)).mark_rule(color=colour, strokeWidth=1)
                dashes.append(rules.encode(x=x, x2="x2:Q", y=y))
        layers += dashes
    layers += [*_borders(panel, x, y), *_block_names(panel, across, cell, x, y)]
    hit = alt.Chart(inline([whole | {"table": table}]), name=f"hit-{table}").mark_rect(
        fill=PAPER, fillOpacity=0, strokeOpacity=0
    )
    layers.append(hit.encode(x=x, x2="x2:Q", y=y, y2="y2:Q", description="table:N"))
    title = {
        "text": panel.title, "subtitle": _note(panel), "subtitleColor": MUTED, "subtitleFontSize": 11,
        "subtitlePadding": 4, "anchor": "start", "frame": "group", "fontSize": 12.5, "fontWeight": 600, "offset": 26,
    }  # fmt: skip
    drawn = layered(*layers, width=columns * across, height=rows * cell, title=title)
    return {"vconcat": [drawn, _legend(largest)], "spacing": 6}


def _axes(panel: Panel, across: float, cell: float) -> tuple[alt.X, alt.Y]:
    """Return axes that count the entries of each block, as many as there is room for."""
    quiet: dict[str, Any] = {
        "title": None, "grid": False, "ticks": False, "domain": False, "labelFontSize": 10, "labelColor": MUTED,
        "labelPadding": 5, "labelOverlap": False, "labelBound": False, "labelFlush": False,
    }  # fmt: skip
    x, y = (
        {
            "values": places,
            "labelExpr": f"({json.dumps(dict(zip(map(str, places), labels, strict=True)))})[datum.value]",
        }
        for places, labels in (_counted(panel.columns, across), _counted(panel.rows, cell))
    )
    rows, columns = panel.values.shape
    return (
        alt.X("x:Q", scale=alt.Scale(domain=[0, columns], nice=False), axis=alt.Axis(orient="top", **quiet, **x)),
        alt.Y("y:Q", scale=alt.Scale(domain=[rows, 0], nice=False), axis=alt.Axis(minExtent=40, **quiet, **y)),
    )


def _counted(side: Side, cell: float) -> tuple[list[float], list[str]]:
    """Return the middle of each entry that carries its number, and the number."""
    ticks = [
        (first + i - 0.5, str(i))
        for (_, size), first in zip(side.blocks, side.edges, strict=False)
        for i in _numbered(size, cell)
    ]
    return [place for place, _ in ticks], [label for _, label in ticks]


def _numbered(size: int, cell: float) -> range:
    """Return which entries of a block are numbered: every one, or every fifth or tenth."""
    if size == 1:
        return range(0)
    every = next((step for step in (1, 2, 5, 10, 20, 50) if step * cell >= 13), 100)
    return range(every if every > 1 else 1, size + 1, every)


def _cells(strengths: np.ndarray, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Colour every entry that is not zero, in the order of its colour, so that those of one colour are one path."""
    rows = []
    for (row, column), strength in np.ndenumerate(strengths):
        level = int(np.ceil(abs(strength) * _LEVELS - 1e-9)) if np.isfinite(strength) else 0
        if level:
            colour = POSITIVE if strength > 0 else NEGATIVE
            place = {"x": column, "x2": column + 1, "y": row, "y2": row + 1}
            rows.append(place | {"colour": colour, "level": round(level / _LEVELS, 3)})
    if not rows:
        return []
    rows.sort(key=lambda one: (one["colour"], one["level"]))
    fill, opacity = alt.Fill("colour:N", scale=None), alt.FillOpacity("level:Q", scale=None)
    base = alt.Chart(inline(rows)).mark_rect(strokeOpacity=0)
    return [base.encode(x=x, x2="x2:Q", y=y, y2="y2:Q", fill=fill, fillOpacity=opacity)]


def _short(value: float, largest: float) -> str:
    """Write at most four characters and a sign, or nothing where that says less than the colour.

    >>> [_short(value, 1.0) for value in (-0.004, 0.006, 0.25, -1.0)], _short(-12345.0, 2e4)
    (['−.004', '.006', '.25', '−1'], '−1e4')
    """
    if not np.isfinite(value) or abs(value) < 5e-4 * largest:
        return ""
    size = abs(value)
    forms = (f"{size:.{digits}g}" for digits in (3 if size >= 100 else 2, 1))
    # All lose their leading zero, or small numbers of one sign only would.
    shown = [re.sub(r"e\+?(-?)0", r"e\1", one.removeprefix("0")) for one in forms]
    written = next((one for one in shown if len(one) <= 4), "")
    return f"−{written}" if written and value < 0 else written


def _borders(panel: Panel, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    rows, columns = panel.values.shape
    across = [{"x": 0, "x2": columns, "y": edge} for edge in panel.rows.edges]
    down = [{"x": edge, "y": 0, "y2": rows} for edge in panel.columns.edges]
    look: dict[str, Any] = {"color": AXIS, "strokeWidth": 1.3}
    return [
        alt.Chart(inline(across)).mark_rule(**look).encode(x=x, x2="x2:Q", y=y),
        alt.Chart(inline(down)).mark_rule(**look).encode(x=x, y=y, y2="y2:Q"),
    ]


def _block_names(panel: Panel, across: float, cell: float, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    layers = []
    look: dict[str, Any] = {"color": MUTED, "fontSize": 11}
    above, beside = _named(panel.columns, across), _named(panel.rows, cell)
    if above:
        base = alt.Chart(inline([{"x": place, "text": name} for place, name in above])).mark_text(y=-24, **look)
        layers.append(base.encode(x=x, text="text:N"))
    if beside:
        base = alt.Chart(inline([{"y": place, "text": name} for place, name in beside]))
        layers.append(base.mark_text(x=-34, angle=270, **look).encode(y=y, text="text:N"))
    return layers


def _named(side: Side, cell: float) -> list[tuple[float, str]]:
    """Return the middle of each block that has a name, and the name as far as it fits."""
    # A name, or its first letters where it does not fit.
    return [
        (first + size / 2, name if 5.8 * len(name) <= size * cell or len(name) < 6 else f"{name[:3]}.")
        for (name, size), first in zip(side.blocks, side.edges, strict=False)
        if name
    ]


def _legend(largest: float) -> Specification:
    """Draw the scale: what the strongest colours stand for, with zero between them."""
    rows = [
        {"x": place, "x2": place + 1, "colour": POSITIVE if share > 0 else NEGATIVE, "level": abs(share)}
        for place, share in enumerate(_LEGEND)
    ]
    ends, written = len(_LEGEND), number(largest, 2)
    labels = {"0": f"−{written}", str(ends / 2): "0", str(ends): f"+{written}"}
    axis = alt.Axis(
        values=[0, ends / 2, ends], labelExpr=f"({json.dumps(labels)})[datum.value]", title=None, ticks=False,
        domain=False, labelFontSize=10, labelColor=MUTED, labelFlush=False, labelBound=False, labelOverlap=False,
    )  # fmt: skip
    fill, opacity = alt.Fill("colour:N", scale=None), alt.FillOpacity("level:Q", scale=None)
    x = alt.X("x:Q", scale=alt.Scale(domain=[0, ends], nice=False), axis=axis)
    base = alt.Chart(inline(rows)).mark_rect(stroke=GRID, strokeWidth=0.6, y=0, y2=10)
    drawn = base.encode(x=x, x2="x2:Q", fill=fill, fillOpacity=opacity)
    return plain(drawn.properties(width=12 * ends, height=10))


def _note(panel: Panel) -> list[str]:
    """Return what rows and columns are, and a word on the matrix, as lines."""
    sides = [f"{name}: {side.title}" for name, side in (("rows", panel.rows), ("columns", panel.columns)) if side.title]
    return [line for line in (" · ".join(sides), panel.note) if line]


def _description(panel: Panel) -> str:
    values = panel.values[np.isfinite(panel.values)]
    rows, columns = panel.values.shape
    size = f"{panel.title}, {plural(rows, 'row')} and {plural(columns, 'column')}"
    if not values.size or not values.any():
        return f"{size}, all zero."
    return f"{size}, from {signed(float(values.min()))} to {signed(float(values.max()))}, {_by_block(panel)}."


def _by_block(panel: Panel) -> str:
    """Return where the largest entry lies."""
    row, column = np.unravel_index(np.nanargmax(np.abs(panel.values)), panel.values.shape)
    names = [name for name in (panel.rows.names[row], panel.columns.names[column]) if name]
    return f"largest at {' and '.join(names)}" if names else "largest at its one entry"


def _table(panel: Panel) -> Table:
    corner = " ╲ ".join(title for title in (panel.rows.title, panel.columns.title) if title)
    rows = [cells([name, *map(float, row)]) for name, row in zip(panel.rows.names, panel.values, strict=True)]
    return Table(panel.title, (corner, *panel.columns.names), tuple(rows))
