"""Theorem 3.6 of `positional`: along an eigenvector of V with λ > 0 the tokens' hull grows no faster than e^{λt}."""

from __future__ import annotations

from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._expansion import bound_conditions, expanding_hypothesis, growth_text
from tokendynamics.theorems._free_flow import free_softmax, states_of
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction


def expansion_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    """Measure what theorem 3.6 and corollaries C.2 and C.3 suppose of the circuits.

    The proof uses of the weights only that their rows are convex combinations: qk may be anything and depend on
    time, and the mask may be causal. Several heads need a common eigenvector.
    """
    still = measured.constant(flow.attention.ov, "ov")
    return (still, expanding_hypothesis(flow)) if still.anywhere else (still,)


def _predict(flow: Flow, start: Tensor) -> Prediction:
    text = "min n·x_i(0) ≤ e^(−λt) n·x_l(t) ≤ max n·x_i(0) for every V n = λ n with λ > 0; "
    return Prediction(text + growth_text(flow, start, "x_l"), limit="bounds; growth where tokens are on one side")


def _conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    return bound_conditions(states_of(trajectory), trajectory)


STATEMENT = Statement(
    name="positional-3.6",
    title="Divergence along an eigenvector of V",
    equations="Theorem 3.6, B.9; (15), (16)",
    erratum=(
        "n is an eigenvector of V = ov^T, so n^T ov = λ n^T. That tokens diverge needs them strictly on one side of "
        "the hyperplane of n, and does not need the other eigenvalues to be positive."
    ),
    structure=lambda flow: (measured.no_positions(flow), *free_softmax(flow)),
    hypotheses=expansion_hypotheses,
    predict=_predict,
    conditions=_conditions,
)
