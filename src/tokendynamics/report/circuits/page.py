"""What pages on circuits share: the record of a page, facts of a task and a transformer, and figures of weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tokendynamics.circuits import OneLayerTransformer, PairTask
from tokendynamics.circuits.evidence.weights import row_centred
from tokendynamics.figures.figure import Figure, Section
from tokendynamics.figures.matrix import Panel, Side, matrices
from tokendynamics.report._page import made, page_of, render
from tokendynamics.words import UNDEFINED, Convention, fixed, number, plural


def size_of_task(law: Tensor, positions: int) -> str:
    """Return N with the law, and M."""
    drawn = "equally likely"
    if not bool((law - law[0]).abs().max() < 1e-15):
        drawn = f"with probabilities {', '.join(number(float(p)) for p in law)}"
    categories = "category" if len(law) == 1 else "categories"
    return f"N = {len(law)} {categories} {drawn} and independent, M = {plural(positions, 'position')}"


@dataclass(frozen=True)
class CircuitsReport:
    """The content of a page on circuits.

    Attributes:
        question: The heading, without the name of what it is about.
        name: The subject.
        answer: One or two words, set large.
        findings: Sentences, the first of which explains the answer.
        facts: Name and text of the inputs.
        sections: In order.
        conventions: Choices that the numbers depend on.
        manifest: How to reproduce the page.
        files: Data files beside the page.
    """

    question: str
    name: str
    answer: str
    findings: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
    conventions: tuple[Convention, ...] = ()
    manifest: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()


@page_of.register(CircuitsReport)
def circuits_page(report: CircuitsReport) -> str:
    """Return the page as self-contained HTML: no requests, works without scripts, all foreign text escaped.

    Args:
        report: From one of the functions in `tokendynamics.report.circuits`.

    Returns:
        HTML, to be stored as UTF-8.
    """
    return render(
        "circuits.html.jinja",
        title=f"{report.name}: {report.question}",
        verdict_title="Answer",
        sections=report.sections,
        conventions=report.conventions,
        manifest=report.manifest,
        files=report.files,
        scripts=("circuits.js",),
        sheets=("circuits.css",),
        it=report,
        facts=(*report.facts, *made(report.manifest)),
    )


_COLOURS = (
    "Orange is positive, purple negative (marked by a dash where there is room), blank zero; each matrix has its own "
    "scale, centred at zero."
)


def attention_weights(model: OneLayerTransformer) -> Figure:
    """Return the paper's ``k^t q``, the transpose of qk, and v of every head."""
    panels = []
    for head, (qk, v) in enumerate(zip(model.qk, model.ov, strict=True), start=1):
        of_head = f", head {head}" if len(model.ov) > 1 else ""
        panels += [
            Panel(f"kᵗq{of_head}", qk.mT.numpy(), _features(model, "sender"), _features(model, "receiver")),
            Panel(f"v{of_head}", v.numpy(), _features(model, "written"), _features(model, "read")),
        ]
    softmax = ", through a softmax over senders" if model.attention.weights == "softmax" else ""
    return matrices(
        panels,
        ident="weights-attention",
        question="Which pairs does the attention weigh, and what does it carry?",
        caption="Rows of kᵗq are features of the sender, columns features of the receiver. The weight of a sender is "
        f"the sum of the entries of its features and the receiver's{softmax}. Rows of v are features written, "
        f"columns features read from the sender. {_COLOURS}",
    )


def feed_forward_weights(model: OneLayerTransformer) -> Figure:
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


def functional_beside_block(model: OneLayerTransformer, task: PairTask, head: int = 0) -> Figure:
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


def task_facts(task: PairTask) -> tuple[tuple[str, str], ...]:
    """Return what a page says of a task."""
    extremes = f"from {number(float(task.q_true.min()))} to {number(float(task.q_true.max()))}"
    variance = f"variance {number(task.variance)}, of which {number(task.interaction_variance)} is interaction"
    return (
        (
            "Task",
            f"Yᵢ = q_true[Xᵢ₋₁, Xᵢ], the previous category first, and Y₁ = 0; {size_of_task(task.law, task.positions)}",
        ),
        ("q_true", f"{extremes}; {variance} (the part that is no sum f(previous) + g(current))"),
    )


def model_facts(model: OneLayerTransformer) -> tuple[tuple[str, str], ...]:
    """Return what a page says of a transformer."""
    norm = ", LayerNorm" if model.norm is not None else ""
    mask = "causal" if model.attention.causal else "full mask"
    shape = f"{plural(len(model.ov), 'head')}, {model.attention.weights} weights, {mask}, width {model.width}"
    return (("Model", f"{shape}{norm}, {plural(model.C.shape[0], 'hidden unit')}"),)
