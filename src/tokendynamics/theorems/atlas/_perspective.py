"""Statements of `perspective`: tokens on the sphere with qk = βI and values that are a multiple of the identity."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.observables import diameter, hemisphere
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._closed_forms import equiangular_slope, predict_equiangular
from tokendynamics.theorems._conditions import (
    LIMIT,
    except_where,
    flow_of_run,
    flow_steps,
    integration_tolerance,
    never_above,
    never_rises,
    of_another_size,
    tends_to_zero,
    undecided,
)
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction
from tokendynamics.theorems.statements import STATEMENTS as OF_THE_PAPERS
from tokendynamics.words import exponential, number

EQUAL = 1e-12
"""Cosines of a start count as equal within this."""
DECIDED_BY_ROUNDING = 0.1
"""An error of the integrator that can grow beyond this decides how the equal angles break up."""
AT_REST = 1e-12
"""A speed this small beside the pull of the other tokens is that of tokens at rest, up to rounding."""
_HALF_SPACE = next(one for one in OF_THE_PAPERS if one.name == "asymptotic-4.1")
"""Its proof, an averaging in the chart of the half space, gives the rate of the cone's collapse."""


def _structure(flow: Flow) -> tuple[Hypothesis, ...]:
    return (*measured.one_head_of_either_weights_on_the_sphere(flow), measured.dim_at_least_two(flow))


def _same_sign(flow: Flow) -> Hypothesis:
    return measured.at_most("β is not negative", -measured.temperature(flow)[0], 0.0, "−β")


def not_at_rest(flow: Flow, start: Tensor, rest: Tensor, named: str) -> Hypothesis:
    """Measure that tokens move, or are where `rest` (*system,) says that they may be at rest.

    The speed of a token, however slow, is compared with the sum of the lengths of what pulls it.
    """
    y = flow.geometry.to(dtype=torch.float64, device=start.device).project(start)
    lengths = (flow.attention.pattern(y)[..., 0, :, :] * torch.cdist(y, y)).sum(dim=-1)
    pulled = lengths.amax(dim=-1) * measured.multiples(flow)[1].abs().sum(dim=-1) * flow.weight_factor
    speed = torch.linalg.vector_norm(flow.velocity(y), dim=-1).amax(dim=-1)
    share = torch.where(pulled > 0, speed / torch.where(pulled > 0, pulled, 1.0), 0.0)
    share = torch.where(rest, 1.0, share)
    return measured.above(f"tokens not at rest except {named}", share, AT_REST, "the speed relative to the pulls")


# --- one point -------------------------------------------------------------------------------------------------------


def _predict_cone(flow: Flow, start: Tensor) -> Prediction:
    pull = measured.pull(flow) * math.exp(-flow.attention.offset)
    coefficient = (pull * hemisphere(start).margin).expand(start.shape[:-2])
    norm = torch.linalg.matrix_norm(flow.attention.qk.matrix_at(0.0)[..., 0, :, :].detach().double().cpu(), 2)
    exponent = (measured.logits_in_a_weight(flow) * norm).expand_as(coefficient)
    bound = float((coefficient * torch.exp(-exponent)).min())
    # With exponential weights the rate in the end is that of the logits where the tokens meet, which is not known.
    rate = float(pull.min()) if flow.attention.weights == "softmax" else None
    pattern = (
        "all tokens meet in one point of the cone that they span, distances shrinking at least like "
        "C exp(−{rate} t) from the start on" + ("" if rate is None else f", and like {exponential(-rate)} in the end")
    )
    terms = ((float(coefficient), float(exponent)),) if coefficient.ndim == 0 else ()
    return Prediction(
        pattern.replace("exp(−{rate} t)", exponential(-bound, 3)),
        limit="one point in the cone of the start",
        rate=rate,
        bound=terms,
        pattern=pattern if terms else "",
    )


def _independent_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    tokens, dim = start.shape[-2:]
    few = measured.fact("no more tokens than dimensions", tokens <= dim, f"there are {tokens} tokens in dim {dim}")
    if few.holds is False:
        return (few,)
    least = torch.linalg.svdvals(start / torch.linalg.vector_norm(start, dim=-1, keepdim=True))[..., -1]
    return (
        *measured.multiple_of_the_identity(flow),
        _same_sign(flow),
        *measured.positive_multiples(flow),
        few,
        measured.above("linearly independent tokens", least, measured.ROUNDING, "the least singular value"),
    )


