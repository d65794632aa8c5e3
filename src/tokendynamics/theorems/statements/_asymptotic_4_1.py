"""Theorem 4.1 of `asymptotic`: tokens in an open half space stay there and reach consensus."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.observables import diameter, hemisphere, hemisphere_function
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import (
    LIMIT,
    flow_of_run,
    integration_tolerance,
    never_rises,
    tends_to_zero,
    undecided,
)
from tokendynamics.theorems._result import Condition, Hypothesis, Prediction
from tokendynamics.theorems._statement import Statement

NOT_TO_ZERO = {
    "qk": [[1.0, 0.0], [0.0, 1.0]],
    "ov": [[1.0, 0.0], [0.0, 1.0]],
    "metric": [[0.25, 0.0], [0.0, 1.0]],
    "start": [[2.0, 0.0], [1.2, 0.8], [1.6, -0.6]],
    "direction": [2.0, 0.0],
}
"""A flow, a start and a direction v with v^T M v = 1 for which (13), non-increasing, goes to 1 − v·y* far below 0, not
to 0 as a Lyapunov function of the consensus set would."""


def _structure(flow: Flow) -> tuple[Hypothesis, ...]:
    return (
        measured.on_ellipsoid(flow),
        measured.weights_are_softmax(flow),
        measured.no_positions(flow),
        measured.full_mask(flow),
    )


def _hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    return (
        measured.identity_values(flow),
        measured.bounded(flow.attention.qk, "qk"),
        measured.uniformly_continuous(flow.attention.qk, "qk"),
        measured.open_half_space(start),
    )


def _predict(flow: Flow, start: Tensor) -> Prediction:
    # At consensus every weight is 1/ℓ: the linear part is heads · weight_factor · (mean − token).
    rate = flow.weight_factor * flow.heads
    text = (
        "the half space stays invariant, (13) does not increase, and the tokens reach consensus inside it, distances "
        f"shrinking like exp(−{rate:.6g} t) in the end"
    )
    return Prediction(text, limit="consensus in the half space of the start", rate=rate)


def deepest_direction(flow: Flow, start: Tensor) -> Tensor:
    """Return the v of the deepest half space, scaled to v^T M v = 1 as in the theorem; zeros where there is none."""
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
        values, trajectory, integration_tolerance(trajectory), "relative rise of (13), max_i (1 − v·y_i)"
    )
    lower = torch.linalg.cholesky(metric)
    # In coordinates where the ellipsoid is the unit sphere, half the diameter is at most 1.
    spread = diameter(states @ lower.unsqueeze(-3)) / 2
    found = (rise, tends_to_zero(spread, LIMIT, "the diameter (half of it, in the metric M) tends to 0"))
    if not np.any(lone):
        return found
    return (*found, undecided(lone.shape, "(13) needs an open half space that holds the start; there is none", lone))


STATEMENT = Statement(
    name="asymptotic-4.1",
    title="Consensus from any open half space",
    equations="(11), (13)",
    erratum=(
        "(13) does not tend to 0: its limit is 1 − v·y* at the consensus y*, positive in general on the sphere and "
        "below 0 where v·y* > 1, which an ellipsoid allows. What vanishes is the diameter."
    ),
    structure=_structure,
    hypotheses=_hypotheses,
    predict=_predict,
    conditions=_conditions,
)
