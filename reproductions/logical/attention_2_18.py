"""`logical` (2.18)–(2.20): solution 2 writes all digit pairs on the positions, and K = 100 retrieves the diagonal."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from reproductions.drawing import footnote, outputs_over_targets
from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures
from tokendynamics.circuits import OneLayerTransformer, PairTask
from tokendynamics.circuits.constructions import solution_2
from tokendynamics.circuits.functionals import pair_numbers, random_functional

TEXT = (1, 3, 2, 2, 4)
K = 100.0
PRINTED = published("logical", "attention_2_18")


@timed
def reproduce(*, tasks: int = 40, seed: int = 218) -> Record:
    """Attention with digit pairs, what K = 100 retrieves, and what becomes of negative values.

    Args:
        tasks: Random signed functionals, each with a text of its own.
        seed: Of these.
    """
    task = PairTask(pair_numbers(4), positions=5)
    model = solution_2(task, form="printed", K=K, causal=True)
    attention, retrieved = K * model.attend(TEXT).mT, K * model.hidden(model.stream(TEXT)).mT
    signed = [_signed(seed + index) for index in range(tasks)]
    targets, printed, exact = (torch.cat(column) for column in zip(*signed, strict=True))
    computed = {
        "attention": _gap(attention, _printed()),
        "below": ((_free(task).attend(TEXT).mT != 0) & (_printed() == 0)).sum(),
        "retrieved": _gap(retrieved, _diagonal()),
        "pairs": _error(model, task),
        "unmasked": _error(_free(task), task),
        **_vector(),
        "signed": _gap(printed, targets),
        "positive": _gap(printed, targets.relu()),
        "exact": _gap(exact, targets),
    }
    results = {
        "attention": attention,
        "retrieved": retrieved,
        "targets": targets,
        "printed": printed,
        "exact": exact,
    }
    return PRINTED.record(PRINTED.quantities(computed), results, seed=seed, tasks=tasks, text=TEXT)


def draw(record: Record) -> Figure:
    """Draw the printed matrices, and outputs over targets of any sign."""
    results = record.results
    titles = ["(2.18): attention × 100", "(2.20): after ReLU, × 100", "values of any sign"]
    figure, (left, middle, right) = figures.panels(3, width=figures.DOUBLE, height=2.9, titles=titles)
    blocks = {"category": 4, "position": 5}
    for panel, name in ((left, "attention"), (middle, "retrieved")):
        matrix: Tensor = results[name]
        figures.heat_map(matrix, blocks=blocks, cells="numbers", scale=60.0, column_label="token", axes=panel)
        panel.set_xticks([token + 0.5 for token in range(5)], [str(category) for category in TEXT])
        panel.set_xlabel("token, by its category")
    shown = slice(None, 300)
    outputs = {"bias −(1 − c/K)": results["exact"][shown].tolist(), "as printed": results["printed"][shown].tolist()}
    outputs_over_targets(right, results["targets"][shown].tolist(), outputs)
    return footnote(figure, record, "Causal attention, as printed.")


def _printed() -> Tensor:
    """(2.18) for the text: X_j X_i at position j + 1 of token i ≥ j, nothing on the categories."""
    whole = torch.zeros(9, 5, dtype=torch.float64)
    for j in range(4):
        for i in range(j, 5):
            whole[4 + j + 1, i] = 10 * TEXT[j] + TEXT[i]
    return whole


def _diagonal() -> Tensor:
    """(2.20): X_{i−1} X_i at position i of token i."""
    whole = torch.zeros(9, 5, dtype=torch.float64)
    for i in range(1, 5):
        whole[4 + i, i] = 10 * TEXT[i - 1] + TEXT[i]
    return whole


def _free(task: PairTask) -> OneLayerTransformer:
    return solution_2(task, form="printed", K=K)


def _error(model: OneLayerTransformer, task: PairTask) -> float:
    return _gap(model(TEXT), task.targets(TEXT))


def _gap(first: Tensor, second: Tensor) -> float:
    return float((first - second).abs().max())


def _vector() -> dict[str, float]:
    """Return the errors of the third entry of the printed vector, with − as printed and with +."""
    vector, third = PRINTED.matrix("VECTOR"), torch.eye(4, dtype=torch.float64)[2]
    signs = {"minus": K, "plus": -K}
    return {name: _gap(torch.relu(K * third + vector + bias), vector * third) for name, bias in signs.items()}


def _signed(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Targets and outputs, as printed and exact, of one text of a random functional."""
    task = PairTask(random_functional(2 + seed % 7, seed), positions=12)
    x = task.sample(1, seed)[0]
    return task.targets(x), solution_2(task, form="printed", K=K)(x), solution_2(task)(x)
