"""Statements of `clusters`: tokens in free space, seen at the scale z = exp(−λt) x of those that grow fastest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from scipy.spatial import ConvexHull, QhullError
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.observables import log_potential, pair_quadratic_form_rate
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import (
    LIMIT,
    except_where,
    flow_of_run,
    integration_tolerance,
    never_above,
    tends_to_zero,
    undecided,
)
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.atlas._eigenspaces import Fastest, fastest_space, growing_part
from tokendynamics.theorems.contraction import at_times, free_softmax, head_matrix, single_head_in_free_space, states_of
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction
from tokendynamics.theorems.statements import STATEMENTS as OF_THE_PAPERS
from tokendynamics.words import number

_TO_ZERO = next(one for one in OF_THE_PAPERS if one.name == "positional-3.4")
TINY = torch.finfo(torch.float64).tiny
_TOLD = 15.0
"""λt up to which distances that are constant in x are seen in z: later rounding makes one point of such tokens."""
_SHARPEST = 700.0
"""Largest exponent of what multiplies differences of logits."""


def _elapsed(trajectory: Trajectory) -> Tensor:
    """Return the time t of z = exp(−λt) x: that of the run, from its start, or the clock of a rescaled run."""
    times = torch.as_tensor(np.asarray(trajectory.times, dtype=float))
    return times if trajectory.frame == "rescaled" else times - times[0]


def _rescaled(trajectory: Trajectory, rate: Tensor) -> Tensor:
    """Return exp(−λt) x, (*system, time, token, dim), for rates λ of each system, (…).

    Of a rescaled run these are the states, exp(−t ov) x, themselves: in the eigenspace of λ both agree.
    """
    if trajectory.frame == "rescaled":
        return states_of(trajectory)
    return states_of(trajectory) * torch.exp(-rate[..., None] * _elapsed(trajectory))[..., None, None]


def _size(z: Tensor) -> Tensor:
    """Return the largest norm of a token up to each time, (*system, time): what the run's error is relative to."""
    return torch.linalg.vector_norm(z, dim=-1).amax(dim=-1).cummax(dim=-1).values.clamp_min(TINY)


def _so_far(trajectory: Trajectory, rate: Tensor) -> str:
    """Say how far the run came in units of the growth."""
    length = np.asarray(trajectory.end_times, dtype=float) - float(trajectory.times[0])
    return f"up to λt = {number(float((rate * torch.as_tensor(length)).min()), 3)}"


# --- the hull --------------------------------------------------------------------------------------------------------

DIRECTIONS = 64
"""Directions in which the hull is looked at from, in two dimensions and more; above two, the axes as well."""


