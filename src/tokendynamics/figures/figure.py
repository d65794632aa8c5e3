"""The parts of every page of the report: sections, their figures, and the tables of these."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, TypeAlias, runtime_checkable
from urllib.parse import quote

import numpy as np
from markupsafe import Markup

from tokendynamics.figures.svg import WIDE, Drawing, Key, Specification, draw, draw_for_screens
from tokendynamics.words import UNDEFINED, column, count, number

Value: TypeAlias = float | int | str | tuple[int, ...] | None

PREFIX = "data:text/csv;charset=utf-8,"


def csv_text(columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> str:
    r"""Return a table as CSV: reals with every digit, nothing where a value does not exist.

    Args:
        columns: Names, the first line.
        rows: Values; several integers in one cell are parted by a slash.

    >>> csv_text(["Layer", "κ"], [[1, 0.1 + 0.2], [2, None]])
    'Layer,κ\n1,0.30000000000000004\n2,\n'
    """
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([[_field(value) for value in row] for row in rows])
    return written.getvalue()


def _field(value: Value) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, tuple):
        return "/".join(str(part) for part in value)
    return repr(float(value)) if isinstance(value, float) else str(value)


def csv_address(columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> str:
    """Return the table as the address of a file; everything in it that is not a plain letter is encoded.

    Args:
        columns: See `csv_text`.
        rows: See `csv_text`.
    """
    return PREFIX + quote(csv_text(columns, rows), safe=",")


DIGITS = 4
"""Significant digits of the largest real in a column of a table; the file of a table has all of them."""

NO_MARKUP = Markup("")

Given: TypeAlias = float | int | str | None


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: What is read.
        sort: The number by which its column sorts; None: by the text.
        undefined: Whether the value does not exist.
        value: What the file holds, unrounded; None: the text.
        unrounded: Whether the text is still to get the decimal places of its column, which is done by the table.
    """

    text: str
    sort: str | None = None
    undefined: bool = False
    value: Value = None
    unrounded: bool = False


