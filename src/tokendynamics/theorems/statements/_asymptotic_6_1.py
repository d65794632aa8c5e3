"""Theorem 6.1 of `asymptotic`: a symmetric value matrix draws a half sphere to its top eigenvector."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.observables import direction_deficit
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import (
    LIMIT,
    flow_of_run,
    integration_tolerance,
    never_above,
    never_rises,
    tends_to_zero,
)
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.contraction import head_matrix
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction
from tokendynamics.words import exponential

SIMPLE = 1e-10
"""The gap below the top eigenvalue, relative to the largest |eigenvalue|, that counts as positive."""


def _hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    ov = head_matrix(flow.attention.ov)
    values = torch.linalg.eigvalsh((ov + ov.mT) / 2)
    largest = values.abs().amax(dim=-1).clamp_min(torch.finfo(ov.dtype).tiny)
    top = values[..., -1] / largest
    allowed = measured.rounding(flow.dim, measured.precision(flow.attention.ov))
    hypotheses = [
        measured.bounded(flow.attention.qk, "qk"),
        measured.constant(flow.attention.ov, "ov"),
        measured.symmetric(ov, "ov", allowed),
        measured.above("top eigenvalue of ov positive", top, allowed, "that eigenvalue, relative to the largest"),
    ]
    if flow.dim > 1:
        gap = (values[..., -1] - values[..., -2]) / largest
        # An asymmetry that is allowed takes eigenvalues that are nearer to each other off the real line.
        least = max(SIMPLE, flow.dim * allowed)
        hypotheses.append(measured.above("top eigenvalue of ov simple", gap, least, "the relative gap below it"))
        if not hypotheses[-1].anywhere:
            # Without one top eigenvector there is no half sphere to speak of.
            return tuple(hypotheses)
    depth = sided(flow, flow.space.project(start))[1]
    what = "the least |v·y_i|, negative if tokens lie on both sides,"
    hypotheses.append(measured.above("all v·y_i of one sign", depth, measured.ROUNDING, what))
    return tuple(hypotheses)


def sided(flow: Flow, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the top eigenvector on the side of token 1, (…, dim), and the least v·y_i over the tokens, (…,)."""
    ov = head_matrix(flow.attention.ov).to(y)
    v = torch.linalg.eigh((ov + ov.mT) / 2).eigenvectors[..., -1]
    side = (y[..., 0, :] * v).sum(dim=-1, keepdim=True)
    v = torch.where(side < 0, -v, v)
    return v, (y * v.unsqueeze(-2)).sum(dim=-1).amin(dim=-1)


def _predict(flow: Flow, start: Tensor) -> Prediction:
    rate = flow.weight_factor * _slowest(head_matrix(flow.attention.ov), start.shape[-2])
    text = (
        "the half sphere stays invariant and all tokens go to the top eigenvector v of ov on their side, distances "
        f"shrinking like {exponential(-rate)} in the end; 1 − v·y_i may rise first, except for token 1"
    )
    return Prediction(text, limit="consensus at the top eigenvector of ov, on the side of the start", rate=rate)


def _slowest(ov: Tensor, tokens: int) -> float:
    """Return the rate per weight: the lowest λ − μ/i over the other eigenvalues μ and the tokens i."""
    values = torch.linalg.eigvalsh((ov + ov.mT) / 2)
    if values.shape[-1] == 1:
        return float(values.min())
    # Of token i only its own weight, 1/i at consensus, feeds its deviation back through ov.
    second = values[..., -2]
    return float((values[..., -1] - torch.maximum(second, second / tokens)).min())


def _conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow, states = flow_of_run(trajectory), trajectory.tensor.detach()
    v = sided(flow, states[..., 0, :, :].double())[0].unsqueeze(-2)
    deficits = direction_deficit(states, v)
    tolerance = integration_tolerance(trajectory)
    return (
        never_rises(deficits[..., 0], trajectory, tolerance, "rise of 1 − v·y_1"),
        never_above(deficits.amax(dim=-1) - 1, trajectory, tolerance, "depth beyond the half sphere, max_i (−v·y_i)"),
        tends_to_zero(deficits.amax(dim=-1), LIMIT, "max_i (1 − v·y_i) tends to 0"),
    )


STATEMENT = Statement(
    name="asymptotic-6.1",
    title="Causal consensus at the top eigenvector of a symmetric value matrix",
    equations="(21), (22), (23)",
    structure=lambda flow: (
        measured.on_sphere(flow),
        measured.projection_is(flow, "orthogonal"),
        measured.weights_are_softmax(flow),
        measured.no_positions(flow),
        measured.causal_mask(flow),
        measured.one_head(flow),
    ),
    hypotheses=_hypotheses,
    predict=_predict,
    conditions=_conditions,
)
