"""What a study found: tables of numbers with their intervals, and how they came about."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Size = Literal["full", "quick"]


@dataclass(frozen=True)
class Estimate:
    """A number that came from draws, and its 95 % interval.

    Attributes:
        value: The number; NaN where these draws do not give it.
        low: Lower end.
        high: Upper end.
    """

    value: float
    low: float
    high: float

    def of(self, total: int) -> int:
        """Return of how many of `total` this is the share; 0 of none.

        >>> share = Estimate(0.92, 0.85, 0.96)
        >>> share.of(100), Estimate(math.nan, math.nan, math.nan).of(0)
        (92, 0)
        """
        return round(self.value * total) if total else 0

    def __str__(self) -> str:
        """Return such as "0.92 (0.90 … 0.94)", to the digits that the interval leaves.

        >>> str(Estimate(0.9187, 0.8502, 0.9641))
        '0.92 (0.85 … 0.96)'
        >>> str(Estimate(1.0, 0.9962, 1.0))
        '1 (0.9962 … 1)'
        """
        if math.isnan(self.value):
            return "–"
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return f"{self.value:.3g}"
        width = self.high - self.low
        digits = max(0, 1 - math.floor(math.log10(width))) if width > 0 else 3
        return f"{_round(self.value, digits)} ({_round(self.low, digits)} … {_round(self.high, digits)})"


def _round(value: float, digits: int) -> str:
    return f"{value:.0f}" if math.isclose(value, round(value), abs_tol=1e-12) else f"{value:.{digits}f}"


Cell = Estimate | float | int | str


@dataclass(frozen=True)
class Table:
    """Numbers of one kind.

    Attributes:
        name: By which sentences ask for it.
        caption: What it shows and how intervals came about.
        columns: Their heads.
        rows: A cell for each column.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def column(self, name: str) -> list[Any]:
        """Return the cells below a head."""
        return [row[self.columns.index(name)] for row in self.rows]

    def each(self) -> list[dict[str, Any]]:
        """Return the rows by the heads of their cells."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True)
class StudyRecord:
    """A study that was run.

    Attributes:
        study: Its name.
        size: "full", or "quick" with a twentieth of the draws.
        designs: Of each design the SHA-256 of its file, seed, draws a point and systems.
        tables: What came out.
        seconds: Wall-clock time.
        ran_on: Versions and hardware.
    """

    study: str
    size: Size
    designs: Mapping[str, Mapping[str, Any]]
    tables: tuple[Table, ...]
    seconds: float
    ran_on: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`; NaN is None, an estimate a list of three."""
        tables = [
            {
                "name": table.name,
                "caption": table.caption,
                "columns": list(table.columns),
                "rows": [[_plain(cell) for cell in row] for row in table.rows],
            }
            for table in self.tables
        ]
        return {
            "study": self.study,
            "size": self.size,
            "designs": {name: dict(design) for name, design in self.designs.items()},
            "tables": tables,
            "seconds": round(self.seconds, 1),
            "ran_on": dict(self.ran_on),
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> StudyRecord:
        """Return a record as `as_json` wrote it.

        Raises:
            KeyError: Something is missing.
        """
        tables = tuple(
            Table(
                table["name"],
                table["caption"],
                tuple(table["columns"]),
                tuple(tuple(_cell(cell) for cell in row) for row in table["rows"]),
            )
            for table in written["tables"]
        )
        names = ("study", "size", "designs", "seconds", "ran_on")
        return cls(**{name: written[name] for name in names}, tables=tables)


def _plain(cell: Cell) -> Any:
    if isinstance(cell, Estimate):
        return [_plain(end) for end in (cell.value, cell.low, cell.high)]
    if isinstance(cell, float):
        return float(f"{cell:.6g}") if math.isfinite(cell) else None
    return cell


def _cell(written: Any) -> Cell:
    if isinstance(written, list):
        return Estimate(*(math.nan if end is None else float(end) for end in written))
    return math.nan if written is None else written
