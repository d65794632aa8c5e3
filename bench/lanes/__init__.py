"""The engine "compiled" by its parts: exponentials, all sizes, threads, first calls, older processors."""

from __future__ import annotations

from collections.abc import Iterator

from bench.lanes import elementary, first_calls, older, sizes, threads
from bench.measure import Comparison


def run(quick: bool = False) -> Iterator[Comparison]:
    """What costs least first."""
    yield from elementary.run()
    yield from sizes.run(quick)
    yield from older.run()
    yield from threads.run()
    yield from first_calls.run(quick)
