"""A one-layer transformer: its weights as heat maps, and its outputs on a sequence with the targets."""

from __future__ import annotations

import altair as alt
import torch

from tokendynamics.circuits import OneLayerTransformer, PairTask
from tokendynamics.circuits.constructions import TaskComparison
from tokendynamics.circuits.constructions.comparison import Answer
from tokendynamics.circuits.evidence.weights import row_centred
from tokendynamics.figures.figure import Figure, Matrices, Table, cells
from tokendynamics.figures.palette import BLUE, INK, ORANGE, PAPER
from tokendynamics.figures.svg import Drawing, Key, draw_for_screens, plain
from tokendynamics.report.circuits._matrix import Panel, Side, matrices
from tokendynamics.words import UNDEFINED, fixed, number, plural

_COLOURS = (
    "Orange is positive, purple negative (marked by a dash where there is room), blank zero; each matrix has its own "
    "scale, centred at zero."
)


def attention_weights(model: OneLayerTransformer) -> Matrices:
    """Return the paper's ``k^t q``, the transpose of qk, and v of every head."""
    panels = []
    for head, (qk, v) in enumerate(zip(model.qk, model.ov, strict=True), start=1):
        of_head = f", head {head}" if len(model.ov) > 1 else ""
        panels += [
            Panel(f"kᵗq{of_head}", qk.mT.numpy(), _features(model, "sender"), _features(model, "receiver")),
            Panel(f"v{of_head}", v.numpy(), _features(model, "written"), _features(model, "read")),
        ]
    return matrices(
        panels,
        ident="weights-attention",
        question="Which pairs does the attention weigh, and what does it carry?",
        caption="Rows of kᵗq are features of the sender, columns features of the receiver. The weight of a sender is "
        f"the sum of the entries of its features and the receiver's{_softmax(model)}. Rows of v are features written, "
        f"columns features read from the sender. {_COLOURS}",
    )


def feed_forward_weights(model: OneLayerTransformer) -> Matrices:
    """Draw B with the bias and C of each hidden unit beside it."""
    hidden = Side("hidden unit", (("", model.B.shape[0]),))
    one = Side("", (("", 1),))
    panels = [
        Panel("B", model.B.numpy(), hidden, _features(model, "stream")),
        Panel("bias", model.bias.numpy()[:, None], hidden, one),
        Panel("C", model.C.numpy()[:, None], hidden, one),
    ]
    norm = "LayerNorm of the stream, then " if model.norm is not None else ""
    act = "ReLU" if model.activation == "relu" else "no activation function"
    return matrices(
        panels,
        ident="weights-feed-forward",
        question="What do the hidden units read, and what do they add to the output?",
        caption=f"Each row is one hidden unit: {norm}B reads, the bias shifts, {act}, C sums. {_COLOURS}",
        per_row=3,
    )


def functional_beside_block(model: OneLayerTransformer, task: PairTask, head: int = 0) -> Matrices:
    """Draw q_true and the category block of ``k^t q``, as they are and with columns centred over the senders.

    Args:
        model: The transformer.
        task: Its q_true and law.
        head: Which head, from 0.
    """
    categories = model.block("category")
    block = model.qk[head, categories, categories].mT
    previous, current = (Side(title, (("category", task.categories),)) for title in ("previous", "current"))
    sender, receiver = (Side(title, (("category", task.categories),)) for title in ("sender", "receiver"))
    raw, centred = correlations(block, task)
    of_head = f" of head {head + 1}" if len(model.ov) > 1 else ""
    panels = [
        Panel("q_true", task.q_true.numpy(), previous, current),
        Panel(f"kᵗq{of_head}", block.numpy(), sender, receiver, note=f"correlation {raw}"),
        Panel("q_true, columns centred", row_centred(task.q_true.mT, task.law).mT.numpy(), previous, current),
        Panel(
            f"kᵗq{of_head}, columns centred",
            row_centred(block.mT, task.law).mT.numpy(),
            sender,
            receiver,
            note=f"correlation {centred}",
        ),
    ]
    return matrices(
        panels,
        ident="weights-functional",
        question="Does the attention weigh pairs of categories as q_true does?",
        caption="Left q_true, right the category block of kᵗq; above unchanged, below with the mean over senders "
        "subtracted from every column. Such a constant is the same for all senders and can be subtracted later, so "
        f"only the lower pair is comparable. {_COLOURS}",
    )


