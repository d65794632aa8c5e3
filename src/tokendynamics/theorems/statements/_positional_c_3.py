"""Corollary C.3 of `positional`: the bounds of theorem 3.6 with rotary positions."""

from __future__ import annotations

from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.theorems._expansion import bound_conditions, growth_text
from tokendynamics.theorems._free_flow import free_softmax, rotary_positions, states_of
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.result import Condition, Prediction
from tokendynamics.theorems.statements._positional_3_6 import expansion_hypotheses


def _predict(flow: Flow, start: Tensor) -> Prediction:
    text = "whatever the rotations: min n·x_i(0) ≤ e^(−λt) n·x_l(t) ≤ max n·x_i(0) for every V n = λ n with λ > 0; "
    return Prediction(text + growth_text(flow, start, "x_l"), limit="bounds; growth where tokens are on one side")


def _conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    return bound_conditions(states_of(trajectory), trajectory)


STATEMENT = Statement(
    name="positional-C.3",
    title="Divergence along an eigenvector of V with rotary positions",
    equations="Corollary C.3; (8), (18), (19)",
    erratum="",
    structure=lambda flow: (rotary_positions(flow), *free_softmax(flow)),
    hypotheses=expansion_hypotheses,
    predict=_predict,
    conditions=_conditions,
)
