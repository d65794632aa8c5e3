"""The page of one question about circuits, for a transformer that was built or learned, or for a loss landscape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tokendynamics.figures.figure import Section
from tokendynamics.report._page import made, page_of, render
from tokendynamics.words import Convention, number, plural

SENDER_FIRST = Convention(
    "kᵗq",
    "rows are the sender's features, columns the receiver's",
    "with the receiver first it would be transposed, like the matrix qk in the rest of this package",
)


INTERACTION = Convention(
    "Interaction",
    "the part of q_true that is no sum f(previous) + g(current): q_true less the means of its rows and of its columns "
    "under the law, plus the mean of all; shares of logic are shares of it",
    "with sums counted as logic, a network that only adds would seem to do logic",
)


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