def correlations(block: torch.Tensor, task: PairTask) -> tuple[str, str]:
    """Return the law-weighted correlation with q_true, unchanged and with columns centred; the sign is kept."""
    weights = task.law[:, None] * task.law
    raw = [one - (weights * one).sum() for one in (block, task.q_true)]
    centred = [row_centred(one.mT, task.law).mT for one in (block, task.q_true)]
    return _cosine(raw[0], raw[1], weights), _cosine(centred[0], centred[1], weights)


def _cosine(a: torch.Tensor, b: torch.Tensor, weights: torch.Tensor) -> str:
    size = float(((weights * a * a).sum() * (weights * b * b).sum()).sqrt())
    return fixed(float((weights * a * b).sum()) / size, 4, sign=True) if size > 0 else UNDEFINED


def _features(model: OneLayerTransformer, title: str) -> Side:
    blocks = [("category", model.task.categories), ("position", model.task.positions)]
    if model.scratch:
        blocks.append(("scratch", model.scratch))
    return Side(title, tuple(blocks))


def _softmax(model: OneLayerTransformer) -> str:
    return ", through a softmax over senders" if model.attention.weights == "softmax" else ""


def answers_table(answers: tuple[Answer, ...]) -> Table:
    """List every token of the given sequences: category, target, output and error."""
    rows = [
        cells([index, place, int(category), float(target), float(output), float(output - target)])
        for index, answer in enumerate(answers, start=1)
        for place, (category, target, output) in enumerate(
            zip(answer.x, answer.targets, answer.outputs, strict=True), start=1
        )
    ]
    columns = ("Sequence", "Token", "Category X", "Target Y", "Output", "Output − target")
    return Table("Targets and outputs", columns, tuple(rows))


def answers_figure(comparison: TaskComparison) -> Figure:
    """Draw targets as rings and outputs as discs: exact where the disc lies in its ring."""
    answers = comparison.answers[:4]
    question = "What is the output for each token?"
    worst = max((answer.largest_error for answer in answers), default=0.0)
    return Figure(
        ident="answers",
        question=question,
        svg=draw_for_screens(
            lambda width: {"vconcat": [plain(_chart(answer, width)) for answer in answers], "spacing": 26},
            ident="answers",
            title=f"{question} Targets and outputs",
            description=f"{plural(len(answers), 'sequence')}; largest error from the second token on: {number(worst)}.",
            keys=(Key("target Y", "circle", INK), Key("output", "disc", BLUE), Key("difference", "line", ORANGE)),
        ),
        caption="The label below a token is its category. The target is q_true of the previous and the current "
        "category; the first token has the target 0 and is not part of any loss.",
        table=answers_table(comparison.answers),
    )


def _chart(answer: Answer, width: float) -> Drawing:
    rows = [
        {"token": f"{place}", "label": str(int(category)), "target": float(target), "output": float(output)}
        for place, (category, target, output) in enumerate(
            zip(answer.x, answer.targets, answer.outputs, strict=True), start=1
        )
    ]
    label = f"{[row['label'] for row in rows]}[toNumber(datum.value) - 1]"
    axis = alt.Axis(title="Category of the token", labelExpr=label, labelAngle=0)
    base = alt.Chart(alt.Data(values=rows)).encode(x=alt.X("token:O", sort=None, axis=axis))
    y = alt.Axis(title="Y")
    layers = [
        base.mark_rule(color=ORANGE, strokeWidth=2).encode(y=alt.Y("target:Q", axis=y), y2="output:Q"),
        base.mark_point(shape="circle", fill=PAPER, stroke=INK, strokeWidth=1.4, size=110, opacity=1).encode(
            y=alt.Y("target:Q", axis=y)
        ),
        base.mark_point(shape="circle", fill=BLUE, stroke=BLUE, size=26, opacity=1).encode(y=alt.Y("output:Q", axis=y)),
    ]
    return alt.layer(*layers, width=width, height=190)
