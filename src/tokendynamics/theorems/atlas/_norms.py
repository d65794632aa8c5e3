"""Statements of `norms`: directions that gather, and radii that grow, under every scheme of normalization."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from scipy.integrate import quad
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.observables import diameter
from tokendynamics.spaces import Normalized, Sphere
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import (
    LIMIT,
    except_where,
    flow_of_run,
    integration_tolerance,
    never_above,
    never_rises,
    of_another_size,
    tends_to_zero,
    undecided,
)
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.atlas._perspective import AT_REST, log_energy_of_run, not_at_rest
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction
from tokendynamics.words import exponential, number


def _scheme(flow: Flow) -> str | None:
    if isinstance(flow.space, Normalized):
        return flow.space.scheme
    return "post" if flow.geometry.quadratic and flow.geometry.metric is None else None


def _has_radius(flow: Flow) -> bool:
    return flow.geometry.has_radius


def _structure(flow: Flow) -> tuple[Hypothesis, ...]:
    name = f"the space is {flow.space.name}"
    return (
        measured.fact("tokens normalized", _scheme(flow) is not None, name),
        measured.weights_are_softmax(flow),
        measured.no_positions(flow),
        measured.full_mask(flow),
        measured.one_head(flow),
    )


def _structure_with_radius(flow: Flow) -> tuple[Hypothesis, ...]:
    name = f"the space is {flow.space.name}"
    return (
        measured.fact("tokens with a radius", _has_radius(flow), name),
        measured.weights_are_softmax(flow),
        measured.no_positions(flow),
    )


def _directions(states: Tensor) -> Tensor:
    return states / torch.linalg.vector_norm(states, dim=-1, keepdim=True)


def _least_cosine(start: Tensor) -> Tensor:
    """Return the least cosine of two tokens, (…,); 1 of a single token."""
    if start.shape[-2] < 2:
        return torch.ones(start.shape[:-2], dtype=start.dtype)
    return measured.pair_cosines(start).amin(dim=-1)


def _growth(flow: Flow) -> Tensor:
    """Return what r' is of equal tokens, (*system,): 1 where the output is normalized, else ω Σ_h c_h."""
    pull = measured.pull(flow)
    return torch.ones_like(pull) if _scheme(flow) == "peri" else pull


def _elapsed(trajectory: Trajectory, growing: bool = True) -> Tensor:
    """Return the time since the start, (time,), for "mix" that since the switch where radii are meant."""
    flow, times = flow_of_run(trajectory), torch.as_tensor(np.asarray(trajectory.times, dtype=float))
    tau = float(trajectory.parameters.get("tau", 1.0)) if trajectory.engine == "layers" else 1.0
    first = float(times[0])
    if growing and isinstance(flow.space, Normalized) and flow.space.switch is not None:
        first = max(first, flow.space.switch)
    return tau * (times - first).clamp_min(0.0)


# --- one point -------------------------------------------------------------------------------------------------------


def _of_rate(flow: Flow, name: str, why: str) -> tuple[Hypothesis, ...]:
    """Return what is assumed of a rate that is a function of time."""
    if not (isinstance(flow.space, Normalized) and callable(flow.space.rate)):
        return ()
    return (measured.assumed(name, f"the rate is a function of time{why}"),)


def _convergence_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    sizes = (measured.tokens_at_least(start, 2), measured.dim_at_least_two(flow))
    if any(one.holds is False for one in sizes):
        return sizes
    beta = measured.temperature(flow)[0]
    circuits = (
        *measured.multiple_of_the_identity(flow),
        measured.above("β is positive", beta, 0.0, "β"),
        *measured.positive_multiples(flow),
        *_of_rate(flow, "∫α diverges", ", and with ∫α < ∞ tokens stop on the way"),
    )
    if not all(one.anywhere for one in circuits):
        return (*sizes, *circuits)
    directions = _directions(start)
    together = torch.as_tensor(diameter(directions)) <= AT_REST
    on_sphere = flow.with_attention(flow.attention, Sphere())
    return (*sizes, *circuits, not_at_rest(on_sphere, directions, together, "in one point"))


