"""What a page of the report is made of: sections, their figures, and the tables of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tokendynamics.report.kit._text import UNDEFINED, number

DIGITS = 4
"""Significant digits of the numbers in a table."""


@dataclass(frozen=True)
class Cell:
    """One cell of a table: what is read, and the number by which its column sorts (None: by the text)."""

    text: str
    sort: str | None = None
    undefined: bool = False


@dataclass(frozen=True)
class Table:
    """The numbers behind a figure; the first cell of a row heads it."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Figure:
    """A drawing that answers one question, its convention in words, and its numbers."""

    ident: str
    question: str
    svg: Markup
    caption: str
    table: Table | None
    label: str = ""


@dataclass(frozen=True)
class Matrices:
    """A figure of one matrix or several."""

    ident: str
    question: str
    svg: Markup
    caption: str
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Section:
    """One question of the page with its answer.

    Attributes:
        ident: For links.
        title: The question.
        sentences: What is found, before the figures.
        tables: Shown in full.
        figures: Drawings, their numbers folded away.
    """

    ident: str
    title: str
    sentences: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure | Matrices, ...] = ()


def cells(values: Sequence[float | int | str | None]) -> tuple[Cell, ...]:
    """Turn one row of values into cells: text as it is, integers in full, reals with `DIGITS` digits."""
    return tuple(_cell(value) for value in values)


def _cell(value: float | int | str | None) -> Cell:
    if isinstance(value, str):
        return Cell(value)
    if isinstance(value, int):
        return Cell(f"{value:,}".replace("-", "−"))
    text = number(value, DIGITS)
    sort = f"{value:.6g}" if "×" in text or "∞" in text else None
    return Cell(text, sort, undefined=text == UNDEFINED)
