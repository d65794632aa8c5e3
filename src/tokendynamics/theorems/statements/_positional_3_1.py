"""Theorem 3.1 of `positional`: with A symmetric the form of the difference of two tokens does not decrease."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.observables import pair_quadratic_form_rate
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import except_where, flow_of_run, never_above, undecided
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.contraction import (
    at_times,
    contraction_form,
    single_head_in_free_space,
    symmetric_contraction,
)
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction


@measured.given(measured.constant_circuits)
def _hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    return symmetric_contraction(contraction_form(flow))


def _predict(flow: Flow, start: Tensor) -> Prediction:
    values = torch.linalg.eigvalsh(contraction_form(flow).matrix)
    distances = "A is indefinite, so distances may increase or decrease"
    if bool((values > 0).all()):
        distances = "A is positive definite, so no distance in the norm of A decreases"
    elif bool((values < 0).all()):
        distances = "A is negative definite, so no distance in the norm of −A increases"
    text = "(x_i − x_j)·A(x_i − x_j), A = qk ov⁻¹, does not decrease for any two tokens x_i, x_j"
    return Prediction(f"{text}; {distances}", limit="none: a monotone quantity")


def pair_rate_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    """Require d/dt q_A(x_i − x_j) ≥ 0 of every pair at every saved time, relative to ‖A‖ ‖ov‖ |x_i − x_j| max|x|.

    That product bounds the terms before they cancel in the difference of the velocities. Only A_sym enters, so the
    condition can be evaluated for an A that is not symmetric too.
    """
    text, flow = "d/dt (x_i − x_j)·A(x_i − x_j) ≥ 0 for every two tokens", flow_of_run(trajectory)
    form = contraction_form(flow)
    if flow.heads != 1 or not bool(form.defined.any()):
        return (undecided(tuple(trajectory.tensor.shape[:-3]), f"{text}: A is undefined"),)
    size = torch.linalg.matrix_norm(form.matrix, 2) * torch.linalg.matrix_norm(form.ov, 2)

    def wrong_way(x: Tensor, velocity: Tensor) -> Tensor:
        rate = pair_quadratic_form_rate(form.matrix, x, velocity)
        largest = torch.linalg.vector_norm(x, dim=-1).amax(dim=-1)
        terms = torch.cdist(x, x) * (size * largest)[..., None, None]
        return (-rate / terms.clamp_min(torch.finfo(x.dtype).tiny)).amax(dim=(-2, -1))

    condition = never_above(
        form.scaled(at_times(trajectory, wrong_way)), trajectory, measured.ROUNDING, text, pointwise=True
    )
    return (except_where(condition, (~form.defined).numpy(), "A is undefined"),)


STATEMENT = Statement(
    name="positional-3.1",
    title="Distances between tokens in the contraction form",
    equations="Theorem 3.1, B.2; (3), (4), (10)",
    # Token l sees only j ≤ l with a causal mask: each has its own potential, and convexity compares nothing.
    structure=single_head_in_free_space,
    hypotheses=_hypotheses,
    predict=_predict,
    conditions=pair_rate_conditions,
)
