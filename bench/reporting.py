"""Size of the report file for SmolLM2."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.measure import NOTHING_COMPARED, Comparison
from tokendynamics.diagnosis import diagnose
from tokendynamics.report import write

LIMIT = 2e6


def run() -> Iterator[Comparison]:
    """The report of the demo."""
    with tempfile.TemporaryDirectory() as scratch:
        size = write(diagnose("smollm2"), Path(scratch) / "report.html").stat().st_size
    ratio = size / LIMIT
    yield Comparison(
        "report file, SmolLM2, fourteen texts, against 2 MB", size / 1e6, LIMIT / 1e6, ratio, (ratio, ratio),
        "under 2 MB", ratio < 1, NOTHING_COMPARED, "MB",
    )  # fmt: skip
