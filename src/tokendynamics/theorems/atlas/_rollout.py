"""Statements of `rollout`: what a flow or a stack of attention patterns with a causal mask makes of the first token."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import LIMIT, flow_of_run, integration_tolerance, never_above, tends_to_zero
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.contraction import head_matrix
from tokendynamics.theorems.result import Condition, Prediction
from tokendynamics.words import number


def _least_weight(flow: Flow, tokens: int) -> Tensor:
    """Return what every token gives the first one at least: 1/(1 + (ℓ − 1) e^{2 q}), q the norm of qk on the space.

    With y = M^{−1/2} u, |u| = 1, logits are u·M^{−1/2} qk M^{−1/2} u', so two of one row differ by at most 2q.
    """
    values, vectors = torch.linalg.eigh(measured.metric_of(flow))
    root = (vectors * values.rsqrt().unsqueeze(-2)) @ vectors.mT
    qk = head_matrix(flow.attention.qk)
    size = torch.linalg.matrix_norm(root @ qk @ root, 2)
    return torch.sigmoid(-2 * size - np.log(max(tokens - 1, 1)))


def _predict(flow: Flow, start: Tensor) -> Prediction:
    least = float(_least_weight(flow, start.shape[-2]).min())
    text = (
        "the product of the attention patterns of n saved times goes to its first column: all but a share of at most "
        f"(1 − {number(least, 3)})^n of every row is at token 1"
    )
    return Prediction(text, limit="the first column")


def _conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow, states = flow_of_run(trajectory), trajectory.tensor.detach().double().cpu()
    systems, tokens = tuple(states.shape[:-3]), states.shape[-2]
    product = torch.eye(tokens, dtype=torch.float64).expand(*systems, tokens, tokens)
    logs = []
    for index, time in enumerate(np.asarray(trajectory.times, dtype=float).tolist()):
        product = flow.attention.pattern(states[..., index, :, :], time)[..., 0, :, :] @ product
        # What is not at token 1, as a sum: 1 less the share of token 1 has no digits of small numbers.
        logs.append(product[..., 1:].sum(dim=-1).amax(dim=-1).abs().log())
    rest = torch.stack(logs, dim=-1)
    layers = torch.arange(1, rest.shape[-1] + 1).double()
    bound = layers * torch.log1p(-_least_weight(flow, tokens))[..., None].expand(*systems, 1)
    text = "log of the share of other tokens than the first in the product, less its bound"
    return (
        never_above(rest - bound, trajectory, integration_tolerance(trajectory), text),
        tends_to_zero(rest.exp(), LIMIT, "that share tends to 0"),
    )


STATEMENTS = (
    Statement(
        name="rollout-product",
        title="Attention through many layers with a causal mask ends at the first token",
        equations="the abstract",
        structure=lambda flow: (
            measured.on_ellipsoid(flow),
            measured.weights_are_softmax(flow),
            measured.no_positions(flow),
            measured.causal_mask(flow),
            measured.one_head(flow),
        ),
        hypotheses=lambda flow, start: (measured.constant(flow.attention.qk, "qk"),),
        predict=_predict,
        conditions=_conditions,
        subject="flow and layers",
    ),
)