def _log_energy(cosines: Tensor, tokens: int, beta: Tensor) -> Tensor:
    """Return L = (1/β) log (1/ℓ²) Σ_ij e^{β(x_i·x_j − 1)} from the cosines of pairs, (…, pair) with β (…).

    It rises and falls with the energy Σ_ij e^{β x_i·x_j}, is the mean of x_i·x_j − 1 for β → 0, and changes by no more
    than the cosines do.
    """
    gap, zero = cosines - 1, beta.abs() < measured.LIMIT_AT_ZERO
    safe = torch.where(zero, 1.0, beta)
    mean = 2 * torch.expm1(safe.unsqueeze(-1) * gap).sum(dim=-1) / tokens**2
    return torch.where(zero, 2 * gap.sum(dim=-1) / tokens**2, torch.log1p(mean) / safe)


def log_energy_of_run(trajectory: Trajectory) -> Tensor:
    states = trajectory.tensor.detach().double()
    beta = measured.temperature(flow_of_run(trajectory))[0]
    return _log_energy(measured.pair_cosines(states), states.shape[-2], beta.unsqueeze(-1))


def _sphere_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    tokens = measured.tokens_at_least(start, 2)
    wide = measured.fact("dim at least 3", flow.dim >= 3, f"dim is {flow.dim}")
    if tokens.holds is False or wide.holds is False:
        return (tokens, wide)
    values = measured.positive_multiples(flow)
    circuits = (*measured.multiple_of_the_identity(flow), _same_sign(flow), *values)
    if not all(one.anywhere for one in circuits):
        return (tokens, wide, *circuits)
    together = torch.as_tensor(diameter(start / torch.linalg.vector_norm(start, dim=-1, keepdim=True))) <= AT_REST
    return (tokens, wide, *circuits, not_at_rest(flow, start, together, "in one point"))


def _predict_sphere(flow: Flow, start: Tensor) -> Prediction:
    rate = float(measured.pull_of_one_point(flow).min())
    text = (
        "the energy Σ exp(β x_i·x_j) does not fall, and from almost every start all tokens meet in one point, "
        f"distances shrinking like {exponential(-rate)} in the end"
    )
    return Prediction(text, limit="one point, from almost every start", rate=rate)


def _gathers(trajectory: Trajectory) -> tuple[Condition, ...]:
    falling = -log_energy_of_run(trajectory)
    text = "fall of the energy (1/β) log Σ exp(β(x_i·x_j − 1))/ℓ²"
    return (
        never_rises(falling, trajectory, integration_tolerance(trajectory), text),
        tends_to_zero(diameter(trajectory.tensor.detach().double()) / 2, LIMIT, "half the diameter tends to 0"),
    )


def _predict_step(flow: Flow, start: Tensor) -> Prediction:
    rate = float(_step_rate(flow, start.shape[-2]).min())
    text = (
        "once a = min x_i·x* is at least 1/2, for the point x* in which the tokens meet, 1 − a shrinks at least like "
        f"{exponential(-rate, 3)}"
    )
    return Prediction(text, limit="one point in the cone of the start", rate=None)


def _step_rate(flow: Flow, tokens: int) -> Tensor:
    """Return ω c e^{−2β}/(2ℓ), (*system,)."""
    return measured.pull(flow) * torch.exp(-2 * measured.temperature(flow)[0]) / (2 * tokens)


def _steps_towards_the_point(trajectory: Trajectory) -> tuple[Condition, ...]:
    """Hold a' ≥ κ(1 − a) at the saved states, and what it implies between them.

    The proof needs a point of the cone of the tokens and no limit: the mean of the last states is one, since the cone
    of the tokens only shrinks.
    """
    flow, states = flow_of_run(trajectory), trajectory.tensor.detach().double()
    end = states[..., -1, :, :].mean(dim=-2)
    end = end / torch.linalg.vector_norm(end, dim=-1, keepdim=True).clamp_min(torch.finfo(end.dtype).tiny)
    # 1 − x_i·x* to its own last digits.
    gaps = (states - end[..., None, None, :]).square().sum(dim=-1) / 2
    gap, farthest = gaps.max(dim=-1)
    rate = _step_rate(flow, states.shape[-2]).expand(gap.shape[:-1])
    near = (gap <= 0.5) & torch.as_tensor(np.asarray(trajectory.reached)).expand(gap.shape)
    slowest, kept = [], torch.full_like(rate, torch.inf)
    left = []
    steps = torch.cat([torch.zeros(1, dtype=torch.float64), flow_steps(trajectory)])
    for index, time in enumerate(np.asarray(trajectory.times, dtype=float)):
        velocity = torch.as_tensor(flow.velocity(states[..., index, :, :], float(time)))
        along = (velocity * end.unsqueeze(-2)).sum(dim=-1)
        slowest.append(along.gather(-1, farthest[..., index, None]).squeeze(-1))
        kept = kept * torch.exp(-rate * steps[index])
        left.append(torch.where(near[..., index], gap[..., index] - kept, -torch.inf))
        kept = torch.where(near[..., index], torch.minimum(kept, gap[..., index]), kept)
    excess = torch.where(near, rate.unsqueeze(-1) * gap - torch.stack(slowest, dim=-1), -torch.inf)
    tolerance = integration_tolerance(trajectory)
    texts = (
        "(1 − a) exp(−2β) ω c/(2ℓ) − a′, with a = min x_i·x*, where a is at least 1/2",
        "1 − a beyond what an exponential fall at that rate leaves of it",
    )
    never = np.asarray(~near.any(dim=-1).numpy())
    return tuple(
        undecided(never.shape, f"{text}: a stays below 1/2")
        if never.all()
        else except_where(never_above(values, trajectory, tolerance, text), never, "a stays below 1/2")
        for text, values in zip(texts, (excess, torch.stack(left, dim=-1)), strict=True)
    )


