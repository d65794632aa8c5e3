"""A table as a file of comma-separated values, in an address that needs no network and no script."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import TypeAlias
from urllib.parse import quote

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
        return "/".join(str(each) for each in value)
    return repr(float(value)) if isinstance(value, float) else str(value)


def csv_address(columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> str:
    """Return the table as the address of a file; everything in it that is not a plain letter is encoded.

    Args:
        columns: See `csv_text`.
        rows: See `csv_text`.
    """
    return PREFIX + quote(csv_text(columns, rows), safe=",")
