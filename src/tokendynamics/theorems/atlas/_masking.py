"""Statements of `masking` on where tokens go that see only themselves and those before them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import LIMIT, except_where, flow_of_run, integration_tolerance, never_above
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.atlas._eigenspaces import top_space, top_vector
from tokendynamics.theorems.contraction import head_matrix, states_of
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction
from tokendynamics.theorems.statements import STATEMENTS as OF_THE_PAPERS
from tokendynamics.words import exponential

SIMPLE = 1e-10
"""The gap below an eigenvalue, relative to the norm of ov, that counts as positive."""


def structure(flow: Flow) -> tuple[Hypothesis, ...]:
    return (
        measured.on_sphere(flow),
        measured.dim_at_least_two(flow),
        measured.projection_is(flow, "orthogonal"),
        measured.weights_are_softmax(flow),
        measured.no_positions(flow),
        measured.causal_mask(flow),
        measured.one_head(flow),
    )


def angle_between(first: Tensor, second: Tensor) -> Tensor:
    """Return the angles between unit vectors (…, dim), accurate at 0 and at π."""
    chord, sum_ = (torch.linalg.vector_norm(part, dim=-1) for part in (first - second, first + second))
    return 2 * torch.atan2(chord, sum_)


def on_sphere(trajectory: Trajectory) -> Tensor:
    """Return the saved states as unit vectors, (*system, time, token, dim), float64."""
    states = states_of(trajectory)
    return states / torch.linalg.vector_norm(states, dim=-1, keepdim=True)


def elapsed_time(trajectory: Trajectory) -> Tensor:
    times = torch.as_tensor(np.asarray(trajectory.times, dtype=float))
    return times - times[0]


def _shrinking_angle(angle: Tensor, rate: Tensor, trajectory: Trajectory, text: str) -> Condition:
    """Require tan of an angle (…, time), or of its half, to shrink at least at a rate (…); the excess is in radians."""
    start, elapsed = angle[..., :1], elapsed_time(trajectory)
    bound = torch.atan(torch.tan(start) * torch.exp(-rate[..., None] * elapsed))
    return never_above(angle - bound, trajectory, integration_tolerance(trajectory), text)


# --- Theorem 4.1 -----------------------------------------------------------------------------------------------------

_CAUSAL_CONSENSUS = next(one for one in OF_THE_PAPERS if one.name == "asymptotic-5.1")


def _consensus_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    return measured.constant(flow.attention.qk, "qk"), *_CAUSAL_CONSENSUS.hypotheses(flow, start)


def _consensus_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    conditions = _CAUSAL_CONSENSUS.conditions(trajectory)
    flow, y = flow_of_run(trajectory), on_sphere(trajectory)
    if y.shape[-2] == 1:
        return conditions
    # Logits of token 2 differ by at most 2 ‖qk‖, so it gives token 1 at least the weight 1/(1 + e^{2‖qk‖}).
    size = torch.linalg.matrix_norm(head_matrix(flow.attention.qk), 2)
    rate = (measured.pull(flow) * torch.sigmoid(-2 * size)).expand(y.shape[:-3])
    half = angle_between(y[..., 0, :], y[..., 1, :]) / 2
    text = "tan(θ/2), θ the angle of token 2 to token 1, shrinks at least like exp(−ωct/(1 + e^{2‖qk‖}))"
    return *conditions, _shrinking_angle(half, rate, trajectory, text)


# --- Table 1: what tokens go to under other values -------------------------------------------------------------------

COUNTEREXAMPLE = {"qk": [[0.0, 0.0], [-1.0, 0.0]], "ov": [[1.0, 0.0], [0.0, 0.5]], "angles": (0.0, 2.718059505748268)}
"""Two tokens on the circle at rest, token 1 at ξ and token 2 at the root of exp(−sin θ (1 − cos θ)) = −cos θ / 2: all
directions are stable, and 16 % of uniform starts end there."""


RESTS = 1e-3
"""A speed below this share of the slowest rate of return counts as rest: the point of rest is that near, in radians."""


ROUNDED = 1e-6
"""An eigenvalue below this share counts as 0: zeros of one Jordan block are known to few digits."""


_LARGEST = 600
"""Tokens × features beyond which a place of rest is not looked at: the eigenvalues of that many rows take long."""


_FAR = 1e-2
"""A token whose deficit from its predicted limit is above this is not on its way there at a point of rest."""


def _comes_to(deficit: Tensor, trajectory: Trajectory, text: str) -> Condition:
    """Require the limit 0 of a deficit at the end, (…,): it fails where the run rests elsewhere, stably.

    At rest means a speed below `RESTS` times the slowest rate at which the linearized flow returns; a point with a
    direction that does not return is left sooner or later, and does not count.
    """
    flow, end = flow_of_run(trajectory), on_sphere(trajectory)[..., -1, :, :]
    values, far = deficit.reshape(-1), (deficit > _FAR).reshape(-1)
    elsewhere = torch.zeros(len(values), dtype=torch.bool)
    if bool(far.any()) and math.prod(end.shape[-2:]) <= _LARGEST:
        time = float(trajectory.times[-1])
        speeds = torch.linalg.vector_norm(flow.velocity(end, time), dim=-1).amax(dim=-1).reshape(-1)
        slopes = flow.jacobian(end, time).reshape(len(values), *end.shape[-2:], *end.shape[-2:])
        elsewhere = far & (speeds <= RESTS * _rates_of_return(slopes))
    outcome = np.where(values <= LIMIT, "holds", np.where(elsewhere, "fails", "undecided")).reshape(deficit.shape)
    ended = np.broadcast_to(np.asarray(trajectory.end_times, dtype=float), deficit.shape)
    first = np.where(outcome == "fails", ended, np.nan)
    return Condition(text, outcome, np.asarray(LIMIT - deficit.numpy()), LIMIT, first)


def _rates_of_return(slopes: Tensor) -> Tensor:
    """Return how fast the linearized flow comes back in its slowest direction, (system,); 0 where it leaves.

    Args:
        slopes: ∂F_ia/∂x_kb, (system, token, dim, token, dim); 0 along x_k itself, the field being that at x/|x|.
    """
    systems, tokens, dim = slopes.shape[:3]
    if dim == 1:  # No direction to come back in: tokens are at 1 or −1 for ever.
        return slopes.new_zeros(systems)
    matrices = slopes.reshape(systems, tokens * dim, tokens * dim)
    real = torch.linalg.eigvals(matrices).real.sort(dim=-1, descending=True).values
    # One eigenvalue 0 for the length of every token; the others are those of the sphere.
    stable = real[:, 0] <= ROUNDED * matrices.abs().amax(dim=(-2, -1))
    return torch.where(stable, -real[:, tokens], 0.0)


@measured.given(measured.constant_circuits)
def _simple_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    top, gap, _ = top_vector(flow)
    least = max(SIMPLE, measured.rounding(flow.dim, measured.precision(flow.attention.ov)))
    return (
        measured.above("an eigenvalue of ov above 0", top, measured.ROUNDING, "the largest real part relative to ‖ov‖"),
        measured.above("that eigenvalue real and simple", gap, least, "the gap of real parts below it"),
        measured.assumed("generic start", "the claim is about almost every start"),
    )


def _simple_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    xi = top_vector(flow_of_run(trajectory))[2]
    end = on_sphere(trajectory)[..., -1, :, :]
    angle = angle_between(end, xi.unsqueeze(-2))
    deficit = (1 - torch.cos(torch.minimum(angle, torch.pi - angle))).amax(dim=-1)
    return (_comes_to(deficit, trajectory, "1 − |ξ·y_i| of the last token to come, tends to 0"),)


@measured.given(measured.constant_circuits)
def _space_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    space = top_space(flow)
    rounding = np.sqrt(measured.rounding(flow.dim, measured.precision(flow.attention.ov)))
    large = measured.above("an eigenspace L of dim 2 or more", space.dim - 1, 0.5, "dim L less 1")
    if not large.anywhere:
        return (large,)
    first = flow.space.project(start)[..., :1, :]
    inside = torch.linalg.vector_norm((first @ space.projection).squeeze(-2), dim=-1)
    return (
        large,
        measured.above("its eigenvalue above 0", space.top, measured.ROUNDING, "λ relative to ‖ov‖"),
        measured.at_most("ov keeps what is orthogonal to L", space.leak, rounding, "what ov brings into L"),
        measured.above("z·ov z below λ|z|² off L", space.gap, SIMPLE, "the gap below λ relative to ‖ov‖"),
        measured.above("token 1 not orthogonal to L", inside, measured.ROUNDING, "the length of its part in L"),
        measured.assumed("generic start", "the claim is about almost every start"),
    )


def _predict_space(flow: Flow, start: Tensor) -> Prediction:
    space = top_space(flow)
    rate = float((flow.weight_factor * space.gap * space.size).min())
    text = (
        "all tokens go to the direction of the part in L of token 1, from almost every start; the angle of token 1 to "
        f"L shrinks like {exponential(-rate)} or faster"
    )
    return Prediction(text, limit="one point of L")


def _space_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow, y = flow_of_run(trajectory), on_sphere(trajectory)
    space, systems = top_space(flow), y.shape[:-3]
    inside = y[..., 0, :] @ space.projection
    length = torch.linalg.vector_norm(inside, dim=-1)
    angle = torch.atan2(torch.linalg.vector_norm(y[..., 0, :] - inside, dim=-1), length)
    direction = inside / length.clamp_min(torch.finfo(length.dtype).tiny).unsqueeze(-1)
    aim = direction[..., :1, :]
    # Without a gap the angle may grow, which is not what is claimed.
    rate = (flow.weight_factor * space.gap.clamp_min(0) * space.size).expand(systems)
    deficit = (1 - torch.cos(angle_between(y[..., -1, :, :], aim))).amax(dim=-1)
    turned = angle_between(direction, aim) * length
    tolerance = integration_tolerance(trajectory)
    conditions = (
        never_above(turned, trajectory, tolerance, "the part in L of token 1 keeps its direction, angle × length"),
        _shrinking_angle(angle, rate, trajectory, "tan of the angle of token 1 to L shrinks at least at its rate"),
        _comes_to(deficit, trajectory, "1 − ξ·y_i of the last token to come, ξ that direction, tends to 0"),
    )
    lost = np.broadcast_to((space.dim < 1).numpy(), systems)
    return tuple(except_where(one, lost, "ov has no real eigenvalue of largest real part") for one in conditions)


STATEMENTS = (
    replace(
        _CAUSAL_CONSENSUS,
        name="masking-4.1",
        title="Causal consensus at the first token, qk constant",
        equations="Theorem 4.1",
        erratum="",
        structure=structure,
        hypotheses=_consensus_hypotheses,
        conditions=_consensus_conditions,
    ),
    Statement(
        name="masking-table-1-simple",
        title="Causal consensus up to sign at a simple top eigenvector",
        equations="Table 1",
        erratum=(
            "Conjectured for any qk. Two tokens with ov = diag(1, ½) and qk = [[0, 0], [−1, 0]] rest, stably, with the "
            "second at 2.71806 rad from the eigenvector: 16 % of uniform starts end there."
        ),
        structure=structure,
        hypotheses=_simple_hypotheses,
        predict=lambda flow, start: Prediction("nothing: the conjecture is false", limit="none"),
        conditions=_simple_conditions,
        standing="false",
    ),
    Statement(
        name="masking-table-1-space",
        title="Causal consensus in a top eigenspace of several dimensions",
        equations="Table 1",
        structure=structure,
        hypotheses=_space_hypotheses,
        predict=_predict_space,
        conditions=_space_conditions,
        standing="conjecture",
    ),
)
