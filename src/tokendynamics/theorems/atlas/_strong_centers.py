"""Statements of `masking` on tokens beyond the distance τ at which tokens act most: strong Rényi centers, or frozen."""

from __future__ import annotations

from dataclasses import dataclass

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
from tokendynamics.theorems.atlas._masking import angle_between, elapsed_time, on_sphere, structure
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction
from tokendynamics.words import number, number_of_log, plural


def _pair_angles(unit: Tensor) -> Tensor:
    """Return the angles of all pairs of unit vectors (…, token, dim), (…, token, token), accurate at 0 and at π."""
    chord, sum_ = (torch.cdist(unit, other, compute_mode="donot_use_mm_for_euclid_dist") for other in (unit, -unit))
    return 2 * torch.atan2(chord, sum_)


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
    flow, y = flow_of_run(trajectory), on_sphere(trajectory)
    speed = measured.pull(flow)[..., None, None]
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
    log_ends = moves.log() - (before * measured.pull(flow)[..., None, None]).log() - _log_pull(kept, beta.unsqueeze(-1))
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
    flow, y = flow_of_run(trajectory), on_sphere(trajectory)
    systems, text = y.shape[:-3], "motion of every strong center less its bound, within its windows, at most 0"
    if y.shape[-2] < 2:
        return (undecided(tuple(systems), f"{text}: there is one token"),)
    centers = _centers(flow, y[..., 0, :, :])
    motion = angle_between(y, y[..., :1, :, :])[..., 1:]
    log_time = elapsed_time(trajectory).clamp_min(torch.finfo(torch.float64).tiny).log()
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
    return angle_between(y[..., frozen.moving, None, :], y[..., None, frozen.still, :])


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
    flow, y = flow_of_run(trajectory), on_sphere(trajectory)
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
    flow, y = flow_of_run(trajectory), on_sphere(trajectory)[..., 0, :, :]
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
    Statement(
        name="masking-5.1",
        title="Strong Rényi centers hardly move for a long time",
        equations="Lemma 5.1",
        structure=lambda flow: (
            *structure(flow),
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
        structure=structure,
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
