"""The page of a loss landscape: its stationary points, and where random starts end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tokendynamics.circuits.landscape.basins import Basins
from tokendynamics.circuits.landscape.claims import LandscapeSurvey
from tokendynamics.circuits.landscape.classification import Classification
from tokendynamics.circuits.landscape.landscape import StationaryPoint
from tokendynamics.figures.drawing import drawing
from tokendynamics.figures.figure import Cell, Figure, Section, Table, cells
from tokendynamics.figures.fits import LossesByRank
from tokendynamics.figures.matrix import Panel, Side, matrices
from tokendynamics.figures.palette import BLUE, GREEN, MUTED, NEGATIVE, ORANGE
from tokendynamics.figures.rows import Intervals, Row
from tokendynamics.figures.svg import Key
from tokendynamics.report._page import conventions, page_of
from tokendynamics.report.circuits.page import CircuitsReport, circuits_page, size_of_task
from tokendynamics.words import number, plural

_COLOURS = {"global minimum": BLUE, "at infinity": ORANGE, "strict saddle": NEGATIVE}
_LEAST = 1e-12
"""Smaller losses are rounding errors and are drawn at this value."""


def points_table(points: Sequence[tuple[StationaryPoint, Classification]]) -> Table:
    """List each family with its loss, gradient, curvatures and kind."""
    rows = tuple(
        (
            Cell(point.family),
            Cell(point.text),
            *cells([point.loss_per_column]),
            *(
                Cell(number(value, 2), f"{value:.6g}")
                for value in (
                    classification.relative_gradient,
                    classification.lowest_curvature,
                    classification.highest_curvature,
                )
            ),
            *cells([classification.zero_directions, classification.symmetric_directions, classification.kind]),
        )
        for point, classification in points
    )
    columns = (
        "Family", "Definition", "Loss per token", "Relative gradient", "Lowest curvature", "Highest",
        "Flat directions", "Of these, symmetries", "Kind",
    )  # fmt: skip
    return Table("Members of the families; curvatures are eigenvalues of the Hessian", columns, rows)


def points_matrices(points: Sequence[StationaryPoint], *, positions_attend: bool) -> Figure:
    """Draw attention and value map of some members.

    Args:
        points: At least one.
        positions_attend: Whether attention is over positions and the value map over categories, or the reverse.
    """
    attends, carries = ("position", "category") if positions_attend else ("category", "position")
    panels = []
    for point in points:
        q, v = point.attention.numpy(), point.v.numpy()
        sender, receiver = (Side(title, ((attends, len(q)),)) for title in ("sender", "receiver"))
        written, read = (Side(title, ((carries, len(v)),)) for title in ("written", "read"))
        panels += [
            Panel(f"{point.family}: q", q, sender, receiver, note=point.text),
            Panel(f"{point.family}: v", v, written, read),
        ]
    return matrices(
        panels,
        ident="points",
        question="What do these points look like?",
        caption="Attention q and value map v of one member of each family. Orange is positive, purple negative, blank "
        "zero; each matrix has its own scale, centred at zero.",
    )


def basins_figure(basins: Basins) -> Figure:
    """Draw the share of random starts that ended in each kind of point."""
    shares = basins.shares
    rows = [
        Row(
            share.kind, share.fraction, share.low, share.high,
            f"{share.count} of {len(basins.runs)}: {share.percent}", _COLOURS.get(share.kind, MUTED),
        )
        for share in shares
    ]  # fmt: skip
    question = "Where do random starts end?"
    statuses = ", ".join(f"{count} {status}" for status, count in basins.statuses.items())
    share_rows = [cells([share.kind, share.count, share.fraction, share.low, share.high]) for share in basins.shares]
    columns = ("Kind", "Starts", "Share", "Lower end", "Upper end")
    return Figure(
        "basins",
        question,
        f"Method {basins.method}, {_starts(basins)}, random seed {basins.seed}; whiskers: 95 % confidence "
        "intervals (Wilson). "
        f"Why {plural(len(basins.runs), 'run')} stopped: {statuses}.",
        Intervals(rows, (0.0, 1.0), bars=True, percent=True),
        Table(
            f"Shares of {plural(len(basins.runs), 'start')} with 95 % confidence intervals", columns, tuple(share_rows)
        ),
        title=f"{question} Shares of {plural(len(basins.runs), 'start')}",
        description="; ".join(f"{share.kind} {share.percent}" for share in shares) + ".",
    )


def _starts(basins: Basins) -> str:
    if isinstance(basins.scale, str):
        return "uniform starts within ±1/√(number of columns)"
    return f"normal starts of standard deviation {number(basins.scale)}"


def endings_figure(basins: Basins, marks: Mapping[str, tuple[float, float]]) -> Figure:
    """Draw the loss of every run at its end, sorted.

    Args:
        basins: The runs.
        marks: Reference losses, in all and per token, by name.
    """
    runs = sorted((run for run in basins.runs if math.isfinite(run.loss)), key=lambda run: run.loss)
    kinds = list(dict.fromkeys(run.kind for run in runs))
    keys = [Key(kind, "disc", _COLOURS.get(kind, MUTED)) for kind in kinds]
    keys += [
        Key(f"{name}: {number(loss)} ({number(per_token)} per token)", "line", GREEN, dash="5 3", width=1.4)
        for name, (loss, per_token) in marks.items()
    ]
    question = "What is the final loss of each start?"
    columns = ("Start", "Final loss", "Relative gradient", "Kind", "Status", "Evaluations")
    rows = (
        cells([run.start, run.loss, run.relative_gradient, run.kind, run.status, run.evaluations])
        for run in basins.runs
    )
    return Figure(
        "endings",
        question,
        "Final loss of each run, summed over the tokens from the second on. Losses below "
        f"{number(_LEAST)} are rounding errors and are drawn at the bottom.",
        LossesByRank(
            [run.loss for run in runs], [_COLOURS.get(run.kind, MUTED) for run in runs], _LEAST,
            [loss for loss, _ in marks.values()], ("Starts, by final loss", "Final loss (log scale)"), keys,
        ),
        Table("Every run", columns, tuple(rows)),
        title=f"{question} Final losses",
        description=f"{plural(len(runs), 'run')}, from {number(runs[0].loss if runs else None)} to "
        f"{number(runs[-1].loss if runs else None)}.",
    )  # fmt: skip


def stall_table(survey: LandscapeSurvey) -> Table:
    """Return how long gradient flow stalls, by depth."""
    rows = tuple(
        cells([one.depth, survey.per_token(one.loss), one.gradient, one.time, one.status]) for one in survey.stalls
    )
    columns = ("Depth", "Loss per token", "Gradient", "Time to leave", "End")
    start = "logits of −depth for the previous tokens and 0 for the others"
    return Table(f"Stalls of gradient flow from {start}; gradient: its norm over the previous tokens", columns, rows)


_PREDICTED = {
    "3.1": "the one-hot of Xᵢ₋₁ is predicted by v Σⱼ q[j, i] xⱼ, xⱼ the one-hot of Xⱼ, q over positions",
    "3.2": "the one-hot of Xᵢ₋₁ is predicted by v Σⱼ w[j, i] xⱼ, xⱼ the one-hot of Xⱼ, each column of w a softmax over "
    "positions",
    "3.3": "Yᵢ = q_true[Xᵢ₋₁, Xᵢ] is predicted by Σⱼ v[i, j] q[Xⱼ, Xᵢ], q over categories",
}


_REMARKS = {
    "3.1": "There are six families; the free parameters of each member are drawn at random. The last row is not a "
    "stationary point but lies on the path to one at infinity.",
    "3.2": "No point with finite logits is stationary. The closed simplex has stationary points at infinite logits: "
    "v = p 1ᵀ without weight on the previous token. The table shows how long gradient flow stalls near one.",
    "3.3": "Members of each family; the letters are not from the paper.",
}


@drawing()
def landscape_report(survey: LandscapeSurvey, manifest: Mapping[str, Any], files: Sequence[str]) -> CircuitsReport:
    """Return the page of one loss landscape.

    Args:
        survey: The survey.
        manifest: See `manifest`.
        files: Data files beside the page.
    """
    runs = survey.basins
    marks = {name: (loss, survey.per_token(loss)) for name, loss in survey.marks.items()}
    ends = Section(
        "basins-section", "Where does descent end?", figures=(basins_figure(runs), endings_figure(runs, marks))
    )
    descent = f"{plural(len(runs.runs), 'start')}, {runs.method}, at most {plural(runs.budget, 'step')}"
    last = "interaction" if survey.section == "3.3" else "mixing"
    return CircuitsReport(
        question="where can descent end?",
        name=survey.name,
        answer=survey.answer,
        findings=survey.claims,
        facts=(
            ("Task", f"{_PREDICTED[survey.section]}; {size_of_task(survey.landscape.law, survey.landscape.positions)}"),
            ("Descent", f"{descent}, seed {runs.seed}"),
        ),
        sections=(_points_section(survey), ends),
        conventions=conventions("sender_first", "expected_loss", "relative_gradient", last),
        manifest=manifest,
        files=tuple(files),
    )


def _points_section(survey: LandscapeSurvey) -> Section:
    points = [point for point, _ in survey.points]
    shown = (points_matrices(_one_each(points), positions_attend=survey.section != "3.3"),) if points else ()
    return Section(
        "points-section" if points else "stalls-section",
        "Where does the gradient vanish?",
        sentences=(_REMARKS[survey.section],),
        tables=(points_table(survey.points) if points else stall_table(survey),),
        figures=shown,
    )


def _one_each(points: Sequence[StationaryPoint]) -> list[StationaryPoint]:
    """Return the first member of each family, at most four."""
    return list({point.family[0]: point for point in reversed(points)}.values())[::-1][:4]


@page_of.register(LandscapeSurvey)
def landscape_page(survey: LandscapeSurvey) -> str:
    """Return the page of one loss landscape.

    Args:
        survey: The survey.
    """
    return circuits_page(landscape_report(survey, {}, ()))
