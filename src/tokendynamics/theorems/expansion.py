"""Directions n along which the free flow expands, V n = λ n with λ > 0, and the bounds of n·x along a trajectory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.theorems import hypotheses as measured
from tokendynamics.theorems.conditions import flow_of, never_above, undecided
from tokendynamics.theorems.precision import integration_tolerance
from tokendynamics.theorems.result import Condition, Hypothesis

RESIDUAL = 1e-10
"""Largest |V n − λ n| relative to ‖V‖ of what counts as a real eigenvector."""
_MEANINGFUL = 0.1


@dataclass(frozen=True)
class ExpandingDirections:
    """Eigenvectors of V = Σ_h V_h, V_h = ov_h^T, that are shared by all heads.

    Attributes:
        normals: Unit n, (*system, dim, dim), one a row; of use only where `valid`.
        rates: λ times the flow's weight factor, (*system, dim).
        valid: (*system, dim): λ is real and positive, V_h n = λ_h n for every head, and every λ_h ≥ 0.
    """

    normals: Tensor
    rates: Tensor
    valid: Tensor


def expanding_directions(flow: Flow) -> ExpandingDirections:
    """Find every n with V n = λ n, λ > 0: eigenvectors of ov^T, not of ov.

    For several heads n·x obeys ``d/dt n·x_l = Σ_h λ_h Σ_i w^h_li n·x_i`` if n is an eigenvector of every V_h; the
    hull of e^{−λt} n·x_i, λ = Σ_h λ_h, then shrinks if every λ_h ≥ 0. Common eigenvectors are looked for among those of
    the sum, which finds all whose eigenvalue of the sum is simple.

    Source: `positional` theorem 3.6, equation (16), generalised to several heads.

    >>> from tokendynamics.attention import Attention
    >>> from tokendynamics.spaces import Free
    >>> found = expanding_directions(Flow(Attention([[0.0, 0.0], [0.0, 0.0]], [[2.0, 1.0], [0.0, -1.0]]), Free()))
    >>> found.rates[found.valid].round(decimals=9).tolist(), found.normals[found.valid].abs().round(decimals=4).tolist()
    ([2.0], [[0.9487, 0.3162]])
    """
    heads = flow.weight_factor * flow.attention.ov.matrix_at(0.0).detach().double().cpu()
    values, vectors = torch.linalg.eig(heads.sum(dim=-3).mT)
    normals = vectors.real.mT
    lengths = torch.linalg.vector_norm(normals, dim=-1, keepdim=True)
    normals = normals / lengths.clamp_min(torch.finfo(normals.dtype).tiny)
    # n^T ov_h is λ_h n^T: (…, head, n, dim).
    images = normals.unsqueeze(-3) @ heads
    each = (images * normals.unsqueeze(-3)).sum(dim=-1)
    residual = torch.linalg.vector_norm(images - each.unsqueeze(-1) * normals.unsqueeze(-3), dim=-1)
    size = torch.linalg.matrix_norm(heads, 2).amax(dim=-1)[..., None]
    exact = (residual.amax(dim=-2) <= RESIDUAL * size) & (values.imag.abs() <= RESIDUAL * size)
    positive = (each.sum(dim=-2) > RESIDUAL * size) & (each.amin(dim=-2) >= -RESIDUAL * size)
    return ExpandingDirections(normals, each.sum(dim=-2), exact & positive)


def expanding_hypothesis(flow: Flow) -> Hypothesis:
    """V has a real positive eigenvalue (shared by the heads) at every system."""
    found = expanding_directions(flow)
    best = torch.where(found.valid, found.rates, -torch.inf).amax(dim=-1)
    shared = "" if flow.heads == 1 else ", with an eigenvector and eigenvalues ≥ 0 common to all heads"
    claim = f"V has a real positive eigenvalue{shared}"
    if not bool(found.valid.any(dim=-1).all()):
        values = torch.linalg.eigvals(flow.attention.ov.matrix_at(0.0).detach().double().cpu().sum(dim=-3))
        highest = float(values.real.amax(dim=-1).min())
        return Hypothesis(
            claim, False, min(highest, 0.0), RESIDUAL, f"there is none: the largest Re λ is {highest:.3g}"
        )
    return measured.above(claim, float(best.min()), 0.0, "the largest of them")


def one_sided(found: ExpandingDirections, placed: Tensor) -> tuple[Tensor, Tensor]:
    """The rate and the least |n·x_i(0)| of the fastest n with all n·x_i(0) strictly of one sign; 0 without one.

    Args:
        found: From `expanding_directions`.
        placed: The start as attention reads it, (*system, token, dim).
    """
    heights = placed @ found.normals.mT
    depth = torch.maximum(heights.amin(dim=-2), -heights.amax(dim=-2))
    scale = torch.linalg.vector_norm(placed, dim=-1).amax(dim=-1, keepdim=True)
    chosen = found.valid & (depth > measured.ROUNDING * scale)
    rate, index = torch.where(chosen, found.rates, 0.0).max(dim=-1)
    return rate, torch.where(chosen, depth, 0.0).gather(-1, index.unsqueeze(-1)).squeeze(-1)


def growth_text(flow: Flow, placed: Tensor, token: str) -> str:
    """What the start makes of the bounds: growth at least at a rate, or none that is known."""
    rate, depth = one_sided(expanding_directions(flow), placed)
    if not bool((rate > 0).all()):
        return "no n has all tokens strictly on one side: growth does not follow"
    return f"|{token}| ≥ {float(depth.min()):.4g} exp({float(rate.min()):.6g} t) for every token, all being on one side"


def bound_conditions(placed: Tensor, trajectory: Trajectory) -> tuple[Condition, ...]:
    """The bounds of e^{−λt} n·x_l(t) by the least and largest n·x_i(0), for every n, l and saved time.

    The excess is relative to the largest |e^{−λs} x(s)|, s ≤ t, to which the integrator's error is relative. Where
    that exceeds the numbers compared so far that the error could hide a violation the condition is undecided: other
    directions then outgrow this one.

    Args:
        placed: The states as attention reads them, (*system, time, token, dim).
        trajectory: The run they come from.
    """
    text, tolerance = (
        "min n·x_i(0) ≤ e^(−λt) n·x_l(t) ≤ max n·x_i(0), relative excess where rounding does not hide it",
        integration_tolerance(trajectory),
    )
    found, systems = expanding_directions(flow_of(trajectory)), tuple(placed.shape[:-3])
    if not bool(found.valid.any()):
        return (undecided(systems, f"{text}: V has no real positive eigenvalue"),)
    elapsed = torch.as_tensor(np.asarray(trajectory.times, dtype=float))
    decay = found.rates[..., None, :] * (elapsed - elapsed[0])[:, None]
    heights = placed @ found.normals.mT.unsqueeze(-3)
    scaled = _shrunk(heights, decay.unsqueeze(-2))
    lower, upper = scaled[..., :1, :, :].amin(dim=-2), scaled[..., :1, :, :].amax(dim=-2)
    excess = torch.maximum(scaled.amax(dim=-2) - upper, lower - scaled.amin(dim=-2))
    lengths = torch.linalg.vector_norm(placed, dim=-1).amax(dim=-1)
    scale = _shrunk(lengths[..., None], decay).cummax(dim=-2).values
    compared = torch.maximum(upper.abs(), lower.abs())
    meaningful = found.valid[..., None, :] & (tolerance * scale <= _MEANINGFUL * compared)
    relative = torch.where(meaningful, excess / scale.clamp_min(torch.finfo(scale.dtype).tiny), -torch.inf)
    bounds = never_above(relative.amax(dim=-1).expand(*systems, len(elapsed)), trajectory, tolerance, text)
    # One direction that says nothing of late times is no matter while another still speaks.
    heard = meaningful.any(dim=-1).expand(*systems, len(elapsed)).numpy()
    silent = np.asarray((np.asarray(trajectory.reached) & ~heard).any(axis=-1))
    if not silent.any():
        return (bounds,)
    return (bounds, undecided(systems, "other directions outgrow n, whose bounds drown in rounding", silent))


def _shrunk(values: Tensor, decay: Tensor) -> Tensor:
    """Return values · e^{−decay} without overflow of either factor."""
    return values.sign() * (values.abs().log() - decay).exp()
