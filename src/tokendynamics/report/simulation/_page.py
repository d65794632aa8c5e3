"""The page of a simulation: how it ended, its sections, conventions, versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokendynamics.dynamics import Trajectory
from tokendynamics.figures.figure import Section, Table, cells
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.report._page import conventions, page_of, render, shortened
from tokendynamics.report.simulation import _sections
from tokendynamics.report.simulation._ends import ends, findings
from tokendynamics.report.simulation._run import Shown, shown
from tokendynamics.specification import Simulation
from tokendynamics.theorems import Certificate
from tokendynamics.words import duration, moment, number, plural, written

_SPACES = {"free": "in free space", "sphere": "on the unit sphere", "ellipsoid": "on an ellipsoid"}


def _shape(run: Shown) -> str:
    """Return what was simulated."""
    what = f"{plural(run.tokens, 'token')} of dim {run.dim:,}"
    what = what if run.many == 1 else f"{plural(run.many, 'system')} of {what} each"
    return f"{what}{_moved_by(run)}"


def _moved_by(run: Shown) -> str:
    flow = run.flow
    if flow is None:
        return ", under a flow that is not stored (a user-defined function)"
    norm = flow.geometry.norm
    elsewhere = f"in the space {run.space!r}" if norm is None else f"normalized by the scheme {norm!r}"
    where = _SPACES.get(run.space, elsewhere)
    attends = flow.attention
    mask = "masked" if attends.mask is not None else "causal" if attends.causal else "full"
    weights = "" if attends.weights == "softmax" else f" with {attends.weights} weights"
    positions = "" if attends.positions is None else f", with {type(attends.positions).__name__}"
    changing = "" if attends.constant else " with time-varying matrices"
    frame = ", as rescaled tokens z = exp(−t ov) x" if run.frame == "rescaled" else ""
    noise = "" if run.noise is None else f", with noise of strength {number(run.noise.strength)}"
    heads = plural(flow.heads, "head")
    return f" {where}, under {heads} of {mask} attention{weights}{positions}{changing}{frame}{noise}"


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
        raise ArgumentValueError("trajectory", "at least one system, time, token and feature", came)
    account = _of_trajectory(trajectory) if account is None else account
    run = shown(trajectory, account.system)
    endings = ends(run)
    facts = [("Engine", run.engine), ("With", written(account.manifest.get("versions")))]
    if "started" in account.manifest:
        duration_in_words = duration(account.manifest.get("duration_seconds"))
        facts.insert(0, ("Made", f"{moment(account.manifest['started'])}, in {duration_in_words}"))
    return render(
        "simulation.html.jinja",
        title=f"{account.title}: where do the tokens go?",
        sections=[*_sections(run, endings, account.system), *_statements(account.certificates or ())],
        conventions=conventions("end", "over_time", "clusters", "numbering"),
        manifest={name: shortened(value) for name, value in account.manifest.items() if name not in _PER_SYSTEM},
        files=account.files,
        name=account.title,
        shape=f"{_shape(run)}, from t = {number(float(run.times[0]))} to {number(run.horizon)}",
        facts=[(name, text) for name, text in facts if text],
        findings=[
            *findings(run, endings, account.certificates),
            *(f"Warning: {warning}." for warning in account.warnings),
        ],
    )


_PER_SYSTEM = ("counts", "end_times", "status", "horizon")
"""What the page says itself, or what has a number for each system."""


def _of_trajectory(trajectory: Trajectory) -> Account:
    """Return what a trajectory itself records."""
    warned = tuple(note.removeprefix("warning: ") for note in trajectory.notes if note.startswith("warning: "))
    return Account(manifest={"engine": trajectory.engine, "parameters": trajectory.parameters}, warnings=warned)


def _statements(certificates: Sequence[Certificate]) -> list[Section]:
    """Return the section on the theory, where a statement applies."""
    rows = tuple(
        cells([one.statement, one.outcome, float(one.margin), float(one.tolerance), one.text]) for one in certificates
    )
    columns = ("Statement", "Outcome", "Margin", "Tolerance", "Explanation")
    table = Table("Statements that apply to at least one system; a statement holds from margin 0 on", columns, rows)
    return [Section("statements", "Which statements of the theory held?", tables=(table,))] if rows else []


@page_of.register(Simulation)
def specified_page(simulation: Simulation) -> str:
    """Return the page of a simulation.

    Args:
        simulation: From `tokendynamics.specification.run`.
    """
    account = Account(
        title=simulation.file.tables.title or simulation.file.name,
        manifest=simulation.manifest,
        certificates=simulation.certificates,
        warnings=tuple(simulation.warnings),
        files=simulation.files,
        system=simulation.file.tables.output.system,
    )
    return simulation_page(simulation.trajectory, account)
