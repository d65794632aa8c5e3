"""Theorem 3.6 of `positional`: along an eigenvector of V with λ > 0 the tokens' hull grows no faster than e^{λt}.

Corollaries C.2 and C.3 say the same with absolute positions, for x + p, and with rotary ones. The directions are the
real eigenvectors n, V n = λ n, that all heads share, as whole spaces: repeated and defective eigenvalues included.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.observables import hemisphere
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import flow_of_run, integration_tolerance, never_above, undecided
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.contraction import (
    absolute_positions,
    free_softmax,
    rotary_positions,
    states_of,
    states_with_positions,
)
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction
from tokendynamics.words import exponential, multiple, number

RESIDUAL = 1e-10
"""Largest |V n − λ n| relative to ‖V‖ of what counts as a real eigenvector."""
_SAME = 1e-6
_NEARLY_REAL = 1e-2
"""Pairs this near the real axis are looked at: a bound on the work, since the residual decides what is a vector."""


@dataclass(frozen=True)
class Eigenspace:
    """Vectors n with V_h n = λ_h n for every h.

    Attributes:
        basis: Orthonormal columns, (dim, k).
        values: λ_h, (head,).
    """

    basis: np.ndarray
    values: np.ndarray


def common_eigenspaces(matrices: np.ndarray, lowest: float = -np.inf) -> list[Eigenspace]:
    """Find the real eigenvectors that all matrices share, up to rounding.

    A repeated eigenvalue has more eigenvectors than those LAPACK returns, and a defective one of multiplicity m comes
    back split by eps^(1/m), possibly into complex pairs. So eigenvalues give candidates λ only, each with its
    neighbours' mean and the real part of pairs near the axis; whether there are vectors is decided by the singular
    values of V − λ, which are below rounding of ‖V‖ exactly where there are. Further matrices are looked at within the
    spaces of those before: a common n = B c has B^T V B c = λ c, which gives the next candidates.

    Args:
        matrices: V_h, (head, dim, dim), float64.
        lowest: Eigenvalues below this are left out.

    Returns:
        Spaces, some possibly within others (a vector of LAPACK's beside the whole eigenspace).

    >>> turned = np.array([[[0.0, 1.0], [1.0, 0.0]], [[2.0, 1.0], [1.0, 2.0]]])
    >>> [space.values.round(12).tolist() for space in common_eigenspaces(turned, lowest=0.0)]
    [[1.0, 3.0]]
    """
    dim = matrices.shape[-1]
    size = max(float(np.linalg.norm(matrix, 2)) for matrix in matrices)
    spaces = [Eigenspace(np.eye(dim), np.empty(0))]
    for matrix in matrices:
        spaces = [
            Eigenspace(basis, np.append(space.values, value))
            for space in spaces
            for basis, value in _within(matrix, space.basis, size)
            if value >= lowest
        ]
    return spaces


def _within(matrix: np.ndarray, basis: np.ndarray, size: float) -> list[tuple[np.ndarray, float]]:
    """Return the eigenvectors of a matrix in the span of `basis`, space by space, with their eigenvalue."""
    eigenspaces: list[tuple[np.ndarray, float]] = []
    image = matrix @ basis
    values, vectors = np.linalg.eig(basis.T @ image)
    for index in np.flatnonzero(np.imag(values) == 0):
        vector = basis @ np.real(vectors[:, index])
        _keep(eigenspaces, matrix, (vector / np.linalg.norm(vector))[:, None], size)
    # Means of the real parts of eigenvalues that lie close together, and real parts of pairs near the real axis.
    near = values[np.abs(np.imag(values)) <= _NEARLY_REAL * size]
    reals = np.sort(np.real(near))
    groups = np.split(reals, np.flatnonzero(np.diff(reals) > _SAME * size) + 1)
    # A lone real eigenvalue has the one vector that LAPACK gave.
    for value in [float(group.mean()) for group in groups if len(group) > 1]:
        _, singular, rows = np.linalg.svd(image - value * basis)
        whole = basis @ rows[singular <= RESIDUAL * size].T
        if whole.shape[1]:
            _keep(eigenspaces, matrix, whole, size)
    return eigenspaces


def _keep(eigenspaces: list[tuple[np.ndarray, float]], matrix: np.ndarray, basis: np.ndarray, size: float) -> None:
    value = float(np.trace(basis.T @ matrix @ basis)) / basis.shape[1]
    if np.linalg.norm(matrix @ basis - value * basis, 2) <= RESIDUAL * size:
        eigenspaces.append((basis, value))


_MEANINGFUL = 0.1


@dataclass(frozen=True)
class ExpandingDirections:
    """Eigenvectors of V = Σ_h V_h, V_h = ov_h^T, that are shared by all heads.

    Attributes:
        normals: Unit n, (*system, direction, dim), one a row; of use only where `valid`.
        rates: λ times the flow's weight factor, (*system, direction).
        valid: (*system, direction): λ is real and positive, V_h n = λ_h n for every head, and every λ_h ≥ 0.
    """

    normals: Tensor
    rates: Tensor
    valid: Tensor


def expanding_spaces(flow: Flow, time: float = 0.0) -> list[list[Eigenspace]]:
    """Find the spaces of n with V n = λ n, λ > 0, fastest first, of each system (one where all share ov).

    For several heads n·x obeys ``d/dt n·x_l = Σ_h λ_h Σ_i w^h_li n·x_i`` if n is an eigenvector of every V_h; the
    hull of e^{−λt} n·x_i, λ = Σ_h λ_h, then shrinks if every λ_h ≥ 0.

    Source: `positional` theorem 3.6, equation (16), generalised to several heads.
    """
    heads = (flow.weight_factor * flow.attention.ov.matrix_at(time).detach().double().cpu()).mT.numpy()
    systems = []
    for matrices in heads.reshape(-1, *heads.shape[-3:]):
        size = max(float(np.linalg.norm(matrix, 2)) for matrix in matrices)
        spaces = common_eigenspaces(matrices, lowest=-RESIDUAL * size)
        growing = [space for space in spaces if space.values.sum() > RESIDUAL * size]
        systems.append(sorted(growing, key=lambda space: -space.values.sum()))
    return systems


def expanding_directions(flow: Flow, placed: Tensor | None = None, time: float = 0.0) -> ExpandingDirections:
    """Find n with V n = λ n, λ > 0: eigenvectors of ov^T, not of ov.

    A basis of every eigenspace; and for a start, in each eigenspace of more than one dimension, the n that has all
    tokens as deeply as possible on one side.

    >>> from tokendynamics.attention import Attention
    >>> from tokendynamics.spaces import Free
    >>> directions = expanding_directions(Flow(Attention([[0.0, 0.0], [0.0, 0.0]], [[2.0, 1.0], [0.0, -1.0]]), Free()))
    >>> rates, normals = directions.rates[directions.valid], directions.normals[directions.valid]
    >>> rates.round(decimals=9).tolist(), normals.abs().round(decimals=4).tolist()
    ([2.0], [[0.9487, 0.3162]])
    """
    spaces = expanding_spaces(flow, time)
    systems = tuple(flow.attention.ov.shape[:-3])
    starts = None
    if placed is not None:
        systems = tuple(placed.shape[:-2])
        starts = placed.detach().double().cpu().reshape(-1, *placed.shape[-2:])
        spaces = spaces * len(starts) if len(spaces) == 1 else spaces
    by_system = [_of_one(one, None if starts is None else starts[index]) for index, one in enumerate(spaces)]
    most = max(1, max(map(len, by_system)))
    normals = torch.zeros(len(by_system), most, flow.dim, dtype=torch.float64)
    rates = torch.zeros(len(by_system), most, dtype=torch.float64)
    for index, directions in enumerate(by_system):
        for row, (vector, rate) in enumerate(directions):
            normals[index, row], rates[index, row] = torch.as_tensor(vector), rate
    normals, rates = normals.reshape(*systems, most, flow.dim), rates.reshape(*systems, most)
    return ExpandingDirections(normals, rates, rates > 0)


def _of_one(spaces: list[Eigenspace], start: Tensor | None) -> list[tuple[np.ndarray, float]]:
    """Directions n, (dim,), and rates of one system."""
    directions: list[tuple[np.ndarray, float]] = []
    for space in spaces:
        rate = float(space.values.sum())
        directions += [(vector, rate) for vector in space.basis.T]
        deepest = None if start is None or space.basis.shape[1] == 1 else _deepest(space, start)
        if deepest is not None:
            directions.append((deepest, rate))
    return directions


def _deepest(space: Eigenspace, start: Tensor) -> np.ndarray | None:
    """Return the unit n of a space whose half space n·x > 0 holds all tokens most deeply; None without one."""
    inside = start @ torch.as_tensor(space.basis)
    scale = torch.linalg.vector_norm(start, dim=-1).amax()
    if bool((torch.linalg.vector_norm(inside, dim=-1) <= measured.ROUNDING * scale).any()):
        return None
    direction, margin = hemisphere(inside)
    return space.basis @ direction.numpy() if float(margin) > 0 else None


def expanding_hypothesis(flow: Flow) -> Hypothesis:
    """Measure whether V has a real positive eigenvalue (shared by the heads) at every system."""
    expanding = expanding_directions(flow)
    best = torch.where(expanding.valid, expanding.rates, -torch.inf).amax(dim=-1)
    shared = "" if flow.heads == 1 else ", with an eigenvector of ovᵀ and eigenvalues ≥ 0 common to all heads"
    claim = f"ov has a real positive eigenvalue{shared}"
    seen = expanding.valid.any(dim=-1)
    if bool(seen.all()):
        return measured.above(claim, best, 0.0, "the largest of them")
    values = torch.linalg.eigvals(flow.attention.ov.matrix_at(0.0).detach().double().cpu().sum(dim=-3))
    highest = float(values.real.amax(dim=-1)[~seen].max())
    # Only the signs of all real parts prove that none exists; otherwise one may have escaped the search.
    none = "none exists" if highest < 0 else "none found"
    text = f"{none}: the largest real part of an eigenvalue is {number(highest)}"
    at = seen.numpy() if bool(seen.any()) else None
    return Hypothesis(claim, False, min(highest, 0.0), RESIDUAL, text, at)


def one_sided(expanding: ExpandingDirections, placed: Tensor) -> tuple[Tensor, Tensor]:
    """Return rate and least |n·x_i(0)| of the fastest n with all n·x_i(0) strictly of one sign; 0 without one.

    Args:
        expanding: From `expanding_directions`.
        placed: The start as attention reads it, (*system, token, dim).
    """
    heights = placed @ expanding.normals.mT
    depth = torch.maximum(heights.amin(dim=-2), -heights.amax(dim=-2))
    scale = torch.linalg.vector_norm(placed, dim=-1).amax(dim=-1, keepdim=True)
    chosen = expanding.valid & (depth > measured.ROUNDING * scale)
    rate = torch.where(chosen, expanding.rates, 0.0).amax(dim=-1)
    # Of equal rates, those of one eigenspace, the deepest.
    fastest = chosen & (expanding.rates >= rate.unsqueeze(-1) * (1 - RESIDUAL))
    return rate, torch.where(fastest, depth, 0.0).amax(dim=-1)


def growth_text(flow: Flow, placed: Tensor, token: str) -> str:
    """Say what the start makes of the bounds: growth at least at a rate, or none that is known."""
    rate, depth = one_sided(expanding_directions(flow, placed), placed)
    if not bool((rate > 0).any()):
        return "no such n is known with all tokens strictly on one side, so growth does not follow"
    sided = (rate > 0).numpy()
    share = "" if sided.all() else f" at {int(sided.sum())} of {sided.size} systems, elsewhere growth does not follow"
    least = multiple(float(depth[rate > 0].min()), exponential(float(rate[rate > 0].min())))
    return f"|{token}| ≥ {least} for every token, all being on one side{share}"


def bound_conditions(placed: Tensor, trajectory: Trajectory) -> tuple[Condition, ...]:
    """Require the bounds of e^{−λt} n·x_l(t) by the least and largest n·x_i(0), for every n, l and time.

    The excess is relative to the largest |e^{−λs} x(s)|, s ≤ t, to which the integrator's error is relative. Where
    that exceeds the numbers compared so far that the error could hide a violation the condition is undecided: other
    directions then outgrow this one.

    Args:
        placed: The states as attention reads them, (*system, time, token, dim).
        trajectory: The run they come from.
    """
    text, tolerance = (
        "relative excess of e^(−λt) n·x_i(t) over the least and the largest n·x_j(0), where rounding leaves it visible",
        integration_tolerance(trajectory),
    )
    flow, systems, first = flow_of_run(trajectory), tuple(placed.shape[:-3]), float(trajectory.times[0])
    expanding = expanding_directions(flow, placed[..., 0, :, :], first)
    if not bool(expanding.valid.any()):
        return (undecided(systems, f"{text}: no real positive eigenvalue of ov was found"),)
    elapsed = torch.as_tensor(np.asarray(trajectory.times, dtype=float))
    decay = expanding.rates[..., None, :] * (elapsed - elapsed[0])[:, None]
    heights = placed @ expanding.normals.mT.unsqueeze(-3)
    scaled = _shrunk(heights, decay.unsqueeze(-2))
    lower, upper = scaled[..., :1, :, :].amin(dim=-2), scaled[..., :1, :, :].amax(dim=-2)
    excess = torch.maximum(scaled.amax(dim=-2) - upper, lower - scaled.amin(dim=-2))
    lengths = torch.linalg.vector_norm(placed, dim=-1).amax(dim=-1)
    scale = _shrunk(lengths[..., None], decay).cummax(dim=-2).values
    compared = torch.maximum(upper.abs(), lower.abs())
    meaningful = expanding.valid[..., None, :] & (tolerance * scale <= _MEANINGFUL * compared)
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


def expansion_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    """Measure what theorem 3.6 and corollaries C.2 and C.3 suppose of the circuits.

    The proof uses of the weights only that their rows are convex combinations: qk may be anything and depend on
    time, and the mask may be causal. Several heads need a common eigenvector.
    """
    still = measured.constant(flow.attention.ov, "ov")
    return (still, expanding_hypothesis(flow)) if still.anywhere else (still,)


def _prediction(flow: Flow, placed: Tensor, state: str, name: str, premise: str = "") -> Prediction:
    bounds = (
        f"for every n with ovᵀ n = λ n, λ > 0, and every token, e^(−λt) n·{state}_i(t) stays between the least and the "
        f"largest n·{state}_j(0) of all tokens"
    )
    text = f"{premise}{bounds}; {growth_text(flow, placed, name)}"
    return Prediction(text, limit="bounds; growth where tokens are on one side")


STATEMENT = Statement(
    name="positional-3.6",
    title="Divergence along an eigenvector of V",
    equations="Theorem 3.6, B.9; (15), (16)",
    erratum=(
        "n is an eigenvector of V = ov^T, so n^T ov = λ n^T. That tokens diverge needs them strictly on one side of "
        "the hyperplane of n, and does not need the other eigenvalues to be positive."
    ),
    structure=lambda flow: (measured.no_positions(flow), *free_softmax(flow)),
    hypotheses=expansion_hypotheses,
    predict=lambda flow, start: _prediction(flow, start, "x", "x_i"),
    conditions=lambda trajectory: bound_conditions(states_of(trajectory), trajectory),
)

WITH_ABSOLUTE_POSITIONS = Statement(
    name="positional-C.2",
    title="Divergence along an eigenvector of V with absolute positions",
    equations="Corollary C.2; (5), (17)",
    erratum=(
        "The printed bounds subtract the vector e^(−tV^T) p_l from a number; n^T is missing before it. What is meant, "
        "and checked, are the bounds of positional-3.6 for x + p."
    ),
    structure=lambda flow: (absolute_positions(flow), *free_softmax(flow)),
    hypotheses=expansion_hypotheses,
    predict=lambda flow, start: _prediction(
        flow, flow.attention.with_positions(start), "s", "x_i + p_i", "with s_i = x_i + p_i, p_i the position vector: "
    ),
    conditions=lambda trajectory: bound_conditions(states_with_positions(trajectory), trajectory),
)

WITH_ROTARY_POSITIONS = Statement(
    name="positional-C.3",
    title="Divergence along an eigenvector of V with rotary positions",
    equations="Corollary C.3; (8), (18), (19)",
    structure=lambda flow: (rotary_positions(flow), *free_softmax(flow)),
    hypotheses=expansion_hypotheses,
    predict=lambda flow, start: _prediction(flow, start, "x", "x_i", "whatever the rotations: "),
    conditions=lambda trajectory: bound_conditions(states_of(trajectory), trajectory),
)
