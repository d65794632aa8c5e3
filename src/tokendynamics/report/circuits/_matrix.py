"""Matrices as heat maps: colours centred at zero, borders and names of the blocks, the numbers as tables."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup

from tokendynamics.report.kit._figure import Matrices, Table, cells
from tokendynamics.report.kit._palette import AXIS, GRID, INK, MUTED, NEGATIVE, PAPER, POSITIVE
from tokendynamics.report.kit._text import number, plural, signed

_SVG = "http://www.w3.org/2000/svg"
ElementTree.register_namespace("", _SVG)

Parent: TypeAlias = ElementTree.Element


def empty(width: float) -> Parent:
    """Return a drawing without anything in it."""
    return ElementTree.Element(f"{{{_SVG}}}svg", {"width": f"{width:g}", "font-family": "system-ui, sans-serif"})


def add(parent: Parent, tag: str, **attributes: str) -> Parent:
    """Return a child of that tag."""
    return ElementTree.SubElement(parent, f"{{{_SVG}}}{tag}", attributes)


def text(
    parent: Parent, words: str, x: float, y: float, *, size: float, fill: str = INK, anchor: str = "", weight: str = ""
) -> None:
    """Write words at a place; `anchor` is "middle", "end" or the start."""
    attributes = {"x": f"{x:.6g}", "y": f"{y:.6g}", "font-size": f"{size:g}px", "fill": fill}
    if anchor:
        attributes["text-anchor"] = anchor
    if weight:
        attributes["font-weight"] = weight
    add(parent, "text", **attributes).text = words


def line(parent: Parent, x1: float, y1: float, x2: float, y2: float, stroke: str, width: float, dash: str = "") -> None:
    """Return a straight line."""
    attributes = {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "stroke-width": width}
    attributes = {name: f"{value:.6g}" for name, value in attributes.items()} | {"stroke": stroke}
    add(parent, "line", **attributes, **({"stroke-dasharray": dash} if dash else {}))


def described(root: Parent, *, ident: str, width: float, height: float, title: str, description: str) -> Markup:
    """Return the finished drawing as markup, with title and description for those who do not see it."""
    root.attrib |= {
        "height": f"{height:g}",
        "viewBox": f"0 0 {width:g} {height:g}",
        "id": f"{ident}-svg",
        "role": "img",
        "aria-labelledby": f"{ident}-title {ident}-desc",
    }
    for position, (tag, words) in enumerate((("title", title), ("desc", description))):
        child = ElementTree.Element(f"{{{_SVG}}}{tag}", {"id": f"{ident}-{tag}"})
        child.text = words
        root.insert(position, child)
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704  # serialised, hence escaped


WIDTH = 830.0
_TALLEST, _LARGEST_CELL, _NUMBERED_CELL, _DASHED_CELL = 600.0, 34.0, 26.0, 9.0
_LEFT, _TOP, _BOTTOM, _GAP, _NARROWEST = 52.0, 78.0, 48.0, 14.0, 112.0
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


@dataclass(frozen=True)
class Panel:
    """One matrix of a figure.

    Attributes:
        title: Its name.
        values: (row, column).
        rows: The side at the left.
        columns: The side at the top.
        note: A word on it below its title.
    """

    title: str
    values: np.ndarray
    rows: Side
    columns: Side
    note: str = ""


def matrices(panels: Sequence[Panel], *, ident: str, question: str, caption: str, per_row: int = 2) -> Matrices:
    """Draw matrices side by side with cells of one size, each with a scale of its own.

    Args:
        panels: At least one; none may be empty.
        ident: Prefix of every id inside.
        question: What the figure answers.
        caption: What there is to see, and how it is drawn.
        per_row: How many stand side by side.
    """
    rows = [panels[first : first + per_row] for first in range(0, len(panels), per_row)]
    cell = min(_cell_of(row) for row in rows)
    root, top = empty(WIDTH), 0.0
    for index, row in enumerate(rows):
        for offset, panel in enumerate(row):
            # Panels below each other stand in line.
            left = sum(max(_width(line[i], cell) for line in rows if i < len(line)) + _GAP for i in range(offset))
            group = add(root, "g", transform=f"translate({left:g},{top:g})")
            _draw(group, panel, cell, f"{ident}-table-{index * per_row + offset + 1}")
        top += _TOP + max(panel.values.shape[0] for panel in row) * cell + _BOTTOM
    description = " ".join(_description(panel) for panel in panels) + " The tables below hold every value."
    svg = described(root, ident=ident, width=WIDTH, height=top, title=question, description=description)
    return Matrices(ident, question, svg, caption, tuple(_table(panel) for panel in panels))


def centred_at_zero(values: np.ndarray) -> float:
    """Return the value that the strongest colour stands for: the largest size of all finite entries, 1 if all are zero.

    >>> centred_at_zero(np.array([[0.5, -2.0]]))
    2.0
    """
    finite = np.abs(values[np.isfinite(values)])
    largest = float(finite.max()) if finite.size else 0.0
    return largest or 1.0


def _cell_of(row: Sequence[Panel]) -> float:
    """Return the largest cell with which the panels of a row fit on the page."""
    room = WIDTH - sum(_LEFT + _GAP for _ in row)
    wide = sum(panel.values.shape[1] for panel in row)
    cell = min(_LARGEST_CELL, room / wide, _TALLEST / max(panel.values.shape[0] for panel in row))
    # Narrow strips take the room of their legend, which leaves less for the others.
    while sum(_width(panel, cell) + _GAP for panel in row) > WIDTH and cell > 2.0:
        cell -= 0.25
    return round(cell, 2)


def _width(panel: Panel, cell: float) -> float:
    words = max(6.6 * len(panel.title), 5.6 * len(_note(panel)))
    return _LEFT + max(panel.values.shape[1] * _across(panel, cell), words, _NARROWEST)


def _across(panel: Panel, cell: float) -> float:
    """Return the width of a cell: that of a single column is no less than what the eye can hold on to."""
    return max(cell, 18.0) if panel.values.shape[1] == 1 else cell


def _draw(group: Parent, panel: Panel, cell: float, table: str) -> None:
    largest = centred_at_zero(panel.values)
    height, width = panel.values.shape[0] * cell, panel.values.shape[1] * _across(panel, cell)
    text(group, panel.title, _LEFT, 13, size=12.5, weight="600")
    text(group, _note(panel), _LEFT, 29, size=11, fill=MUTED)
    body = add(group, "g", transform=f"translate({_LEFT:g},{_TOP:g})")
    add(body, "rect", width=f"{width:g}", height=f"{height:g}", fill=PAPER, stroke=GRID)
    sides = _across(panel, cell), cell
    _fill(body, panel.values / largest, sides)
    if cell >= _NUMBERED_CELL:
        _write_numbers(body, panel.values, largest, sides)
    elif cell >= _DASHED_CELL:
        _dash_negatives(body, panel.values / largest, sides)
    _borders(body, panel, sides)
    _label_sides(group, panel, cell)
    _legend(group, largest, _TOP + height + 12)
    hit = {"class": "hit", "data-table": table, "fill-opacity": "0"}
    add(body, "rect", width=f"{width:g}", height=f"{height:g}", fill=PAPER, **hit)


def _fill(body: Parent, strengths: np.ndarray, sides: tuple[float, float]) -> None:
    """Return one path for each colour: a matrix of 3600 entries stays small."""
    paths: dict[tuple[str, int], list[str]] = defaultdict(list)
    for (row, column), strength in np.ndenumerate(strengths):
        if not np.isfinite(strength):
            paths["undefined", 0].append(f"M{column + 0.3:g} {row + 0.3:g}l.4 .4m0-.4l-.4 .4")
            continue
        level = int(np.ceil(abs(strength) * _LEVELS - 1e-9))
        if level:
            paths[POSITIVE if strength > 0 else NEGATIVE, level].append(f"M{column} {row}h1v1h-1z")
    group = add(body, "g", transform=f"scale({sides[0]:g},{sides[1]:g})", **{"shape-rendering": "crispEdges"})
    for (colour, level), pieces in sorted(paths.items()):
        if colour == "undefined":
            add(group, "path", d="".join(pieces), stroke=MUTED, **{"stroke-width": "0.12"})
        else:
            add(group, "path", d="".join(pieces), fill=colour, **{"fill-opacity": f"{level / _LEVELS:.3g}"})


def _write_numbers(body: Parent, values: np.ndarray, largest: float, sides: tuple[float, float]) -> None:
    for (row, column), value in np.ndenumerate(values):
        written = _short(float(value), largest)
        if written:
            fill = PAPER if abs(value) > 0.55 * largest else INK
            text(
                body,
                written,
                (column + 0.5) * sides[0],
                (row + 0.5) * sides[1] + 3.4,
                size=9.5,
                fill=fill,
                anchor="middle",
            )


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


def _dash_negatives(body: Parent, strengths: np.ndarray, sides: tuple[float, float]) -> None:
    """Dash what is clearly negative: in grey the two hues look alike."""
    wide, high = sides
    for colour, chosen in ((INK, (strengths < -0.1) & (strengths >= -0.55)), (PAPER, strengths < -0.55)):
        pieces = [f"M{(c + 0.3) * wide:.1f} {(r + 0.5) * high:.1f}h{0.4 * wide:.1f}" for r, c in np.argwhere(chosen)]
        if pieces:
            add(body, "path", d="".join(pieces), stroke=colour, **{"stroke-width": "1"})


def _borders(body: Parent, panel: Panel, sides: tuple[float, float]) -> None:
    (rows, columns), (wide, high) = panel.values.shape, sides
    for edge in _edges(panel.rows):
        line(body, 0, edge * high, columns * wide, edge * high, AXIS, 1.3)
    for edge in _edges(panel.columns):
        line(body, edge * wide, 0, edge * wide, rows * high, AXIS, 1.3)


def _edges(side: Side) -> list[int]:
    return np.cumsum([0, *(size for _, size in side.blocks)]).tolist()


def _note(panel: Panel) -> str:
    """Return what rows and columns are, and a word on the matrix."""
    sides = [f"{name}: {side.title}" for name, side in (("rows", panel.rows), ("columns", panel.columns)) if side.title]
    return " · ".join([*sides, *([panel.note] if panel.note else [])])


def _label_sides(group: Parent, panel: Panel, cell: float) -> None:
    for (name, size), first in zip(panel.columns.blocks, _edges(panel.columns), strict=False):
        start, middle = _LEFT + first * cell, _LEFT + (first + size / 2) * cell
        text(group, _fitting(name, size * cell), middle, _TOP - 20, size=11, fill=MUTED, anchor="middle")
        for i in _numbered(size, cell):
            text(group, str(i), start + (i - 0.5) * cell, _TOP - 6, size=10, fill=MUTED, anchor="middle")
    for (name, size), first in zip(panel.rows.blocks, _edges(panel.rows), strict=False):
        start, middle = _TOP + first * cell, _TOP + (first + size / 2) * cell
        _turned(group, _fitting(name, size * cell), _LEFT - 32, middle)
        for i in _numbered(size, cell):
            text(group, str(i), _LEFT - 6, start + (i - 0.5) * cell + 3.4, size=10, fill=MUTED, anchor="end")


def _turned(group: Parent, label: str, x: float, y: float) -> None:
    """Write text that reads upwards, centred at a place."""
    turned = add(group, "g", transform=f"translate({x:g},{y:g}) rotate(-90)")
    text(turned, label, 0, 0, size=11, fill=MUTED, anchor="middle")


def _fitting(name: str, room: float) -> str:
    """Return a name, or its first letters where it does not fit."""
    return name if 5.8 * len(name) <= room or len(name) < 6 else f"{name[:3]}."


def _numbered(size: int, cell: float) -> range:
    """Tell which entries of a block carry their number: every one, or every fifth or tenth."""
    if size == 1:
        return range(0)
    every = next((step for step in (1, 2, 5, 10, 20, 50) if step * cell >= 13), 100)
    return range(every if every > 1 else 1, size + 1, every)


def _legend(group: Parent, largest: float, top: float) -> None:
    for index, share in enumerate(_LEGEND):
        colour = POSITIVE if share > 0 else NEGATIVE
        place = {"x": f"{_LEFT + 12 * index:g}", "y": f"{top:g}", "width": "12", "height": "10", "stroke": GRID}
        add(group, "rect", fill=colour, **place, **{"fill-opacity": f"{abs(share):g}", "stroke-width": "0.6"})
    end = _LEFT + 12 * len(_LEGEND)
    written = number(largest, 2)
    text(group, f"−{written}", _LEFT, top + 23, size=10, fill=MUTED)
    text(group, "0", (_LEFT + end) / 2, top + 23, size=10, fill=MUTED, anchor="middle")
    text(group, f"+{written}", end, top + 23, size=10, fill=MUTED, anchor="end")


def _description(panel: Panel) -> str:
    values = panel.values[np.isfinite(panel.values)]
    rows, columns = panel.values.shape
    size = f"{panel.title}, {plural(rows, 'row')} and {plural(columns, 'column')}"
    if not values.size or not values.any():
        return f"{size}, all zero."
    return f"{size}, from {signed(float(values.min()))} to {signed(float(values.max()))}, {_by_block(panel)}."


def _by_block(panel: Panel) -> str:
    """Tell where the largest entry lies."""
    row, column = np.unravel_index(np.nanargmax(np.abs(panel.values)), panel.values.shape)
    names = [name for name in (panel.rows.names[row], panel.columns.names[column]) if name]
    return f"largest at {' and '.join(names)}" if names else "largest at its one entry"


def _table(panel: Panel) -> Table:
    corner = " ╲ ".join(title for title in (panel.rows.title, panel.columns.title) if title)
    rows = [cells([name, *map(float, row)]) for name, row in zip(panel.rows.names, panel.values, strict=True)]
    return Table(panel.title, (corner, *panel.columns.names), tuple(rows))