# --- repulsion -------------------------------------------------------------------------------------------------------


def _repulsion_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    tokens = measured.tokens_at_least(start, 2)
    most = flow.dim + 1
    few = measured.fact(
        "at most d + 1 tokens", start.shape[-2] <= most, f"there are {start.shape[-2]} in dim {flow.dim}"
    )
    if tokens.holds is False or few.holds is False:
        return (tokens, few)
    deviation, multiple, _ = measured.multiples(flow)
    allowed = measured.rounding(flow.dim, measured.precision(flow.attention.ov))
    circuits = (
        *measured.multiple_of_the_identity(flow),
        measured.above("β is positive", measured.temperature(flow)[0], 0.0, "β"),
        measured.constant(flow.attention.ov, "ov"),
        measured.at_most(
            "ov is a multiple of the identity", deviation, allowed, "the largest entry of ov − c·I over c"
        ),
        measured.above("the multiple is negative", -multiple.amax(dim=-1), 0.0, "−c"),
    )
    if not all(one.anywhere for one in circuits):
        return (tokens, few, *circuits)
    apart = 1 - measured.pair_cosines(start).amax(dim=-1)
    simplex = _from_simplex(start) <= EQUAL
    return (
        tokens,
        few,
        *circuits,
        measured.above("tokens apart", apart, EQUAL, "1 minus the largest cosine"),
        not_at_rest(flow, start, simplex | (apart <= EQUAL), "on the simplex"),
    )


def _from_simplex(states: Tensor) -> Tensor:
    """Return the largest distance of a cosine from −1/(ℓ − 1), (…,)."""
    return (measured.pair_cosines(states) + 1 / (states.shape[-2] - 1)).abs().amax(dim=-1)


def _predict_repulsion(flow: Flow, start: Tensor) -> Prediction:
    cosine = number(-1 / (start.shape[-2] - 1), 4)
    text = (
        "the energy Σ exp(β x_i·x_j) does not rise; it is least where all cosines of different tokens are equal, "
        f"{cosine}, and tokens tend to such a simplex unless they stop at a saddle"
    )
    return Prediction(text, limit="the vertices of a regular simplex")


def _spreads(trajectory: Trajectory) -> tuple[Condition, ...]:
    if unfit := of_another_size(trajectory, "two tokens or more", trajectory.tensor.shape[-2] > 1):
        return unfit
    text = "rise of the energy (1/β) log Σ exp(β(x_i·x_j − 1))/ℓ²"
    return (
        never_rises(log_energy_of_run(trajectory), trajectory, integration_tolerance(trajectory), text),
        tends_to_zero(
            _from_simplex(trajectory.tensor.detach().double()),
            LIMIT,
            "the distance of cosines from −1/(ℓ − 1) tends to 0",
        ),
    )


# --- equal angles ----------------------------------------------------------------------------------------------------


def _equiangular_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    tokens = measured.tokens_at_least(start, 2)
    if tokens.holds is False:
        return (tokens,)
    cosines = measured.pair_cosines(start)
    spread = cosines.amax(dim=-1) - cosines.amin(dim=-1)
    above_rest = cosines.mean(dim=-1) + 1 / (start.shape[-2] - 1)
    return (
        *measured.multiple_of_the_identity(flow),
        *measured.positive_multiples(flow),
        tokens,
        measured.at_most("one cosine for all pairs", spread, EQUAL, "the largest difference of two cosines"),
        measured.above(
            "tokens not at rest", above_rest, EQUAL, "how far the cosine is above −1/(ℓ − 1), the simplex at rest,"
        ),
    )


