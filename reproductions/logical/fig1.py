"""`logical` Figure 1: q_true beside what the model tailored to solution 2 learns, before and after centring."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from reproductions.drawing import banded, dot_rows, footnote
from reproductions.logical.learned import Size, learned, learning_seconds
from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures
from tokendynamics.circuits.evidence.weights import row_centred
from tokendynamics.circuits.learning import LearningRecord
from tokendynamics.provenance.progress import Progress

PRINTED = published("logical", "fig1")
_NONE = "no run solved the task (at most 1 % of the variance left)"


@timed
def reproduce(
    *,
    seeds: int = 5,
    folder: str | Path | None = None,
    progress: bool | Progress = False,
    threads: int = 1,
    **size: int,
) -> Record:
    """Learn the tailored model for some seeds and compare the category block of its k^t q with q_true.

    Args:
        seeds: Runs, each with a q_true of its own.
        folder: Where the runs are kept and taken from.
        progress: Of the runs.
        threads: Of PyTorch.
        **size: Of the task and the learning where it is not that of the paper, see `Size`.
    """
    scale = Size(**size)
    runs = learned([("solution-2", "free")], scale, range(seeds), folder, progress, threads)["solution-2", "free"]
    correlations = np.array([[_alike(run, centred=False), _alike(run, centred=True)] for run in runs])
    solved = np.array([run.solved for run in runs])
    best = min(range(seeds), key=lambda index: runs[index].final_loss)
    unsettled = "" if solved.any() else _NONE
    raw, centred = np.abs(correlations[solved]).min(axis=0) if solved.any() else (float("nan"),) * 2
    computed = {
        "raw": raw,
        "centred": centred,
        "solved": solved.mean(),
        "loss": runs[best].relative_loss,
        "raw_best": correlations[best, 0],
        "centred_best": correlations[best, 1],
        "seconds": learning_seconds([runs]),
        "median": np.median([run.relative_loss for run in runs]),
    }
    quantities = PRINTED.quantities(computed, {"raw": unsettled, "centred": unsettled})
    results = {"runs": runs, "best": best, "correlations": correlations}
    return PRINTED.record(quantities, results, seed=0, last=seeds - 1, size=scale.text)


def draw(record: Record) -> Figure:
    """Draw the best run beside q_true, raw and centred, and all runs."""
    runs: list[LearningRecord] = record.results["runs"]
    best = runs[record.results["best"]]
    sign = float(np.sign(record.results["correlations"][record.results["best"], 1])) or 1.0
    learned_block = sign * _block(best)
    titles = ["q_true", "k^t q, as learned", "all runs", "q_true, columns centred", "k^t q, columns centred", ""]
    figure, panels = figures.panels(3, 2, width=figures.DOUBLE, height=4.6, titles=titles)
    uniform = best.task.law
    shown = [best.task.q_true, learned_block]
    shown += [row_centred(matrix.mT, uniform).mT for matrix in shown]
    for panel, matrix in zip([*panels[:2], *panels[3:5]], shown, strict=True):
        figures.heat_map(matrix, cells="signs", row_label="previous", column_label="current", axes=panel)
    correlations = np.abs(record.results["correlations"])
    rows = {"raw": correlations[:, 0].tolist(), "centred": correlations[:, 1].tolist()}
    dot_rows(panels[2], rows, "|correlation| with q_true", scale="linear")
    panels[2].set_xlim(-0.03, 1.03)
    losses = np.array([run.losses for run in runs])
    banded(panels[5], range(1, losses.shape[1] + 1), {f"{len(runs)} runs": losses}, "loss on the next batch")
    panels[5].set_xlabel("outer step")
    turned = " with its sign turned round" if sign < 0 else ""
    return footnote(
        figure,
        record,
        f"Shown is the run of least loss{turned}; each matrix has its own scale; − marks negative cells. The line is "
        f"the median, the band all runs.",
    )


def _block(run: LearningRecord) -> Tensor:
    """Return the category block of the paper's k^t q, [sender, receiver]."""
    categories = run.task.categories
    return run.qk[:categories, :categories].mT


def _alike(run: LearningRecord, *, centred: bool) -> float:
    """Return the correlation of the block with q_true, of all entries or with each column centred over the senders."""
    pair = [_block(run), run.task.q_true]
    first, second = (row_centred(m.mT, run.task.law).mT if centred else m - m.mean() for m in pair)
    return float((first * second).sum() / (first.norm() * second.norm()))
