"""`logical` Figure 3 and section 4.2: what the combined model learns, and which part of it does the logic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from reproductions.drawing import footnote
from reproductions.logical.fig2 import FIRST, FREE, MODELS, SECOND, THIRD, Model
from reproductions.logical.learned import Size, learned, learning_time
from reproductions.record import Quantity, Record, measured, timed
from tokendynamics import figures
from tokendynamics.circuits import PairTask
from tokendynamics.circuits.evidence import Evidence, evidence
from tokendynamics.circuits.evidence.weights import double_centred, row_centred, weights_of
from tokendynamics.circuits.learning import LearningRecord
from tokendynamics.numerics.intervals import wilson
from tokendynamics.provenance.progress import Progress

EXPECTED: dict[Model, str] = {FREE: "both", FIRST: "feed-forward", SECOND: "attention", THIRD: "feed-forward"}
"""What the paper says or wants each flavour to do: the free one combines the second and the third solution."""

_PARTS = ("category", "position")


@timed
def reproduce(
    *,
    seeds: int = 5,
    samples: int = 2000,
    folder: str | Path | None = None,
    progress: bool | Progress = False,
    threads: int = 1,
    **size: int,
) -> Record:
    """Learn the four flavours for some seeds and put the five instruments to each.

    Args:
        seeds: Runs of each flavour.
        samples: Texts for the instruments.
        folder: Where the runs are kept and taken from; those of Figure 2 serve here.
        progress: Of the runs.
        threads: Of PyTorch.
        **size: Of the task and the learning where it is not that of the paper, see `Size`.
    """
    scale = Size(**size)
    runs = learned(list(EXPECTED), scale, range(seeds), folder, progress, threads)
    by_model = {
        model: [evidence(run.transformer, run.task, samples=samples, seed=run.seed) for run in records]
        for model, records in runs.items()
    }
    quantities = [row for model, reports in by_model.items() for row in _rows(model, reports)]
    quantities.append(learning_time(runs.values()))
    return Record(
        paper="logical",
        figure="Figure 3",
        statement="Weights of the combined model in four flavours. Which part does the logic is measured by path "
        "patching and ablation: "
        + "; ".join(f"{MODELS[model]}: {_counted(reports)}" for model, reports in by_model.items())
        + ".",
        quantities=tuple(quantities),
        invented=f"as in Figure 2 (seeds 0 to {seeds - 1}; {scale.text}); {samples} texts for the instruments",
        seed=0,
        results={"runs": runs, "found": by_model},
    )


def draw(record: Record) -> Figure:
    """Draw the matrices k^t q and v of the first seed, centred block by block."""
    runs: dict[Model, list[LearningRecord]] = record.results["runs"]
    by_model: dict[Model, list[Evidence]] = record.results["found"]
    titles = [f"{MODELS[model]}: {by_model[model][0].verdict}" for model in EXPECTED]
    figure, panels = figures.panels(4, 2, width=figures.DOUBLE, height=4.5, titles=[*titles, *[""] * 4])
    for column, model in enumerate(EXPECTED):
        run = runs[model][0]
        blocks = {"cat.": run.task.categories, "position": run.task.positions}
        matrices = (centred_pairs(run.qk, run.task).mT, centred_values(run.ov, run.task))
        for panel, matrix, name in zip(panels[column::4], matrices, ("k^t q", "v"), strict=True):
            label = name if column == 0 else ""
            figures.heat_map(matrix, blocks=blocks, row_label=label, axes=panel)
            panel.tick_params(labelleft=column == 0)
    return footnote(
        figure,
        record,
        "Runs of seed 0; above each the verdict of the instruments. Blocks are centred, since constants in them mean "
        "nothing: k^t q (row sends, column receives) over both, v (row receives, column sends) over the sender. Each "
        "matrix has its own scale.",
    )


def centred_pairs(qk: Tensor, task: PairTask) -> Tensor:
    """Qk less what depends on the sender or the receiver alone, block by block."""
    weights = {part: weights_of(task, part) for part in _PARTS}
    rows = []
    for receiver, block_row in zip(_PARTS, _split(qk, task, 0), strict=True):
        blocks = zip(_PARTS, _split(block_row, task, 1), strict=True)
        rows.append(torch.cat([double_centred(m, weights[receiver], weights[sender]) for sender, m in blocks], dim=1))
    return torch.cat(rows)


def centred_values(v: Tensor, task: PairTask) -> Tensor:
    """Return what is left of v without what it writes for every sender alike, block by block."""
    blocks = zip(_PARTS, _split(v, task, 1), strict=True)
    return torch.cat([row_centred(block, weights_of(task, part)) for part, block in blocks], dim=1)


def _split(matrix: Tensor, task: PairTask, dim: int) -> tuple[Tensor, ...]:
    return matrix.split([task.categories, task.positions], dim=dim)


def _rows(model: Model, reports: Sequence[Evidence]) -> list[Quantity]:
    name, expected = MODELS[model], EXPECTED[model]
    decided = [report.verdict for report in reports if report.verdict != "undecided"]
    share, unsettled = majority([verdict == expected for verdict in decided])
    reason = f"the instruments say: {_counted(reports)}"
    share_name = f"{name}: “{expected}”, share of the decided runs"
    return [
        Quantity(share_name, 0.5, share, 0.0, "≥", "reading", reason, unsettled),
        measured(f"{name}: decided runs, of all", len(decided) / len(reports)),
        measured(f"{name}: share of the logic through the keys, median", _share(reports, "keys")),
        measured(f"{name}: share of the logic through the values, median", _share(reports, "values")),
    ]


def majority(agreeing: Sequence[bool]) -> tuple[float, str]:
    """Return the share of runs that agree, and why they cannot tell whether it is above a half, if they cannot."""
    if not agreeing:
        return float("nan"), "no run is decided"
    low, high = wilson(sum(agreeing), len(agreeing))
    text = f"95 % interval {low:.2f} to {high:.2f} of {len(agreeing)} runs"
    return sum(agreeing) / len(agreeing), text if low < 0.5 < high else ""


def _share(reports: Sequence[Evidence], path: str) -> float:
    """Of the interaction that leaves the output when that path gets the categories of other texts."""
    values = [report.instrument("path patching").named(path).value for report in reports]
    return float(np.median([np.nan if value is None else value for value in values]))


def _counted(reports: Sequence[Evidence]) -> str:
    counts = Counter(str(report.verdict) for report in reports)
    return ", ".join(f"{verdict} {count}" for verdict, count in counts.most_common())
