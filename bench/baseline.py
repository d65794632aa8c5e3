"""An earlier run's ratios beside those of this one: ``python -m bench --against bench-out/bench.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.measure import Comparison, Row

HEAD = ("workload", "ratio before", "lowest–highest", "ratio now", "lowest–highest", "verdict")


def ratios_of(path: Path) -> dict[str, tuple[float, float, float]]:
    """Return ratio, lowest and highest by workload, from the ``bench.json`` of an earlier run.

    Raises:
        SystemExit: The file is not there, or no such file.
    """
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["comparisons"]
        numbers = {row["workload"]: (row["ratio"], *row["spread"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"--against: expected the bench.json of an earlier run, got {path} ({error!r})") from error
    # What has no number is written as null: the other solver was not installed.
    return {workload: row for workload, row in numbers.items() if None not in row}


def against(before: dict[str, tuple[float, float, float]], rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yield the cells of each comparison; a ratio differs where its spread does not meet that of the earlier run."""
    for row in rows:
        if not isinstance(row, Comparison) or math.isnan(row.ratio):
            continue
        ratio = [f"{row.ratio:.2f}", f"{row.spread[0]:.2f}–{row.spread[1]:.2f}"]
        if row.workload not in before:
            yield [row.workload, "–", "–", *ratio, "not in the earlier run"]
            continue
        former, low, high = before[row.workload]
        yield [row.workload, f"{former:.2f}", f"{low:.2f}–{high:.2f}", *ratio, _verdict(row, low, high)]


def _verdict(row: Comparison, low: float, high: float) -> str:
    if row.spread[0] > high:
        return "higher, beyond both spreads"
    return "lower, beyond both spreads" if row.spread[1] < low else "within the spreads"