def _fan(dim: int) -> Tensor:
    """Return unit vectors, (direction, dim), with the opposite of each."""
    if dim == 1:
        half = torch.ones(1, 1, dtype=torch.float64)
    elif dim == 2:
        angles = torch.arange(DIRECTIONS // 2) * (torch.pi / (DIRECTIONS // 2))
        half = torch.stack([angles.cos(), angles.sin()], dim=-1).double()
    else:
        drawn = torch.from_numpy(np.random.default_rng(0).normal(size=(DIRECTIONS // 2, dim)))
        half = torch.cat([torch.eye(dim).double(), torch.nn.functional.normalize(drawn, dim=-1)])
    return torch.cat([half, -half])


def _hull_shrinks(z: Tensor, size: Tensor, trajectory: Trajectory, text: str) -> Condition:
    """Require that max_i u·z_i not rise for any u of a fan; the rise is relative to `size`, (*system, time)."""
    support = (z @ _fan(z.shape[-1]).mT).amax(dim=-2)
    rise = (support - support.cummin(dim=-2).values).amax(dim=-1) / size
    return never_above(rise, trajectory, integration_tolerance(trajectory), text)


def _hull_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    rate = measured.pull(flow_of_run(trajectory))
    z = _rescaled(trajectory, rate)
    text = f"rise of max_i u·z_i, z = exp(−λt) x, for any direction u {_so_far(trajectory, rate)}, relative to max|z|"
    return (_hull_shrinks(z, _size(z), trajectory, text),)


def _hull_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    return measured.constant(flow.attention.ov, "ov"), *measured.positive_multiples(flow)


def _predict_hull(flow: Flow, start: Tensor) -> Prediction:
    rate = number(float(measured.pull(flow).min()), 4)
    return Prediction(f"the convex hull of exp(−λt) x_i, λ = {rate}, never grows", limit="a convex polytope")


# --- Theorem 3.1: the polytope ---------------------------------------------------------------------------------------


@measured.given(measured.constant_circuits)
def _polytope_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    return *_positive_logits(flow), *measured.positive_multiples(flow)


def _positive_logits(flow: Flow) -> tuple[Hypothesis, ...]:
    qk = head_matrix(flow.attention.qk)
    rounding = measured.rounding(flow.dim, measured.precision(flow.attention.qk))
    return measured.symmetric(qk, "qk", rounding), measured.definite(qk, "qk", tolerance=rounding)


def _polytope_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow = flow_of_run(trajectory)
    rate, qk = measured.pull(flow), head_matrix(flow.attention.qk).unsqueeze(-3)
    z = _rescaled(trajectory, rate)
    logits = z @ qk @ z.mT
    of_itself = logits.diagonal(dim1=-2, dim2=-1)
    scale = torch.linalg.matrix_norm(qk, 2) * _size(z) ** 2 + TINY
    # The mean of numbers a_j by softmax(κ a) is at least max a − log ℓ/κ, here with κ = e^{2λt}.
    allowance = np.log(z.shape[-2]) * torch.exp(-2 * rate[..., None] * _elapsed(trajectory))
    level = of_itself - allowance[..., None]
    fall = (level.cummax(dim=-2).values - level).amax(dim=-1) / scale
    residual = (logits.amax(dim=-1) - of_itself).amax(dim=-1) / scale
    size, tolerance = "relative to ‖qk‖ max|z|²", integration_tolerance(trajectory)
    return (
        *_hull_conditions(trajectory),
        never_above(fall, trajectory, tolerance, f"fall of z_i·qk z_i − log ℓ e^(−2λt) of any token, {size}"),
        tends_to_zero(residual, LIMIT, f"max_x z_i·qk x − z_i·qk z_i over the hull, {size}, tends to 0"),
    )


def _predict_polytope(flow: Flow, start: Tensor) -> Prediction:
    text = (
        "z_i = exp(−λt) x_i go to finitely many points of a polytope K, those with x·qk x = max over its vertices v of "
        "x·qk v, vertices among them; z_i·qk z_i − log ℓ e^(−2λt) never falls"
    )
    return Prediction(text, limit="a vertex of K, a point of its boundary, or 0")


# --- Theorem 2.1: one dimension --------------------------------------------------------------------------------------


@measured.given(measured.constant_circuits)
def _line_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    qk = head_matrix(flow.attention.qk)[..., 0, 0]
    sorted_ = start[..., 0].sort(dim=-1).values
    hypotheses = [measured.above("qk above 0", qk, 0.0, "qk"), *measured.positive_multiples(flow)]
    if start.shape[-2] > 1:
        gap = sorted_.diff(dim=-1).amin(dim=-1) / sorted_.abs().amax(dim=-1).clamp_min(TINY)
        what = "the least distance of two tokens relative to the largest token"
        hypotheses.append(measured.above("no two tokens equal", gap, measured.ROUNDING, what))
    return tuple(hypotheses)


def _line_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow, x = flow_of_run(trajectory), states_of(trajectory)
    systems, text = tuple(x.shape[:-3]), "distance of neighbors less than before, relative to max|x|"
    if flow.dim != 1 or x.shape[-2] < 2:
        return (undecided(systems, f"{text}: there are no neighbors"),)
    order = x[..., :1, :, 0].argsort(dim=-1).expand(x.shape[:-1])
    gaps = x[..., 0].gather(-1, order).diff(dim=-1)
    # In z: what the widest gap so far has become.
    rate = measured.pull(flow)[..., None] if trajectory.frame == "rescaled" else torch.zeros(1, dtype=torch.float64)
    decay = torch.exp(-rate * torch.as_tensor(np.diff(np.asarray(trajectory.times, dtype=float))))
    widest = [gaps[..., 0, :]]
    for step in range(gaps.shape[-2] - 1):
        widest.append(torch.maximum(widest[-1] * decay[..., step, None], gaps[..., step + 1, :]))
    shrunk = (torch.stack(widest, dim=-2) - gaps).amax(dim=-1) / _size(x)
    growth = (rate * torch.as_tensor(np.asarray(trajectory.times, dtype=float))).expand(*systems, -1)
    logits = (head_matrix(flow.attention.qk).unsqueeze(-3) * x) @ x.mT
    above = logits - logits.amax(dim=-1, keepdim=True)
    pattern = (above * torch.exp((2 * growth).clamp_max(_SHARPEST))[..., None, None]).softmax(dim=-1)
    free = (1 - pattern.amax(dim=-1)).sort(dim=-1, descending=True).values[..., 1]
    last = ((growth <= _TOLD).sum(dim=-1, keepdim=True) - 1).clamp_min(0)
    return (
        never_above(shrunk, trajectory, integration_tolerance(trajectory), text),
        tends_to_zero(free.gather(-1, last), LIMIT, "1 − max_j w_ij of all rows but one tends to 0"),
    )


# --- sections 4 and 5: one growing direction, or several that grow alike ---------------------------------------------


def _fastest_hypotheses(fastest: Fastest) -> tuple[Hypothesis, ...]:
    what = "the gap of moduli relative to ‖ov‖"
    return (
        measured.above("the largest eigenvalue λ of ov above 0", fastest.top, measured.ROUNDING, "λ relative to ‖ov‖"),
        measured.above("all others smaller in modulus", fastest.gap, 1e-10, what),
    )


@measured.given(measured.constant_circuits)
def _levels_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    fastest = fastest_space(flow)
    hypotheses = [*_fastest_hypotheses(fastest)]
    simple = measured.at_most("λ simple", fastest.dim + fastest.missing, 1.5, "its multiplicity")
    hypotheses.append(simple)
    if all(one.anywhere for one in hypotheses):
        phi, qk = fastest.basis[..., :, 0], head_matrix(flow.attention.qk)
        form = (phi.unsqueeze(-2) @ qk @ phi.unsqueeze(-1))[..., 0, 0]
        relative = form / torch.linalg.matrix_norm(qk, 2).clamp_min(TINY)
        hypotheses.append(measured.above("φ·qk φ above 0", relative, measured.ROUNDING, "φ·qk φ relative to ‖qk‖"))
    return tuple(hypotheses)


def _projected(trajectory: Trajectory, fastest: Fastest) -> tuple[Tensor, Tensor]:
    """Return the parts in F of exp(−λt) x and what the error of them is relative to."""
    z = _rescaled(trajectory, fastest.rate)
    size = _size(z) * torch.linalg.matrix_norm(fastest.projection, 2).clamp_min(1.0)[..., None]
    return z @ fastest.projection.mT.unsqueeze(-3), size


def _without_space(conditions: tuple[Condition, ...], fastest: Fastest, most: float) -> tuple[Condition, ...]:
    lost = ((fastest.missing > 0) | (fastest.dim < 1) | (fastest.dim > most)).numpy()
    return tuple(except_where(one, lost, "ov has no such eigenspace") for one in conditions)


def _levels_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    fastest = fastest_space(flow_of_run(trajectory))
    parts, size = _projected(trajectory, fastest)
    # In the line F: coordinates along φ, which are the f(z_i) of the statement.
    levels = (parts @ fastest.basis[..., :1].unsqueeze(-3))[..., 0]
    last, unit = levels[..., -1, :], size[..., -1]
    known = torch.stack([torch.zeros_like(unit), last.amin(dim=-1), last.amax(dim=-1)], dim=-1)
    away = (last.unsqueeze(-1) - known.unsqueeze(-2)).abs().amin(dim=-1).amax(dim=-1) / unit
    far = _so_far(trajectory, fastest.rate)
    conditions = (
        _hull_shrinks(levels.unsqueeze(-1), size, trajectory, f"rise of the extremes of f(exp(−t ov) x_i) {far}"),
        tends_to_zero(away.unsqueeze(-1), LIMIT, "distance of f(exp(−t ov) x_i) to 0, the least and the largest"),
    )
    return _without_space(conditions, fastest, 1.5)


@measured.given(measured.constant_circuits)
def _space_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    fastest = fastest_space(flow)
    whole = measured.at_most("λ with as many eigenvectors as its multiplicity", fastest.missing, 0.5, "those missing")
    return *_positive_logits(flow), *_fastest_hypotheses(fastest), whole


_MOST_DIMENSIONS = 5
"""Of a hull whose boundary is looked for: the number of its facets grows like a power of half the dimension."""


def _boundary_distance(points: Tensor, basis: Tensor, count: int) -> float:
    """Return the largest distance of a point, (token, dim), to the boundary of their hull in a subspace, or to 0."""
    inside = (points @ basis[:, :count]).numpy()
    from_zero = np.linalg.norm(inside, axis=-1)
    if count == 1:
        line = inside[:, 0]
        to_boundary = np.minimum(line - line.min(), line.max() - line)
    else:
        try:
            facets = ConvexHull(inside).equations
        except (QhullError, ValueError):
            return 0.0  # Of lower dimension: all of it is boundary.
        to_boundary = -(inside @ facets[:, :-1].T + facets[:, -1]).max(axis=-1)
    return float(np.minimum(from_zero, to_boundary).max(initial=0.0))


def _space_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    fastest = fastest_space(flow_of_run(trajectory))
    parts, size = _projected(trajectory, fastest)
    systems = parts.shape[:-3]
    last = (parts[..., -1, :, :] / size[..., -1, None, None]).reshape(-1, *parts.shape[-2:])
    bases = fastest.basis.expand(*systems, -1, -1).reshape(-1, *fastest.basis.shape[-2:])
    counts = fastest.dim.expand(systems).reshape(-1).int().tolist()
    away = [
        _boundary_distance(*system) if 0 < system[2] <= _MOST_DIMENSIONS else 0.0
        for system in zip(last, bases, counts, strict=True)
    ]
    distance = torch.tensor(away, dtype=torch.float64).reshape(*systems, 1)
    far = _so_far(trajectory, fastest.rate)
    ends = tends_to_zero(distance, LIMIT, "distance of p_i to 0 and to the boundary of their hull in F tends to 0")
    many = (fastest.dim > _MOST_DIMENSIONS).expand(systems).numpy()
    conditions = (
        _hull_shrinks(parts, size, trajectory, f"rise of max_i u·p_i, p the part in F of exp(−λt) x, {far}"),
        except_where(ends, many, f"the boundary of a hull is not looked for beyond dim {_MOST_DIMENSIONS}"),
    )
    return _without_space(conditions, fastest, np.inf)


# --- section 4: the conjecture on several directions that grow -------------------------------------------------------

_MOST = 3
_STUCK = 100.0
"""Differences of logits from which on a token never again moves by more than e^(−50) of the hull's diameter."""


@measured.given(measured.constant_circuits)
def _codimension_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    count = growing_part(flow)[0]
    return (measured.above("an eigenvalue of ov with a real part above 0", count, 0.5, "how many there are"),)


def _levels_left(points: Tensor, near: float) -> int:
    """Return how many points, (token, dim), are left when each takes those nearer than `near` with it."""
    left, levels = points, 0
    while len(left):
        left = left[torch.linalg.vector_norm(left - left[0], dim=-1) > near]
        levels += 1
    return levels


def _codimension_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow = flow_of_run(trajectory)
    projection = growing_part(flow)[2]
    z = states_of(trajectory)
    if trajectory.frame == "tokens":
        growth = flow.weight_factor * head_matrix(flow.attention.ov).unsqueeze(-3)
        z = z @ torch.matrix_exp(-growth * _elapsed(trajectory)[:, None, None]).mT
    systems = z.shape[:-3]
    parts = z @ projection.mT.unsqueeze(-3)
    last = (parts / _size(z)[..., None, None])[..., -1, :, :].reshape(-1, *z.shape[-2:])
    counts = np.array([_levels_left(points, LIMIT) if bool(points.isfinite().all()) else 0 for points in last])
    beyond = np.maximum(counts.reshape(systems) - _MOST, 0.0)
    text = "parallel subspaces of codimension k that hold all exp(−t ov) x_i in the end, beyond three"
    unknown = (counts == 0).reshape(systems)
    limit = except_where(tends_to_zero(beyond[..., None], 0.5, text), unknown, "ov has no basis of eigenvectors")
    return (_stuck_apart(trajectory, flow, z, text), limit)


def _stuck_apart(trajectory: Trajectory, flow: Flow, z: Tensor, text: str) -> Condition:
    """Require three points at most where every token is known to stay where it is: ov = cI, and sharp logits.

    Where all differences ``e^{2λt}(z_i·qk z_i − z_i·qk z_j)`` are above m they stay above m/2: no token then moves by
    more than ``ℓ e^{−m/2}`` of the hull's diameter, for the sum of all later weights of others is below that.
    """
    deviation, multiple = measured.multiples(flow)[:2]
    even = (deviation <= measured.ROUNDING) & (multiple[..., 0] > 0)
    rate, final = flow.weight_factor * multiple[..., 0], z[..., -1, :, :]
    logits = final @ head_matrix(flow.attention.qk) @ final.mT
    differences = logits.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) - logits
    apart = torch.eye(z.shape[-2], dtype=torch.bool) | (differences > 0)
    time = _elapsed(trajectory)[-1]
    least = torch.where(torch.eye(z.shape[-2], dtype=torch.bool), torch.inf, differences).amin(dim=(-2, -1))
    sharp = least.clamp_min(TINY).log() + 2 * rate * time > np.log(_STUCK)
    # Beyond any error of the run, and of what tokens move from here on.
    scale = torch.linalg.matrix_norm(head_matrix(flow.attention.qk), 2) * _size(z)[..., -1] ** 2
    sharp = sharp & (least > LIMIT * scale)
    stuck = (even & apart.all(dim=(-2, -1)) & sharp).expand(z.shape[:-3])
    beyond = torch.where(stuck, float(max(z.shape[-2] - _MOST, 0)), 0.0)
    seen = torch.zeros(*z.shape[:-2], dtype=torch.float64)
    seen[..., -1] = beyond
    return never_above(seen, trajectory, 0.5, f"{text}, where no token moves any more", pointwise=True)


# --- section 12: any qk ----------------------------------------------------------------------------------------------


@measured.given(measured.constant_circuits)
def _open_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    return measured.positive_multiples(flow)


# --- sections 7 and 8: qk and ov multiples of the identity -----------------------------------------------------------


def _positive_temperature(flow: Flow) -> tuple[Hypothesis, ...]:
    alike = measured.multiple_of_the_identity(flow)
    if not all(one.anywhere for one in alike):
        return alike
    return *alike, measured.above("β above 0", measured.temperature(flow)[0], 0.0, "β, qk = βI,")


def _expanding_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow = flow_of_run(trajectory)
    size = torch.linalg.matrix_norm(flow.weight_factor * head_matrix(flow.attention.ov), 2)
    eye = torch.eye(flow.dim).double()

    def shrinking(x: Tensor, velocity: Tensor) -> Tensor:
        rate = pair_quadratic_form_rate(eye, x, velocity)
        terms = torch.cdist(x, x) * (size * torch.linalg.vector_norm(x, dim=-1).amax(dim=-1))[..., None, None]
        return (-rate / terms.clamp_min(TINY)).amax(dim=(-2, -1))

    text = "d/dt |x_i − x_j|² ≥ 0 for every pair, relative to ‖ov‖ |x_i − x_j| max|x|"
    return (never_above(at_times(trajectory, shrinking), trajectory, measured.ROUNDING, text, pointwise=True),)


def _predict_expanding(flow: Flow, start: Tensor) -> Prediction:
    return Prediction("no distance |x_i − x_j| ever shrinks", limit="none: monotone quantities")


def _repelling_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    still = measured.constant(flow.attention.ov, "ov")
    if not still.anywhere:
        return *_positive_temperature(flow), still
    deviation, least, _ = measured.multiples(flow)
    allowed = measured.rounding(flow.dim, measured.precision(flow.attention.ov))
    return (
        *_positive_temperature(flow),
        still,
        measured.at_most(
            "ov is a multiple of the identity", deviation, allowed, "the largest entry of ov − c·I over c"
        ),
        measured.above("the multiple is negative", -least.amax(dim=-1), 0.0, "−c of ov = cI"),
    )


def _repelling_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow, x = flow_of_run(trajectory), states_of(trajectory)
    beta, speed = measured.temperature(flow)[0], -measured.pull(flow)
    log_h = log_potential(x, head_matrix(flow.attention.qk).unsqueeze(-3))
    first = log_h[..., :1]
    # ∫ |x'|² between two saved times is at least |difference|² over their distance.
    steps = x.diff(dim=-3).square().sum(dim=(-2, -1)) / _elapsed(trajectory).diff()
    spent = torch.cat([torch.zeros_like(first), beta[..., None] * steps], dim=-1).cumsum(dim=-1)
    had = speed[..., None] * (1 - torch.exp(log_h - first)) / 2
    excess = (spent * torch.exp(-first) - had) / speed.abs().clamp_min(TINY)[..., None]
    sharp = (beta[..., None] * _size(x)[..., :1] ** 2).clamp_min(1.0)
    text = "β Σ_i ∫|x_i'|² dt less c(h(0) − h(t))/2, h = Σ_ij exp(x_i·qk x_j), relative to c h(0) and to the logits"
    integral = never_above(excess / sharp, trajectory, integration_tolerance(trajectory), text)
    return *_TO_ZERO.conditions(trajectory), integral


STATEMENTS = (
    Statement(
        name="clusters-2.1",
        title="On a line attention becomes Boolean, save for one row",
        equations="Theorem 2.1",
        structure=lambda flow: (
            *single_head_in_free_space(flow),
            measured.fact("tokens on a line", flow.dim == 1, f"dim is {flow.dim}"),
        ),
        hypotheses=_line_hypotheses,
        predict=lambda flow, start: Prediction(
            "all rows of the attention matrix but one at most go to 0 and 1, with the 1 at the first or the last token "
            "of the line; no distance of neighbors shrinks",
            limit="a Boolean matrix, save for one row",
        ),
        conditions=_line_conditions,
        rescaled=True,
    ),
    Statement(
        name="clusters-3.1",
        title="Rescaled tokens go to finitely many points of a polytope",
        equations="Theorem 3.1",
        structure=single_head_in_free_space,
        hypotheses=_polytope_hypotheses,
        predict=_predict_polytope,
        conditions=_polytope_conditions,
        rescaled=True,
    ),
    Statement(
        name="clusters-4",
        title="Three parallel hyperplanes at most hold all rescaled tokens in the end",
        equations="section 4",
        structure=single_head_in_free_space,
        hypotheses=_levels_hypotheses,
        predict=lambda flow, start: Prediction(
            "f(exp(−t ov) x_i) go to at most three numbers, 0 and the limits of the least and the largest of them, "
            "which never fall and never rise",
            limit="three hyperplanes at most",
        ),
        conditions=_levels_conditions,
        rescaled=True,
    ),
    Statement(
        name="clusters-4-codimension",
        title="Three parallel subspaces at most for several directions that grow",
        equations="the conjecture of section 4",
        erratum=(
            "False where two directions grow: with qk = ov = I in the plane the tokens (±1, 0) and (0, ±1) keep four "
            "directions, by symmetry, and rescaled four different limits, which would have to be three points at most."
        ),
        structure=single_head_in_free_space,
        hypotheses=_codimension_hypotheses,
        predict=lambda flow, start: Prediction("nothing: the conjecture is false", limit="none"),
        conditions=_codimension_conditions,
        standing="false",
        rescaled=True,
    ),
    Statement(
        name="clusters-5",
        title="Within the fastest eigenspace rescaled tokens go to the boundary of a polytope or to 0",
        equations="section 5",
        erratum=(
            "The formalization refutes a bound of the proof unless the square root of qk keeps both spaces; no "
            "counterexample of the statement is known."
        ),
        structure=single_head_in_free_space,
        hypotheses=_space_hypotheses,
        predict=lambda flow, start: Prediction(
            "the parts in F of exp(−λt) x_i go to the boundary of a polytope or to 0; their hull never grows",
            limit="the boundary of a polytope times G",
        ),
        conditions=_space_conditions,
        standing="conjecture",
        rescaled=True,
    ),
    Statement(
        name="clusters-7",
        title="No distance of tokens shrinks where qk and ov are multiples of the identity",
        equations="section 7",
        structure=single_head_in_free_space,
        hypotheses=lambda flow, start: (*_positive_temperature(flow), *_hull_hypotheses(flow, start)),
        predict=_predict_expanding,
        conditions=_expanding_conditions,
    ),
    Statement(
        name="clusters-8-hull",
        title="The hull of rescaled tokens shrinks",
        equations="section 8",
        erratum="qk ≻ 0 is asked for; any qk will do, any mask, and heads with positive multiples of the identity.",
        structure=lambda flow: (*free_softmax(flow), measured.no_positions(flow)),
        hypotheses=_hull_hypotheses,
        predict=_predict_hull,
        conditions=_hull_conditions,
        rescaled=True,
    ),
    replace(
        _TO_ZERO,
        name="clusters-8-repelling",
        title="Tokens that repel each other go to zero with finite ∫|x'|²",
        equations="section 8",
        erratum="",
        hypotheses=_repelling_hypotheses,
        conditions=_repelling_conditions,
    ),
    Statement(
        name="clusters-12",
        title="Rescaled tokens go to the boundary of a polytope or to 0, whatever qk is",
        equations="section 12",
        erratum="Posed as a problem; the limit asked for here, that of Theorem 3.1, is our reading of it.",
        structure=single_head_in_free_space,
        hypotheses=_open_hypotheses,
        predict=lambda flow, start: Prediction(
            "z_i = exp(−λt) x_i go to the boundary of a polytope or to 0; their hull never grows",
            limit="the boundary of a polytope, or 0",
        ),
        conditions=_space_conditions,
        standing="conjecture",
        rescaled=True,
    ),
)
