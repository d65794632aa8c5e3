"""Learning and landscapes: closed forms against the products and the sampling they replace."""

from __future__ import annotations

from collections.abc import Iterator

from bench.circuits import full_size_run, learning_step, sampled_loss
from bench.measure import Comparison


def run() -> Iterator[Comparison]:
    """All rows."""
    yield from learning_step.run()
    yield from full_size_run.run()
    yield from sampled_loss.run()
