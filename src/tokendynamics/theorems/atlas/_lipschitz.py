"""Statement of `lipschitz`: how fast attention can change with the tokens, in a ball.

Of f_i = ov Σ_j w_ij x_j the derivative along h is ov times a sum of three terms: Σ_j w_ij h_j, the covariance of the
senders times qk^T h_i, and Σ_j w_ij (x_j − m_i)(x_i·qk h_j), with m_i their mean. In the ball of radius R the
covariance has norm at most R², and Σ_i w_ij is at most ℓ, so that their norms are at most √ℓ, ‖qk‖R² and √ℓ‖qk‖R².
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import flow_of_run, never_above
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction
from tokendynamics.words import number

_IDENTITY = 1e-10
"""Excess of the norm, relative to the bound, that counts as rounding."""
_LOOKED_AT = 16
_LARGEST = 600
"""Tokens × features beyond which `certify` does not ask of itself: the singular values of that many rows take long."""


def _structure(flow: Flow) -> tuple[Hypothesis, ...]:
    return (measured.in_free_space(flow), measured.weights_are_softmax(flow), measured.no_positions(flow))


def _bound(flow: Flow, states: Tensor, time: float) -> Tensor:
    """Return Σ_h ω ‖ov_h‖ (√ℓ + ‖qk_h‖ R² (1 + √ℓ)) with R the largest |x_i|, (*system,)."""
    schedules = flow.attention.qk, flow.attention.ov
    qk, ov = (torch.linalg.matrix_norm(one.matrix_at(time).detach().double().cpu(), 2) for one in schedules)
    root = math.sqrt(states.shape[-2])
    squared = states.square().sum(dim=-1).amax(dim=-1, keepdim=True)
    return flow.weight_factor * (ov * (root + qk * squared * (1 + root))).sum(dim=-1)


def _predict(flow: Flow, start: Tensor) -> Prediction:
    times = getattr(flow.attention.qk, "moments", (0.0,))
    bound = float(_bound(flow, start.detach().double().cpu(), float(times[0])).max())
    text = (
        "the Jacobian of attention has at most the norm ‖ov‖ (√ℓ + ‖qk‖ R² (1 + √ℓ)) where all tokens are in the "
        f"ball of radius R, {number(bound)} at the start"
    )
    return Prediction(text, limit="none: a bound at every state")


def _jacobian_norm(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow, states = flow_of_run(trajectory), trajectory.tensor.detach().double()
    moments = np.asarray(trajectory.times, dtype=float)
    excess = torch.full(states.shape[:-2], -torch.inf, dtype=torch.float64)
    for index in np.unique(np.linspace(0, len(moments) - 1, min(len(moments), _LOOKED_AT)).round().astype(int)):
        x, time = states[..., index, :, :], float(moments[index])
        matrices = flow.jacobian(x, time).flatten(-4, -3).flatten(-2, -1)
        norm = torch.linalg.matrix_norm(matrices, 2)
        excess[..., index] = norm / _bound(flow, x, time).expand(norm.shape).clamp_min(torch.finfo(norm.dtype).tiny) - 1
    text = "norm of the Jacobian of attention relative to its bound in the ball of the tokens, less 1"
    return (never_above(excess, trajectory, _IDENTITY, text, pointwise=True),)


STATEMENTS = (
    Statement(
        name="lipschitz-ball",
        title="In a ball attention changes at most like the root of the number of tokens",
        equations="the bound on a ball",
        structure=_structure,
        hypotheses=lambda flow, start: (),
        predict=_predict,
        conditions=_jacobian_norm,
        decidable=lambda trajectory: math.prod(trajectory.tensor.shape[-2:]) <= _LARGEST,
    ),
)
