"""Remark 5.1 of `asymptotic`: another projection makes a regular value matrix equivalent to the identity."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import beyond_rounding, except_where, flow_of_run, never_above, undecided
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.contraction import head_matrix
from tokendynamics.theorems.result import Condition, Hypothesis
from tokendynamics.theorems.statements._asymptotic_5_1 import (
    causal_attention,
    causal_consensus,
    causal_consensus_conditions,
    generic_start,
)

TOLERANCE = 1e-12
"""Largest relative error of the change of coordinates."""


def _hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    ov = head_matrix(flow.attention.ov)
    singular = torch.linalg.svdvals(ov)
    regular = singular[..., -1] / singular[..., 0].clamp_min(torch.finfo(ov.dtype).tiny)
    what = "the lowest singular value of ov relative to the largest"
    hypotheses = [
        measured.bounded(flow.attention.qk, "qk"),
        measured.constant(flow.attention.ov, "ov"),
        measured.above("ov invertible", regular, measured.ROUNDING, what),
    ]
    if not hypotheses[-1].anywhere:
        return tuple(hypotheses)
    what = "the relative difference of M and ov^T ov"
    allowed = measured.rounding(flow.dim, *_dtypes(flow))
    hypotheses.append(measured.equal(measured.metric_of(flow), ov.mT @ ov, "M = ov^T ov", what, allowed))
    if hypotheses[-1].anywhere:
        hypotheses.extend(generic_start(flow.space.project(start) @ ov.mT))
    return tuple(hypotheses)


def _dtypes(flow: Flow) -> list[torch.dtype]:
    """Return the precisions in which ov and M came."""
    metric = flow.geometry.metric
    return [measured.precision(flow.attention.ov), *([] if metric is None else [metric.dtype])]


def sphere_velocity(flow: Flow, ov: Tensor, z: Tensor, t: float) -> Tensor:
    """Return the velocity of the causal identity-value system at z = ov y on the sphere, written out.

    ``z_i' = factor · Σ_{j ≤ i} β_ij (z_j − (z_i·z_j) z_i)`` with β the softmax of ``y_i^T qk y_j``, y = ov^{−1} z.
    """
    qk = flow.attention.qk.matrix_at(t)[..., 0, :, :].to(z)
    y = torch.linalg.solve(ov.to(z), z.mT).mT
    hidden = torch.ones(z.shape[-2], z.shape[-2], dtype=torch.bool, device=z.device).triu(1)
    weights = (y @ qk @ y.mT).masked_fill(hidden, -torch.inf).softmax(dim=-1)
    inner = z @ z.mT
    return flow.weight_factor * (weights @ z - (weights * inner).sum(dim=-1, keepdim=True) * z)


def _conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow, states = flow_of_run(trajectory), trajectory.tensor.detach().double()
    ov = head_matrix(flow.attention.ov).to(states)
    singular = np.broadcast_to(~_regular(ov).cpu().numpy(), states.shape[:-3])
    text = "relative difference of ov · velocity(y) and the velocity at ov y on the sphere"
    if singular.all():
        return (undecided(tuple(states.shape[:-3]), f"{text}: ov is singular, there is no z = ov y on the sphere"),)
    # What is singular is replaced by something that can be solved, and said to be undecided.
    ov = torch.where(torch.as_tensor(~_regular(ov))[..., None, None], torch.eye(flow.dim).to(ov), ov)
    error = torch.stack(
        [
            _change_of_coordinates(flow, flow.space.project(states[..., index, :, :]), ov, float(time))
            for index, time in enumerate(np.asarray(trajectory.times))
        ],
        dim=-1,
    )
    # Rounding of y^T M y, with M = ov^T ov, is that of the squared condition number of ov, in the precision that came.
    coarser = max(torch.finfo(dtype).eps for dtype in _dtypes(flow)) / torch.finfo(ov.dtype).eps
    error = beyond_rounding(error, coarser * torch.linalg.cond(ov) ** 2, TOLERANCE)
    conditions = (
        never_above(error, trajectory, TOLERANCE, text, pointwise=True),
        *causal_consensus_conditions(states @ ov.mT.unsqueeze(-3), trajectory),
    )
    return tuple(
        except_where(one, singular, "ov is singular: there is no z = ov y on the sphere") for one in conditions
    )


def _regular(ov: Tensor) -> Tensor:
    """Tell whether ov can be solved for, (…,)."""
    singular = torch.linalg.svdvals(ov)
    return singular[..., -1] > measured.ROUNDING * singular[..., 0]


def _change_of_coordinates(flow: Flow, y: Tensor, ov: Tensor, t: float) -> Tensor:
    gap = flow.velocity(y, t) @ ov.mT - sphere_velocity(flow, ov, y @ ov.mT, t)
    return torch.linalg.vector_norm(gap, dim=-1).amax(dim=-1) / flow.weight_factor


STATEMENT = Statement(
    name="asymptotic-remark-5.1",
    title="Causal consensus for a regular value matrix under another projection",
    equations="(20)",
    erratum="The domain of attraction is that of theorem 5.1: almost every start, not all with ov y_j ≠ −ov y_1.",
    structure=lambda flow: (
        measured.on_ellipsoid(flow),
        measured.projection_is(flow, "remark_5_1"),
        measured.dim_at_least_two(flow),
        *causal_attention(flow),
        measured.one_head(flow),
    ),
    hypotheses=_hypotheses,
    predict=lambda flow, start: causal_consensus(flow, 1, start.shape[-2]),
    conditions=_conditions,
)
