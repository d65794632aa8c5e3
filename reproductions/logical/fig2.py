"""`logical` Figure 2: losses of the combined model in four flavours, and of the tailored models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from matplotlib.figure import Figure

from reproductions.drawing import banded, dot_rows, footnote
from reproductions.logical.learned import Size, final_losses, learned, learning_time, median_interval
from reproductions.record import Quantity, Record, measured, timed
from tokendynamics import figures
from tokendynamics.circuits.learning import LearningRecord
from tokendynamics.circuits.learning.model import Architecture, Flavour
from tokendynamics.provenance.progress import Progress

Model: TypeAlias = tuple[Architecture, Flavour]

MODELS: Mapping[Model, str] = {
    ("combined", "free"): "unconstrained",
    ("combined", "towards-1"): "towards 1",
    ("combined", "towards-2"): "towards 2",
    ("combined", "towards-3"): "towards 3",
    ("solution-1", "free"): "tailored to 1",
    ("solution-2", "free"): "tailored to 2",
    ("solution-3", "free"): "tailored to 3",
}
FREE, FIRST, SECOND, THIRD, TAILORED_1, TAILORED_2, TAILORED_3 = MODELS

MUCH = 1.0
"""Powers of ten that are read as "much better" (a factor of ten)."""

_SMALLEST = float(np.finfo(float).tiny)

_LEAK = (
    "the paper's pull shows q_true to the flavours and stays to the end; here it is taken away before the loss is read"
)


@timed
def reproduce(
    *,
    seeds: int = 5,
    folder: str | Path | None = None,
    progress: bool | Progress = False,
    threads: int = 1,
    **size: int,
) -> Record:
    """Learn all seven models for some seeds and compare their losses seed by seed.

    A comparison is settled if the 90 % interval of the median over the seeds lies on one side; five seeds are the
    least that can be, and then only if all agree.

    Args:
        seeds: Runs of each model, each with a q_true of its own that all models share.
        folder: Where the runs are kept and taken from.
        progress: Of the runs.
        threads: Of PyTorch.
        **size: Of the task and the learning where it is not that of the paper, see `Size`.
    """
    scale = Size(**size)
    runs = learned(list(MODELS), scale, range(seeds), folder, progress, threads)
    decades = {model: np.log10(np.maximum(final_losses(records), _SMALLEST)) for model, records in runs.items()}
    quantities = [
        claim("towards 2 over towards 1", decades[SECOND] - decades[FIRST], MUCH, "", "reading"),
        claim("towards 2 over towards 3", decades[SECOND] - decades[THIRD], MUCH, "", "reading"),
        *(
            claim(f"{MODELS[other]} over unconstrained", decades[other] - decades[FREE], 0.0, _LEAK, "paper")
            for other in (FIRST, SECOND, THIRD)
        ),
        claim("tailored to 2 over tailored to 1", decades[TAILORED_2] - decades[TAILORED_1], 3.0, "", "simulation"),
        *(measured(f"{name}: median of the final losses", _median(runs[model])) for model, name in MODELS.items()),
        learning_time(runs.values()),
        measured("runs that stopped at a loss that is not finite", float(_stopped(runs))),
        *(measured(f"{name}: runs that solved the task", _solved(runs[model])) for model, name in MODELS.items()),
    ]
    return Record(
        paper="logical",
        figure="Figure 2",
        statement="Losses of the combined model: free, and leaning towards each solution by a pull that falls to zero "
        "after six tenths of the steps; beside them the models that can see one solution only.",
        quantities=tuple(quantities),
        invented=f"the pulls (1e-2 × squared distance of k^t q and v to the hand-built ones at first), all q_true, "
        f"weights and batches (seeds 0 to {seeds - 1}; {scale.text}; float64)",
        seed=0,
        results={"runs": runs},
    )


def draw(record: Record) -> Figure:
    """Losses along the way for the flavours, and final losses of all models."""
    runs: dict[Model, list[LearningRecord]] = record.results["runs"]
    titles = ["combined model: loss on the next batch", "final loss of each run"]
    figure, (left, right) = figures.panels(2, width=figures.DOUBLE, height=3.3, titles=titles)
    flavours = {name: np.array([run.losses for run in runs[model]]) for model, name in list(MODELS.items())[:4]}
    count = next(iter(flavours.values())).shape[1]
    banded(left, range(1, count + 1), flavours, "mean squared error")
    left.set_xlabel("outer step")
    dot_rows(
        right,
        {name: final_losses(runs[model]).tolist() for model, name in MODELS.items()},
        "mean squared error",
        scale="log",
    )
    return footnote(
        figure,
        record,
        "Lines and bars are medians, bands all runs. The final loss is read on fresh texts without any pull.",
    )


def claim(
    name: str, gaps: np.ndarray, least: float, reason: str, source: Literal["paper", "reading", "simulation"]
) -> Quantity:
    """Compare: the median gap is at least that many powers of ten, if the seeds can tell."""
    low, high = median_interval(gaps.tolist())
    text = f"90 % interval of the median over {len(gaps)} seeds: {low:.2g} to {high:.2g}"
    unsettled = text if low < least < high else ""
    median = float(np.median(gaps))
    return Quantity(
        f"{name}: log10 of the final losses' ratio, median", least, median, 0.0, "≥", source, reason, unsettled
    )


def _median(runs: Sequence[LearningRecord]) -> float:
    return float(np.median(final_losses(runs)))


def _solved(runs: Sequence[LearningRecord]) -> float:
    return float(np.mean([run.solved for run in runs]))


def _stopped(runs: Mapping[Model, Sequence[LearningRecord]]) -> int:
    return sum(run.status.startswith("not finite") for records in runs.values() for run in records)
