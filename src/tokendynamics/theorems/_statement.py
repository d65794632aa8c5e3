"""A statement of the theory: what it supposes, predicts, and requires of a trajectory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.theorems._conditions import combine
from tokendynamics.theorems._confirmation import confirmed, flow_of_systems, run_of_systems, states_of_systems
from tokendynamics.theorems._papers import PAPERS, Paper
from tokendynamics.theorems.result import Certificate, Check, Condition, Hypothesis, Prediction, counted


@dataclass(frozen=True)
class Statement:
    """One row of the theory. Every file of `statements` exports one as `STATEMENT`; some, its corollaries too.

    Attributes:
        name: The paper's key and the number, such as ``"asymptotic-4.1"``.
        title: A few words.
        equations: The numbers of the equations in the paper.
        erratum: What the paper prints wrongly and what is meant here; empty where nothing is known.
        structure: What the statement supposes of the kind of flow (space, mask, heads, positions, weights): told
            without looking at matrices or tokens.
        hypotheses: Measures the other hypotheses on a flow of that structure and a start of shape (…, token, dim),
            float64.
        predict: The prediction for a flow and a start at which the hypotheses hold.
        conditions: What a trajectory must show. Can be evaluated where hypotheses fail, too.
        decidable: Whether the conditions can say anything about a trajectory; a probability needs many systems.

    >>> from tokendynamics.theorems import STATEMENTS
    >>> STATEMENTS[0].name, STATEMENTS[0].paper.key
    ('asymptotic-3.1', 'asymptotic')
    """

    name: str
    title: str
    equations: str
    erratum: str
    structure: Callable[[Flow], tuple[Hypothesis, ...]]
    hypotheses: Callable[[Flow, Tensor], tuple[Hypothesis, ...]]
    predict: Callable[[Flow, Tensor], Prediction]
    conditions: Callable[[Trajectory], tuple[Condition, ...]]
    decidable: Callable[[Trajectory], bool] = lambda trajectory: True

    @property
    def paper(self) -> Paper:
        """Where it stands."""
        return PAPERS[self.name.partition("-")[0]]

    def __str__(self) -> str:
        """Return one line: the statement, what it is about, and where it stands."""
        return f"{self.name}: {self.title}; {self.equations} of {self.paper}"

    def check(self, flow: Flow, start: Tensor) -> Check:
        """Measure the hypotheses, and predict where none is violated.

        Of a flow of another structure only that is said: what its circuits and start would have to be presupposes
        the structure, and can be costly to measure.
        """
        systems = tuple(start.shape[:-2])
        measured = self.structure(flow)
        if all(one.anywhere for one in measured):
            measured = (*measured, *self.hypotheses(flow, start))
        applies_to = np.asarray(np.logical_and.reduce([one.satisfied(systems) for one in measured]))
        return Check(
            statement=self.name,
            applies=bool(applies_to.all()),
            applies_to=applies_to,
            hypotheses=measured,
            reasons=tuple(_reason(one) for one in measured if one.holds is False),
            prediction=self._prediction(flow, start, applies_to),
            assumed=tuple(f"{one.name}: {one.text}" for one in measured if one.holds is None),
            erratum=self.erratum,
            equations=self.equations,
        )

    def certify(self, trajectory: Trajectory, applies_to: np.ndarray | None = None) -> Certificate:
        """Evaluate the conditions on a trajectory: at the systems in `applies_to`, or at all, whatever holds there."""
        systems = tuple(trajectory.tensor.shape[:-3])
        where = np.ones(systems, dtype=bool) if applies_to is None else applies_to
        part = run_of_systems(trajectory, where)
        found = confirmed(self.conditions(part), part, self.conditions)
        if not where.all():
            found = tuple(_among_all(one, where) for one in found)
        certificate = combine(self.name, found)
        notes = [certificate.text, *_part_seen(part)]
        if trajectory.engine == "layers":
            notes.append("judged on discrete layers, of which the statement does not speak")
        return replace(certificate, text="; ".join(notes))

    def _prediction(self, flow: Flow, start: Tensor, where: np.ndarray) -> Prediction | None:
        if not where.any():
            return None
        if where.all():
            return self.predict(flow, start)
        return self.predict(flow_of_systems(flow, where), states_of_systems(start, where))


def _reason(violated: Hypothesis) -> str:
    share = "" if violated.at is None else f" (at {counted(~violated.at)})"
    return f"{violated.name}: {violated.text}{share}"


def _among_all(condition: Condition, where: np.ndarray) -> Condition:
    """Set a condition of the systems in `where` among all."""
    outcome = np.full(where.shape, "does not apply")
    margin, first = np.full(where.shape, np.inf), np.full(where.shape, np.nan)
    outcome[where] = condition.outcome.reshape(-1)
    margin[where] = condition.margin.reshape(-1)
    first[where] = condition.first_failure.reshape(-1)
    return replace(condition, outcome=outcome, margin=margin, first_failure=first)


def _part_seen(trajectory: Trajectory) -> list[str]:
    """Say how much of the horizon was judged, where a system ended before it: at the one that ended first."""
    first, horizon, end = float(trajectory.times[0]), float(trajectory.times[-1]), float(np.min(trajectory.end_times))
    if end >= horizon:
        return []
    ended = int(np.sum(np.asarray(trajectory.end_times) < horizon))
    share = "" if trajectory.end_times.size == 1 else f" ({ended} of {trajectory.end_times.size} systems ended early)"
    return [f"over [{first:g}, {end:g}] of {horizon:g}{share}"]
