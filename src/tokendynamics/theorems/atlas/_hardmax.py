"""A statement of `hardmax`: layers in which a token keeps a share of itself and takes the rest from its average."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.observables import diameter
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import (
    LIMIT,
    deviations_of,
    flow_of_run,
    layers_only,
    log_tolerance,
    never_above,
    tends_to_zero,
)
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.contraction import single_head_in_free_space
from tokendynamics.theorems.result import Condition, Prediction
from tokendynamics.words import number


def least_weight(flow: Flow, start: Tensor) -> Tensor:
    """Return a lower bound of every weight at every point of the hull of the start, (…,).

    Logits β x·x_j of one point x of the hull differ by at most |β| max_i |x_i| D, D the largest distance of tokens.
    """
    beta = measured.temperature(flow)[0].abs()
    spread = beta * torch.linalg.vector_norm(start, dim=-1).amax(dim=-1) * diameter(start)
    return torch.sigmoid(-spread - np.log(max(start.shape[-2] - 1, 1)))


def _predict(flow: Flow, start: Tensor) -> Prediction:
    least = start.shape[-2] * float(least_weight(flow, start).min())
    text = (
        "layers (1 − γ) x + γ · attention(x), 0 < γ ≤ 1, take all tokens to one point of the hull of the start; each "
        f"layer leaves at most 1 − {number(least, 3)} γ of the largest distance"
    )
    return Prediction(text, limit="one point")


_SHRINKS = "the largest distance of tokens shrinks by 1 − ℓγc at each layer"


def _refused(trajectory: Trajectory) -> tuple[Condition] | None:
    factor = flow_of_run(trajectory).weight_factor

    def objection(residual: float, tau: float) -> str | None:
        share = tau * factor
        if share <= 1 and abs(residual + share - 1) <= 1e-12:
            return None
        return f"residual factor {number(residual)} and {number(share)} of the attention are no shares that add to 1"

    return layers_only(trajectory, _SHRINKS, objection)


def _conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    if (refused := _refused(trajectory)) is not None:
        return refused
    flow = flow_of_run(trajectory)
    factor = flow.weight_factor
    deviations, states = deviations_of(trajectory), trajectory.tensor.detach().double().cpu()
    start, share = states[..., 0, :, :], factor * float(trajectory.parameters["tau"])
    logs, times = deviations.log_diameter.cpu(), torch.as_tensor(np.asarray(trajectory.times))
    fall = torch.log1p(-(start.shape[-2] * share * least_weight(flow, start)).clamp_max(1.0))[..., None]
    bound = logs[..., :1] + fall * (times - times[0])
    above = torch.where(torch.isneginf(logs), -torch.inf, (logs - bound) / (1 + bound.abs()))
    # Coordinates and their opposites, as shares of the largest: none of the hull's extents grows.
    scale = start.abs().amax(dim=(-2, -1))[..., None, None].clamp_min(torch.finfo(torch.float64).tiny)
    extents = torch.cat([states.amax(dim=-2), -states.amin(dim=-2)], dim=-1) / scale
    outside = (extents - extents.cummin(dim=-2).values).amax(dim=-1)
    tolerance = log_tolerance(trajectory)
    return (
        never_above(above, trajectory, tolerance, f"{_SHRINKS}, in logarithms", pointwise=True),
        never_above(outside, trajectory, tolerance, "no extent of the tokens' hull grows", pointwise=True),
        tends_to_zero((logs - logs[..., :1]).exp().nan_to_num(0.0), LIMIT, "the largest distance tends to 0"),
    )


STATEMENTS = (
    Statement(
        name="hardmax-averaging",
        title="Layers that keep a share of each token take all tokens to one point of their hull",
        equations="section 5",
        structure=single_head_in_free_space,
        hypotheses=lambda flow, start: (*measured.multiple_of_the_identity(flow), measured.identity_values(flow)),
        predict=_predict,
        conditions=_conditions,
        decidable=lambda trajectory: _refused(trajectory) is None,
        subject="layers",
    ),
)
