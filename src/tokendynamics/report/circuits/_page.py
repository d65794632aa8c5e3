"""The page of one question about circuits: how a transformer, built, learned or surveyed, does its logic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from tokendynamics.diagnosis._result import Convention
from tokendynamics.report.circuits._matrix import Matrices
from tokendynamics.report.kit._figure import Figure, Table
from tokendynamics.report.kit._page_file import write_page
from tokendynamics.report.kit._templates import content_security_policy, environment, resource, style
from tokendynamics.report.kit._text import duration, manifest_entries, moment, written


@dataclass(frozen=True)
class Section:
    """One question of the page with its answer.

    Attributes:
        ident: For links.
        title: The question.
        sentences: What is found, before the figures.
        tables: Shown in full.
        figures: Drawings, their numbers folded away.
    """

    ident: str
    title: str
    sentences: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure | Matrices, ...] = ()


@dataclass(frozen=True)
class CircuitsReport:
    """Everything a page on circuits says.

    Attributes:
        question: The heading, without the name of what it is about.
        name: What it is about.
        answer: One or two words, set large.
        findings: Sentences, the first of which explains the answer.
        facts: Name and text of what was given.
        sections: In order.
        conventions: Choices that the numbers hang on.
        manifest: How to make the page again.
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


def render_circuits(report: CircuitsReport) -> str:
    """Return the page as HTML that needs nothing else: no request, no script to be read, all foreign text escaped.

    Args:
        report: From one of the functions in `tokendynamics.report.circuits`.

    Returns:
        HTML, to be stored as UTF-8.
    """
    script = f"{resource('shared.js')}\n\n{resource('circuits.js')}"
    sheet = style("page.css", "circuits.css")
    return (
        environment()
        .get_template("circuits.html.jinja")
        .render(
            script=Markup(script),  # noqa: S704  # the project's own files
            style=Markup(sheet),  # noqa: S704
            policy=content_security_policy(script, sheet),
            it=report,
            facts=(*report.facts, *_facts(report.manifest)),
            manifest=manifest_entries(report.manifest),
            command=str(report.manifest.get("command", "")),
            data_files=[(name, quote(name)) for name in report.files],
        )
    )


def write_circuits(report: CircuitsReport, path: str | Path) -> Path:
    """Write the page as one file, whole or not at all; see `write_report`."""
    return write_page(render_circuits(report), path)


def _facts(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("With", written(manifest.get("versions")))]
    if "started" in manifest:
        facts.insert(0, ("Made", f"{moment(manifest['started'])}, in {duration(manifest.get('duration_seconds'))}"))
    return [(name, text) for name, text in facts if text]
