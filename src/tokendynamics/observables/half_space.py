"""Half spaces that contain all tokens: the deepest one, its Lyapunov functions, and how probable one is (Wendel).

Its depth is the norm of the point of smallest norm in the convex hull of the tokens' directions.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import torch
from jaxtyping import Float64
from scipy.optimize import linprog
from torch import Tensor

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_states, check_finite, like
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.observables._fitting import fitting_metric, fitting_vector
from tokendynamics.observables.directions import unit_rows

Points = Float64[np.ndarray, "point dim"]
Vector = Float64[np.ndarray, " dim"]
Weights = Float64[np.ndarray, " active"]

RESOLUTION = 1e-14
"""Distances of the hull to the origin below this are not told from 0: unit vectors in float64 are rounded."""
_TOLERANCE = 4e-15
_LARGEST_CORRECTION = 1e4


def min_norm_point(points: Points) -> tuple[Vector, float]:
    """Return the unit direction v of the hull's point of smallest norm, and min_i v·u_i, which is that norm.

    Zeros where 0 lies in the hull. The active-set method of Wolfe (Finding the nearest point in a polytope,
    1976). The active points, a *corral*, are affinely independent and carry positive weights. A major step adds
    the point farthest below the supporting plane; minor steps remove points until the affine minimiser of the
    corral lies inside its hull. The minimiser is projected with an orthogonal factorisation (never with the
    Gram matrix, which would square the condition number), so that duplicates and nearly antipodal pairs do no
    harm. The least height min_i v·u_i is measured on all points at every step and proves itself; the best one
    is returned.

    >>> direction, margin = min_norm_point(np.array([[0.6, 0.8], [-0.6, 0.8]]))
    >>> direction.round(12).tolist(), round(margin, 12)
    ([0.0, 1.0], 0.8)
    """
    corral, weights = [int(np.argmin(points @ points.mean(axis=0)))], np.ones(1)
    nearest, norm = points[corral[0]], 1.0
    best, margin, lowest, stalled = nearest, -1.0, norm, 0
    while norm > RESOLUTION and stalled <= points.shape[1]:
        heights = points @ nearest
        entering = int(np.argmin(heights))
        if heights[entering] > margin:
            best, margin, stalled = nearest, float(heights[entering]), 0
        if heights[entering] >= norm - _TOLERANCE or entering in corral:
            break
        corral, weights, projected = _enter(points, corral, weights, entering)
        norm = float(np.linalg.norm(projected))
        # The norm falls at every step in exact arithmetic, which is why the method ends. A fall can be too small
        # for float64 while the direction still improves: hence some patience.
        stalled = 0 if norm < lowest else stalled + 1
        nearest, lowest = projected / max(norm, RESOLUTION), min(norm, lowest)
    if lowest > RESOLUTION:
        best, margin = _polish(points, best, margin, lowest)
    return (best, margin) if min(margin, lowest) > RESOLUTION else (np.zeros_like(best), 0.0)


def _enter(
    points: Points, corral: list[int], weights: Weights, entering: int
) -> tuple[list[int], Float64[np.ndarray, " staying"], Vector]:
    """Add a point to the corral and remove others until the affine minimiser has positive weights."""
    members, current = np.array([*corral, entering]), np.append(weights, 0.0)
    while True:
        wanted, projected = _affine_minimiser(points[members])
        outside = wanted <= 0
        if not outside.any():
            return members.tolist(), wanted, projected
        # Go from the current weights towards the minimiser until the first one vanishes.
        ratios = np.full(len(members), np.inf)
        ratios[outside] = current[outside] / (current[outside] - wanted[outside])
        leaving = int(np.argmin(ratios))
        current = current + ratios[leaving] * (wanted - current)
        staying = current > 0
        staying[leaving] = False
        members, current = members[staying], current[staying] / current[staying].sum()


def _polish(points: Points, direction: Vector, margin: float, norm: float) -> tuple[Vector, float]:
    """Close what is left between the least height and the norm of a hull point, which bounds it from above.

    Near a flat hull at a small distance from 0, rounding hides which points are active. The correction is then so
    small that its own norm is negligible, and finding it is a linear program in units of the gap.
    """
    tokens, dim = points.shape
    objective = np.append(np.zeros(dim), -1.0)
    while (gap := norm - margin) > _TOLERANCE:
        slack = np.minimum((points @ direction - margin) / gap, _LARGEST_CORRECTION)
        reach = min(_LARGEST_CORRECTION, 0.1 / gap)
        program = linprog(
            objective,
            A_ub=np.column_stack([-points, np.ones(tokens)]),
            b_ub=slack,
            A_eq=np.append(direction, 0.0)[None],
            b_eq=[0.0],
            bounds=[*[(-reach, reach)] * dim, (0, None)],
        )
        if program.x is None:
            break
        candidate = direction + gap * program.x[:-1]
        candidate = candidate / np.linalg.norm(candidate)
        height = float((points @ candidate).min())
        # Rounds that gain less than a tenth of the gap are noise.
        if height <= margin + gap / 10:
            break
        direction, margin = candidate, height
    return direction, margin


def _affine_minimiser(members: Float64[np.ndarray, "active dim"]) -> tuple[Weights, Vector]:
    """Return the affine weights (they sum to 1) of the point of least norm in the affine hull, and that point."""
    base = members[0]
    differences = (members[1:] - base).T
    # Columns of one length, so that points near each other weigh as much as distant ones.
    scale = np.linalg.norm(differences, axis=0)
    scale[scale == 0] = 1.0
    basis, triangle = np.linalg.qr(differences / scale)
    coefficients = basis.T @ base
    projected = base - basis @ coefficients
    # A second pass makes the small remainder orthogonal to its own rounding.
    projected = projected - basis @ (basis.T @ projected)
    rest = -np.linalg.lstsq(triangle, coefficients, rcond=None)[0] / scale
    return np.concatenate([[1 - rest.sum()], rest]), projected


class Hemisphere(NamedTuple):
    """The answer of `hemisphere`: `direction` (…, dim), of norm 1 or zero, and `margin` (…,) in [0, 1].

    >>> found = hemisphere(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> found.direction.shape, round(float(found.margin), 4)
    (torch.Size([2]), 0.7071)
    """

    direction: Any
    margin: Any


def hemisphere(x: ArrayLike) -> Hemisphere:
    """Find the half space through the origin that holds all tokens as deeply as possible.

    The direction v, of norm 1, maximises min_i v·u_i over the unit rows u_i = x_i/|x_i|; the margin is that
    minimum, the sine of the angle between the boundary and the token nearest to it. By duality v is the
    direction of the point of smallest norm in the convex hull of the u_i, and the margin is its norm.

    The margin is positive exactly when some OPEN half space contains all tokens, the hypothesis of
    `asymptotic` theorem 4.1 (whose function (13), max_i (1 − v·y_i), is then 1 − margin at the start).
    Otherwise 0 lies in the hull, no half space is deepest, and the answer is a zero direction and margin 0.0.
    Margins below 1e-14 are not told from 0: the unit rows themselves are rounded.

    Args:
        x: States of shape (…, token, dim); the norms of the tokens do not matter.

    Returns:
        `Hemisphere(direction, margin)`: direction of shape (…, dim), dimensionless, and margin of shape (…,),
        dimensionless, in [0, 1].

    Raises:
        ArgumentValueError: A zero token (its index is printed).

    >>> direction, margin = hemisphere([[1.0, 0.0], [0.0, 5.0]])
    >>> [round(c, 12) for c in direction], round(margin, 12)
    ([0.707106781187, 0.707106781187], 0.707106781187)
    >>> hemisphere([[1.0, 0.0], [-2.0, 0.0]])
    Hemisphere(direction=[0.0, 0.0], margin=0.0)
    """
    states = as_states(x)
    unit = unit_rows(states.detach().double()).cpu().numpy()
    flat = unit.reshape(-1, *unit.shape[-2:])
    deepest = np.stack([_deepest(system) for system in flat]) if len(flat) else np.empty((0, unit.shape[-1] + 1))
    result = torch.as_tensor(deepest).to(states).reshape(*states.shape[:-2], states.shape[-1] + 1)
    return Hemisphere(like(result[..., :-1], x), like(result[..., -1], x))


def _deepest(unit: Float64[np.ndarray, "token dim"]) -> Float64[np.ndarray, " dim_and_margin"]:
    """Return the direction with the margin appended."""
    tokens, dim = unit.shape
    if dim > 2 * tokens:
        # The hull lies in the span of the tokens: its coordinates there are all that matters.
        basis, coordinates = np.linalg.qr(unit.T)
        direction = basis @ min_norm_point(np.ascontiguousarray(coordinates.T))[0]
    else:
        direction, _ = min_norm_point(unit)
    # Measured on the tokens, so that a positive margin is a proof whatever the solver did.
    margin = float((unit @ direction).min())
    if margin <= RESOLUTION:
        return np.zeros(dim + 1)
    return np.append(direction, margin)


UNIT_WITHIN = 64
"""Vectors whose squared length is 1 up to this many units of rounding, of the precision they came in, count as
unit vectors: integrators that hold the constraint to 1e-14 stay within."""


def coordinate_along(x: ArrayLike, direction: ArrayLike) -> Any:
    """Return n·x_i for every token.

    Source: `positional` theorem 3.6, where n is an eigenvector of its V (of ov^T) with eigenvalue λ > 0 and
    e^{−λt} n·x_l(t) stays between the smallest and the largest n·x_i(0).

    Args:
        x: States of shape (…, token, dim).
        direction: n, (dim,) or (…, dim) broadcasting against the systems of `x`, of any length.

    Returns:
        Shape (…, token), in the units of `x` times those of n.

    Raises:
        ArgumentValueError: Shapes that do not fit, or values that overflow.

    >>> coordinate_along([[1.0, 2.0], [3.0, -1.0]], [1.0, 2.0])
    [5.0, 1.0]
    """
    states = as_states(x)
    result = (states.double() * fitting_vector(states, direction, "direction")).sum(dim=-1)
    check_finite(result, "direction·x_i")
    return like(result.to(states.dtype), x)


def direction_deficit(x: ArrayLike, direction: ArrayLike, metric: ArrayLike | None = None) -> Any:
    """Return 1 − v·y_i for every token, or 1 − v^T M y_i with a metric M.

    Source: `asymptotic` theorem 6.1, where v is the top eigenvector of ov. Where v and y_i have length 1 (in M),
    it is computed as |y_i − v|²/2, which equals it and keeps its leading digits down to 1e-32; elsewhere (on an
    ellipsoid without its metric, or with another v) as the formula says.

    Args:
        x: States of shape (…, token, dim).
        direction: v, (dim,) or (…, dim) broadcasting against the systems of `x`; used as it is, not normalised.
        metric: M, symmetric positive definite, (dim, dim) or (…, dim, dim); None means the identity.

    Returns:
        Shape (…, token), dimensionless; from 0 to 2 where all lengths are 1, and of any sign otherwise.

    Raises:
        ArgumentValueError: Shapes that do not fit, a metric that is not symmetric positive definite, or values
            that overflow.

    >>> direction_deficit([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], [0.0, 1.0])
    [1.0, 0.0, 2.0]
    >>> direction_deficit([[1.0, 1e-12]], [1.0, 0.0])
    [5e-25]
    """
    states = as_states(x)
    return like(_deficit(states, direction, metric).to(states.dtype), x)


def hemisphere_function(x: ArrayLike, direction: ArrayLike, metric: ArrayLike | None = None) -> Any:
    """Return max_i (1 − v·y_i), or its twin max_i (1 − v^T M y_i) with a metric M.

    Below 1 exactly when all tokens lie in the open half space of v (of M v for the twin). Source: `asymptotic`
    (13), non-increasing under the hypotheses of theorem 4.1. It tends to 1 − v·y* at the consensus y*, which is
    not 0 in general and is below 0 where v·y* > 1, possible on an ellipsoid. `hemisphere` finds the deepest v.

    Args:
        x: States of shape (…, token, dim).
        direction: v, (dim,) or (…, dim) broadcasting against the systems of `x`; used as it is, not normalised.
        metric: M, symmetric positive definite, (dim, dim) or (…, dim, dim); None means the identity.

    Returns:
        Shape (…,), dimensionless; see `direction_deficit` for its precision.

    Raises:
        ArgumentValueError: See `direction_deficit`.

    >>> hemisphere_function([[1.0, 0.0], [0.6, 0.8]], [1.0, 0.0])
    0.4...
    """
    states = as_states(x)
    return like(_deficit(states, direction, metric).amax(dim=-1).to(states.dtype), x)


def _deficit(states: Tensor, direction: ArrayLike, metric: ArrayLike | None) -> Float64[Tensor, "*broadcast token"]:
    y, v = states.double(), fitting_vector(states, direction, "direction")
    form = None if metric is None else fitting_metric(states, metric)
    plain = 1 - _product(y, v, form)
    check_finite(plain, "1 − direction·x_i")
    within = UNIT_WITHIN * torch.finfo(states.dtype).eps
    unit = _is_unit(y, form, within) & _is_unit(v, form, within)
    gap = y - v
    return torch.where(unit, _product(gap, gap, form) / 2, plain)


def _is_unit(y: Tensor, form: Tensor | None, within: float) -> Tensor:
    return (_product(y, y, form) - 1).abs() <= within


def _product(left: Tensor, right: Tensor, form: Tensor | None) -> Float64[Tensor, "*broadcast token"]:
    return (left * (right if form is None else right @ form)).sum(dim=-1)


@typed_arguments
def wendel_probability(tokens: SupportsIndex, dim: SupportsIndex, *, formula: str = "corrected") -> float:
    """Return the probability that tokens drawn uniformly on a sphere lie in one open half space.

    2^{−(ℓ−1)} Σ_{μ=0}^{dim−1} C(ℓ−1, μ) for ℓ tokens in R^dim (Wendel 1962): 1 exactly when ℓ ≤ dim, and 1/2 for
    ℓ = 2·dim. It holds for every law symmetric about 0 under which tokens are in general position, such as the
    uniform law on an ellipsoid. Source: `asymptotic` remark 4.2, whose dim is n + 1 and whose printed upper limit
    n − 1 = dim − 2 is one too low; ``"printed"`` evaluates it as it stands, for comparison.

    The sum is an integer computed exactly, and the answer its quotient rounded once.

    Args:
        tokens: ℓ, at least 1.
        dim: The dimension of the tokens, at least 1.
        formula: ``"corrected"`` or ``"printed"``.

    Returns:
        The probability, from 0 (reached by underflow, and by ``"printed"`` with dim = 1) to 1.

    Raises:
        ArgumentTypeError: A number of tokens or a dimension that is no integer.
        ArgumentValueError: One below 1, or another formula.

    >>> wendel_probability(10, 3), wendel_probability(10, 3, formula="printed")
    (0.08984375, 0.01953125)
    """
    count, size = _positive(tokens, "tokens"), _positive(dim, "dim")
    if formula not in ("corrected", "printed"):
        raise ArgumentValueError("formula", "'corrected' or 'printed'", repr(formula))
    draws, terms = count - 1, min(size if formula == "corrected" else size - 1, count)
    favourable = _sum_of_binomials(draws, terms)
    if favourable.bit_length() < draws - 1100:  # below every float64: the power of two need not be built
        return 0.0
    return favourable / 2**draws


def _sum_of_binomials(n: int, terms: int) -> int:
    """Return Σ_{μ < terms} C(n, μ), by whichever end of the row is shorter."""
    if 2 * terms > n + 1:
        return 2**n - _sum_of_binomials(n, n + 1 - terms)
    total, binomial = 0, 1
    for mu in range(terms):
        total += binomial
        binomial = binomial * (n - mu) // (mu + 1)
    return total


def _positive(value: SupportsIndex, argument: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(argument, "an integer", repr(value)) from None
    if number < 1:
        raise ArgumentValueError(argument, "at least 1", number)
    return number
