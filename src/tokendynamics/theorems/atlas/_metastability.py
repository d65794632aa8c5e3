"""Statements of `metastability`: tokens in a few narrow caps stay there for a time that is exponential in β.

Which caps is not asked of the user: tokens are grouped by complete linkage of their angles, and of all groupings that
this gives the one is taken for which the hypotheses hold with the largest margin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.observables import hemisphere
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import (
    except_where,
    flow_of_run,
    flow_steps,
    integration_tolerance,
    never_above,
    of_another_size,
)
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction
from tokendynamics.words import number, number_of_log

WIDEST = 1 / 16
"""ε of the caps {x : w·x ≥ 1 − ε} is below this."""
IDENTITY = 1e-10
"""Excess of the inequality at a state, in units of the largest speed, that counts as rounding."""
_NARROWEST = 1e-12
_STRICTLY = 1 - 1e-6
_WIDTHS = 400


# --- groups of tokens ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grouping:
    """A partition of the tokens of one system.

    Attributes:
        labels: Number of the group of each token, (token,).
        inside: The least cosine of two tokens of one group, 1 where no group has two.
        across: The largest cosine of two tokens of different groups.
    """

    labels: np.ndarray
    inside: float
    across: float

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return int(self.labels.max()) + 1


def groupings(tokens: np.ndarray) -> Iterator[Grouping]:
    """Yield the partitions into two groups or more that complete linkage of unit rows (token, dim) passes through."""
    cosines = np.clip(tokens @ tokens.T, -1.0, 1.0)
    np.fill_diagonal(cosines, 1.0)
    cuts = cut_tree(linkage(squareform(1 - cosines, checks=False), "complete"))
    for labels in cuts.T:
        same = labels[:, None] == labels
        if not same.all():
            yield Grouping(labels, float(cosines[same].min()), float(cosines[~same].max()))


def _best(states: Tensor, score: Callable[[Grouping], float]) -> Grouping:
    """Return the grouping of one system (token, dim) with the largest score, of those with a group of two."""
    tokens = _unit(states).numpy()
    return max((one for one in groupings(tokens) if one.groups < len(tokens)), key=score)


def _unit(states: Tensor) -> Tensor:
    return states / torch.linalg.vector_norm(states, dim=-1, keepdim=True)


def _systems(flow: Flow, states: Tensor, axes: int = 2) -> tuple[list[Tensor], list[float]]:
    """Return the states of each system, and its β."""
    shape = states.shape[: states.ndim - axes]
    betas = measured.temperature(flow)[0].expand(shape).flatten().tolist()
    return list(states.detach().double().cpu().reshape(-1, *states.shape[states.ndim - axes :])), betas


def _circuits(flow: Flow, start: Tensor, tokens: int, lowest: float) -> tuple[Hypothesis, ...]:
    """Measure qk = βI with β above `lowest`, ov = cI with c > 0, and the number of tokens."""
    beta = measured.temperature(flow)[0] - lowest
    name, what = ("β is positive", "β") if lowest == 0 else (f"β above {number(lowest)}", f"β − {number(lowest)}")
    return (
        measured.tokens_at_least(start, tokens),
        *measured.multiple_of_the_identity(flow),
        measured.above(name, beta, 0.0, what),
        *measured.positive_multiples(flow),
    )


# --- the theorem: caps that tokens do not leave ----------------------------------------------------------------------


@dataclass(frozen=True)
class Caps:
    """Caps around centers, and what the theorem says of them; times are those of the flow with ω c = 1.

    With exponential weights e^{β cos − o}/ℓ they are those with ω c e^{β − o} = 1: like those of a softmax, the weights
    are then at least e^{β(cos − 1)}/ℓ, and at most e^{−(1 − α)β} for a token at a cosine of at most α.

    Attributes:
        labels: The cap of each token, (token,).
        centers: w_q, (cap, dim), of length 1.
        epsilon: ε, below 1/16, with w·x ≥ 1 − ε for all tokens of a cap.
        alpha: The largest cosine between points of the caps of width 2ε of different centers.
        gamma: 1 − α − 8ε − log(2ℓ²/ε)/β; the theorem asks for γ > 0.
        rate: λ, NaN unless γ > 0 and β > 1.
        log_times: log T₁ and log T₂, logarithms since both overflow for large β; NaN as λ.
    """

    labels: np.ndarray
    centers: np.ndarray
    epsilon: float
    alpha: float
    gamma: float
    rate: float
    log_times: tuple[float, float]


def _caps_of_all(systems: list[Tensor], betas: list[float]) -> list[Caps]:
    """Return the caps of each system; what does not depend on β is found once for equal neighbors."""
    candidates: list[list[_Candidate]] = []
    for place, states in enumerate(systems):
        alike = place > 0 and torch.equal(states, systems[place - 1])
        candidates.append(candidates[-1] if alike else _candidates(states))
    return [_best_caps(of_system, beta) for of_system, beta in zip(candidates, betas, strict=True)]


@dataclass(frozen=True)
class _Candidate:
    """Centers around which tokens can be put into caps: their labels, the least ε, and the angle of the nearest two."""

    labels: np.ndarray
    centers: Tensor
    least: float
    angle: float


def _candidates(states: Tensor) -> list[_Candidate]:
    unit = _unit(states)

    @cache
    def cap(members: tuple[int, ...]) -> tuple[Tensor, float]:
        """Return the center of the narrowest cap that has these tokens, and its width."""
        rows = unit[list(members)]
        # It is that of their deepest half space; one token is its own center.
        center = rows[0] if len(rows) == 1 else hemisphere(rows).direction
        return center, float((rows - center).square().sum(-1).max()) / 2

    return [one for one in (_centers(grouping, cap) for grouping in groupings(unit.numpy())) if one is not None]


def _centers(grouping: Grouping, cap: Callable[[tuple[int, ...]], tuple[Tensor, float]]) -> _Candidate | None:
    # Two points of a cap of width 1/16 have at least this cosine.
    if grouping.inside < 2 * (1 - WIDEST) ** 2 - 1:
        return None
    members = (np.flatnonzero(grouping.labels == group) for group in range(grouping.groups))
    caps = [cap(tuple(places.tolist())) for places in members]  # partitions share most of their groups
    centers = torch.stack([center for center, _ in caps])
    least = max(*(width for _, width in caps), _NARROWEST)
    if least >= WIDEST * _STRICTLY:
        return None
    angles = 2 * torch.atan2(torch.cdist(centers, centers), torch.cdist(centers, -centers))
    return _Candidate(grouping.labels, centers, least, float(angles[~torch.eye(len(centers), dtype=torch.bool)].min()))


def _best_caps(candidates: list[_Candidate], beta: float) -> Caps:
    return max((_caps_around(one, beta) for one in candidates), key=lambda caps: caps.gamma)


def _caps_around(candidate: _Candidate, beta: float) -> Caps:
    tokens = len(candidate.labels)
    widths = np.geomspace(candidate.least, WIDEST * _STRICTLY, _WIDTHS)
    alphas = np.cos(np.maximum(candidate.angle - 2 * np.arccos(1 - 2 * widths), 0.0))
    with np.errstate(divide="ignore"):
        gammas = 1 - alphas - 8 * widths - np.log(2 * tokens**2 / widths) / np.float64(beta)
    best = int(gammas.argmax()) if beta > 0 else len(widths) - 1
    epsilon, alpha, gamma = float(widths[best]), float(alphas[best]), float(gammas[best])
    rate, times = math.nan, (math.nan, math.nan)
    if gamma > 0 and beta > 1:
        rate, times = times_of_caps(tokens, beta, epsilon, alpha)
    return Caps(candidate.labels, candidate.centers.numpy(), epsilon, alpha, gamma, rate, times)


def times_of_caps(tokens: int, beta: float, epsilon: float, alpha: float) -> tuple[float, tuple[float, float]]:
    """Return λ and (log T₁, log T₂) of the theorem.

    λ is below both bounds: at half of the first, which is that T₁ < T₂, so that some time is left between them.
    """
    gamma = 1 - alpha - 8 * epsilon - math.log(2 * tokens**2 / epsilon) / beta
    log_beta, log_less_one = math.log(beta), math.log(beta - 1)  # their powers may be beyond float64
    first = (1 - alpha) * beta + log_less_one - 2 * log_beta + math.log(epsilon / tokens**2) - 1
    first += math.log(-math.expm1(-gamma * beta))
    second = 1 - alpha - math.log(2 * tokens**2 / (1 - 8 * epsilon)) / beta - 8 * epsilon
    log_rate = min(first - math.log(2), math.log(second * _STRICTLY))
    gathering = 1 + math.log(tokens) + log_rate + 2 * log_beta - log_less_one
    begin = np.logaddexp(math.log(2 * tokens) + 8 * epsilon * beta, gathering)
    return math.exp(log_rate), (float(begin), math.log(epsilon / tokens) + (1 - alpha) * beta)


def _caps_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    circuits = _circuits(flow, start, 2, 1.0)
    if not all(one.anywhere for one in circuits):
        return circuits
    gammas = [caps.gamma for caps in _caps_of_all(*_systems(flow, start))]
    what = "γ = 1 − α − 8ε − log(2ℓ²/ε)/β, of the best caps,"
    gamma = torch.tensor(gammas, dtype=torch.float64).reshape(start.shape[:-2])
    return (*circuits, measured.above("tokens in caps far enough apart", gamma, 0.0, what))


def _predict_caps(flow: Flow, start: Tensor) -> Prediction:
    caps_of_all = _caps_of_all(*_systems(flow, start))
    caps, log_speed, beta = min(
        zip(caps_of_all, _log_speeds(flow, start.shape[:-2]), _systems(flow, start)[1], strict=True),
        key=lambda one: one[0].log_times[1] - one[1],
    )
    begin, end = (number_of_log(log - log_speed) for log in caps.log_times)
    text = (
        f"tokens stay in {len(caps.centers)} caps, w·x at least 1 − {number(2 * caps.epsilon)}, until t = {end}; from "
        f"t = {begin} on squared distances within a cap are at most {number_of_log(math.log(2) - caps.rate * beta)}"
    )
    return Prediction(text, limit="one point in the end; until then a point for each cap")


def _log_speeds(flow: Flow, shape: torch.Size) -> list[float]:
    """Return the logarithm of what multiplies the times of each system, of any sign: −∞ where nothing is pulled."""
    logs = measured.pull(flow).abs().log() + measured.log_size_of_one_point(flow)
    return logs.expand(shape).flatten().tolist()


def _stays_in_caps(trajectory: Trajectory) -> tuple[Condition, ...]:
    if unfit := of_another_size(trajectory, "two tokens or more", trajectory.tensor.shape[-2] > 1):
        return unfit
    flow, states = flow_of_run(trajectory), trajectory.tensor
    log_speeds = _log_speeds(flow, states.shape[:-3])
    elapsed = torch.cat([torch.zeros(1, dtype=torch.float64), flow_steps(trajectory).cumsum(0)]).numpy()
    with np.errstate(divide="ignore"):
        log_elapsed = np.log(elapsed)
    outside, apart, lost, unseen = [], [], [], []
    systems, betas = _systems(flow, states, 3)
    caps_of_all = _caps_of_all([system[0] for system in systems], betas)
    for system, beta, log_speed, caps in zip(systems, betas, log_speeds, caps_of_all, strict=True):
        log_time = log_elapsed + log_speed
        begin, end = caps.log_times
        centers = torch.from_numpy(caps.centers[caps.labels])
        gap = ((_unit(system) - centers).square().sum(dim=-1) / 2).amax(dim=-1).numpy()
        outside.append(np.where(log_time <= end, gap - 2 * caps.epsilon, -np.inf))
        same = torch.from_numpy(caps.labels[:, None] == caps.labels)
        distance = (torch.cdist(system, system).square() * same).amax(dim=(-2, -1)).numpy()
        window = (log_time >= begin) & (log_time <= end)
        apart.append(np.where(window, distance - 2 * math.exp(-caps.rate * beta), -np.inf))
        lost.append(math.isnan(caps.rate))
        unseen.append(not window.any())
    shape, tolerance = tuple(states.shape[:-3]), integration_tolerance(trajectory)
    no_caps, never = (np.array(one).reshape(shape) for one in (lost, unseen))
    texts = ("1 − w·x beyond 2ε until T₂", "squared distances within a cap beyond 2 exp(−λβ) between T₁ and T₂")
    conditions = [
        except_where(never_above(np.stack(values).reshape(*shape, -1), trajectory, tolerance, text), no_caps, "no caps")
        for values, text in zip((outside, apart), texts, strict=True)
    ]
    return (conditions[0], except_where(conditions[1], never, "no saved time is between T₁ and T₂"))


# --- propagation: groups that outsiders do not break up --------------------------------------------------------------


def widest_group(inside: float, beta: float) -> float:
    """Return the δ ≥ 1 − `inside` for which δ(1 − δ)e^{−δβ} is largest.

    Without bounds it is ((β + 2) − √(β² + 4)) / (2β), here without the difference, which is lost for small β.
    """
    return max(1 - inside, 2 / (beta + 2 + math.hypot(beta, 2)))


def largest_cosine_allowed(delta: float, tokens: int, beta: float) -> float:
    """Return the α with δ(1 − δ)e^{−δβ}/ℓ = ℓ e^{−(1 − α)β}; −∞ where δ ≥ 1."""
    if delta >= 1:
        return -math.inf
    return 1 - delta + (math.log(delta) + math.log1p(-delta) - 2 * math.log(tokens)) / beta


def _room(grouping: Grouping, beta: float) -> float:
    return largest_cosine_allowed(widest_group(grouping.inside, beta), len(grouping.labels), beta) - grouping.across


def _propagation_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    circuits = _circuits(flow, start, 3, 0.0)
    if not all(one.anywhere for one in circuits):
        return circuits
    rooms = []
    for states, beta in zip(*_systems(flow, start), strict=True):
        # A system whose β is not positive is refused already.
        positive = max(beta, float(np.finfo(float).tiny))
        best = _best(states, lambda one, b=positive: _room(one, b))
        rooms.append(max(_room(best, positive), -2.0 - 1 / positive))
    room = torch.tensor(rooms, dtype=torch.float64).reshape(start.shape[:-2])
    return (*circuits, measured.above("groups far enough apart", room, 0.0, "α less the largest cosine across groups"))


def _predict_propagation(flow: Flow, start: Tensor) -> Prediction:
    allowed, kept = 1.0, 1.0
    for states, beta in zip(*_systems(flow, start), strict=True):
        best = _best(states, lambda one, b=beta: _room(one, b))
        delta = widest_group(best.inside, beta)
        allowed = min(allowed, largest_cosine_allowed(delta, len(states), beta))
        kept = min(kept, 1 - delta)
    text = (
        f"as long as cosines of tokens of different groups are at most {number(allowed, 4)}, those within a group are "
        f"at least {number(kept, 4)}"
    )
    return Prediction(text, limit="none: a bound while the groups are apart")


def _keeps_together(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow, states = flow_of_run(trajectory), trajectory.tensor
    excess, lost = [], []
    for system, beta in zip(*_systems(flow, states, 3), strict=True):
        if len(system[0]) < 3 or beta <= 0:
            excess.append(np.full(len(system), -np.inf))
            lost.append(True)
            continue
        best = _best(system[0], lambda one, b=beta: _room(one, b))
        delta = widest_group(best.inside, beta)
        unit = _unit(system)
        cosines = (unit @ unit.mT).numpy()
        same = best.labels[:, None] == best.labels
        inside, across = cosines[:, same].min(axis=-1), cosines[:, ~same].max(axis=-1)
        apart = np.logical_and.accumulate(across <= largest_cosine_allowed(delta, len(system[0]), beta))
        excess.append(np.where(apart, 1 - delta - inside, -np.inf))
        lost.append(not apart[0])
    shape = tuple(states.shape[:-3])
    text = "fall of cosines within a group below 1 − δ while other tokens have cosines of at most α with it"
    kept = never_above(np.stack(excess).reshape(*shape, -1), trajectory, integration_tolerance(trajectory), text)
    return (except_where(kept, np.array(lost).reshape(shape), "groups are not far enough apart at the start"),)


# --- the inequality for the least cosine in a group ------------------------------------------------------------------


def _clearness(grouping: Grouping) -> float:
    return grouping.inside - grouping.across


def _inequality_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    circuits = _circuits(flow, start, 3, 0.0)
    if not all(one.anywhere for one in circuits):
        return circuits
    inside = [_best(states, _clearness).inside for states in _systems(flow, start)[0]]
    least = torch.tensor(inside, dtype=torch.float64).reshape(start.shape[:-2])
    return (*circuits, measured.above("acute groups", least, 0.0, "the least cosine within a group"))


def _predict_inequality(flow: Flow, start: Tensor) -> Prediction:
    text = (
        f"the least cosine ρ of two tokens of one group has a derivative ρ′ ≥ {_speed(flow)} ((2/ℓ) ρ (1 − ρ) "
        "exp(β(ρ − 1)) − 2ℓ exp(−(1 − α)β)) while ρ is not negative; α is the largest cosine of a token of the group "
        "and one outside"
    )
    return Prediction(text, limit="none: an inequality at every state")


def _speed(flow: Flow) -> str:
    """Write what `pull_of_one_point` measures."""
    return "ω c" if flow.attention.weights == "softmax" else "ω c exp(β − offset)"


def _least_cosine_rises(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow, states = flow_of_run(trajectory), trajectory.tensor.detach().double()
    times = np.asarray(trajectory.times, dtype=float)
    velocity = torch.stack(
        [torch.as_tensor(flow.velocity(states[..., index, :, :], float(t))) for index, t in enumerate(times)], dim=-3
    )
    moves = _systems(flow, velocity, 3)[0]
    speeds = measured.pull_of_one_point(flow).abs().expand(states.shape[:-3]).flatten().tolist()
    excess = []
    for system, beta, move, speed in zip(*_systems(flow, states, 3), moves, speeds, strict=True):
        few = len(system[0]) < 3
        labels = np.arange(len(system[0])) if few else _best(system[0], _clearness).labels
        worst = _excess_of_inequality(_unit(system), move / (speed or 1.0), labels, beta)
        excess.append(worst if speed else np.full(len(system), -np.inf))  # Both sides are 0 where nothing is pulled.
    shape = tuple(states.shape[:-3])
    what = "ρ the least cosine within a group"
    text = f"(2/ℓ) ρ (1 − ρ) exp(β(ρ − 1)) − 2ℓ exp(−(1 − α)β) − ρ′/({_speed(flow)}), {what}"
    return (never_above(np.stack(excess).reshape(*shape, -1), trajectory, IDENTITY, text, pointwise=True),)


def _excess_of_inequality(unit: Tensor, move: Tensor, labels: np.ndarray, beta: float) -> np.ndarray:
    """Return by how much the inequality is violated at each time by the worst group, −∞ where it says nothing."""
    tokens, (cosines, change) = unit.shape[-2], (unit @ unit.mT, move @ unit.mT)
    slopes = (change + change.mT).numpy()
    worst = np.full(len(unit), -np.inf)
    for group in range(int(labels.max()) + 1):
        members, others = np.flatnonzero(labels == group), np.flatnonzero(labels != group)
        if len(members) < 2:
            continue
        first, second = (members[index] for index in np.triu_indices(len(members), 1))
        pairs = cosines.numpy()[:, first, second]
        least = pairs.argmin(axis=-1)
        rho, slope = (
            np.take_along_axis(values, least[:, None], -1)[:, 0] for values in (pairs, slopes[:, first, second])
        )
        alpha = cosines.numpy()[:, members][:, :, others].max(axis=(-2, -1))
        bound = 2 / tokens * rho * (1 - rho) * np.exp(beta * (rho - 1)) - 2 * tokens * np.exp(-(1 - alpha) * beta)
        worst = np.maximum(worst, np.where(rho >= 0, bound - slope, -np.inf))
    return worst


STATEMENTS = (
    Statement(
        name="metastability-main",
        title="Tokens in narrow caps far apart stay there for a time exponential in β",
        equations="the main theorem",
        erratum=(
            "The upper bound of λ that makes T₁ < T₂ is printed with the wrong sign of its logarithm; meant is "
            "exp((1 − α)β)(β − 1)ε/(β²ℓ²e)·(1 − exp(−γβ))."
        ),
        structure=measured.one_head_of_either_weights_on_the_sphere,
        hypotheses=_caps_hypotheses,
        predict=_predict_caps,
        conditions=_stays_in_caps,
    ),
    Statement(
        name="metastability-propagation",
        title="Groups of tokens stay as narrow as they are while the others stay away",
        equations="the propagation lemma",
        structure=measured.one_head_of_either_weights_on_the_sphere,
        hypotheses=_propagation_hypotheses,
        predict=_predict_propagation,
        conditions=_keeps_together,
    ),
    Statement(
        name="metastability-inequality",
        title="The least cosine of a group rises but for what tokens outside can do",
        equations="an inequality in the proof of the main theorem",
        structure=measured.one_head_of_either_weights_on_the_sphere,
        hypotheses=_inequality_hypotheses,
        predict=_predict_inequality,
        conditions=_least_cosine_rises,
    ),
)
