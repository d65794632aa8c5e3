"""Proposition 3.3 of `positional`: how fast the form of a token changes at least, and the bound that follows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.observables import quadratic_form, quadratic_form_rate, quadratic_form_rate_bound
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import except_where, flow_of_run, integration_tolerance, never_above, undecided
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.contraction import (
    ContractionForm,
    at_times,
    contracting_systems,
    contraction_form,
    free_softmax,
    largest_ratio,
    norm_bound,
    states_of,
    symmetric_contraction,
)
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction
from tokendynamics.words import number


@measured.given(measured.constant_circuits)
def _hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    return symmetric_contraction(contraction_form(flow))


def _predict(flow: Flow, start: Tensor) -> Prediction:
    form = contraction_form(flow)
    text = "d/dt x_i·A x_i ≥ 2 − 2ℓ exp(−x_i·qk x_i), A = qk ov⁻¹, for each of the ℓ tokens x_i"
    if not bool(contracting_systems(form).all()):
        return Prediction(text, limit="none: an inequality")
    c, tokens = largest_ratio(form), start.shape[-2]
    squared = -quadratic_form(form.matrix, start)
    highest = torch.maximum(squared.amax(dim=-1), np.log(tokens) / c)
    bound = (
        f"s_i = −x_i·A x_i is at most (1/c) log(e^(−2ct)(e^(c s_i(0)) − {tokens}) + {tokens}) "
        f"≤ {number(float(highest.max()), 6)}"
    )
    return Prediction(f"{text}; {bound} with c = {number(float(c.min()), 6)}", limit="bounded tokens")


def _conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow, text = flow_of_run(trajectory), "d/dt x_i·A x_i ≥ 2 − 2ℓ exp(−x_i·qk x_i)"
    form = contraction_form(flow)
    if flow.heads != 1 or not bool(form.defined.any()):
        return (undecided(tuple(trajectory.tensor.shape[:-3]), f"{text}: A is undefined"),)
    size = torch.linalg.matrix_norm(form.matrix, 2) * torch.linalg.matrix_norm(form.ov, 2)

    def shortfall(x: Tensor, velocity: Tensor) -> Tensor:
        rate, bound = quadratic_form_rate(form.matrix, x, velocity), quadratic_form_rate_bound(x, form.qk)
        lengths = torch.linalg.vector_norm(x, dim=-1)
        terms = 2 + bound.abs() + size[..., None] * lengths * lengths.amax(dim=-1, keepdim=True)
        # A bound of −inf is met by any rate.
        return torch.where(torch.isinf(bound), -1.0, (bound - rate) / terms).amax(dim=-1)

    inequality = never_above(
        form.scaled(at_times(trajectory, shortfall)), trajectory, measured.ROUNDING, text, pointwise=True
    )
    contracting = contracting_systems(form) & form.defined
    conditions = (inequality, _bounded(trajectory, form, contracting)) if bool(contracting.any()) else (inequality,)
    return tuple(except_where(one, (~form.defined).numpy(), "A is undefined") for one in conditions)


def _bounded(trajectory: Trajectory, form: ContractionForm, contracting: Tensor) -> Condition:
    """Require the explicit bound at the systems with A ≺ 0 and qk_sym ≻ 0; nothing of the others."""
    eye = torch.eye(form.ov.shape[-1], dtype=torch.float64)
    chosen = contracting[..., None, None]
    tame = replace(form, qk=torch.where(chosen, form.qk, eye), matrix=torch.where(chosen, form.matrix, -eye))
    states = states_of(trajectory)
    squared = -quadratic_form(tame.matrix.unsqueeze(-3), states)
    times = torch.as_tensor(np.asarray(trajectory.times, dtype=float))
    bound = norm_bound(squared[..., 0, :], largest_ratio(tame), states.shape[-2], times - times[0])
    scale = torch.maximum(bound, squared[..., :1, :]).clamp_min(torch.finfo(torch.float64).tiny)
    excess = ((squared - bound) / scale).amax(dim=-1)
    excess = torch.where(contracting[..., None], excess, -torch.inf)
    text = "relative excess of s_i = −x_i·A x_i over (1/c) log(e^(−2ct)(e^(c s_i(0)) − ℓ) + ℓ)"
    return never_above(excess, trajectory, integration_tolerance(trajectory), text)


STATEMENT = Statement(
    name="positional-3.3",
    title="Rate and bound of a token in the contraction form",
    equations="Proposition 3.3, B.3; (11)",
    erratum=(
        "The proof prints c with ‖·‖²_A ≥ c‖·‖²_W; the bound needs the other direction, q_W ≥ c‖·‖²_A, which is "
        "used here. With a c allowed by the print the bound is false: A = −I, qk = 0.01 I, c = 100."
    ),
    structure=lambda flow: (*free_softmax(flow), measured.no_positions(flow), measured.one_head(flow)),
    hypotheses=_hypotheses,
    predict=_predict,
    conditions=_conditions,
)
