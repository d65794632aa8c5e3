"""Theorem 4.1 of `asymptotic`: tokens in an open half space stay there and reach consensus, at an explicit rate.

Let v·x_i ≥ r > 0 at the start, ``v^T M v = 1``, and s the largest v·x on the ellipsoid. In the chart
``y_i = x_i / (v·x_i)`` of the half space the flow is an averaging,

    y_i' = ω Σ_h c_h Σ_j a^h_ij (v·x_j / v·x_i) (y_j − y_i),

for ov_h = c_h I, and ``a^h_ij ≥ e^{−2‖qk_h‖K}/ℓ`` with K = ‖M^{−1}‖, the largest |x|². Since min v·x_i does not fall,
all its weights are at least b/ℓ with ``b = ω Σ_h c_h e^{−2‖qk_h‖K} r/s``. The width max_i u·y_i − min_i u·y_i of every
linear functional u therefore falls at least like e^{−bt}. Only that qk stays bounded is used: it may jump, as the
layers of a network do.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention import Sinusoidal
from tokendynamics.attention.schedules.conversion import PerHead
from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.observables import diameter, hemisphere, hemisphere_function
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import (
    LIMIT,
    flow_of_run,
    flow_steps,
    integration_tolerance,
    never_above,
    never_rises,
    tends_to_zero,
    undecided,
)
from tokendynamics.theorems._hypotheses import OnHorizon
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.result import Condition, Prediction
from tokendynamics.theorems.statements._asymptotic_5_1 import smallest_pull
from tokendynamics.words import exponential

HALF_DIAMETER = (
    "half the largest distance of two tokens (on the unit sphere, to which an ellipsoid is mapped) tends to 0"
)
"""The condition that all tokens meet, in words."""


def _predict(flow: Flow, start: Tensor) -> Prediction:
    # At consensus every weight is 1/ℓ: the linear part is Σ_h c_h · weight_factor · (mean − token).
    rate = flow.weight_factor * smallest_pull(flow)
    coefficients, exponents = _rate_terms(flow, start.double())
    bound = float((coefficients * torch.exp(-exponents)).sum(dim=-1).min())
    from_start = (
        "; the width of the tokens y_i/(v·y_i) shrinks at least like exp(−{rate} t) from the start on"
        if bound > 0
        else ""
    )
    pairs = zip(coefficients.flatten().tolist(), exponents.flatten().tolist(), strict=True)
    terms = tuple(pairs) if bound > 0 and start.ndim == 2 else ()
    pattern = (
        "the tokens y_i stay in the open half space v·y > 0 that holds the start, the least v·y_i does not decrease, "
        f"and all tokens meet in one point, distances shrinking like {exponential(-rate)} in the end{from_start}"
    )
    return Prediction(
        pattern.replace("exp(−{rate} t)", exponential(-bound, 3)),
        limit="consensus in the half space of the start",
        rate=rate,
        bound=terms,
        pattern=pattern if terms else "",
    )


def width_rate(flow: Flow, start: Tensor) -> Tensor:
    """Return the rate b at which widths in the chart y/(v·y) fall at least, (*system,).

    It is 0 where qk or ov is only known at some times, so that no bound of them is, and where there is no half space.
    """
    coefficients, exponents = _rate_terms(flow, start)
    return (coefficients * torch.exp(-exponents)).sum(dim=-1)


def _rate_terms(flow: Flow, start: Tensor) -> tuple[Tensor, Tensor]:
    """Return c and k of each head, (*system, head): the rate b is Σ_h c_h e^{−k_h} with k_h = 2‖qk_h‖K.

    Of exponential weights, which other statements have, k_h is half of that and c_h has the factor e^{−offset}.
    """
    direction = deepest_direction(flow, start)
    metric = measured.metric_of(flow).to(direction)
    systems = start.shape[:-2]
    bound, (_, multiples, complete) = largest_norm(flow), measured.multiples(flow)
    if bound is None or not complete or not bool((multiples > 0).all()):
        nothing = torch.zeros(*systems, 1, dtype=torch.float64)
        return nothing, nothing
    reach = torch.linalg.inv(metric)
    longest = torch.linalg.matrix_norm(reach, 2)
    farthest = ((direction.unsqueeze(-2) @ reach).squeeze(-2) * direction).sum(dim=-1).sqrt()
    y = flow.geometry.to(dtype=torch.float64, device=start.device).project(start)
    depth = (y * direction.unsqueeze(-2)).sum(dim=-1).amin(dim=-1)
    share = torch.where(farthest > 0, depth / torch.where(farthest > 0, farthest, 1.0), 0.0).clamp_min(0.0)
    exponents = measured.logits_in_a_weight(flow) * bound * longest.unsqueeze(-1)
    coefficients = math.exp(-flow.attention.offset) * flow.weight_factor * multiples * share.unsqueeze(-1)
    heads = (*systems, np.broadcast_shapes(exponents.shape, coefficients.shape)[-1])
    return coefficients.expand(heads), exponents.expand(heads)


def largest_norm(flow: Flow) -> Tensor | None:
    """Return a bound of ‖qk_h‖ over all times, (*system, head), or None where none is known."""
    schedule = flow.attention.qk
    inner = schedule.schedule if isinstance(schedule, OnHorizon) else schedule
    heads = inner.heads if isinstance(inner, PerHead) else (inner,)
    head_norms: list[Tensor] = []
    for head in heads:
        if isinstance(head, Sinusoidal):
            norm = torch.linalg.matrix_norm(head.matrix.double(), 2)
            head_norms.append(head.amplitude.double().abs().amax(dim=-1) * norm)
            continue
        if not measured.known_at_all_times(head):
            return None  # asked nowhere: a head by itself does not know the times of the run
        matrices, _ = measured.observed(head)
        head_norms.append(torch.stack([torch.linalg.matrix_norm(matrix, 2) for matrix in matrices]).amax(dim=0))
    systems = np.broadcast_shapes(*(norms.shape[:-1] for norms in head_norms))
    return torch.cat([norms.expand(*systems, norms.shape[-1]) for norms in head_norms], dim=-1).detach().cpu()


def deepest_direction(flow: Flow, start: Tensor) -> Tensor:
    """Return the v of the deepest half space, scaled to v^T M v = 1 as in the theorem; zeros without one."""
    direction = hemisphere(start.double()).direction
    metric = measured.metric_of(flow).to(direction)
    length = ((direction.unsqueeze(-2) @ metric).squeeze(-2) * direction).sum(dim=-1, keepdim=True).sqrt()
    return torch.where(length > 0, direction / torch.where(length > 0, length, 1.0), 0.0)


def _conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow, states = flow_of_run(trajectory), trajectory.tensor.detach().double()
    metric = measured.metric_of(flow).to(states)
    v = deepest_direction(flow, states[..., 0, :, :])
    # The largest |v·y| on the ellipsoid is |v| in the metric M^{-1}: the scale of (13).
    scale = (torch.linalg.solve(metric, v.unsqueeze(-1)).squeeze(-1) * v).sum(dim=-1).sqrt()
    lone = (scale == 0).cpu().numpy()
    values = hemisphere_function(states, v.unsqueeze(-2)) / torch.where(scale > 0, scale, 1.0).unsqueeze(-1)
    rise = never_rises(
        values,
        trajectory,
        integration_tolerance(trajectory),
        "relative rise of max_i (1 − v·y_i), v the direction of the half space",
    )
    narrow = never_above(
        _excess_width(trajectory, v, scale),
        trajectory,
        integration_tolerance(trajectory),
        "width of the tokens y_i/(v·y_i) beyond that of an exponential fall at the proved rate",
    )
    lower = torch.linalg.cholesky(metric)
    # In coordinates where the ellipsoid is the unit sphere, half the diameter is at most 1.
    spread = diameter(states @ lower.unsqueeze(-3)) / 2
    conditions = (rise, narrow, tends_to_zero(spread, LIMIT, HALF_DIAMETER))
    if not np.any(lone):
        return conditions
    return (*conditions, undecided(lone.shape, "no open half space holds the start", lone))


def _excess_width(trajectory: Trajectory, v: Tensor, scale: Tensor) -> Tensor:
    """Return by how much widths exceed what is left of any earlier one, (*system, time), in units of an error in y.

    An error of the states, of size 1, is an error of at most 2/ρ² in ``s y/(v·y)``, ρ = min v·x_i/s.
    """
    flow, states = flow_of_run(trajectory), trajectory.tensor.detach().double()
    metric = measured.metric_of(flow).to(states)
    steps = flow_steps(trajectory)
    rate = width_rate(flow, states[..., 0, :, :])
    length = torch.where(scale > 0, scale, 1.0)
    share = (states * v.unsqueeze(-2).unsqueeze(-2)).sum(dim=-1) / length[..., None, None]
    # Beyond the half space there is no chart: that (13) rose there is another condition.
    inside = share.amin(dim=-1) > 0
    # Columns that are orthonormal in the metric: the ellipsoid is then the unit sphere.
    round_states = states @ torch.linalg.cholesky(metric).unsqueeze(-3)
    chart = round_states / torch.where(share > 0, share, 1.0).unsqueeze(-1)
    widths = chart.amax(dim=-2) - chart.amin(dim=-2)
    bound, excess = widths[..., 0, :], [torch.zeros_like(rate)]
    for index in range(1, len(steps) + 1):
        bound = bound * torch.exp(-rate * steps[index - 1]).unsqueeze(-1)
        excess.append((widths[..., index, :] - bound).amax(dim=-1))
        bound = torch.minimum(bound, widths[..., index, :])
    error = share[..., 0, :].amin(dim=-1).clamp_min(0).square() / 2
    return torch.where(inside, torch.stack(excess, dim=-1) * error.unsqueeze(-1), 0.0)


STATEMENT = Statement(
    name="asymptotic-4.1",
    title="Consensus from any open half space",
    equations="(11), (13)",
    erratum=(
        "The paper's (13), max_i (1 − v·y_i), does not tend to 0: its limit is 1 − v·y* at the consensus y*, positive "
        "in general on the sphere and below 0 where v·y* > 1, which an ellipsoid allows. What vanishes is the "
        "diameter. Uniform continuity of qk is not needed, and ov_h = c_h I with c_h > 0 suffices where ov = I is "
        "asked for."
    ),
    structure=lambda flow: (
        measured.on_ellipsoid(flow),
        measured.weights_are_softmax(flow),
        measured.no_positions(flow),
        measured.full_mask(flow),
    ),
    hypotheses=lambda flow, start: (
        *measured.positive_multiples(flow),
        measured.bounded(flow.attention.qk, "qk"),
        measured.open_half_space(start),
    ),
    predict=_predict,
    conditions=_conditions,
)
