"""Puts a simulation into one page: how it ended, observables over time, paths, systems, statements, versions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tokendynamics.dynamics import Status, Trajectory
from tokendynamics.figures.figure import Section, Table, cells
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.report._page import render, shortened
from tokendynamics.report._registry import page_of
from tokendynamics.report.simulation._ends import Ends, ends, systems_table
from tokendynamics.report.simulation._measures import ANGLE, measures
from tokendynamics.report.simulation._over_time import over_time
from tokendynamics.report.simulation._paths import QUESTION, paths_figure
from tokendynamics.report.simulation._shown import Shown, shown
from tokendynamics.theorems import Certificate
from tokendynamics.words import Convention, duration, moment, number, plural, written

_SPACES = {"free": "in free space", "sphere": "on the unit sphere", "ellipsoid": "on an ellipsoid"}
_MOST_COUNTS = 6


def shape(run: Shown) -> str:
    """Return what was simulated.

    Args:
        run: What is shown.
    """
    what = f"{plural(run.tokens, 'token')} of dim {run.dim:,}"
    what = what if run.many == 1 else f"{plural(run.many, 'system')} of {what} each"
    return f"{what}{_moved_by(run)}"


def _moved_by(run: Shown) -> str:
    flow = run.flow
    if flow is None:
        return ", under a flow that is not stored (a user-defined function)"
    where = _SPACES.get(run.space, f"in the space {run.space!r}")
    attends = flow.attention
    mask = "causal" if attends.causal else "full"
    linear = " with linear weights" if attends.weights == "linear" else ""
    positions = "" if attends.positions is None else f", with {type(attends.positions).__name__}"
    changing = "" if attends.constant else " with time-varying matrices"
    return f" {where}, under {plural(flow.heads, 'head')} of {mask} attention{linear}{positions}{changing}"


def findings(run: Shown, found: Ends, certificates: Sequence[Certificate] | None) -> list[str]:
    """Return sentences on how the run ended, where the tokens are then, and which statements of the theory held.

    Args:
        run: What is shown.
        found: Its ends.
        certificates: What held of the statements that apply; None where none was asked.
    """
    sentences = [_how_it_ended(run), *_directions(run, found), *_lengths(run, found), *_distances(run, found)]
    broken = int((~found.finite).sum())
    if broken:
        sentences.append(f"{_some(broken, run.many)} ended in a non-finite state, whose measures are undefined.")
    if certificates is not None:
        sentences.append(_certified(certificates))
    return sentences


def _how_it_ended(run: Shown) -> str:
    """Return how all systems ended, by status."""
    parts = []
    for status, count in run.statuses.most_common():
        at = run.end_times[run.status == status]
        low, high = number(float(at.min()), 4), number(float(at.max()), 4)
        when = f"t = {low}" if low == high else f"t = {low} to {high}"
        parts.append((count, status, when))
    if len(parts) == 1:
        count, status, when = parts[0]
        whose = "The run" if run.many == 1 else f"All {run.many:,} systems" if run.many > 2 else "Both systems"
        return f"{whose} {_phrase(status)} at {when}."
    listed = "; ".join(f"{count:,} {_phrase(status)} at {when}" for count, status, when in parts)
    return f"Of {run.many:,} systems, {listed}."


_PHRASES: dict[str, str] = {
    Status.HORIZON: "reached the end of the time interval",
    Status.CONSENSUS: "reached consensus",
    Status.DIVERGED: "diverged",
    Status.EQUILIBRIUM: "came to rest",
    Status.BUDGET: "spent the step budget",
    Status.UNDERFLOW: "stopped because the step size underflowed",
    Status.NOT_FINITE: "stopped because the velocity was not finite",
    Status.INTERRUPTED: "was interrupted",
}


def _phrase(status: str) -> str:
    return _PHRASES.get(status, f"ended as “{status}”")


def _some(count: int, many: int) -> str:
    if many == 1:
        return "The run"
    return f"{plural(count, 'system')} of {many:,}"


def _directions(run: Shown, found: Ends) -> list[str]:
    if run.tokens == 1:
        return ["With one token there is no distance to measure."]
    known = np.isfinite(found.cosine)
    sentences = []
    if (found.finite & ~known).any():
        missing = int((found.finite & ~known).sum())
        sentences.append(f"{_some(missing, run.many)} ended with a token at zero, which has no direction.")
    if not known.any():
        return sentences
    if np.isfinite(found.clusters).any():
        sentences.append(_clusters(run, found))
    both = known & np.isfinite(found.cosine_at_start)
    end = _typical(found.cosine[known], _cosine)
    start = (
        f"; it was {_typical(found.cosine_at_start[both], _cosine)} at t = {number(float(run.times[0]))}"
        if both.any()
        else ""
    )
    whose = "The mean cosine of two tokens" if run.many == 1 else "The mean cosine of two tokens of a system"
    sentences.append(f"{whose} is {end} at the end{start}.")
    return sentences


def _cosine(value: float) -> str:
    """Write a cosine; one near 1 by its difference from 1.

    >>> _cosine(0.5), _cosine(1.0), _cosine(1 - 2e-7)
    ('0.5', '1', '1 − 2 × 10⁻⁷')
    """
    return f"1 − {number(1 - value)}" if 0 < 1 - value < 5e-4 else number(value)


def _typical(values: np.ndarray, write: Callable[[float], str] = number) -> str:
    """Return one number, or the median of several with their range."""
    if len(values) == 1:
        return write(float(values[0]))
    low, middle, high = (write(float(each)) for each in (values.min(), np.median(values), values.max()))
    return middle if low == high else f"{middle} (median; range {low} to {high})"


def _clusters(run: Shown, found: Ends) -> str:
    known = np.isfinite(found.clusters)
    counts = Counter(found.clusters[known].astype(int).tolist())
    linked = f"(tokens at most {math.degrees(ANGLE):g}° apart are linked)"
    widest = number(float(np.nanmax(found.angle)))
    if run.many == 1:
        (count,) = counts
        return (
            f"At the end the directions of the {run.tokens:,} tokens form {plural(count, 'cluster')} {linked}; the "
            f"largest angle between two of them is {widest}°."
        )
    if len(counts) > _MOST_COUNTS:
        spelt = f"{_typical(found.clusters[known])} clusters"
    else:
        spelt = ", ".join(
            f"{plural(count, 'cluster')} in {plural(many, 'system')}" for count, many in sorted(counts.items())
        )
    return (
        f"At the end the directions of a system’s tokens form {spelt} {linked}; the largest angle in any is {widest}°."
    )


def _lengths(run: Shown, found: Ends) -> list[str]:
    """Return how the norms changed, in free space."""
    if run.on_surface or not found.finite.any():
        return []
    whose = "norm of the token" if run.tokens == 1 else "median norm of the tokens"
    end, start = _typical(found.norm[found.finite]), _typical(found.norm_at_start[np.isfinite(found.norm_at_start)])
    largest = (
        ""
        if run.tokens == 1 and run.many == 1
        else f"; the largest of all is {number(float(np.nanmax(found.largest_norm)))}"
    )
    return [f"The {whose} is {end} at the end and was {start} at the start{largest}."]


def _distances(run: Shown, found: Ends) -> list[str]:
    known = np.isfinite(found.distance) & np.isfinite(found.distance_at_start)
    if run.on_surface or not known.any():
        return []
    end, start = _typical(found.distance[known]), _typical(found.distance_at_start[known])
    return [f"The largest distance between two tokens is {end} at the end and was {start} at the start."]


def _certified(certificates: Sequence[Certificate]) -> str:
    if not certificates:
        return "No statement of the theory applies."
    counts = Counter(one.outcome for one in certificates)
    words: dict[str, str] = {"holds": "held", "fails": "failed", "undecided": "undecided"}
    listed = ", ".join(f"{counts[outcome]} {word}" for outcome, word in words.items() if counts[outcome])
    names = ", ".join(one.statement for one in certificates if one.outcome == "fails")
    many = len(certificates)
    apply = "applies" if many == 1 else "apply"
    return f"{plural(many, 'statement')} of the theory {apply}: {listed}{f' ({names})' if names else ''}."


def chosen(run: Shown) -> str:
    """Return which systems and times the curves show; empty where they show all.

    Args:
        run: What is shown.
    """
    parts = []
    if len(run.systems) < run.many:
        parts.append(f"{len(run.systems)} of {run.many:,} systems")
    if len(run.times) < run.kept:
        parts.append(f"{len(run.times)} of {run.kept:,} times")
    rest = " The statements above cover all systems." if len(run.systems) < run.many else ""
    return f"The curves show {' at '.join(parts)}, evenly spaced.{rest}" if parts else ""


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
