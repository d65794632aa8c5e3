"""The models that the figures of section 4 learn, kept in a folder so that a figure can be interrupted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reproductions.record import Quantity, measured
from tokendynamics.circuits import PairTask
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.circuits.learning import LearningRecord, learn
from tokendynamics.circuits.learning.model import Architecture, Flavour
from tokendynamics.provenance.progress import Progress, reporting, tracked

_COVERAGE = 0.9
_FUNCTIONALS = 1000
"""Added to the seed of q_true, whose numbers must not come from the same draws as the weights at the start."""


@dataclass(frozen=True)
class Size:
    """How large the task and the learning are; by default as in `logical` 4.1.

    Attributes:
        categories: N.
        positions: M.
        batch: Sequences per outer step of L-BFGS.
        steps: Outer steps.
        inner: Iterations per outer step, at most; not in the paper.
    """

    categories: int = 10
    positions: int = 50
    batch: int = 1000
    steps: int = 50
    inner: int = 20

    def task(self, seed: int) -> PairTask:
        """Return a standard normal q_true and uniform categories, as in `logical` 4.1."""
        return PairTask(random_functional(self.categories, _FUNCTIONALS + seed), self.positions)

    @property
    def text(self) -> str:
        """In words."""
        return (
            f"{self.categories} categories, {self.positions} positions, {self.steps} fresh batches of {self.batch} "
            f"texts, at most {self.inner} iterations of L-BFGS on each"
        )


def learned(
    models: Sequence[tuple[Architecture, Flavour]],
    size: Size,
    seeds: Sequence[int],
    folder: str | Path | None,
    progress: bool | Progress,
    threads: int,
) -> dict[tuple[Architecture, Flavour], list[LearningRecord]]:
    """Each model for each seed, which is that of the weights, the batches and (1000 more) q_true.

    Args:
        models: Architectures and flavours.
        size: Of the task and the learning.
        seeds: At least one.
        folder: Where each run is kept and taken from, in a folder of its own; None to keep none.
        progress: Of the runs, one after the other.
        threads: Of PyTorch.
    """
    wanted = [(model, seed) for seed in seeds for model in models]
    records: dict[tuple[Architecture, Flavour], list[LearningRecord]] = {model: [] for model in models}
    with reporting(progress) as report:
        for (architecture, flavour), seed in tracked(wanted, report, "learned models"):
            place = None if folder is None else Path(folder) / _name(architecture, flavour, size, seed)
            record = learn(
                size.task(seed),
                architecture,
                flavour,
                batch=size.batch,
                steps=size.steps,
                inner=size.inner,
                seed=seed,
                folder=place,
                threads=threads,
            )
            records[architecture, flavour].append(record)
    return records


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the median of the law that `values` were drawn from lies, with a probability of 90 % or more.

    Order statistics: (k-th smallest, k-th largest) miss it with probability ``2 P(Binomial(n, ½) < k)``; the largest
    k that does is taken. Fewer than five values cannot say that much, and the interval is then infinite.

    >>> median_interval([3.0, 1.0, 2.0, 5.0, 4.0])
    (1.0, 5.0)
    >>> median_interval([1.0, 2.0])
    (-inf, inf)
    """
    ordered, count = sorted(values), len(values)
    kept = 0
    missed = 0.0
    for k in range(1, count // 2 + 1):
        missed += 2 * math.comb(count, k - 1) / 2**count
        if missed > 1 - _COVERAGE:
            break
        kept = k
    return (ordered[kept - 1], ordered[count - kept]) if kept else (-math.inf, math.inf)


def final_losses(runs: Sequence[LearningRecord]) -> np.ndarray:
    """Return the final loss of each run, shape (run,)."""
    return np.array([run.final_loss for run in runs])


def learning_seconds(runs: Iterable[Sequence[LearningRecord]]) -> float:
    """Return how long all runs took when they were learned, which may have been before."""
    return sum(run.seconds for records in runs for run in records)


def learning_time(runs: Iterable[Sequence[LearningRecord]]) -> Quantity:
    """Return that time as a quantity of which nothing is expected."""
    return measured("seconds of learning, all runs", learning_seconds(runs))


def _name(architecture: str, flavour: str, size: Size, seed: int) -> str:
    scale = f"N{size.categories}-M{size.positions}-batch{size.batch}-steps{size.steps}x{size.inner}"
    return f"{architecture}-{flavour}-{scale}-seed{seed}"