def _predict_equiangular(flow: Flow, start: Tensor) -> Prediction:
    beta = measured.temperature(flow)[0]
    rate = float(measured.pull_of_one_point(flow).min())
    cosine = float(measured.pair_cosines(start).mean())
    where = number(cosine if abs(cosine) > EQUAL else 0.0, 4)
    betas = number(float(beta.flatten()[0]), 4) if beta.numel() == 1 else "of each system"
    text = (
        f"all pairs keep one cosine, {where} at the start, which follows an equation in one unknown (β {betas}) and "
        f"ends at 1; distances then shrink like {exponential(-rate)}"
    )
    return Prediction(text, limit="one point", rate=rate)


def _follows_the_cosine(trajectory: Trajectory) -> tuple[Condition, ...]:
    if unfit := of_another_size(trajectory, "two tokens or more", trajectory.tensor.shape[-2] > 1):
        return unfit
    flow, states = flow_of_run(trajectory), trajectory.tensor.detach().double()
    cosines, tokens = measured.pair_cosines(states), states.shape[-2]
    systems = tuple(states.shape[:-3])
    weights = "exponential" if flow.attention.weights == "exponential" else "softmax"
    speed = measured.pull(flow) * math.exp(-flow.attention.offset)
    numbers = (measured.temperature(flow)[0], speed, cosines[..., 0, :].mean(dim=-1))
    predicted, slopes = [], []
    for beta, fast, first in zip(*(part.expand(systems).flatten().tolist() for part in numbers), strict=True):
        gamma = predict_equiangular(
            np.asarray(trajectory.times), tokens, beta, cosine=first, speed=fast, weights=weights
        )
        predicted.append(gamma)
        slopes.append(equiangular_slope(gamma, tokens, beta, speed=fast, weights=weights))
    gap = cosines - torch.from_numpy(np.stack(predicted).reshape(*systems, -1, 1))
    # The error of a solution of γ' = f(γ) grows as f(γ(t)) does.
    slope = np.abs(np.stack(slopes)).reshape(*systems, -1)
    growth = np.maximum(slope / np.minimum.accumulate(slope, axis=-1).clip(np.finfo(float).tiny), 1.0)
    tolerance = integration_tolerance(trajectory)
    text = "largest distance of a cosine from that of the equation, by what an error grows"
    condition = never_above(gap.abs().amax(dim=-1).numpy() / growth, trajectory, tolerance, text)
    sharp = np.asarray((growth.max(axis=-1) > 1) & (tolerance * growth.max(axis=-1) > DECIDED_BY_ROUNDING))
    return (except_where(condition, sharp, "an error of the run grows until it decides which tokens meet first"),)


STATEMENTS = (
    Statement(
        name="perspective-6.1",
        title="Almost every start ends in one point from three dimensions on",
        equations="Theorem 6.1",
        structure=measured.one_head_of_either_weights_on_the_sphere,
        hypotheses=_sphere_hypotheses,
        predict=_predict_sphere,
        conditions=_gathers,
    ),
    Statement(
        name="perspective-6.3",
        title="No more tokens than dimensions end in one point, exponentially",
        equations="Theorem 6.3",
        structure=measured.one_head_on_the_sphere,
        hypotheses=_independent_hypotheses,
        predict=_predict_cone,
        conditions=_HALF_SPACE.conditions,
    ),
    Statement(
        name="perspective-6.4",
        title="A cone of tokens collapses exponentially",
        equations="Lemma 6.4",
        structure=measured.one_head_of_either_weights_on_the_sphere,
        hypotheses=lambda flow, start: (
            measured.constant(flow.attention.qk, "qk"),
            *measured.positive_multiples(flow),
            measured.open_half_space(start),
        ),
        predict=_predict_cone,
        conditions=_HALF_SPACE.conditions,
    ),
    Statement(
        name="perspective-6.4-step",
        title="The farthest token comes nearer at a rate that only β and ℓ decide",
        equations="proof of Lemma 6.4",
        structure=measured.one_head_on_the_sphere,
        hypotheses=lambda flow, start: (
            *measured.multiple_of_the_identity(flow),
            _same_sign(flow),
            *measured.positive_multiples(flow),
            measured.open_half_space(start),
        ),
        predict=_predict_step,
        conditions=_steps_towards_the_point,
    ),
    Statement(
        name="perspective-6.8",
        title="Tokens at equal angles keep equal angles",
        equations="Theorem 6.8",
        structure=_structure,
        hypotheses=_equiangular_hypotheses,
        predict=_predict_equiangular,
        conditions=_follows_the_cosine,
    ),
    Statement(
        name="perspective-9",
        title="Repelling tokens lower the energy, whose least value is that of a simplex",
        equations="Section 9",
        erratum=(
            "A dichotomy that is printed for sharp configurations is refuted in the formalization, by an antipodal "
            "pair. It is not part of this statement."
        ),
        structure=_structure,
        hypotheses=_repulsion_hypotheses,
        predict=_predict_repulsion,
        conditions=_spreads,
    ),
)
