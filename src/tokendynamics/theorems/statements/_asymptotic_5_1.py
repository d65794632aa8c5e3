"""Theorem 5.1 of `asymptotic`: with a causal mask all tokens go to the first one, from almost every start."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.observables import consensus, direction_deficit
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import LIMIT, integration_tolerance, never_above, tends_to_zero
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction
from tokendynamics.words import exponential


def causal_attention(flow: Flow) -> tuple[Hypothesis, ...]:
    """Return what theorem 5.1 and remark 5.1 suppose of the attention, whatever the space."""
    return (measured.weights_are_softmax(flow), measured.no_positions(flow), measured.causal_mask(flow))


def generic_start(y: Tensor) -> tuple[Hypothesis, ...]:
    """Measure what can be of "almost every": no token at the antipode of the first; name what cannot."""
    if y.shape[-2] == 1:
        return ()
    distance = torch.linalg.vector_norm(y[..., 1:, :] + y[..., :1, :], dim=-1).amin(dim=-1)
    what = "the least distance of a token to the antipode of token 1"
    hypotheses = [measured.above("no token at the antipode of token 1", distance, measured.ROUNDING, what)]
    if y.shape[-2] > 2:
        text = "almost every start leads to consensus; whether this one is among them cannot be read off it"
        hypotheses.append(measured.assumed("generic start", text))
    return tuple(hypotheses)


def causal_consensus(flow: Flow, pull: float, tokens: int) -> Prediction:
    """Predict that all tokens go to the first; the second is the slowest, held back by half of its own weight.

    Args:
        flow: The flow.
        pull: The sum over heads of the multiples c_h of the identity in ov.
        tokens: The number of tokens.
    """
    # At consensus token i gives weight 1/i to each token it sees: its distance decays at pull · factor · (1 − 1/i).
    rate = flow.weight_factor * pull / 2 if tokens > 1 else None
    decay = "" if rate is None else f", distances shrinking like {exponential(-rate)} in the end"
    text = f"from almost every start all tokens go to token 1, which does not move{decay}"
    return Prediction(text, limit="consensus at token 1", rate=rate)


def smallest_pull(flow: Flow) -> float:
    """Return the sum over heads of the least multiples of the identity in ov, at the slowest system."""
    return float(measured.multiples(flow)[1].sum(dim=-1).min())


def causal_consensus_conditions(states: Tensor, trajectory: Trajectory) -> tuple[Condition, ...]:
    """Require token 1 constant, E → 0, a_i → 1, of states (…, time, token, dim) on the unit sphere."""
    first = states[..., :, 0, :]
    from_start = torch.linalg.vector_norm(first - first[..., :1, :], dim=-1)
    gap = direction_deficit(states, first).amax(dim=-1)
    return (
        never_above(from_start, trajectory, integration_tolerance(trajectory), "distance of token 1 from its start"),
        tends_to_zero(consensus(states), LIMIT, "consensus E (0 where all tokens point along the first) tends to 0"),
        tends_to_zero(gap, LIMIT, f"max_i (1 − y_1·y_i) of the tokens y_i tends to 0{_after_the_antipode(gap)}"),
    )


def _after_the_antipode(gap: Tensor) -> str:
    """Return a caution where a token came as close to the unstable antipode as rounding lets it leave again."""
    if float(gap.max()) < 2 - 1e-9:
        return ""
    return " (a token stood at the antipode of token 1, which the exact flow may never leave and rounding does)"


STATEMENT = Statement(
    name="asymptotic-5.1",
    title="Causal consensus at the first token",
    equations="(15), (17), (25)",
    erratum=(
        "The printed domain of attraction, all starts with y_j ≠ −y_1, is false for three tokens or more: angles 0, "
        "2.0, 3.7852751016621813 on the circle with qk = I send token 3 to the antipode. What is claimed here is "
        "almost every start. The printed sum of (25) starts at 0: read 1. ov = I is asked for where ov_h = c_h I with "
        "c_h > 0 suffices: a change of time for one head, other weights between several."
    ),
    structure=lambda flow: (measured.on_sphere(flow), measured.dim_at_least_two(flow), *causal_attention(flow)),
    hypotheses=lambda flow, start: (
        measured.bounded(flow.attention.qk, "qk"),
        *measured.positive_multiples(flow),
        *generic_start(flow.space.project(start)),
    ),
    predict=lambda flow, start: causal_consensus(flow, smallest_pull(flow), start.shape[-2]),
    conditions=lambda trajectory: causal_consensus_conditions(trajectory.tensor.detach(), trajectory),
)