def _least_growth(flow: Flow, tokens: int) -> Tensor:
    """Return the least r' for ℓ ≤ e^β, (*system,): p (e^β − (ℓ − 1)) / (ℓ e^β); 0 where β is smaller."""
    beta = measured.temperature(flow)[0]
    least = (1 - (tokens - 1) * torch.exp(-beta)) / tokens
    return torch.where(tokens <= torch.exp(beta), _growth(flow) * least, 0.0)


def _predict_convergence(flow: Flow, start: Tensor) -> Prediction:
    text = "the energy Σ exp(β u_i·u_j) of the directions does not fall, and from almost every start they meet"
    if not _has_radius(flow):
        return Prediction(f"{text} in one point", limit="one point, from almost every start")
    least = float(_least_growth(flow, start.shape[-2]).min())
    if least > 0:
        grows = f"; every radius grows by {number(least, 3)} in each unit of time at least"
        return Prediction(f"{text} in one point{grows}", limit="one point, from almost every start")
    return Prediction(
        f"{text}, or some radius grows ever more slowly", limit="one point, or a radius that stops growing"
    )


def _convergence(trajectory: Trajectory) -> tuple[Condition, ...]:
    if unfit := of_another_size(trajectory, "two tokens or more", trajectory.tensor.shape[-2] > 1):
        return unfit
    flow, states = flow_of_run(trajectory), trajectory.tensor.detach().double().cpu()
    tolerance = integration_tolerance(trajectory)
    rising = "fall of the energy (1/β) log Σ exp(β(u_i·u_j − 1))/ℓ²"
    conditions = [never_rises(-log_energy_of_run(trajectory), trajectory, tolerance, rising)]
    if _has_radius(flow):
        radii, systems = torch.linalg.vector_norm(states, dim=-1), tuple(states.shape[:-3])
        least = _least_growth(flow, states.shape[-2]).expand(systems)
        beside = torch.where((least > 0)[..., None, None], _short_of(radii, least, _elapsed(trajectory)), -torch.inf)
        text = "how far a radius is below r(0) + t (e^β − ℓ + 1)/(ℓe^β), relative to it, for ℓ ≤ e^β"
        conditions.append(never_above(beside.amax(dim=-1), trajectory, tolerance, text))
    gathered = diameter(_directions(states)) / 2
    return (*conditions, tends_to_zero(gathered, LIMIT, "half the diameter of the directions tends to 0"))


def _short_of(radii: Tensor, slope: Tensor, elapsed: Tensor) -> Tensor:
    """Return how far radii (…, time, token) are below ``r(0) + slope · t``, relative to them."""
    bound = radii[..., :1, :] + (slope[..., None] * elapsed)[..., None]
    return (bound - radii) / radii


# --- radii -----------------------------------------------------------------------------------------------------------


def _predict_radius(flow: Flow, start: Tensor) -> Prediction:
    growth, cosine = float(_growth(flow).min()), float(_least_cosine(start).min())
    since = " from the switch on" if _scheme(flow) == "mix" else ""
    text = (
        f"every radius grows{since} by {number(growth * cosine, 3)} to {number(growth, 3)} in each unit of time, and "
        f"the least cosine of two tokens, {number(cosine, 4)} at the start, does not fall"
    )
    return Prediction(text, limit="radii that grow linearly")


