"""Puts a simulation into one page: how it ended, observables over time, paths, systems, statements, versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokendynamics.dynamics import Trajectory
from tokendynamics.numerics._errors import ArgumentValueError, expected
from tokendynamics.report._registry import page_of
from tokendynamics.report.kit._figure import Section, Table, cells
from tokendynamics.report.kit._manifest import shortened
from tokendynamics.report.kit._page import render
from tokendynamics.report.simulation._ends import Ends, ends, systems_table
from tokendynamics.report.simulation._measures import measures
from tokendynamics.report.simulation._over_time import over_time
from tokendynamics.report.simulation._paths import QUESTION, paths_figure
from tokendynamics.report.simulation._shown import Shown, shown
from tokendynamics.report.simulation._words import chosen, findings, shape
from tokendynamics.theorems import Certificate
from tokendynamics.words import Convention, duration, moment, number, written


@dataclass(frozen=True)
class Account:
    """What is known of a run beyond its trajectory.

    Attributes:
        title: What it is called.
        manifest: How to make it again.
        certificates: What held of the statements that apply; None where none was asked.
        warnings: What the reader is to be warned of.
        files: Names of the data files beside the page.
        system: Whose paths are drawn, counted from 0.
    """

    title: str = "A simulation"
    manifest: Mapping[str, Any] = field(default_factory=dict)
    certificates: tuple[Certificate, ...] | None = None
    warnings: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    system: int = 0


@page_of.register(Trajectory)
def simulation_page(trajectory: Trajectory, account: Account | None = None) -> str:
    """Return the whole page as HTML that needs nothing else.

    Args:
        trajectory: From `tokendynamics.simulate`.
        account: What is known of the run beyond it; None for the record that every trajectory has.

    Returns:
        HTML, to be stored as UTF-8; all text that came from a user is escaped.

    Raises:
        ArgumentValueError: No such system, or a trajectory without tokens.
    """
    if 0 in trajectory.tensor.shape:
        came = f"shape {tuple(trajectory.tensor.shape)}"
        raise ArgumentValueError(expected("trajectory", "at least one system, time, token and feature", came))
    told = _of_trajectory(trajectory) if account is None else account
    run = shown(trajectory, told.system)
    found = ends(run)
    return render(
        "simulation.html.jinja",
        title=f"{told.title}: where do the tokens go?",
        verdict_title="Result",
        sections=_sections(run, found, told),
        conventions=_CONVENTIONS,
        manifest={name: shortened(value) for name, value in told.manifest.items() if name not in _PER_SYSTEM},
        files=told.files,
        scripts=("shared.js",),
        sheets=("page.css",),
        name=told.title,
        shape=f"{shape(run)}, from t = {number(float(run.times[0]))} to {number(run.horizon)}",
        facts=_facts(run, told.manifest),
        findings=[*findings(run, found, told.certificates), *(f"Warning: {each}." for each in told.warnings)],
    )


_PER_SYSTEM = ("counts", "end_times", "status", "horizon")
"""What the page says itself, or what has a number for each system."""


def _of_trajectory(trajectory: Trajectory) -> Account:
    """Return what a trajectory itself records."""
    warned = tuple(note.removeprefix("warning: ") for note in trajectory.notes if note.startswith("warning: "))
    return Account(manifest={"engine": trajectory.engine, "parameters": trajectory.parameters}, warnings=warned)


def _sections(run: Shown, found: Ends, told: Account) -> list[Section]:
    one_time = len(run.times) < 2
    curves = [] if one_time else [over_time(run, measure) for measure in measures(run)]
    single = "Only one time is stored, so there are no curves." if one_time else ""
    sentences = tuple(filter(None, (chosen(run), single)))
    not_paired = run.tokens > 1 and not run.pairs_measured
    notes = (f"Distances and clusters of {run.tokens:,} tokens are not measured over time.",) if not_paired else ()
    sections = [Section("time", "What changes over time?", sentences, figures=tuple(curves), notes=notes)]
    if not one_time:
        sections.append(Section("tokens", QUESTION, figures=(paths_figure(run, told.system),)))
    sections.append(Section("systems", _ended(run), tables=(systems_table(run, found),)))
    if told.certificates:
        sections.append(
            Section("statements", "Which statements of the theory held?", tables=(_certificates(told.certificates),))
        )
    return sections


def _ended(run: Shown) -> str:
    return "How did the run end?" if run.many == 1 else "How did each system end?"


def _certificates(certificates: Sequence[Certificate]) -> Table:
    rows = tuple(
        cells([one.statement, one.outcome, float(one.margin), float(one.tolerance), one.text]) for one in certificates
    )
    columns = ("Statement", "Outcome", "Margin", "Tolerance", "Explanation")
    return Table("Statements that apply to at least one system; a statement holds from margin 0 on", columns, rows)


def _facts(run: Shown, manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("Engine", run.engine), ("With", written(manifest.get("versions")))]
    if "started" in manifest:
        facts.insert(0, ("Made", f"{moment(manifest['started'])}, in {duration(manifest.get('duration_seconds'))}"))
    return [(name, text) for name, text in facts if text]


_CONVENTIONS = (
    Convention(
        "The end",
        "is the last state of a system, at the last time or where its run ended earlier",
        "a diverged system would count with states that it never had",
    ),
    Convention(
        "Systems over time",
        "a system counts in the curves up to the end of its run",
        "systems that ended early would look as if they rested at their last state",
    ),
    Convention(
        "Clusters",
        "are groups of directions joined by angles of at most 5° (single linkage), as in the figures of positional",
        "a wider angle gives fewer clusters, a narrower one more",
    ),
    Convention(
        "Numbering",
        "systems are counted from 0, as in the data; tokens from 1, as in the papers",
        "labels would differ from those of the other figures",
    ),
)
