"""`logical` 2.3.1: solutions 2 and 3 give the same outputs, from different matrices."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from reproductions.drawing import footnote
from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures
from tokendynamics.circuits import PairTask
from tokendynamics.circuits.constructions import check_equivalence, solution_2, solution_3
from tokendynamics.circuits.evidence import evidence
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.numerics.arguments import generator

TEXT = (1, 3, 2, 2, 4, 1)
PRINTED = published("logical", "equivalence")


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
    solutions = solution_2, solution_3
    verdicts = [evidence(solution(task), task, samples=samples, seed=seed).verdict for solution in solutions]
    computed = {
        "outputs": max(outputs),
        "diagonals": max(diagonals),
        "targets": max(targets),
        "attention": float(verdicts[0] == "attention"),
        "feed_forward": float(verdicts[1] == "feed-forward"),
    }
    words = {"tasks": tasks, "text": TEXT, "second": verdicts[0], "third": verdicts[1]}
    return PRINTED.record(PRINTED.quantities(computed), {"task": task}, seed=seed, **words)


def draw(record: Record) -> Figure:
    """Draw what attention writes in each solution, and the outputs."""
    task: PairTask = record.results["task"]
    titles = ["solution 2: attention", "solution 3: attention", "outputs"]
    figure, panels = figures.panels(3, width=figures.DOUBLE, height=2.9, titles=titles)
    blocks = {"category": task.categories, "position": task.positions}
    models = solution_2(task), solution_3(task)
    shown = [_kept(model.attend(TEXT).mT * float(model.C.max())) for model in models]
    scale = float(torch.stack(shown).abs().max())
    for panel, matrix in zip(panels, shown, strict=False):
        figures.heat_map(matrix, blocks=blocks, cells="numbers", scale=scale, column_label="token", axes=panel)
    outputs = torch.stack([task.targets(TEXT), *(model(TEXT) for model in models)])
    figures.heat_map(_kept(outputs), cells="numbers", scale=scale, column_label="token", axes=panels[2])
    panels[2].set_yticks([0.5, 1.5, 2.5], ["target", "solution 2", "solution 3"])
    return footnote(
        figure, record, f"Attention is multiplied by K; the text is {TEXT}. Numbers are rounded to one digit. "
    )


def _kept(matrix: Tensor) -> Tensor:
    """One digit behind the point, for numbers in cells."""
    return (10 * matrix).round() / 10
