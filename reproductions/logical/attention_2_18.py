"""`logical` (2.18)–(2.20): solution 2 writes all digit pairs on the positions, and K = 100 retrieves the diagonal."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from reproductions.drawing import footnote, outputs_over_targets
from reproductions.record import Quantity, Record, timed
from tokendynamics import plots
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import OneLayerTransformer
from tokendynamics.circuits.constructions import solution_2
from tokendynamics.circuits.functionals import pair_numbers, random_functional

TEXT = (1, 3, 2, 2, 4)
K = 100.0
VECTOR = (12.0, 32.0, 25.0, 11.0)
"""The paper's vector of which the third entry is retrieved."""

_SIGN = "the print subtracts a vector of −100, which adds 100 to every entry; with + it comes out"
_NEGATIVE = "ReLU(100 + q − 100) is 0 for every q < 0: as printed the output is max(q_true, 0)"


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
    quantities = (
        Quantity("(2.18): largest difference from print", 0.0, float((attention - _printed()).abs().max()), 1e-12),
        Quantity("without causal mask: entries beside those printed", 6.0, _below(task), 0.0, source="theory"),
        Quantity("(2.20): largest difference from print", 0.0, float((retrieved - _diagonal()).abs().max()), 1e-12),
        Quantity("(2.21): largest error, digit pairs", 0.0, _error(model, task), 1e-12),
        Quantity("(2.21): largest error without causal mask", 0.0, _error(_free(task), task), 1e-12),
        *_vector(),
        Quantity("(2.21): largest error for values of any sign", 0.0, _gap(printed, targets), 1e-12, reason=_NEGATIVE),
        Quantity(
            "(2.21) gives max(q_true, 0): largest difference", 0.0, _gap(printed, targets.relu()), 1e-12, "≤", "theory"
        ),
        Quantity("bias −(1 − c/K), offset −c: largest error", 0.0, _gap(exact, targets), 1e-12, "≤", "theory"),
    )
    return Record(
        paper="logical",
        figure="(2.18)–(2.20)",
        statement="Solution 2: the logits are the digit pairs of all tokens, v moves them to the next position, and "
        "skip connection, bias and ReLU keep the pairs of neighbours. It is exact for values ≥ 0 only; with bias "
        "−(1 − c/K) and offset −c, c = max(0, −min q_true), it is exact for any.",
        quantities=quantities,
        invented=f"the text {TEXT} of four categories; {tasks} standard normal q_true of 2 to 8 categories and texts "
        f"of 12 tokens (seeds from {seed})",
        seed=seed,
        results={
            "attention": attention,
            "retrieved": retrieved,
            "targets": targets,
            "printed": printed,
            "exact": exact,
        },
    )


def draw(record: Record) -> Figure:
    """The printed matrices, and outputs over targets of any sign."""
    results = record.results
    titles = ["(2.18): attention × 100", "(2.20): after ReLU, × 100", "values of any sign"]
    figure, (left, middle, right) = plots.panels(3, width=plots.DOUBLE, height=2.9, titles=titles)
    blocks = {"category": 4, "position": 5}
    for panel, name in ((left, "attention"), (middle, "retrieved")):
        matrix: Tensor = results[name]
        plots.heat_map(matrix, blocks=blocks, cells="numbers", scale=60.0, column_label="token", axes=panel)
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


def _below(task: PairTask) -> float:
    """How many entries the causal mask sets to zero: j > i, and j = 5 has no next position."""
    return float(((_free(task).attend(TEXT).mT != 0) & (_printed() == 0)).sum())


def _error(model: OneLayerTransformer, task: PairTask) -> float:
    return _gap(model(TEXT), task.targets(TEXT))


def _gap(first: Tensor, second: Tensor) -> float:
    return float((first - second).abs().max())


def _vector() -> list[Quantity]:
    vector, third = torch.tensor(VECTOR).double(), torch.tensor([0.0, 0.0, 1.0, 0.0]).double()
    kept = torch.tensor([0.0, 0.0, 25.0, 0.0]).double()
    minus = torch.relu(K * third + vector - (-K))
    plus = torch.relu(K * third + vector + (-K))
    name = "third entry of (12, 32, 25, 11)"
    return [
        Quantity(f"{name}, − of −100 as printed: largest error", 0.0, _gap(minus, kept), 1e-12, reason=_SIGN),
        Quantity(f"{name}, bias −100: largest error", 0.0, _gap(plus, kept), 1e-12, source="theory"),
    ]


def _signed(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Targets and outputs, as printed and exact, of one text of a random functional."""
    task = PairTask(random_functional(2 + seed % 7, seed), positions=12)
    x = task.sample(1, seed)[0]
    return task.targets(x), solution_2(task, form="printed", K=K)(x), solution_2(task)(x)
