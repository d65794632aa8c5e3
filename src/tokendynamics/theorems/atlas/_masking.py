"""Statements of `masking`: tokens on the sphere that see only themselves and those before them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._closed_forms import predict_interaction_window, predict_strong_centers
from tokendynamics.theorems._conditions import (
    LIMIT,
    except_where,
    flow_of_run,
    integration_tolerance,
    never_above,
    of_another_size,
    tends_to_zero,
    undecided,
)
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.atlas import _masks
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction
from tokendynamics.theorems.statements import STATEMENTS as OF_THE_PAPERS
from tokendynamics.words import exponential, number, number_of_log, plural

SIMPLE = 1e-10
"""The gap below an eigenvalue, relative to the norm of ov, that counts as positive."""


def _structure(flow: Flow) -> tuple[Hypothesis, ...]:
    return (
        measured.on_sphere(flow),
        measured.dim_at_least_two(flow),
        measured.projection_is(flow, "orthogonal"),
        measured.weights_are_softmax(flow),
        measured.no_positions(flow),
        measured.causal_mask(flow),
        measured.one_head(flow),
    )


def _angle(first: Tensor, second: Tensor) -> Tensor:
    """Return the angles between unit vectors (…, dim), accurate at 0 and at π."""
    chord, sum_ = (torch.linalg.vector_norm(part, dim=-1) for part in (first - second, first + second))
    return 2 * torch.atan2(chord, sum_)


def _pair_angles(unit: Tensor) -> Tensor:
    """Return the angles of all pairs of unit vectors (…, token, dim), (…, token, token), accurate at 0 and at π."""
    chord, sum_ = (torch.cdist(unit, other, compute_mode="donot_use_mm_for_euclid_dist") for other in (unit, -unit))
    return 2 * torch.atan2(chord, sum_)


def _on_sphere(trajectory: Trajectory) -> Tensor:
    """Return the saved states as unit vectors, (*system, time, token, dim), float64."""
    states = trajectory.tensor.detach().double().cpu()
    return states / torch.linalg.vector_norm(states, dim=-1, keepdim=True)


def _elapsed(trajectory: Trajectory) -> Tensor:
    times = torch.as_tensor(np.asarray(trajectory.times, dtype=float))
    return times - times[0]


def _circuit(flow: Flow, name: str) -> Tensor:
    """Return qk or ov of the one head, (*system, dim, dim), float64."""
    return getattr(flow.attention, name).matrix_at(0.0)[..., 0, :, :].detach().double().cpu()


def _speed(flow: Flow) -> Tensor:
    """Return ω c, (*system), for ov = c I."""
    return flow.weight_factor * measured.multiples(flow)[1].sum(dim=-1)


def _shrinking_angle(angle: Tensor, rate: Tensor, trajectory: Trajectory, text: str) -> Condition:
    """Require tan of an angle (…, time), or of its half, to shrink at least at a rate (…); the excess is in radians."""
    start, elapsed = angle[..., :1], _elapsed(trajectory)
    bound = torch.atan(torch.tan(start) * torch.exp(-rate[..., None] * elapsed))
    return never_above(angle - bound, trajectory, integration_tolerance(trajectory), text)


# --- Theorem 4.1 -----------------------------------------------------------------------------------------------------

_CAUSAL_CONSENSUS = next(one for one in OF_THE_PAPERS if one.name == "asymptotic-5.1")


def _consensus_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    return measured.constant(flow.attention.qk, "qk"), *_CAUSAL_CONSENSUS.hypotheses(flow, start)


def _consensus_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    conditions = _CAUSAL_CONSENSUS.conditions(trajectory)
    flow, y = flow_of_run(trajectory), _on_sphere(trajectory)
    if y.shape[-2] == 1:
        return conditions
    # Logits of token 2 differ by at most 2 ‖qk‖, so it gives token 1 at least the weight 1/(1 + e^{2‖qk‖}).
    size = torch.linalg.matrix_norm(_circuit(flow, "qk"), 2)
    rate = (_speed(flow) * torch.sigmoid(-2 * size)).expand(y.shape[:-3])
    half = _angle(y[..., 0, :], y[..., 1, :]) / 2
    text = "tan(θ/2), θ the angle of token 2 to token 1, shrinks at least like exp(−ωct/(1 + e^{2‖qk‖}))"
    return *conditions, _shrinking_angle(half, rate, trajectory, text)


# --- Table 1: what tokens go to under other values -------------------------------------------------------------------

COUNTEREXAMPLE = {
    "qk": [[0.0, 0.0], [-1.0, 0.0]],
    "ov": [[1.0, 0.0], [0.0, 0.5]],
    "angles": (0.0, 2.718059505748268),
}
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
    flow, end = flow_of_run(trajectory), _on_sphere(trajectory)[..., -1, :, :]
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


def _table_hypotheses(flow: Flow) -> tuple[Hypothesis, ...]:
    return measured.constant(flow.attention.qk, "qk"), measured.constant(flow.attention.ov, "ov")


def _top_vector(flow: Flow) -> tuple[Tensor, Tensor, Tensor]:
    """Return the eigenvalue of ov of largest real part and the gap below it, relative to ‖ov‖, and its vector."""
    ov = _circuit(flow, "ov")
    values, vectors = torch.linalg.eig(ov)
    order = values.real.argsort(dim=-1, descending=True)
    real = values.real.gather(-1, order)
    size = torch.linalg.matrix_norm(ov, 2).clamp_min(torch.finfo(ov.dtype).tiny)
    column = order[..., :1].unsqueeze(-2).expand(*order.shape[:-1], ov.shape[-1], 1)
    vector = vectors.gather(-1, column).squeeze(-1).real
    # The only eigenvalue there is, is simple.
    second = real[..., 1] if flow.dim > 1 else real[..., 0] - size
    return real[..., 0] / size, (real[..., 0] - second) / size, torch.nn.functional.normalize(vector, dim=-1)


def _simple_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    constant = _table_hypotheses(flow)
    if not all(one.anywhere for one in constant):
        return constant
    top, gap, _ = _top_vector(flow)
    return (
        *constant,
        measured.above("an eigenvalue of ov above 0", top, measured.ROUNDING, "the largest real part relative to ‖ov‖"),
        measured.above("that eigenvalue real and simple", gap, SIMPLE, "the gap of real parts below it"),
        measured.assumed("generic start", "the claim is about almost every start"),
    )


def _simple_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    xi = _top_vector(flow_of_run(trajectory))[2]
    end = _on_sphere(trajectory)[..., -1, :, :]
    angle = _angle(end, xi.unsqueeze(-2))
    deficit = (1 - torch.cos(torch.minimum(angle, torch.pi - angle))).amax(dim=-1)
    return (_comes_to(deficit, trajectory, "1 − |ξ·y_i| of the last token to come, tends to 0"),)


@dataclass(frozen=True)
class _TopSpace:
    """The eigenspace L of the eigenvalue λ of ov of largest real part, of each system; sizes are relative to ‖ov‖.

    Attributes:
        projection: Onto L, (*system, dim, dim).
        dim: dim L, (*system,).
        top: λ.
        leak: The part of ov that brings vectors off L into L.
        gap: λ less the largest z·ov z on unit vectors z off L; 2 where L is all.
        size: ‖ov‖.
    """

    projection: Tensor
    dim: Tensor
    top: Tensor
    leak: Tensor
    gap: Tensor
    size: Tensor


def _top_space(flow: Flow) -> _TopSpace:
    ov = _circuit(flow, "ov")
    tolerance = np.sqrt(measured.rounding(flow.dim, measured.precision(flow.attention.ov)))
    parts = [_top_space_of(matrix, tolerance) for matrix in ov.reshape(-1, flow.dim, flow.dim)]
    stacked = (torch.stack(column) for column in zip(*parts, strict=True))
    return _TopSpace(*(column.reshape((*ov.shape[:-2], *column.shape[1:])) for column in stacked))


def _top_space_of(ov: Tensor, tolerance: float) -> tuple[Tensor, ...]:
    size = torch.linalg.matrix_norm(ov, 2).clamp_min(torch.finfo(ov.dtype).tiny)
    values = torch.linalg.eigvals(ov).real
    # The mean of the eigenvalues that rounding takes apart is right to rounding.
    top = values[values >= values.max() - tolerance * size].mean()
    eye = torch.eye(len(ov)).to(ov)
    _, singular, rows = torch.linalg.svd(ov - top * eye)
    inside = singular <= tolerance * size
    basis, rest = rows[inside].mT, rows[~inside].mT
    leak = torch.linalg.matrix_norm(basis.mT @ ov @ rest, 2) if 0 < basis.shape[1] < len(ov) else torch.zeros(()).to(ov)
    form = rest.mT @ ov @ rest
    gap = (top - torch.linalg.eigvalsh((form + form.mT) / 2)[-1]) / size if rest.shape[1] else torch.tensor(2.0).to(ov)
    return basis @ basis.mT, inside.sum().to(ov), torch.as_tensor(top / size), leak / size, gap, size


def _space_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    constant = _table_hypotheses(flow)
    if not all(one.anywhere for one in constant):
        return constant
    space = _top_space(flow)
    rounding = np.sqrt(measured.rounding(flow.dim, measured.precision(flow.attention.ov)))
    large = measured.above("an eigenspace L of dim 2 or more", space.dim - 1, 0.5, "dim L less 1")
    if not large.anywhere:
        return *constant, large
    first = flow.space.project(start)[..., :1, :]
    inside = torch.linalg.vector_norm((first @ space.projection).squeeze(-2), dim=-1)
    return (
        *constant,
        large,
        measured.above("its eigenvalue above 0", space.top, measured.ROUNDING, "λ relative to ‖ov‖"),
        measured.at_most("ov keeps what is orthogonal to L", space.leak, rounding, "what ov brings into L"),
        measured.above("z·ov z below λ|z|² off L", space.gap, SIMPLE, "the gap below λ relative to ‖ov‖"),
        measured.above("token 1 not orthogonal to L", inside, measured.ROUNDING, "the length of its part in L"),
        measured.assumed("generic start", "the claim is about almost every start"),
    )


def _predict_space(flow: Flow, start: Tensor) -> Prediction:
    space = _top_space(flow)
    rate = float((flow.weight_factor * space.gap * space.size).min())
    text = (
        "all tokens go to the direction of the part in L of token 1, from almost every start; the angle of token 1 to "
        f"L shrinks like {exponential(-rate)} or faster"
    )
    return Prediction(text, limit="one point of L")


def _space_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow, y = flow_of_run(trajectory), _on_sphere(trajectory)
    space, systems = _top_space(flow), y.shape[:-3]
    inside = y[..., 0, :] @ space.projection
    length = torch.linalg.vector_norm(inside, dim=-1)
    angle = torch.atan2(torch.linalg.vector_norm(y[..., 0, :] - inside, dim=-1), length)
    direction = inside / length.clamp_min(torch.finfo(length.dtype).tiny).unsqueeze(-1)
    aim = direction[..., :1, :]
    # Without a gap the angle may grow, which is not what is claimed.
    rate = (flow.weight_factor * space.gap.clamp_min(0) * space.size).expand(systems)
    deficit = (1 - torch.cos(_angle(y[..., -1, :, :], aim))).amax(dim=-1)
    turned = _angle(direction, aim) * length
    tolerance = integration_tolerance(trajectory)
    conditions = (
        never_above(turned, trajectory, tolerance, "the part in L of token 1 keeps its direction, angle × length"),
        _shrinking_angle(angle, rate, trajectory, "tan of the angle of token 1 to L shrinks at least at its rate"),
        _comes_to(deficit, trajectory, "1 − ξ·y_i of the last token to come, ξ that direction, tends to 0"),
    )
    lost = np.broadcast_to((space.dim < 1).numpy(), systems)
    return tuple(except_where(one, lost, "ov has no real eigenvalue of largest real part") for one in conditions)


# --- Lemma 5.1 and appendix B: strong Rényi centers and how far tokens act -------------------------------------------

WINDOWS = 64
"""How many distances are tried between τ and that of a center, each with a window of its own."""


def _log_pull(angle: Tensor, beta: Tensor) -> Tensor:
    """Return log h(θ), h(θ) = e^{β(cos θ − 1)} sin θ, in which no temperature underflows."""
    return -2 * beta * torch.sin(angle / 2) ** 2 + torch.log(torch.sin(angle))


def _peak(beta: Tensor) -> Tensor:
    positive = torch.where(beta > 0, beta, 1.0)
    return torch.as_tensor(predict_interaction_window(positive.numpy()))


def _pull_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    alike = measured.multiple_of_the_identity(flow)
    if not all(one.anywhere for one in alike):
        return alike
    beta = measured.above("β above 0", measured.temperature(flow)[0], 0.0, "β")
    return *alike, beta, *measured.positive_multiples(flow)


def _predict_pull(flow: Flow, start: Tensor) -> Prediction:
    beta = measured.temperature(flow)[0]
    peaks = _peak(beta)
    reach = number(float(peaks.flatten()[0]), 4) if peaks.numel() == 1 else f"{number(float(peaks.max()), 4)} at most"
    text = (
        "token i moves at most at the speed ωc Σ_{j<i} h(θ_ij), h(θ) = e^{β(cos θ − 1)} sin θ, which is largest at "
        f"τ = {reach} (radians) and falls beyond"
    )
    return Prediction(text, limit="none: a bound of the speed")


def _pull_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow, y = flow_of_run(trajectory), _on_sphere(trajectory)
    speed = _speed(flow)[..., None, None]
    beta = measured.temperature(flow)[0][..., None, None, None]
    pulls = _log_pull(_pair_angles(y), beta).exp().tril(-1).sum(dim=-1)
    moments = np.asarray(trajectory.times, dtype=float).tolist()
    velocities = [flow.velocity(y[..., index, :, :], time) for index, time in enumerate(moments)]
    lengths = torch.linalg.vector_norm(torch.stack(velocities, dim=-3), dim=-1)
    excess = (lengths / speed.abs().clamp_min(torch.finfo(speed.dtype).tiny) - pulls).amax(dim=-1)
    # The exponents are rounded relative to β.
    excess = excess / (1 + beta[..., 0, 0].abs())
    tolerance = measured.rounding(flow.dim, measured.precision(flow.attention.qk))
    text = "speed of a token in units of ωc less Σ_{j<i} h(θ_ij), at most 0, relative to 1 + β"
    return (never_above(excess, trajectory, tolerance, text, pointwise=True),)


@dataclass(frozen=True)
class _Centers:
    """Tokens farther than τ from all before them, and for how long they move by less than what.

    Attributes:
        distance: Least angle of token k ≥ 1 to those before it, less τ, (*system, token − 1): above 0 at a center.
        moves: By how much it moves at most, for each window, (*system, token − 1, window).
        log_ends: The logarithm of when the window ends; −inf where there is no center.
    """

    distance: Tensor
    moves: Tensor
    log_ends: Tensor


def _centers(flow: Flow, start: Tensor) -> _Centers:
    y = flow.space.project(start)
    beta, peak = (part[..., None] for part in (measured.temperature(flow)[0], _peak(measured.temperature(flow)[0])))
    angles = _pair_angles(y)
    later = torch.ones(y.shape[-2], y.shape[-2], dtype=torch.bool).triu()
    nearest = angles.masked_fill(later, torch.inf).amin(dim=-1)[..., 1:]
    share = torch.linspace(0, 1, WINDOWS + 2).double()[1:-1]
    apart = (nearest - peak).clamp_min(0.0).unsqueeze(-1)
    kept = peak.unsqueeze(-1) + share * apart
    moves = (1 - share) * apart / 2
    before = torch.arange(1, y.shape[-2]).double().unsqueeze(-1)
    log_ends = moves.log() - (before * _speed(flow)[..., None, None]).log() - _log_pull(kept, beta.unsqueeze(-1))
    return _Centers(nearest - peak, moves, torch.where(apart > 0, log_ends, -torch.inf))


def _center_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    tokens = measured.tokens_at_least(start, 2)
    pull = _pull_hypotheses(flow, start)
    if tokens.holds is False or not all(one.anywhere for one in pull):
        return *pull, tokens
    farthest = _centers(flow, start).distance.amax(dim=-1)
    claim = "a token farther than τ from all before it"
    return *pull, tokens, measured.above(claim, farthest, measured.ROUNDING, "the largest such angle less τ")


def _predict_centers(flow: Flow, start: Tensor) -> Prediction:
    centers = _centers(flow, start)
    ends, moves = (
        part.flatten(-2).flatten(0, -2) if part.ndim > 2 else part.reshape(1, -1)
        for part in (centers.log_ends, centers.moves)
    )
    longest = ends.max(dim=-1)
    worst = int(longest.values.argmin())
    move, end = float(moves[worst, longest.indices[worst]]), float(longest.values[worst])
    text = (
        "tokens farther than τ from all before them hardly move: one by less than "
        f"{number(move, 3)} rad until t = {number_of_log(end)}"
    )
    return Prediction(text, limit="none: a bound of the motion in a window of time")


def _center_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow, y = flow_of_run(trajectory), _on_sphere(trajectory)
    systems, text = y.shape[:-3], "motion of every strong center less its bound, within its windows, at most 0"
    if y.shape[-2] < 2:
        return (undecided(tuple(systems), f"{text}: there is one token"),)
    centers = _centers(flow, y[..., 0, :, :])
    motion = _angle(y, y[..., :1, :, :])[..., 1:]
    log_time = _elapsed(trajectory).clamp_min(torch.finfo(torch.float64).tiny).log()
    inside = centers.log_ends.unsqueeze(-3) >= log_time[:, None, None]
    allowed = torch.where(inside, centers.moves.unsqueeze(-3), torch.inf).amin(dim=-1)
    excess = (motion - allowed).amax(dim=-1)
    condition = never_above(excess, trajectory, integration_tolerance(trajectory), text)
    silent = inside[..., 1:, :, :].flatten(-3).any(dim=-1).logical_not().numpy()
    return (except_where(condition, silent, "no saved time after the start is within a window of a strong center"),)


# --- Theorem 5.2: tokens that see frozen tokens alone ----------------------------------------------------------------

_HALVINGS = 60
_NEAR = 0.1
"""Distances below this share of τ count as one: there a run of a stiff flow moves to and fro by its tolerances."""


@dataclass(frozen=True)
class _Frozen:
    """Frozen tokens and those that move.

    Attributes:
        still: Indices of frozen tokens.
        moving: Indices of the others.
        seen: Which frozen tokens a moving one sees, (moving, frozen).
        alone: Whether moving tokens see frozen ones, one at least, and nobody else but themselves.
    """

    still: list[int]
    moving: list[int]
    seen: Tensor
    alone: bool


def _frozen(flow: Flow, tokens: int) -> _Frozen:
    still, visible = list(flow.frozen), _masks.visible(flow, tokens)
    moving = [token for token in range(tokens) if token not in still]
    seen, others = visible[moving][:, still], visible[moving][:, moving] & ~torch.eye(len(moving), dtype=torch.bool)
    return _Frozen(still, moving, seen, bool(moving) and bool(seen.any(dim=-1).all()) and not bool(others.any()))


def _angles_to_frozen(y: Tensor, frozen: _Frozen) -> Tensor:
    """Return the angle of each moving token to each frozen one, (…, moving, frozen)."""
    return _angle(y[..., frozen.moving, None, :], y[..., None, frozen.still, :])


def _reach(y: Tensor, beta: Tensor, frozen: _Frozen) -> Tensor:
    """Return how near a token that comes within τ of a frozen one gets in the end, (…, moving, frozen): r ≤ τ.

    h(r) = Σ_j h(θ_j − τ)/a over the other frozen tokens that it sees, at angles θ_j ≥ 2τ of the frozen one, which a
    frozen tokens share: beyond r none of them outweighs it. τ where there is no such r.
    """
    at, peak = y[..., frozen.still, :], _peak(beta)[..., None, None, None]
    apart = _pair_angles(at).unsqueeze(-3)
    same, seen = apart <= measured.ROUNDING, frozen.seen.unsqueeze(-2)
    pulls = _log_pull((apart - peak).clamp(min=peak), beta[..., None, None, None])
    others = pulls.masked_fill(same | ~seen, -torch.inf).logsumexp(dim=-1) - (same & seen).sum(dim=-1).log()
    peak = peak.squeeze(-1)
    low, high = torch.zeros_like(others), peak.expand_as(others)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        weaker = _log_pull(middle, beta[..., None, None]) < others
        low, high = torch.where(weaker, middle, low), torch.where(weaker, high, middle)
    near = ((apart < 2 * peak.unsqueeze(-1)) & ~same & seen).any(dim=-1)
    # What the halvings do not tell from 0 is 0, as next to a frozen token without others.
    return torch.where(near, peak, torch.where(low == 0, 0.0, high))


def _frozen_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    frozen, pull = _frozen(flow, start.shape[-2]), _pull_hypotheses(flow, start)
    counted = f"{len(frozen.still)} of {start.shape[-2]} are frozen"
    some = measured.fact("a frozen token and one that moves", bool(frozen.still and frozen.moving), counted)
    if not some.holds or not all(one.anywhere for one in pull):
        return *pull, some
    alone = measured.fact(
        "moving tokens see frozen tokens alone",
        frozen.alone,
        "they see no other moving token" if frozen.alone else "one sees no frozen token, or another moving one",
    )
    if not frozen.alone:
        return *pull, some, alone
    y, beta = flow.space.project(start), measured.temperature(flow)[0]
    angles, seen = _angles_to_frozen(y, frozen), frozen.seen
    first, second = y[..., frozen.moving, :], y[..., frozen.still, :]
    turn = first[..., :1] @ second[..., 1:].mT - first[..., 1:] @ second[..., :1].mT
    logs = (-2 * beta[..., None, None] * torch.sin(angles / 2) ** 2).masked_fill(~seen, -torch.inf)
    speed = (logs.softmax(dim=-1) * turn).sum(dim=-1).abs()
    near = (angles <= _peak(beta)[..., None, None]) & seen
    value = torch.where(near.any(dim=-1), 1.0, speed).amin(dim=-1)
    claim = "no moving token at rest away from frozen ones"
    what = "the least speed in units of ωc of a token farther than τ from all frozen ones that it sees (1 without one)"
    return *pull, some, alone, measured.above(claim, value, measured.ROUNDING, what)


def _predict_frozen(flow: Flow, start: Tensor) -> Prediction:
    frozen, beta = _frozen(flow, start.shape[-2]), measured.temperature(flow)[0]
    reach = _reach(flow.space.project(start), beta, frozen).masked_fill(~frozen.seen, 0.0)
    text = (
        "every moving token goes one way only, and comes to rest within "
        f"{number(float(reach.max()), 3)} rad of a frozen token that it sees"
    )
    return Prediction(text, limit="points near frozen tokens")


def _frozen_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow, y = flow_of_run(trajectory), _on_sphere(trajectory)
    frozen = _frozen(flow, y.shape[-2])
    if unfit := of_another_size(trajectory, "a circle with frozen tokens that others see", flow.dim == 2):
        return unfit
    if not (frozen.still and frozen.moving and bool(frozen.seen.any(dim=-1).all())):
        return (undecided(tuple(y.shape[:-3]), "moving tokens come near frozen ones: no frozen token is seen"),)
    beta, peak = measured.temperature(flow)[0][..., None], _peak(measured.temperature(flow)[0])
    angles = _angles_to_frozen(y, frozen)
    logs = (-2 * beta[..., None, None] * torch.sin(angles / 2) ** 2).masked_fill(~frozen.seen, -torch.inf)
    potential = logs.logsumexp(dim=-1)
    fall = (potential.cummax(dim=-2).values - potential).amax(dim=-1) / (1 + beta.abs())
    reach = _reach(y[..., 0, :, :], beta[..., 0], frozen).unsqueeze(-3)
    tau = peak[..., None, None, None]
    beyond = torch.maximum(angles, torch.maximum(reach, _NEAR * tau))
    nearest = beyond.cummin(dim=-3).values
    captured = (nearest <= tau) & (reach < tau) & frozen.seen
    leaves = torch.where(captured, beyond - nearest, 0.0).amax(dim=(-2, -1))
    excess = (angles - reach).clamp_min(0.0).masked_fill(~frozen.seen, torch.inf)
    away = excess.amin(dim=-1).amax(dim=-1) / peak[..., None]
    tolerance = integration_tolerance(trajectory)
    return (
        never_above(fall, trajectory, tolerance, "log Σ_j e^{β(cos θ_ij − 1)} never falls, relative to 1 + β"),
        never_above(leaves, trajectory, tolerance, "a token within τ of a frozen one does not leave it, beyond τ/10"),
        tends_to_zero(away, LIMIT, "all tokens come as near to a frozen one as predicted, in units of τ"),
    )


FEWEST = 30
"""Systems from which on an average is compared with its expectation."""
STANDARD_ERRORS = 4


def _drawn_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    alike = measured.multiple_of_the_identity(flow)
    if not all(one.anywhere for one in alike):
        return alike
    uniform = measured.assumed("start drawn uniformly", "that tokens are independent and uniform cannot be measured")
    return *alike, measured.above("β above 0", measured.temperature(flow)[0], 0.0, "β"), uniform


def _predict_number(flow: Flow, start: Tensor) -> Prediction:
    expected_ = predict_strong_centers(start.shape[-2], flow.dim, _peak(measured.temperature(flow)[0]).numpy())
    mean, tokens = number(float(np.mean(expected_)), 5), plural(start.shape[-2], "uniform token")
    text = f"{mean} of {tokens} are strong centers on average"
    return Prediction(text, limit="none: an average over starts")


def _number_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow, y = flow_of_run(trajectory), _on_sphere(trajectory)[..., 0, :, :]
    if unfit := of_another_size(trajectory, "a sphere with angles", flow.dim > 1):
        return unfit
    peak = _peak(measured.temperature(flow)[0])
    expected_ = predict_strong_centers(y.shape[-2], flow.dim, peak.numpy())
    later = torch.ones(y.shape[-2], y.shape[-2], dtype=torch.bool).triu()
    nearest = _pair_angles(y).masked_fill(later, torch.inf).amin(dim=-1)
    excess = (nearest > peak[..., None]).sum(dim=-1).numpy() - expected_
    text = f"strong centers less their expected number, average {number(float(np.mean(excess)), 3)}"
    if excess.size < FEWEST:
        return (undecided(excess.shape, f"{text}: fewer than {FEWEST} systems"),)
    allowed = STANDARD_ERRORS * float(np.std(excess)) / np.sqrt(excess.size)
    left = allowed - abs(float(np.mean(excess)))
    # An average far off rather shows starts that were not drawn uniformly than a wrong expectation.
    outcome, nowhere = np.full(excess.shape, "holds" if left >= 0 else "undecided"), np.full(excess.shape, np.nan)
    text = f"{text}: at most {STANDARD_ERRORS} standard errors"
    return (Condition(text, outcome, np.full(excess.shape, left), float(allowed), nowhere),)


STATEMENTS = (
    replace(
        _CAUSAL_CONSENSUS,
        name="masking-4.1",
        title="Causal consensus at the first token, qk constant",
        equations="Theorem 4.1",
        erratum="",
        structure=_structure,
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
        structure=_structure,
        hypotheses=_simple_hypotheses,
        predict=lambda flow, start: Prediction("nothing: the conjecture is false", limit="none"),
        conditions=_simple_conditions,
        standing="false",
    ),
    Statement(
        name="masking-table-1-space",
        title="Causal consensus in a top eigenspace of several dimensions",
        equations="Table 1",
        erratum="",
        structure=_structure,
        hypotheses=_space_hypotheses,
        predict=_predict_space,
        conditions=_space_conditions,
        standing="conjecture",
    ),
    Statement(
        name="masking-5.1",
        title="Strong Rényi centers hardly move for a long time",
        equations="Lemma 5.1",
        erratum="",
        structure=lambda flow: (
            *_structure(flow),
            measured.fact("tokens on the circle", flow.dim == 2, f"dim is {flow.dim}"),
        ),
        hypotheses=_center_hypotheses,
        predict=_predict_centers,
        conditions=_center_conditions,
    ),
    Statement(
        name="masking-5.2",
        title="Tokens that see frozen tokens alone come to rest near one of them",
        equations="Theorem 5.2",
        erratum=(
            "Read in a summary, without its two inequalities of h and h′, of which the second lost a minus sign in "
            "print. One frozen token at least is needed. The distances here are derived, and need no inequality."
        ),
        structure=lambda flow: (
            measured.on_sphere(flow),
            measured.fact("tokens on the circle", flow.dim == 2, f"dim is {flow.dim}"),
            measured.projection_is(flow, "orthogonal"),
            measured.weights_are_softmax_or_exponential(flow),
            measured.no_positions(flow),
            measured.one_head(flow),
        ),
        hypotheses=_frozen_hypotheses,
        predict=_predict_frozen,
        conditions=_frozen_conditions,
        beyond=("graph", "frozen"),
    ),
    Statement(
        name="masking-B",
        title="The distance at which tokens act most",
        equations="appendix B",
        erratum="",
        structure=_structure,
        hypotheses=_pull_hypotheses,
        predict=_predict_pull,
        conditions=_pull_conditions,
    ),
    Statement(
        name="masking-C.1",
        title="The number of strong Rényi centers of a uniform start",
        equations="Lemma C.1",
        erratum="The number printed for three dimensions, 1/(3 sin²(δ/2)), is a third of the right one.",
        structure=lambda flow: (
            measured.on_sphere(flow),
            measured.dim_at_least_two(flow),
            measured.causal_mask(flow),
            measured.one_head(flow),
        ),
        hypotheses=_drawn_hypotheses,
        predict=_predict_number,
        conditions=_number_conditions,
        decidable=lambda trajectory: int(np.prod(trajectory.tensor.shape[:-3])) >= FEWEST,
    ),
)
