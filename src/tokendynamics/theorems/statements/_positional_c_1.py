"""Corollary C.1 of `positional`: with absolute positions the tokens of theorem 3.4 tend to minus their positions."""

from __future__ import annotations

from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.theorems._free_flow import absolute_positions, states_with_positions
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.result import Condition, Prediction
from tokendynamics.theorems.statements._positional_3_4 import (
    contraction_conditions,
    contraction_hypotheses,
    contraction_prediction,
    contraction_structure,
)


def _predict(flow: Flow, start: Tensor) -> Prediction:
    shifted = contraction_prediction(flow, flow.attention.with_positions(start), "(x_l + p_l)")
    return Prediction(shifted.text, limit="x_l = −p_l for every token", rate=shifted.rate)


def _conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    return contraction_conditions(states_with_positions(trajectory), trajectory)


STATEMENT = Statement(
    name="positional-C.1",
    title="Convergence to minus the positions",
    equations="Corollary C.1; (5), (17)",
    erratum="",
    structure=lambda flow: (absolute_positions(flow), *contraction_structure(flow)),
    hypotheses=contraction_hypotheses,
    predict=_predict,
    conditions=_conditions,
)