def _radius(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow, states = flow_of_run(trajectory), trajectory.tensor.detach().double().cpu()
    systems, tolerance = tuple(states.shape[:-3]), integration_tolerance(trajectory)
    text = "radii grow linearly"
    if not _has_radius(flow):
        return (undecided(systems, text),)
    radii, elapsed = torch.linalg.vector_norm(states, dim=-1), _elapsed(trajectory)
    cosines, growth = _least_cosine(states), _growth(flow).expand(systems)
    low = _short_of(radii, growth * cosines[..., 0], elapsed)
    high = -_short_of(radii, growth, elapsed)
    below = "how far a radius is below r(0) + (1 − δ)pt, relative to it"
    above = "how far a radius is above r(0) + pt, relative to it"
    return (
        never_above(low.amax(dim=-1), trajectory, tolerance, below),
        never_above(high.amax(dim=-1), trajectory, tolerance, above),
        never_rises(-cosines, trajectory, tolerance, "fall of the least cosine of two tokens"),
    )


# --- variance --------------------------------------------------------------------------------------------------------

_FASTEST, _SLOWEST = 4.0, 1 / 9
"""Between these times 1/s the variance falls; the formalization proves them."""
_LOG_TOLERANCE = 1e-2
_SEEN = 200.0
"""A spread below this many errors of the run has logarithms that are wrong by more than `_LOG_TOLERANCE`."""


def _narrow_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    tokens = measured.tokens_at_least(start, 2)
    if tokens.holds is False:
        return (tokens,)
    matrices, complete = measured.observed(flow.attention.qk)
    norm = torch.stack([torch.linalg.matrix_norm(one.detach().cpu(), 2) for one in matrices]).amax(dim=0)[..., 0]
    allowed = 1 / (100 * start.shape[-2] ** 2 * norm.clamp_min(1.0).square())
    room = allowed - (1 - _least_cosine(start))
    seen = "all of qk is known" if complete else "qk was looked at at some times only"
    known = measured.fact if complete else lambda name, _, text: measured.assumed(name, text)
    return (
        known("qk known at all times", True, seen),
        measured.constant(flow.attention.ov, "ov"),
        *measured.positive_multiples(flow),
        *_of_rate(flow, "the rate is positive", ""),
        tokens,
        measured.above("tokens in a narrow cone", room, 0.0, "1/(100 ℓ² max(1, ‖qk‖²)) − δ, 1 − δ the least cosine,"),
    )


def _settled(flow: Flow, radii: Tensor, before: float) -> Tensor:
    """Return the time since the start from which on s is between 3/4 and 3/2 of its scale, (…,).

    Args:
        flow: The flow.
        radii: Those of the start, (…, token).
        before: The time since the start up to which "mix" has no radius.
    """
    systems = tuple(radii.shape[:-1])
    if not _has_radius(flow):
        return torch.zeros(systems, dtype=torch.float64)
    return (2 * radii.amax(dim=-1) / _growth(flow).abs().expand(systems)).clamp_min(7 * before)


def _time_passed(flow: Flow, times: Tensor, tau: float) -> Tensor:
    """Return ∫ dt/s up to each time, (time,), s the scale of the scheme for weights and values that add up to 1."""
    scheme, rate = _scheme(flow), getattr(flow.space, "rate", 1.0)
    elapsed = tau * (times - times[0])
    if scheme in ("pre", "mix", "peri"):
        return elapsed.log()
    if scheme == "scaled":
        return tau * 2 * (1 + times).sqrt()
    if not callable(rate):
        return elapsed * float(rate)
    parts = [0.0, *(quad(rate, left, right)[0] for left, right in pairwise(times.tolist()))]
    return tau * torch.tensor(parts, dtype=torch.float64).cumsum(0)


def _predict_variance(flow: Flow, start: Tensor) -> Prediction:
    scheme, pull = _scheme(flow), float(measured.pull(flow).min())
    laws = {
        "pre": "t^(−2)",
        "mix": "t^(−2)",
        "peri": "t^(−2)",
        "ngpt": "exp(−2 ∫α)",
        "scaled": f"exp(−{number(4 * pull)} √t)",
        "post": exponential(-2 * pull),
    }
    text = (
        "from some time on the variance of the directions falls by the share 1/(9s) to 4/s of itself in each unit of "
        f"time; in the end it was seen to fall like {laws[scheme or 'post']}"
    )
    rate = pull if scheme == "post" else None
    return Prediction(text, limit="one point in the cone of the start", rate=rate)


def _variance(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow, states = flow_of_run(trajectory), trajectory.tensor.detach().double().cpu()
    systems = tuple(states.shape[:-3])
    text = "log of the variance of directions, beyond four times ∫dt/s and a ninth of it"
    if _scheme(flow) is None:
        return (undecided(systems, text),)
    directions, radii = _directions(states), torch.linalg.vector_norm(states[..., 0, :, :], dim=-1)
    variance = (directions - directions.mean(dim=-2, keepdim=True)).square().sum(dim=-1).mean(dim=-1)
    times = torch.as_tensor(np.asarray(trajectory.times, dtype=float))
    tau = float(trajectory.parameters.get("tau", 1.0)) if trajectory.engine == "layers" else 1.0
    before = float((_elapsed(trajectory, growing=False) - _elapsed(trajectory)).max())
    since, elapsed = _settled(flow, radii, before), _elapsed(trajectory, growing=False)
    passed = _time_passed(flow, times, tau).expand(variance.shape)
    if _scheme(flow) in ("post", "scaled"):
        passed = measured.pull(flow).abs().expand(systems)[..., None] * passed
    usable = (elapsed >= since[..., None]) & torch.as_tensor(np.asarray(trajectory.reached))
    usable = usable & ((elapsed > 0) | torch.isfinite(passed))
    noise = math.log((_SEEN * integration_tolerance(trajectory)) ** 2)
    logs = variance.clamp_min(torch.finfo(torch.float64).tiny).log()
    first = torch.argmax(usable.long(), dim=-1, keepdim=True)
    origin = usable.gather(-1, first) & (logs.gather(-1, first) > noise)
    steps = passed - passed.gather(-1, first)
    fast, slow = (logs.gather(-1, first) - factor * steps for factor in (_FASTEST, _SLOWEST))
    judged = usable & origin & (steps > 0)
    below = torch.where(judged, fast - logs.clamp_min(noise), -torch.inf)
    above = torch.where(judged, logs - slow.clamp_min(noise), -torch.inf)
    condition = never_above(torch.maximum(below, above), trajectory, _LOG_TOLERANCE, text)
    why = "the run ended before radii had doubled, or tokens met within its errors"
    return (except_where(condition, np.asarray(~judged.any(dim=-1)), why),)


STATEMENTS = (
    Statement(
        name="norms-3",
        title="Directions meet in one point under every scheme, unless a radius stops growing",
        equations="Section 3",
        erratum=(
            "It is false in one dimension, which is not excluded in print. With nGPT the integral of α has to diverge: "
            "directions do not go farther than it."
        ),
        structure=_structure,
        hypotheses=_convergence_hypotheses,
        predict=_predict_convergence,
        conditions=_convergence,
    ),
    Statement(
        name="norms-4.3-radius",
        title="In a cone every radius grows linearly",
        equations="Theorem 4.3 (i)",
        structure=_structure_with_radius,
        hypotheses=lambda flow, start: (
            measured.constant(flow.attention.ov, "ov"),
            *measured.positive_multiples(flow),
            measured.above("tokens within a right angle", _least_cosine(start), 0.0, "the least cosine of two tokens"),
        ),
        predict=_predict_radius,
        conditions=_radius,
    ),
    Statement(
        name="norms-4.3-variance",
        title="In a narrow cone the variance of directions falls at the speed of the scheme",
        equations="Theorem 4.3 (ii)",
        erratum=(
            "The printed δ < 1/(100 ℓ²β²) allows an antipodal pair where β is small, so δ < 1/(100 ℓ²) is asked as "
            "well. The printed row of nGPT has 1/α for α."
        ),
        structure=_structure,
        hypotheses=_narrow_hypotheses,
        predict=_predict_variance,
        conditions=_variance,
    ),
)
