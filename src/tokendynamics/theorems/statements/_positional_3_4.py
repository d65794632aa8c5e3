"""Theorem 3.4 of `positional`: with A ≺ 0 and qk ≻ 0, both symmetric, all tokens tend to zero, slowly.

Corollary C.1: with absolute positions they tend to minus their positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.observables import log_potential
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import (
    LIMIT,
    except_where,
    flow_of_run,
    integration_tolerance,
    never_rises,
    tends_to_zero,
    undecided,
)
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.contraction import (
    absolute_positions,
    contraction_form,
    definite_forms,
    free_softmax,
    states_of,
    states_with_positions,
    symmetric_contraction,
)
from tokendynamics.theorems.outcomes import slope_condition
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction


def contraction_structure(flow: Flow) -> tuple[Hypothesis, ...]:
    """Return what theorem 3.4 and corollary C.1 suppose of the kind of flow, positions aside."""
    return (
        *free_softmax(flow),
        # With a causal mask h is no Lyapunov function, and the decay is exponential: token 1 moves by x' = ov x.
        measured.full_mask(flow),
        measured.one_head(flow),
    )


@measured.given(measured.constant_circuits)
def contraction_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    """Measure what theorem 3.4 and corollary C.1 suppose of the circuits."""
    form = contraction_form(flow)
    return (
        measured.symmetric(form.qk, "qk", measured.rounding(flow.dim, measured.precision(flow.attention.qk))),
        *symmetric_contraction(form),
        *definite_forms(form),
    )


def contraction_prediction(flow: Flow, start: Tensor, name: str) -> Prediction:
    """Predict that tokens `name` tend to zero: exponentially if all are equal, like t^(−1/2) otherwise."""
    limit = f"{name} = 0 for every token"
    if bool(_all_equal(start).all()):
        lowest = float(_contraction_rates(flow)[..., 0].min())
        return Prediction(f"{name} → 0 like exp(ov t), all tokens being equal", limit=limit, rate=lowest)
    mean = (
        f"the mean of {name} {name}ᵀ is about −qk⁻¹ A qk⁻¹/(2t), A = qk ov⁻¹, if differences of tokens span the space"
    )
    return Prediction(
        f"{name} → 0 for every token x_i, slowly: |{name}| falls like t^(−1/2), and in the end {mean}", limit=limit
    )


def contraction_conditions(states: Tensor, trajectory: Trajectory) -> tuple[Condition, ...]:
    """Require log h non-increasing and the slope of t^(−1/2), of states (…, time, token, dim) tending to zero."""
    flow = flow_of_run(trajectory)
    form = contraction_form(flow)
    if flow.heads != 1 or not bool(form.defined.any()):
        return (undecided(tuple(states.shape[:-3]), "decay of log Σ_ij exp(x_i·qk x_j): A = qk ov⁻¹ is undefined"),)
    return tuple(except_where(one, (~form.defined).numpy(), "A is undefined") for one in _decay(states, trajectory))


def _decay(states: Tensor, trajectory: Trajectory) -> tuple[Condition, ...]:
    flow = flow_of_run(trajectory)
    form = contraction_form(flow)
    log_h = log_potential(states, form.qk.unsqueeze(-3))
    relative = log_h / log_h[..., :1].abs().clamp_min(1.0)
    h = never_rises(relative, trajectory, integration_tolerance(trajectory), "log Σ_ij exp(x_i·qk x_j) never rises")
    equal = _all_equal(states[..., 0, :, :])
    if bool(equal.all()):
        norms = torch.linalg.vector_norm(states, dim=-1).amax(dim=-1)
        scale = norms[..., :1].clamp_min(torch.finfo(norms.dtype).tiny)
        return h, tends_to_zero(
            norms / scale, LIMIT, "the largest norm relative to its start, tokens being equal, tends to 0"
        )
    rates = _contraction_rates(flow)
    stiffness = (rates[..., -1] / rates[..., 0].clamp_min(torch.finfo(rates.dtype).tiny)).clamp_min(1.0)
    return h, slope_condition(states, trajectory, stiffness.expand(states.shape[:-3]).numpy())


def _contraction_rates(flow: Flow) -> Tensor:
    """|eigenvalues| of ov in ascending order: those of qk relative to −A, (*system, dim)."""
    return torch.linalg.eigvals(contraction_form(flow).ov).abs().sort(dim=-1).values


def _all_equal(start: Tensor) -> Tensor:
    """Tell whether all tokens of a start (…, token, dim) are one point up to rounding, (…,)."""
    spread = (start - start[..., :1, :]).abs().amax(dim=(-2, -1))
    return spread <= measured.ROUNDING * start.abs().amax(dim=(-2, -1))


STATEMENT = Statement(
    name="positional-3.4",
    title="Convergence of all tokens to zero",
    equations="Theorem 3.4, B.4, B.6; (12), (13)",
    erratum="The paper gives no rate. It is t^(−1/2): test the predicted factor, never closeness to 0.",
    structure=lambda flow: (measured.no_positions(flow), *contraction_structure(flow)),
    hypotheses=contraction_hypotheses,
    predict=lambda flow, start: contraction_prediction(flow, start, "x_i"),
    conditions=lambda trajectory: contraction_conditions(states_of(trajectory), trajectory),
)


def _shifted_prediction(flow: Flow, start: Tensor) -> Prediction:
    shifted = contraction_prediction(flow, flow.attention.with_positions(start), "(x_i + p_i)")
    return Prediction(
        f"{shifted.text}; p_i is the position vector", limit="x_i = −p_i for every token", rate=shifted.rate
    )


WITH_ABSOLUTE_POSITIONS = Statement(
    name="positional-C.1",
    title="Convergence to minus the positions",
    equations="Corollary C.1; (5), (17)",
    structure=lambda flow: (absolute_positions(flow), *contraction_structure(flow)),
    hypotheses=contraction_hypotheses,
    predict=_shifted_prediction,
    conditions=lambda trajectory: contraction_conditions(states_with_positions(trajectory), trajectory),
)
