"""A statement of the theory: what it supposes, predicts, and requires of a trajectory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.theorems.conditions import combine
from tokendynamics.theorems.result import Certificate, Check, Condition, Hypothesis, Prediction


@dataclass(frozen=True)
class Statement:
    """One row of the theory. Every file of this package with a statement exports it as `STATEMENT`.

    Attributes:
        name: The paper's key and the number, such as ``"asymptotic-4.1"``.
        title: A few words.
        equations: The numbers of the equations in the paper.
        erratum: What the paper prints wrongly and what is meant here; empty where nothing is known.
        hypotheses: Measures the hypotheses on a flow and a start of shape (…, token, dim), float64.
        predict: The prediction for a flow and a start at which the hypotheses hold.
        conditions: What a trajectory must show. Can be evaluated where hypotheses fail, too.
    """

    name: str
    title: str
    equations: str
    erratum: str
    hypotheses: Callable[[Flow, Tensor], tuple[Hypothesis, ...]]
    predict: Callable[[Flow, Tensor], Prediction]
    conditions: Callable[[Trajectory], tuple[Condition, ...]]

    def check(self, flow: Flow, start: Tensor) -> Check:
        """Measure the hypotheses, and predict where none is violated."""
        measured = self.hypotheses(flow, start)
        reasons = tuple(f"{one.name}: {one.text}" for one in measured if one.holds is False)
        return Check(
            statement=self.name,
            applies=not reasons,
            hypotheses=measured,
            reasons=reasons,
            prediction=None if reasons else self.predict(flow, start),
            assumed=tuple(f"{one.name}: {one.text}" for one in measured if one.holds is None),
            erratum=self.erratum,
            equations=self.equations,
        )

    def certify(self, trajectory: Trajectory) -> Certificate:
        """Evaluate the conditions on a trajectory, whether or not the hypotheses hold."""
        certificate = combine(self.name, self.conditions(trajectory))
        if trajectory.engine != "layers":
            return certificate
        note = "; judged on discrete layers, of which the statement does not speak"
        return replace(certificate, text=certificate.text + note)
