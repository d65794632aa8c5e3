"""`logical` (1.1), (1.7) and section 2.1: the logics of the introduction, and solution 1 on the text (1, 3, 2, 2)."""

from __future__ import annotations

import itertools

import torch
from matplotlib.figure import Figure
from torch import Tensor

from reproductions.drawing import footnote
from reproductions.record import Quantity, Record, timed
from tokendynamics import plots
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import OneLayerTransformer
from tokendynamics.circuits.constructions import linear_case, pair_order, solution_1
from tokendynamics.circuits.constructions._solutions import Form
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.circuits.logic import WORD_LOGIC, either_pair

TEXT = (1, 3, 2, 2)
X = ((1, 0, 0, 0), (0, 0, 1, 1), (0, 1, 0, 0), (0, 0, 0, 0))
ATTENTION = ((0, 2, 0, 0), (0, 0, 0, 2), (0, 0, 2, 0), (0, 0, 0, 0))
SUM = ((1, 2, 0, 0), (0, 0, 1, 3), (0, 1, 2, 0), (0, 0, 0, 0))
"""The category parts of the printed X, attention and (2.14); tokens are columns there."""

REPAIRS: tuple[tuple[Form, str], ...] = (
    ("rows", "two biases"),
    ("uniform", "other C"),
    ("indicators", "own blocks"),
)
WRONG = (0.0, 5.0, 32.0, 70.0)
"""What the printed B and C give for q_true = 1, 2, …, 16 row by row, by independent code."""

_CONVEX = (
    "2e_a + e_b lies between 3e_a and 3e_b, so no ReLU of it is on for this pair alone: at token 3 row (3,3) yields 6 "
    "where row (3,2) yields 5"
)
_SKIP = "token 1 has no previous token, but the skip connection adds its own digit: Y_1 = X_1"


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
    outputs |= {name: solution_1(task, form=form)(TEXT) for form, name in REPAIRS}
    quantities = [
        *_logics(),
        *_printed_matrices(printed),
        *_printed_output(task, printed),
        *(_repair(form, name, tasks, seed) for form, name in REPAIRS),
        *_linear(),
    ]
    return Record(
        paper="logical",
        figure="Section 2.1",
        statement="Attention brings the previous category to the current one as printed, but B, bias −4 and C of "
        "(2.10)–(2.12) do not tell the pair: the example gives (0, 5, 32, 70) where (0, 3, 10, 6) is claimed. Three "
        "other readouts of the same sum, or of two blocks, are exact.",
        quantities=tuple(quantities),
        invented=f"q_true = 1, 2, …, 16 row by row in the example; {tasks} standard normal q_true of 2 to 8 categories "
        f"and their texts for the repairs (seeds from {seed})",
        seed=seed,
        results={"model": printed, "outputs": outputs},
    )


def draw(record: Record) -> Figure:
    """The printed matrices, the hidden units with the printed bias, and all outputs."""
    model: OneLayerTransformer = record.results["model"]
    outputs: dict[str, Tensor] = record.results["outputs"]
    titles = ["X", "attention", "sum (2.14)", "ReLU(B · − 4)", "Y by readout"]
    figure, panels = plots.panels(5, width=plots.DOUBLE, height=2.9, titles=titles)
    blocks = {"category": 4, "position": 4}
    columns = [model.embed(TEXT).mT, model.attend(TEXT).mT, model.stream(TEXT).mT]
    for panel, matrix in zip(panels, columns, strict=False):
        plots.heat_map(matrix, blocks=blocks, cells="numbers", scale=4.0, column_label="token", axes=panel)
    hidden = model.hidden(model.stream(TEXT)).mT
    plots.heat_map(hidden, cells="numbers", scale=4.0, column_label="token", axes=panels[3])
    panels[3].set_yticks([row + 0.5 for row in range(16)], [f"{a},{b}" for a, b in pair_order(4).tolist()])
    plots.heat_map(torch.stack(list(outputs.values())), cells="numbers", column_label="token", axes=panels[4])
    panels[4].set_yticks([row + 0.5 for row in range(len(outputs))], list(outputs))
    return footnote(
        figure,
        record,
        "As printed, the pair of tokens 2 and 3 turns on two hidden units and that of token 4 turns on four. Repairs: "
        "bias −8 for the diagonal rows; bias −4 for all with another C; the previous category in a block of its own. ",
    )


