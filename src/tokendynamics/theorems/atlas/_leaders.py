"""Statements on hardmax weights: of `hardmax` and `leaders`.

A leader attends to itself alone. Its logit with itself, ``x_i · qk x_i``, is the largest of its row.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from tokendynamics.attention.mixing import equal_shares, largest_logits
from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import (
    LIMIT,
    flow_of_run,
    integration_tolerance,
    layers_only,
    never_above,
    tends_to_zero,
    undecided,
)
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.contraction import head_matrix
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction
from tokendynamics.words import exponential, number

_LEAD = 1e-9
"""Leads below this share of the largest logit of a row are none."""


def _structure(flow: Flow) -> tuple[Hypothesis, ...]:
    return (
        measured.in_free_space(flow),
        measured.weights_are(flow, "hardmax"),
        measured.no_positions(flow),
        measured.full_mask(flow),
        measured.one_head(flow),
    )


def _leads(logits: Tensor, sender: Tensor) -> Tensor:
    """Return by how much the logit of a sender (…, receiver) exceeds all others of its row, as a share of the row."""
    of_sender = logits.gather(-1, sender.unsqueeze(-1))
    others = logits.scatter(-1, sender.unsqueeze(-1), -torch.inf).amax(dim=-1, keepdim=True)
    size = logits.abs().amax(dim=-1, keepdim=True).clamp_min(torch.finfo(logits.dtype).tiny)
    return ((of_sender - others) / size).squeeze(-1)


def _scale(start: Tensor) -> Tensor:
    """Return the largest norm of a token, (…,)."""
    return torch.linalg.vector_norm(start, dim=-1).amax(dim=-1).clamp_min(torch.finfo(start.dtype).tiny)


# --- layers whose shares fall ---------------------------------------------------------------------------------------

_OUTSIDE = 1e-6
"""Distances of 0 from a hull up to this share of the largest norm at the start are rounding."""
_VALUE = "½ x·Bx, B = −qk,"


def _distance_of_zero(states: Tensor, scale: Tensor) -> Tensor:
    """Return the distance of 0 from the hull of the tokens of (…, token, dim), as a share of the scale (…,)."""
    zero = np.zeros(states.shape[-1])
    distances = [_distance(tokens, zero) for tokens in states.reshape(-1, *states.shape[-2:]).numpy()]
    return torch.tensor(distances, dtype=torch.float64).reshape(states.shape[:-2]) / scale


def _first_without_zero(run: Tensor, scale: Tensor) -> int:
    """Return the first layer of (layer, token, dim) whose hull lacks 0, or how many there are.

    Each hull holds the next one, so once 0 is outside it stays there.
    """
    return bisect_left(range(len(run)), True, key=lambda k: bool(_distance_of_zero(run[k], scale) > _OUTSIDE))


def _constant_logits(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    return (measured.constant(flow.attention.qk, "qk"),)


def _definite_logits(flow: Flow, sign: int) -> tuple[Hypothesis, ...]:
    qk, allowed = head_matrix(flow.attention.qk), measured.rounding(flow.dim, measured.precision(flow.attention.qk))
    symmetric, definite = measured.symmetric(qk, "qk", allowed), measured.definite(qk, "qk", sign, allowed)
    return measured.identity_values(flow), symmetric, definite


@measured.given(_constant_logits)
def _falling_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    return (
        *_definite_logits(flow, -1),
        measured.at_most(
            "0 in the hull of the start",
            _distance_of_zero(start, _scale(start)),
            _OUTSIDE,
            "the distance of 0 from the hull, as a share of the largest norm,",
        ),
    )


def _other_than_falling(trajectory: Trajectory) -> tuple[Condition] | None:
    """Return the undecided condition of a run that is not one of layers with the shares 2/(k + 2)."""
    times = torch.as_tensor(np.asarray(trajectory.times, dtype=float))
    reason = ""
    if (trajectory.engine, trajectory.frame, trajectory.parameters.get("method")) != ("fixed", "rescaled", "euler"):
        reason = "the run is not one of Euler steps of rescaled tokens, which are layers with a share for each"
    elif not (np.asarray(trajectory.counts["accepted"]) == len(times) - 1).all():
        reason = "the run does not have one step for each saved time"
    else:
        shares = measured.pull(flow_of_run(trajectory))[..., None] * times.diff()
        wanted = 2 / torch.arange(2, len(times) + 1, dtype=torch.float64)
        if not torch.allclose(shares, wanted.expand_as(shares), rtol=1e-9, atol=0):
            reason = "the shares of the attention are not 2/(k + 2), k = 0, 1, …"
    text = f"{_VALUE} falls like 1/k in layers with the shares 2/(k + 2)"
    return (replace(undecided(tuple(trajectory.tensor.shape[:-3]), text), reason=reason),) if reason else None


def largest_share(layers: int) -> Tensor:
    """Return a_k = 2(2k + 1)/(3k(k + 1)), a_0 = 1: the solution of a ← (1 − γ)² a + γ², γ = 2/(k + 2)."""
    k = torch.arange(1, layers, dtype=torch.float64)
    return torch.cat([torch.ones(1, dtype=torch.float64), 2 * (2 * k + 1) / (3 * k * (k + 1))])


def _falling_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    if (refused := _other_than_falling(trajectory)) is not None:
        return refused
    states = trajectory.tensor.detach().double().cpu()
    scale, layers = _scale(states[..., 0, :, :]), states.shape[-3]
    runs = zip(states.reshape(-1, *states.shape[-3:]), scale.reshape(-1), strict=True)
    first = torch.tensor([_first_without_zero(run, size) for run, size in runs]).reshape(scale.shape)
    without = torch.arange(layers) >= first[..., None]
    outside = torch.where(without, _distance_of_zero(states[..., -1, :, :], scale)[..., None], 0.0)
    form = -head_matrix(flow_of_run(trajectory).attention.qk).unsqueeze(-3)
    values = ((states @ form) * states).sum(dim=-1).amax(dim=-1) / 2
    values = values / values[..., :1].clamp_min(torch.finfo(torch.float64).tiny)
    above = torch.where(without, -torch.inf, values - largest_share(layers))
    inside = "0 stays in the hull of the tokens, without which ½ x·Bx cannot tend to 0"
    bound = f"{_VALUE} is at most 2(2k + 1)/(3k(k + 1)) of its largest value at the start, as long as 0 is in the hull"
    return (
        never_above(outside, trajectory, _OUTSIDE, inside, pointwise=True),
        never_above(above, trajectory, _OUTSIDE, bound, pointwise=True),
        tends_to_zero(values, LIMIT, f"{_VALUE} tends to 0, as a share of its largest value at the start"),
    )


# --- straight to the leaders -----------------------------------------------------------------------------------------


@measured.given(measured.constant_circuits)
def _straight_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    logits = start @ head_matrix(flow.attention.qk) @ start.mT
    followed = logits.argmax(dim=-1)
    of_themselves = _leads(logits, torch.arange(start.shape[-2]).expand(followed.shape)).gather(-1, followed)
    return (
        *measured.positive_multiples(flow),
        measured.above(
            "each token attends to one token",
            _leads(logits, followed).amin(dim=-1),
            _LEAD,
            "the least lead of a largest logit, as a share of its row,",
        ),
        measured.above(
            "those that are attended to are leaders",
            of_themselves.amin(dim=-1),
            _LEAD,
            "the least lead of the logit with itself of a token that is attended to, as a share of its row,",
        ),
    )


def _straight_predict(flow: Flow, start: Tensor) -> Prediction:
    rate = float(measured.pull(flow).min())
    text = (
        "rescaled tokens go straight to the leaders they attend to, which rest; distances shrink like "
        f"{exponential(-rate)}, and nobody changes whom it attends to"
    )
    pattern = text.replace(exponential(-rate), "exp(−{rate} t)")
    return Prediction(text, limit="the leaders", rate=rate, pattern=pattern)


def _straight_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow = flow_of_run(trajectory)
    states = trajectory.tensor.detach().double().cpu()
    start, times = states[..., 0, :, :], torch.as_tensor(np.asarray(trajectory.times, dtype=float))
    shrinking = torch.exp(-measured.pull(flow)[..., None] * (times - times[0]))[..., None, None]
    followed = (start @ head_matrix(flow.attention.qk) @ start.mT).argmax(dim=-1)
    leaders = start.gather(-2, followed.unsqueeze(-1).expand_as(start)).unsqueeze(-3)
    straight = leaders + shrinking * (start.unsqueeze(-3) - leaders)
    rescaled = states if trajectory.frame == "rescaled" else shrinking * states
    error = torch.linalg.vector_norm(rescaled - straight, dim=-1).amax(dim=-1) / _scale(start)[..., None]
    text = "rescaled tokens are on the straight lines to their leaders, at the distance that is left by then"
    return (never_above(error, trajectory, integration_tolerance(trajectory), text),)


# --- layers ----------------------------------------------------------------------------------------------------------


@measured.given(_constant_logits)
def _layer_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    return _definite_logits(flow, 1)


_STAYS = "a leader stays where it is"


def _refused(trajectory: Trajectory) -> tuple[Condition] | None:
    def objection(residual: float, tau: float) -> str | None:
        share = tau * flow_of_run(trajectory).weight_factor
        if 0 < share < 1 and abs(residual + share - 1) <= 1e-12:
            return None
        return f"residual factor {number(residual)} and {number(share)} of the attention are no shares that add to 1"

    return layers_only(trajectory, _STAYS, objection, deviations=False)


def _layer_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    if (refused := _refused(trajectory)) is not None:
        return refused
    states = trajectory.tensor.detach().double().cpu()
    scale = _scale(states[..., 0, :, :])[..., None]
    logits = states @ head_matrix(flow_of_run(trajectory).attention.qk).unsqueeze(-3) @ states.mT
    tolerance = 1e3 * torch.finfo(trajectory.tensor.dtype).eps
    itself = torch.arange(states.shape[-2]).expand(states.shape[:-1])
    leads = _leads(logits, itself) > _LEAD
    # Where a token is a leader for the first time is where it has to stay.
    first = leads.int().argmax(dim=-2, keepdim=True)
    place = states.gather(-3, first.unsqueeze(-1).expand(*first.shape, states.shape[-1]))
    later = leads.any(dim=-2, keepdim=True) & (torch.arange(states.shape[-3])[:, None] >= first)
    displacement = torch.where(later, torch.linalg.vector_norm(states - place, dim=-1), 0.0).amax(dim=-1) / scale
    extents = torch.cat([states.amax(dim=-2), -states.amin(dim=-2)], dim=-1)
    outside = (extents - extents.cummin(dim=-2).values).amax(dim=-1) / scale
    last = torch.linalg.vector_norm(states.diff(dim=-3), dim=-1).amax(dim=-1) / scale
    away = _from_hull_of_leaders(states[..., -1, :, :], logits[..., -1, :, :]) / scale
    return (
        never_above(displacement, trajectory, tolerance, _STAYS, pointwise=True),
        never_above(outside, trajectory, tolerance, "no extent of the tokens' hull grows", pointwise=True),
        tends_to_zero(last, LIMIT, "the way from one saved layer to the next tends to 0"),
        tends_to_zero(away, LIMIT, "all tokens come into the hull of the leaders"),
    )


_SUM = 1e6
"""Weight of the condition that shares add to 1, beside coordinates of size 1."""


def _from_hull_of_leaders(states: Tensor, logits: Tensor) -> Tensor:
    """Return the largest distance of a token from the hull of the leaders, (…, 1); tokens merged with one count."""
    merged = equal_shares(largest_logits(logits).double()) @ states
    itself = logits.diagonal(dim1=-2, dim2=-1) >= logits.amax(dim=-1) * (1 - _LEAD)
    leaders = itself & (torch.linalg.vector_norm(merged - states, dim=-1) <= _LEAD * _scale(states)[..., None])
    systems = zip(states.reshape(-1, *states.shape[-2:]).numpy(), leaders.reshape(-1, states.shape[-2]), strict=True)
    farthest = [
        max(_distance(tokens[leading.numpy()], token) for token in tokens) if leading.any() else np.inf
        for tokens, leading in systems
    ]
    return torch.tensor(farthest, dtype=torch.float64).reshape(*states.shape[:-2], 1)


def _distance(corners: np.ndarray, token: np.ndarray) -> float:
    """Return the distance of a token from the hull of points, by least squares with shares ≥ 0."""
    if not np.isfinite(corners).all() or not np.isfinite(token).all():
        return np.inf
    size = max(float(np.abs(corners).max()), np.finfo(float).tiny)
    matrix = np.vstack([corners.T / size, np.full(len(corners), _SUM)])
    shares, _ = nnls(matrix, np.append(token / size, _SUM))
    return float(np.linalg.norm(corners.T @ shares - token))


STATEMENTS = (
    Statement(
        name="hardmax-3",
        title="Layers that turn to the farthest token, with falling shares, take all tokens to 0",
        equations="section 3",
        erratum=(
            "False as printed, where 0 is asked to be in the hull of the start: with B = 1 the tokens 3 and −1 end at "
            "⅓. It is true exactly where 0 is in the hull of every layer, which the proof uses."
        ),
        structure=_structure,
        hypotheses=_falling_hypotheses,
        predict=lambda flow, start: Prediction(
            "nothing: the statement is false; where 0 is in the hull of every layer, ½ x·Bx after k layers is at most "
            "2(2k + 1)/(3k(k + 1)) of its largest value at the start",
            limit="none",
        ),
        conditions=_falling_conditions,
        decidable=lambda trajectory: _other_than_falling(trajectory) is None,
        standing="false",
        subject="layers",
        rescaled=True,
    ),
    Statement(
        name="hardmax-4",
        title="Under hardmax weights tokens go straight to the leaders they attend to",
        equations="section 4",
        erratum=(
            "As summarized, every corner of the hull rests. A corner rests where it is a leader: with qk = I the "
            "tokens (0.1, 1) and (5, 1) are both corners, and the first attends to the second."
        ),
        structure=_structure,
        hypotheses=_straight_hypotheses,
        predict=_straight_predict,
        conditions=_straight_conditions,
        rescaled=True,
    ),
    Statement(
        name="leaders-limit",
        title="Layers of hardmax weights take tokens to leaders and into the hull of the leaders",
        equations="the main theorem",
        structure=_structure,
        hypotheses=_layer_hypotheses,
        predict=lambda flow, start: Prediction(
            "layers (1 − γ) x + γ · attention(x), 0 < γ < 1: a token that attends to itself alone stays where it is, "
            "and all others converge to such leaders or to points between them",
            limit="points of the hull of the leaders",
        ),
        conditions=_layer_conditions,
        decidable=lambda trajectory: _refused(trajectory) is None,
        subject="layers",
    ),
)
