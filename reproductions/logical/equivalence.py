"""`logical` 2.3.1: solutions 2 and 3 give the same outputs, from different matrices."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from reproductions.drawing import footnote
from reproductions.record import Quantity, Record, timed
from tokendynamics import plots
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits.constructions import check_equivalence, solution_2, solution_3
from tokendynamics.circuits.evidence import Evidence, evidence
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.numerics._seeding import generator

TEXT = (1, 3, 2, 2, 4, 1)


@timed
def reproduce(*, tasks: int = 100, samples: int = 1000, seed: int = 231) -> Record:
    """Both solutions on random tasks, and where the instruments find the logic of each.

    Args:
        tasks: Random signed functionals.
        samples: Texts for the instruments.
        seed: Of everything.
    """
    sizes = torch.randint(0, 9, (tasks, 2), generator=generator(seed)).tolist()
    outputs, diagonals, targets = [], [], []
    for index, (more, longer) in enumerate(sizes):
        task = PairTask(random_functional(2 + more, seed + index), positions=4 + 4 * longer)
        x = task.sample(10, seed + index)
        result = check_equivalence(task, x)
        outputs.append(float((result.second - result.third).abs().max()))
        diagonals.append(float((result.second_diagonal - result.third_diagonal).abs().max()))
        targets.append(float((result.second - task.targets(x)).abs().max()))
    task = PairTask(random_functional(4, seed), positions=6)
    verdicts = {
        name: evidence(solution(task), task, samples=samples, seed=seed)
        for name, solution in (("solution 2", solution_2), ("solution 3", solution_3))
    }
    quantities = (
        Quantity("outputs of solutions 2 and 3: largest difference", 0.0, max(outputs), 1e-14),
        Quantity("diagonals (2.29) and (2.30): largest difference", 0.0, max(diagonals), 1e-14),
        Quantity("solution 2: largest error", 0.0, max(targets), 1e-12, "≤", "theory"),
        *_places(verdicts),
    )
    return Record(
        paper="logical",
        figure="Section 2.3.1",
        statement="Solutions 2 and 3 give the same outputs, but not by the same way: attention writes all pairs on the "
        "positions in one and rows of q_true on the categories in the other, and the instruments find the logic in "
        f"“{verdicts['solution 2'].verdict}” and in “{verdicts['solution 3'].verdict}”.",
        quantities=quantities,
        invented=f"{tasks} standard normal q_true of 2 to 10 categories with texts of 4 to 36 tokens; the text {TEXT} "
        f"(seeds from {seed})",
        seed=seed,
        results={"task": task},
    )


def draw(record: Record) -> Figure:
    """What attention writes in each solution, and the outputs."""
    task: PairTask = record.results["task"]
    titles = ["solution 2: attention", "solution 3: attention", "outputs"]
    figure, panels = plots.panels(3, width=plots.DOUBLE, height=2.9, titles=titles)
    blocks = {"category": task.categories, "position": task.positions}
    models = solution_2(task), solution_3(task)
    shown = [_kept(model.attend(TEXT).mT * float(model.C.max())) for model in models]
    scale = float(torch.stack(shown).abs().max())
    for panel, matrix in zip(panels, shown, strict=False):
        plots.heat_map(matrix, blocks=blocks, cells="numbers", scale=scale, column_label="token", axes=panel)
    outputs = torch.stack([task.targets(TEXT), *(model(TEXT) for model in models)])
    plots.heat_map(_kept(outputs), cells="numbers", scale=scale, column_label="token", axes=panels[2])
    panels[2].set_yticks([0.5, 1.5, 2.5], ["target", "solution 2", "solution 3"])
    return footnote(
        figure, record, f"Attention is multiplied by K; the text is {TEXT}. Numbers are rounded to one digit. "
    )


def _places(verdicts: dict[str, Evidence]) -> list[Quantity]:
    """Where the logic is, by the instruments: the construction says in attention (2) and behind it (3)."""
    expected = {"solution 2": "attention", "solution 3": "feed-forward"}
    return [
        Quantity(
            f"{name}: the instruments say “{expected[name]}” (1 if so)",
            1.0,
            float(found.verdict == expected[name]),
            0.0,
            source="theory",
        )
        for name, found in verdicts.items()
    ]


def _kept(matrix: Tensor) -> Tensor:
    """One digit behind the point, for numbers in cells."""
    return (10 * matrix).round() / 10