def _logics() -> list[Quantity]:
    inputs = list(itertools.product((0, 1), repeat=6))
    wrong = sum(either_pair(list(bits)) != any(bits[i] and bits[i + 1] for i in (0, 2, 4)) for bits in inputs)
    pairs = {("receive", "present"): "happy", ("pass", "exam"): "happy", ("receive", "punishment"): "sad"}
    missed = sum(
        WORD_LOGIC(words) != {mood: float(mood == conclusion) for mood in ("happy", "sad")}
        for words, conclusion in pairs.items()
    )
    return [
        Quantity("(1.1): wrong answers, of all 64 inputs", 0.0, float(wrong), 0.0),
        Quantity("(1.7): wrong answers, of the 3 word pairs", 0.0, float(missed), 0.0),
    ]


def _printed_matrices(model: OneLayerTransformer) -> list[Quantity]:
    found = {"X": model.embed(TEXT), "attention": model.attend(TEXT), "(2.14)": model.stream(TEXT)}
    positions = {"X": torch.eye(4), "attention": torch.zeros(4, 4), "(2.14)": torch.eye(4)}
    rows = []
    for (name, tokens), printed in zip(found.items(), (X, ATTENTION, SUM), strict=True):
        whole = torch.cat([torch.tensor(printed).double(), positions[name].double()])
        rows.append(
            Quantity(f"{name}: largest difference from print", 0.0, float((tokens.mT - whole).abs().max()), 0.0)
        )
    return rows


def _printed_output(task: PairTask, printed: OneLayerTransformer) -> list[Quantity]:
    outputs, targets = printed(TEXT).tolist(), task.targets(TEXT).tolist()
    before = (printed.stream(TEXT)[2] @ printed.B.mT).tolist()
    pairs = [tuple(pair) for pair in pair_order(4).tolist()]
    own = before[pairs.index((3, 2))]
    other = max(value for pair, value in zip(pairs, before, strict=True) if pair != (3, 2))
    on = float((printed.hidden(printed.stream(TEXT))[2] > 0).sum())
    return [
        Quantity("token 3: what row (3,2) of B yields", 5.0, own, 0.0),
        Quantity("token 3: what any other row yields, at most", 4.0, other, 0.0, "≤", reason=_CONVEX),
        Quantity("token 3: hidden units that stay on", 1.0, on, 0.0, reason=_CONVEX),
        *(
            Quantity(f"(2.12), Y_{i + 1} of the example", targets[i], outputs[i], 1e-12, reason=_CONVEX if i else "")
            for i in range(4)
        ),
        *(Quantity(f"printed B and C, Y_{i + 1}", WRONG[i], outputs[i], 1e-12, source="simulation") for i in range(4)),
    ]


def _repair(form: Form, name: str, tasks: int, seed: int) -> Quantity:
    """The largest error on random signed tasks."""
    errors = []
    for index in range(tasks):
        task = PairTask(random_functional(2 + index % 7, seed + index), positions=12)
        x = task.sample(20, seed + index)
        errors.append(float((solution_1(task, form=form)(x) - task.targets(x)).abs().max()))
    return Quantity(f"repair “{name}”: largest error", 0.0, max(errors), 1e-12, "≤", "theory")


def _linear() -> list[Quantity]:
    outputs = linear_case(categories=4, positions=4)(TEXT).tolist()
    first = Quantity("(2.13), Y_1", 0.0, outputs[0], 1e-12, reason=_SKIP)
    digits = (f"{a}{b}" for a, b in itertools.pairwise(TEXT))
    others = (
        Quantity(f"(2.13), Y_{i}: the digits of two tokens", float(number), outputs[i - 1], 1e-12)
        for i, number in enumerate(digits, start=2)
    )
    return [first, *others]
