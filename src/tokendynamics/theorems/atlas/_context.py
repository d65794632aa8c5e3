"""Statement of `context`: what one attention average makes of equal angles in a long context."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._closed_forms import averaged_cosine, predict_long_context
from tokendynamics.theorems._conditions import except_where, flow_of_run, never_above
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction
from tokendynamics.words import number

EQUAL = 1e-12
"""Cosines of a start count as equal within this."""
_IDENTITY = 1e-10


def _hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    tokens = measured.tokens_at_least(start, 2)
    if tokens.holds is False:
        return (tokens,)
    cosines = measured.pair_cosines(start)
    return (
        tokens,
        *measured.multiple_of_the_identity(flow),
        *measured.positive_multiples(flow),
        measured.at_most(
            "one cosine for all pairs",
            cosines.amax(dim=-1) - cosines.amin(dim=-1),
            EQUAL,
            "the largest difference of two cosines",
        ),
        measured.at_most("cosine not negative", -cosines.mean(dim=-1), EQUAL, "the cosine with its sign changed"),
    )


def _predict(flow: Flow, start: Tensor) -> Prediction:
    tokens, limit = start.shape[-2], "none: one average"
    if start.ndim > 2:
        text = "one attention average takes the cosine of each system to another, which its β and the tokens decide"
        return Prediction(text, limit=limit)
    beta = float(measured.temperature(flow)[0])
    rho = min(max(float(measured.pair_cosines(start).mean()), 0.0), 1.0)
    scale = beta / math.log(tokens)
    after, last = averaged_cosine(tokens, beta, rho), predict_long_context(math.inf, scale, rho)
    critical = "" if rho == 1 else f"; the critical factor is {number(1 / (1 - rho), 4)}"
    text = (
        f"one attention average takes the cosine {number(rho, 4)} to {number(float(after), 4)}; with "
        f"β = {number(scale, 4)} log ℓ it tends to {number(last, 4)} as ℓ grows{critical}"
    )
    return Prediction(text, limit=limit)


def _average(trajectory: Trajectory) -> tuple[Condition, ...]:
    """Hold the average at the start against the formula; what the flow does with it later is another matter."""
    flow, start = flow_of_run(trajectory), trajectory.tensor[..., 0, :, :].detach().double()
    time, tokens = float(np.asarray(trajectory.times)[0]), start.shape[-2]
    systems = tuple(start.shape[:-2])
    beta = measured.temperature(flow)[0].expand(systems).numpy()
    weights = torch.as_tensor(flow.attention.pattern(start, time))[..., 0, :, :]
    cosines = measured.pair_cosines(weights @ start) if tokens > 1 else torch.ones(*systems, 1, dtype=torch.float64)
    rho = measured.pair_cosines(start).mean(dim=-1).numpy() if tokens > 1 else np.ones(systems)
    wanted = averaged_cosine(tokens, beta, np.clip(rho, 0.0, 1.0))
    gap = (cosines - torch.as_tensor(wanted).unsqueeze(-1)).abs().amax(dim=-1).numpy()
    excess = np.full((*systems, len(trajectory.times)), -np.inf)
    excess[..., 0] = gap / (1 + np.abs(beta))  # the exponents are rounded relative to β
    text = "distance of the cosines of Σ_j w_ij x_j at the start from the formula, relative to 1 + β"
    condition = never_above(excess, trajectory, _IDENTITY, text, pointwise=True)
    return (except_where(condition, np.asarray(rho < -EQUAL), "the mean cosine is negative"),)


STATEMENTS = (
    Statement(
        name="context-layer",
        title="One attention average keeps, shrinks or ends the angles of a long context",
        equations="the phase transition of one layer",
        structure=measured.one_head_on_the_sphere,
        hypotheses=_hypotheses,
        predict=_predict,
        conditions=_average,
    ),
)
