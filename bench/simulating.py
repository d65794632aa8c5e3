"""Simulation: time against the hardware's bounds and against other solvers at equal error, calls, memory."""

from __future__ import annotations

from collections.abc import Iterator

from bench.flows import long_sequence, many_small, metastable, noisy, rescaled, weights, wide
from bench.measure import Comparison, Cost


def run(quick: bool = False) -> Iterator[Comparison | Cost]:
    """The workloads, the quickest first."""
    for workload in (weights, rescaled, noisy, long_sequence, metastable, many_small, wide):
        yield from workload.run(quick)
