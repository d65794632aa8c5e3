"""Statements of `perspective`: tokens on the sphere with qk = βI and values that are a multiple of the identity."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._closed_forms import equiangular_slope, predict_equiangular
from tokendynamics.theorems._conditions import except_where, flow_of_run, integration_tolerance, never_above
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction
from tokendynamics.words import exponential, number

EQUAL = 1e-12
"""Cosines of a start count as equal within this."""
DECIDED_BY_ROUNDING = 0.1
"""An error of the integrator that can grow beyond this decides how the equal angles break up."""


def temperature(flow: Flow) -> tuple[Tensor, Tensor]:
    """Return β of each system, the mean of the diagonal of qk, and the largest entry of qk − βI, both (*system,)."""
    qk = flow.attention.qk.matrix_at(0.0)[..., 0, :, :].detach().double().cpu()
    beta = qk.diagonal(dim1=-2, dim2=-1).mean(dim=-1)
    return beta, (qk - beta[..., None, None] * torch.eye(flow.dim).double()).abs().amax(dim=(-2, -1))


def multiple_of_the_identity(flow: Flow) -> tuple[Hypothesis, ...]:
    """Measure that qk is βI, constant in time."""
    constant = measured.constant(flow.attention.qk, "qk")
    if not constant.anywhere:
        return (constant,)
    beta, deviation = temperature(flow)
    allowed = measured.rounding(flow.dim, measured.precision(flow.attention.qk)) * (1 + float(beta.abs().max()))
    return (
        constant,
        measured.at_most("qk is a multiple of the identity", deviation, allowed, "the largest entry of qk − βI"),
    )


def _cosines(states: Tensor) -> Tensor:
    """Return the cosines of all pairs i < j, (…, pair)."""
    first, second = torch.triu_indices(states.shape[-2], states.shape[-2], 1)
    unit = states / torch.linalg.vector_norm(states, dim=-1, keepdim=True)
    return (unit @ unit.mT)[..., first, second]


def _structure(flow: Flow) -> tuple[Hypothesis, ...]:
    return (
        measured.on_sphere(flow),
        measured.dim_at_least_two(flow),
        measured.weights_are_softmax(flow),
        measured.no_positions(flow),
        measured.full_mask(flow),
        measured.one_head(flow),
    )


def _equiangular_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    tokens = measured.fact("at least two tokens", start.shape[-2] >= 2, f"there are {start.shape[-2]}")
    if tokens.holds is False:
        return (tokens,)
    cosines = _cosines(start)
    spread = cosines.amax(dim=-1) - cosines.amin(dim=-1)
    above_rest = cosines.mean(dim=-1) + 1 / (start.shape[-2] - 1)
    return (
        *multiple_of_the_identity(flow),
        *measured.positive_multiples(flow),
        tokens,
        measured.at_most("one cosine for all pairs", spread, EQUAL, "the largest difference of two cosines"),
        measured.above(
            "tokens not at rest", above_rest, EQUAL, "how far the cosine is above −1/(ℓ − 1), the simplex at rest,"
        ),
    )


def _predict_equiangular(flow: Flow, start: Tensor) -> Prediction:
    beta = temperature(flow)[0]
    pull = flow.weight_factor * measured.multiples(flow)[1].sum(dim=-1)
    rate = float(pull.min())
    where = number(float(_cosines(start).mean()), 4)
    betas = number(float(beta.flatten()[0]), 4) if beta.numel() == 1 else "of each system"
    text = (
        f"all pairs keep one cosine, {where} at the start, which follows an equation in one unknown (β {betas}) and "
        f"ends at 1; distances then shrink like {exponential(-rate)}"
    )
    return Prediction(text, limit="one point", rate=rate)


def _follows_the_cosine(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow, states = flow_of_run(trajectory), trajectory.tensor.detach().double()
    cosines, tokens = _cosines(states), states.shape[-2]
    systems = tuple(states.shape[:-3])
    speed = flow.weight_factor * measured.multiples(flow)[1].sum(dim=-1)
    numbers = (temperature(flow)[0], speed, cosines[..., 0, :].mean(dim=-1))
    predicted, slopes = [], []
    for beta, fast, first in zip(*(part.expand(systems).flatten().tolist() for part in numbers), strict=True):
        gamma = predict_equiangular(np.asarray(trajectory.times), tokens, beta, cosine=first, speed=fast)
        predicted.append(gamma)
        slopes.append(equiangular_slope(gamma, tokens, beta, speed=fast, weights="softmax"))
    gap = cosines - torch.from_numpy(np.stack(predicted).reshape(*systems, -1, 1))
    # The error of a solution of γ' = f(γ) grows as f(γ(t)) does.
    slope = np.abs(np.stack(slopes)).reshape(*systems, -1)
    growth = np.maximum(slope / np.minimum.accumulate(slope, axis=-1).clip(np.finfo(float).tiny), 1.0)
    tolerance = integration_tolerance(trajectory)
    text = "largest distance of a cosine from that of the equation, by what an error grows"
    condition = never_above(gap.abs().amax(dim=-1).numpy() / growth, trajectory, tolerance, text)
    sharp = np.asarray((growth.max(axis=-1) > 1) & (tolerance * growth.max(axis=-1) > DECIDED_BY_ROUNDING))
    return (except_where(condition, sharp, "an error of the run grows until it decides which tokens meet first"),)


STATEMENTS = (
    Statement(
        name="perspective-6.8",
        title="Tokens at equal angles keep equal angles",
        equations="Theorem 6.8",
        erratum="",
        structure=_structure,
        hypotheses=_equiangular_hypotheses,
        predict=_predict_equiangular,
        conditions=_follows_the_cosine,
    ),
)
