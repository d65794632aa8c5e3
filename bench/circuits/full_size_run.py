"""A whole run of a tailored model at full size, in minutes."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.circuits.learning_step import TASK
from bench.measure import Comparison
from tokendynamics.circuits.learning import learn

MINUTES = 10.0


def run() -> Iterator[Comparison]:
    """Solution 1 and 2: 50 outer steps of up to 20 iterations on 1000 sequences each."""
    for name in ("solution-1", "solution-2"):
        start = time.perf_counter()
        record = learn(TASK, name, threads=None)
        minutes = (time.perf_counter() - start) / 60
        yield Comparison(
            f"{name}: a full-size run, {record.evaluations} losses and gradients",
            minutes,
            MINUTES,
            minutes / MINUTES,
            (minutes / MINUTES, minutes / MINUTES),
            f"≤ {MINUTES:g} minutes",
            minutes <= MINUTES,
            f"final loss {record.final_loss:.0e}",
            "min",
        )
