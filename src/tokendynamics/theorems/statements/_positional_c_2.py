"""Corollary C.2 of `positional`: the bounds of theorem 3.6 with absolute positions, for x + p."""

from __future__ import annotations

from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.theorems._expansion import bound_conditions, growth_text
from tokendynamics.theorems._free_flow import absolute_positions, free_softmax, states_with_positions
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.result import Condition, Prediction
from tokendynamics.theorems.statements._positional_3_6 import expansion_hypotheses


def _predict(flow: Flow, start: Tensor) -> Prediction:
    text = "with z = x + p: min n·z_i(0) ≤ e^(−λt) n·z_l(t) ≤ max n·z_i(0) for every V n = λ n with λ > 0; "
    growth = growth_text(flow, flow.attention.with_positions(start), "x_l + p_l")
    return Prediction(text + growth, limit="bounds; growth where tokens are on one side")


def _conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    return bound_conditions(states_with_positions(trajectory), trajectory)


STATEMENT = Statement(
    name="positional-C.2",
    title="Divergence along an eigenvector of V with absolute positions",
    equations="Corollary C.2; (5), (17)",
    erratum=(
        "The printed bounds subtract the vector e^(−tV^T) p_l from a number; n^T is missing before it. What is meant, "
        "and checked, are the bounds of theorem 3.6 for x + p."
    ),
    structure=lambda flow: (absolute_positions(flow), *free_softmax(flow)),
    hypotheses=expansion_hypotheses,
    predict=_predict,
    conditions=_conditions,
)