@dataclass(frozen=True)
class Table:
    """The numbers behind a figure; the first cell of a row heads it. `column` says how many digits a column shows.

    Attributes:
        caption: What they are.
        columns: Their names.
        rows: Every number, as the file holds it.
        folded: What is shown instead where many rows say the same; None: the rows themselves.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    folded: tuple[tuple[Cell, ...], ...] | None = None

    def __post_init__(self) -> None:
        """Round the reals that are shown, each column to one number of decimal places."""
        if any(cell.unrounded for row in self.shown for cell in row):
            rounded = zip(*map(_rounded_column, zip(*self.shown, strict=True)), strict=True)
            object.__setattr__(self, "rows" if self.folded is None else "folded", tuple(rounded))

    @property
    def shown(self) -> tuple[tuple[Cell, ...], ...]:
        """The rows that are read on the page."""
        return self.rows if self.folded is None else self.folded

    @property
    def words(self) -> tuple[int, ...]:
        """The columns, from 1, that hold words and no number."""
        several = enumerate(zip(*self.shown, strict=True), 1)
        return tuple(place for place, column in several if {_holds_words(cell) for cell in column} - {None} == {True})

    @property
    def address(self) -> str:
        """An address that holds the whole table as CSV, so that it is saved without network or script."""
        return csv_address(self.columns, [[_exact(cell) for cell in row] for row in self.rows])


@runtime_checkable
class Drawn(Protocol):
    """What a figure shows, as data."""

    @property
    def keys(self) -> Sequence[Key]:
        """The legend above the drawing."""
        ...

    def chart(self, width: float) -> Drawing | Specification:
        """Return the chart for a width of its plotting area."""
        ...


@dataclass(frozen=True)
class Figure:
    """A drawing that answers one question, its convention in words, and its numbers.

    Attributes:
        ident: For links, and the name of its files.
        question: What it answers.
        caption: Its convention in words.
        drawn: What is drawn; None where there is nothing to draw, and the caption says why.
        table: Its numbers.
        title: Of the drawing; empty: the question.
        description: What there is to see, in a sentence with numbers.
        label: Its name among variants.
        keys: Another legend than that of the drawing.
        tables: Its numbers where they are several matrices: the pointer leads from each entry to its cell.
    """

    ident: str
    question: str
    caption: str
    drawn: Drawn | None = None
    table: Table | None = None
    title: str = ""
    description: str = ""
    label: str = ""
    keys: Sequence[Key] | None = None
    tables: tuple[Table, ...] = ()

    @cached_property
    def svg(self) -> Markup:
        """The drawing, for the page and again for a phone; empty where there is nothing to draw."""
        if self.drawn is None:
            return NO_MARKUP
        return draw_for_screens(
            self.drawn.chart,
            ident=self.ident,
            title=self.title or self.question,
            description=self.description,
            keys=self._legend(self.drawn),
        )

    def notebook_svg(self) -> Markup:
        """Return the drawing once, without text for the pointer; empty where there is nothing to draw."""
        if self.drawn is None:
            return NO_MARKUP
        return draw(
            self.drawn.chart(WIDE), ident=self.ident, title=self.question, description=self.description,
            keys=self._legend(self.drawn), screen="notebook",
        )  # fmt: skip

    def _legend(self, drawn: Drawn) -> Sequence[Key]:
        return drawn.keys if self.keys is None else self.keys


@dataclass(frozen=True)
class Section:
    """One question of a page with its answer: the parts of every page, in the order of the attributes.

    Attributes:
        ident: The anchor that links lead to.
        title: The question.
        sentences: What is found, before the figures.
        tables: Shown in full.
        figures: Drawings, their numbers folded away.
        variants: Drawings of which one is shown at a time, chosen by their label; at most seven.
        notes: What is to be known of the figures, after them.
        markup: What no other page has, from the page's own template.
    """

    ident: str
    title: str
    sentences: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    variants: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()
    markup: Markup = NO_MARKUP


def cells(values: Sequence[Given]) -> tuple[Cell, ...]:
    """Turn one row of values into cells: text as it is, integers in full, reals to be rounded by their table."""
    return tuple(_cell(value) for value in values)


def columns_table(caption: str, columns: Sequence[tuple[str, Sequence[Given] | np.ndarray]]) -> Table:
    """Return a table from its columns.

    Args:
        caption: What the numbers are.
        columns: Name and values of each, all of one length; names may occur again.

    >>> [[cell.text for cell in row] for row in columns_table("", [("Layer", [1, 2]), ("κ", np.array([0.5, 2]))]).rows]
    [['1', '0.5'], ['2', '2.0']]
    """
    values = [column.tolist() if isinstance(column, np.ndarray) else column for _, column in columns]
    return Table(caption, tuple(name for name, _ in columns), tuple(map(cells, zip(*values, strict=True))))


def _cell(value: Given) -> Cell:
    if isinstance(value, str):
        return Cell(value)
    if isinstance(value, int):
        return Cell(count(value), value=value)
    text = number(value, DIGITS)
    return Cell(text, _sort(value, text), undefined=text == UNDEFINED, value=value, unrounded=True)


def _rounded_column(entries: tuple[Cell, ...]) -> tuple[Cell, ...]:
    reals = [entry.value if isinstance(entry.value, float) else None for entry in entries if entry.unrounded]
    texts = iter(column(reals, DIGITS))
    return tuple(
        replace(entry, text=(text := next(texts)), sort=_sort(entry.value, text), unrounded=False)
        if entry.unrounded
        else entry
        for entry in entries
    )


def _sort(value: Value, text: str) -> str | None:
    """Return the number by which a cell sorts where its text cannot be read as one."""
    return f"{value:.6g}" if isinstance(value, float) and ("×" in text or "∞" in text) else None


_WORD = re.compile(r"[^\W\d_]{3}")
"""Three letters: "1 to 2", "7 of 9" and "0.3 (95 % CI 0.1–0.5)" are numbers."""


def _holds_words(cell: Cell) -> bool | None:
    """Tell whether a cell holds words rather than a number; None where it holds neither."""
    if cell.undefined or not cell.text:
        return None
    number_like = cell.text[0] in "0123456789+−" and not _WORD.search(cell.text)
    return cell.value is None and cell.sort is None and not number_like


def _exact(cell: Cell) -> Value:
    return None if cell.undefined and cell.value is None else cell.text if cell.value is None else cell.value


def fold(table: Table, key: Sequence[int]) -> Table:
    """Fold consecutive rows that say the same into one line, of which the first cell says how far it runs.

    Args:
        table: Its rows are kept, for the file.
        key: The columns that must be equal for rows to say the same. In others a line shows the range of its numbers,
            and "differ" where there are none.

    >>> rows = tuple(cells([n, n * 10, "a" if n < 4 else "b"]) for n in range(1, 5))
    >>> table = Table("", ("Layer", "Rank", "State"), rows)
    >>> [[cell.text for cell in row] for row in fold(table, [2]).shown]
    [['1–3', '10 to 30', 'a'], ['4', '40', 'b']]
    """
    runs: list[list[tuple[Cell, ...]]] = []
    for row in table.rows:
        if runs and all(runs[-1][0][column].text == row[column].text for column in key):
            runs[-1].append(row)
        else:
            runs.append([row])
    lines = tuple(run[0] if len(run) == 1 else _line(run) for run in runs)
    return Table(table.caption, table.columns, table.rows, lines)


def gather(table: Table, key: Sequence[int]) -> Table:
    """Put rows that say the same into one line wherever they stand; its first cell names them, the first few at least.

    Args:
        table: Its rows are kept, for the file; the first cell of each is a number that rises from row to row.
        key: See `fold`.

    >>> rows = tuple(cells([n, "a" if n in (1, 2, 5) else "b"]) for n in range(1, 7))
    >>> [[cell.text for cell in row] for row in gather(Table("", ("System", "State"), rows), [1]).shown]
    [['1–2, 5', 'a'], ['3–4, 6', 'b']]
    """
    alike: dict[tuple[str, ...], list[tuple[Cell, ...]]] = {}
    for row in table.rows:
        alike.setdefault(tuple(row[column].text for column in key), []).append(row)
    lines = tuple(
        (Cell(_named(rows), sort=rows[0][0].text), *(_range(column) for column in list(zip(*rows, strict=True))[1:]))
        for rows in alike.values()
    )
    return Table(table.caption, table.columns, table.rows, lines)


_MOST_RUNS = 6


def _named(rows: list[tuple[Cell, ...]]) -> str:
    """Name rows by the numbers in their first cells, runs of them as one."""
    numbers = [cell.value for cell, *_ in rows]
    runs: list[list[int]] = []
    for number_of_row in numbers:
        if not isinstance(number_of_row, int):
            continue
        if runs and runs[-1][-1] == number_of_row - 1:
            runs[-1][1:] = [number_of_row]
        else:
            runs.append([number_of_row])
    named = ", ".join("–".join(f"{end:,}" for end in run) for run in runs[:_MOST_RUNS])
    return named if len(runs) <= _MOST_RUNS else f"{named}, … ({len(rows):,} in all)"


def _line(run: list[tuple[Cell, ...]]) -> tuple[Cell, ...]:
    first = Cell(f"{run[0][0].text}–{run[-1][0].text}", sort=run[0][0].sort or run[0][0].text)
    return (first, *(_range(column) for column in list(zip(*run, strict=True))[1:]))


def _range(column: tuple[Cell, ...]) -> Cell:
    if len({cell.text for cell in column}) == 1:
        return column[0]
    values = [cell.value for cell in column]
    if all(isinstance(value, int | float) for value in values):
        known = [cell for cell in column if not cell.undefined]
        low, high = min(known, key=_size), max(known, key=_size)
        text = low.text if low.text == high.text else f"{low.text} to {high.text}"
        return Cell(text + ("" if len(known) == len(column) else f", in part {UNDEFINED}"), sort=f"{_size(low):.6g}")
    if all(isinstance(value, tuple) for value in values):
        sides = [sorted(side) for side in zip(*values, strict=True)]
        return Cell("/".join(f"{s[0]}" if s[0] == s[-1] else f"{s[0]}–{s[-1]}" for s in sides), sort=str(sides[0][0]))
    return Cell("differ")


def _size(cell: Cell) -> float:
    return float(cell.value) if isinstance(cell.value, int | float) else 0.0
