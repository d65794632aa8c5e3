"""`logical` (1.1), (1.7) and section 2.1: the logics of the introduction, and solution 1 on the text (1, 3, 2, 2)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from reproductions.drawing import footnote
from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures
from tokendynamics.circuits import OneLayerTransformer, PairTask
from tokendynamics.circuits.constructions import linear_case, solution_1
from tokendynamics.circuits.constructions.solutions import Form, pair_order
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.circuits.logic import WORD_LOGIC, either_pair

TEXT = (1, 3, 2, 2)
PRINTED = published("logical", "worked_examples")
"""With the category parts of X, attention and (2.14), whose tokens are columns."""

REPAIRS: Mapping[str, Form] = dict(
    zip(PRINTED["rows"]["repairs"]["repair"], ("rows", "uniform", "indicators"), strict=True)
)
"""Forms of solution 1 that are exact."""


@timed
def reproduce(*, tasks: int = 40, seed: int = 21) -> Record:
    """Both logics on every input, and solution 1 as printed and repaired.

    Args:
        tasks: Random signed functionals on which the repairs are tried.
        seed: Of these; their texts have the next ones.
    """
    task = PairTask(torch.arange(1.0, 17.0).reshape(4, 4).double(), positions=4)
    printed = solution_1(task, form="printed")
    outputs = {"claimed": task.targets(TEXT), "printed": printed(TEXT)}
    outputs |= {name: solution_1(task, form=form)(TEXT) for name, form in REPAIRS.items()}
    computed = {
        **_logics(),
        **_matrices(printed),
        **_outputs(printed),
        "repairs": [_repair(form, tasks, seed) for form in REPAIRS.values()],
        **_linear(),
    }
    results = {"model": printed, "outputs": outputs}
    return PRINTED.record(PRINTED.quantities(computed), results, seed=seed, tasks=tasks)


def draw(record: Record) -> Figure:
    """Draw the printed matrices, the hidden units with the printed bias, and all outputs."""
    model: OneLayerTransformer = record.results["model"]
    outputs: dict[str, Tensor] = record.results["outputs"]
    titles = ["X", "attention", "sum (2.14)", "ReLU(B · − 4)", "Y by readout"]
    figure, panels = figures.panels(5, width=figures.DOUBLE, height=2.9, titles=titles)
    blocks = {"category": 4, "position": 4}
    columns = [model.embed(TEXT).mT, model.attend(TEXT).mT, model.stream(TEXT).mT]
    for panel, matrix in zip(panels, columns, strict=False):
        figures.heat_map(matrix, blocks=blocks, cells="numbers", scale=4.0, column_label="token", axes=panel)
    hidden = model.hidden(model.stream(TEXT)).mT
    figures.heat_map(hidden, cells="numbers", scale=4.0, column_label="token", axes=panels[3])
    panels[3].set_yticks([row + 0.5 for row in range(16)], [f"{a},{b}" for a, b in pair_order(4).tolist()])
    figures.heat_map(torch.stack(list(outputs.values())), cells="numbers", column_label="token", axes=panels[4])
    panels[4].set_yticks([row + 0.5 for row in range(len(outputs))], list(outputs))
    return footnote(
        figure,
        record,
        "As printed, the pair of tokens 2 and 3 turns on two hidden units and that of token 4 turns on four. Repairs: "
        "bias −8 for the diagonal rows; bias −4 for all with another C; the previous category in a block of its own.",
    )


def _logics() -> dict[str, int]:
    inputs = list(itertools.product((0, 1), repeat=6))
    pairs = {("receive", "present"): "happy", ("pass", "exam"): "happy", ("receive", "punishment"): "sad"}
    return {
        "either": sum(either_pair(list(bits)) != any(bits[i] and bits[i + 1] for i in (0, 2, 4)) for bits in inputs),
        "words": sum(
            WORD_LOGIC(words) != {mood: float(mood == conclusion) for mood in ("happy", "sad")}
            for words, conclusion in pairs.items()
        ),
    }


def _matrices(model: OneLayerTransformer) -> dict[str, Tensor]:
    """Return the largest differences of X, attention and (2.14) from print."""
    places, nowhere = torch.eye(4).double(), torch.zeros(4, 4).double()
    pairs = {
        "X": (model.embed(TEXT), places),
        "attention": (model.attend(TEXT), nowhere),
        "sum": (model.stream(TEXT), places),
    }
    return {
        name: (tokens.mT - torch.cat([PRINTED.matrix(name.upper()), positions])).abs().max()
        for name, (tokens, positions) in pairs.items()
    }


def _outputs(printed: OneLayerTransformer) -> dict[str, Any]:
    """Return what the printed readout gives, and what its units see of token 3."""
    stream = printed.stream(TEXT)
    before = (stream[2] @ printed.B.mT).tolist()
    pairs = [tuple(pair) for pair in pair_order(4).tolist()]
    outputs = printed(TEXT)
    return {
        "row": before[pairs.index((3, 2))],
        "others": max(value for pair, value in zip(pairs, before, strict=True) if pair != (3, 2)),
        "on": (printed.hidden(stream)[2] > 0).sum(),
        "example": outputs,
        "printed": outputs,
    }


def _repair(form: Form, tasks: int, seed: int) -> float:
    """Return the largest error on random signed tasks."""
    errors = []
    for index in range(tasks):
        task = PairTask(random_functional(2 + index % 7, seed + index), positions=12)
        x = task.sample(20, seed + index)
        errors.append(float((solution_1(task, form=form)(x) - task.targets(x)).abs().max()))
    return max(errors)


def _linear() -> dict[str, Any]:
    first, *digits = linear_case(categories=4, positions=4)(TEXT).tolist()
    return {"linear": first, "digits": digits}
