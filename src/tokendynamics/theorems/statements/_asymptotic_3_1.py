"""Theorem 3.1 of `asymptotic`: the flow is minus the gradient of the potential in the metric (9)."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.observables import log_interaction_sums, log_potential
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import beyond_rounding, except_where, flow_of_run, never_above, undecided
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.contraction import head_matrix
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction

ENERGY = "V = −½ Σ_ij exp(y_i·qk y_j) of the tokens y_i"
"""What the statements on gradient flows call the energy, in the words of a prediction."""
TOLERANCE = 1e-10
"""Largest relative error of the identity."""
_LOOKED_AT = 64


def gradient_structure(flow: Flow) -> tuple[Hypothesis, ...]:
    """Suppose one head of softmax weights on an ellipsoid, full mask."""
    return (
        measured.on_ellipsoid(flow),
        measured.weights_are_softmax(flow),
        measured.no_positions(flow),
        measured.full_mask(flow),
        measured.one_head(flow),
    )


def gradient_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    """Measure ov = I, qk ≻ 0 symmetric and constant, M = c · qk with c > 0; they depend on the flow alone.

    The theorem is printed for M = qk. The metric (9) is ``Z_i qk`` whatever M is, and the normal ``M y_i`` is the same
    line for every multiple of M, so that it holds for M = c · qk: for a temperature, qk = β I, on the sphere.
    """
    hypotheses = [measured.identity_values(flow), measured.constant(flow.attention.qk, "qk")]
    # The signs of a matrix that varies are those of no moment in particular.
    if not hypotheses[-1].anywhere:
        return tuple(hypotheses)
    qk = head_matrix(flow.attention.qk)
    allowed = _rounding(flow)
    hypotheses += [measured.symmetric(qk, "qk", allowed), measured.definite(qk, "qk", tolerance=allowed)]
    # An indefinite qk equals no metric: the first cause is enough.
    if hypotheses[-1].anywhere:
        metric, part = measured.metric_of(flow), (qk + qk.mT) / 2
        what = "the relative difference of M and a multiple of the symmetric part of qk"
        hypotheses.append(measured.proportional(metric, part, "M = c · qk", what, allowed))
    return tuple(hypotheses)


def _rounding(flow: Flow) -> float:
    metric = flow.geometry.metric
    given = [measured.precision(flow.attention.qk), *([] if metric is None else [metric.dtype])]
    return measured.rounding(flow.dim, *given)


def negative_gradient(flow: Flow, y: Tensor, t: float) -> Tensor | None:
    """Return −grad V at y (…, token, dim), the Riemannian gradient on the ellipsoid in the metric (9), float64.

    By another route than the flow's: V is differentiated automatically, its differential is raised with the
    metric ``G_i = Z_i sym(qk)``, and the part normal to ``y^T M y = 1`` in that metric is removed,

        u_i = −G_i^{−1}(∂V/∂y_i − μ_i M y_i),   μ_i = (M y_i · G_i^{−1} ∂V/∂y_i) / (M y_i · G_i^{−1} M y_i),

    which is right for any M, not only for M = c · qk. The qk is that of the first head. Logarithms of V and Z
    keep large logits finite. Where sym(qk) is singular there is no such gradient: NaN, or None if so at all systems.
    """
    qk = flow.attention.qk.matrix_at(t)[..., 0, :, :].to(y)
    metric = measured.metric_of(flow).to(y)
    values, vectors = torch.linalg.eigh((qk + qk.mT) / 2)
    singular = values.abs().amin(dim=-1) <= measured.ROUNDING * values.abs().amax(dim=-1)
    if bool(singular.all()):
        return None
    # Where there is no gradient the answer is NaN, and nothing is divided by zero on the way.
    safe = torch.where(singular.unsqueeze(-1), 1.0, values)
    inverse = (vectors / safe.unsqueeze(-2)) @ vectors.mT
    leaf = y.detach().requires_grad_()
    with torch.enable_grad():
        log_v = log_potential(leaf, qk)
        (slope,) = torch.autograd.grad(log_v.sum(), leaf)
    log_z = log_interaction_sums(y, qk, normalization=flow.normalization)
    # −∂V/∂y_i / Z_i, with V = −exp(log_v).
    force = slope * (log_v.detach().unsqueeze(-1) - log_z).exp().unsqueeze(-1)
    normal = y @ metric
    raised, raised_normal = force @ inverse, normal @ inverse
    share = (normal * raised).sum(dim=-1, keepdim=True) / (normal * raised_normal).sum(dim=-1, keepdim=True)
    return torch.where(singular[..., None, None], torch.nan, raised - share * raised_normal)


def identity_error(flow: Flow, y: Tensor, t: float) -> Float64[Tensor, "*system"] | None:
    """Return max_i |velocity_i + grad_i V|_M relative to the weights' sum, the largest speed there can be."""
    gradient = negative_gradient(flow, y, t)
    if gradient is None:
        return None
    gap = flow.velocity(y, t) - gradient
    metric = measured.metric_of(flow).to(y)
    return ((gap @ metric) * gap).sum(dim=-1).amax(dim=-1).sqrt() / (flow.weight_factor * flow.heads)


def _predict(flow: Flow, start: Tensor) -> Prediction:
    text = (
        f"every token moves down the Riemannian gradient of the energy {ENERGY}, at every state; the metric weighs "
        "token i by Z_i sym(qk), where Z_i = Σ_j exp(y_i·qk y_j)"
    )
    return Prediction(text, limit="none: an identity between vector fields")


def _conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    text = "relative difference of the velocity and −grad V, V the energy"
    flow = flow_of_run(trajectory)
    states, times = trajectory.tensor.detach().double(), np.asarray(trajectory.times)
    excess = torch.full(states.shape[:-2], -torch.inf, dtype=torch.float64)
    for index in np.unique(np.linspace(0, len(times) - 1, min(len(times), _LOOKED_AT)).round().astype(int)):
        y = flow.space.project(states[..., index, :, :])
        error = identity_error(flow, y, float(times[index]))
        if error is not None:
            excess[..., index] = error
    # Where qk is singular, Z_i sym(qk), which is (9), is no metric.
    none = torch.isneginf(excess).all(dim=-1) | torch.isnan(excess).any(dim=-1)
    why = "qk is singular, so V has no gradient in the metric Z_i sym(qk)"
    if bool(none.all()):
        return (undecided(tuple(states.shape[:-3]), f"{text}: {why}"),)
    excess = torch.where(none.unsqueeze(-1), -torch.inf, excess)
    condition = torch.linalg.cond(measured.metric_of(flow)).to(excess)
    # What rounding of the given matrices leaves of an asymmetry moves the logits by as much, relatively.
    logits = flow.attention.logits(flow.space.project(states[..., 0, :, :])).abs().amax()
    # What of qk and M is lost in the precision in which they came, beyond float64.
    allowed = _rounding(flow)
    tolerance = max(TOLERANCE, 4 * (0.0 if allowed <= measured.ROUNDING else allowed) * (1 + float(logits)))
    error = never_above(beyond_rounding(excess, condition, tolerance), trajectory, tolerance, text, pointwise=True)
    return (except_where(error, none.numpy(), why),)


STATEMENT = Statement(
    name="asymptotic-3.1",
    title="The flow is minus the gradient of the potential",
    equations="(8), (9), (10)",
    structure=gradient_structure,
    hypotheses=gradient_hypotheses,
    predict=_predict,
    conditions=_conditions,
)
