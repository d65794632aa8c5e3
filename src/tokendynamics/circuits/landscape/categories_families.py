"""Stationary points of 3.3 that are written down at once: the zero-loss family and the trivial saddles."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tokendynamics.circuits.landscape.categories_only import CategoriesOnly
from tokendynamics.circuits.landscape.stationary_point import StationaryPoint
from tokendynamics.numerics.arguments import ArrayLike, as_square
from tokendynamics.numerics.errors import ArgumentValueError, expected

# Of a mean over N categories, for each of them.
_ROUNDING = 8 * torch.finfo(torch.float64).eps


def zero_loss(landscape: CategoriesOnly, scale: float = 1.0, diagonal: float = 0.0) -> StationaryPoint:
    """The exact solutions q = (q* + a)/λ, v = λ(S + cI), with S the subdiagonal and a(t) = −c/(1+c) q*_tt.

    The constant a(X_i) that q adds through the previous token is what v_ii takes away: 0 = a(t) + c q_tt, which is
    `logical` (3.71) with q_tt = q*_tt + a(t); the line printed before (3.71) has the sign of a turned round. The
    family reaches infinity as c → −1.

    Args:
        landscape: The landscape, causal or not.
        scale: λ, finite and not 0.
        diagonal: c, finite and not −1.

    Raises:
        ArgumentValueError: λ = 0; c = −1, where no finite a exists (unless the diagonal of q_true is zero, and then
            c = 0 does as well); a number that is not finite, or so near to these that q overflows.

    >>> landscape = CategoriesOnly([[1.0, 2.0], [0.0, -1.0]], None, positions=3)
    >>> point = zero_loss(landscape, scale=2.0, diagonal=1.0)
    >>> point.q
    tensor([[ 0.2500,  1.2500],
            [-0.2500, -0.2500]], dtype=torch.float64)
    >>> float(landscape.loss(point.q, point.v))
    0.0
    """
    _check_scale(scale)
    if not math.isfinite(diagonal) or diagonal == -1.0:
        advice = "the sum v_ii + v_i,i−1 must not vanish, or no shift of q takes the diagonal term away"
        raise ArgumentValueError(expected("diagonal", "a finite number other than −1", diagonal, advice))
    own = landscape.q_true.diagonal()
    q = (landscape.q_true - diagonal / (1.0 + diagonal) * own) / scale
    if not bool(torch.isfinite(q).all()):
        advice = "take a diagonal farther from −1 or a larger scale"
        raise ArgumentValueError(expected("diagonal", "values that keep q finite", f"{diagonal} and {scale}", advice))
    size = landscape.positions
    identity = torch.eye(size, dtype=torch.float64)
    v = scale * (torch.ones(size, size, dtype=torch.float64).tril(-1).triu(-1) + diagonal * identity)
    return StationaryPoint("A", "zero loss", q, v, 0.0, 0.0)


def mean_predictor(landscape: CategoriesOnly, scale: float = 1.0, pairs: ArrayLike | None = None) -> StationaryPoint:
    """Ŷ_i = E[Y_i | X_i], from the token itself alone: v = λI, q_tt = m*_t/λ with m* the mean of q_true over senders.

    Nothing attends elsewhere, so the rest of q is free but for one condition, E Cov(q_true, q | receiver) = 0.
    `logical` 3.3.1 rules these points out by setting v_{i,i−1} = 1 "without restriction", which needs v_{i,i−1} ≠ 0
    (corrects `logical` 3.3.1). A strict saddle: to first order in a change of v_{i,i−1} and of the entries of q off
    the diagonal the loss has a mixed term and no square in the latter.

    Args:
        landscape: The landscape, causal or not.
        scale: λ, finite and not 0.
        pairs: Wanted entries of q off the diagonal, (N, N); projected on the condition. None: constant columns.

    Raises:
        ArgumentTypeError, ArgumentValueError: λ = 0 or not finite; pairs that are not an N × N real finite matrix;
            a q_true without interaction, for which this point is a solution.

    >>> landscape = CategoriesOnly([[1.0, 2.0], [0.0, -1.0]], None, positions=3)
    >>> point = mean_predictor(landscape)
    >>> point.loss == float(landscape.loss(point.q, point.v)) == 2 * landscape.interaction_variance
    True
    """
    _check_scale(scale)
    check_interaction(landscape)
    mean = landscape.law @ landscape.q_true
    q = (mean / scale).expand(landscape.q_shape).clone()
    if pairs is not None:
        q = _uncorrelated(landscape, _of_size(pairs, landscape), q)
    v = scale * torch.eye(landscape.positions, dtype=torch.float64)
    per_row = landscape.interaction_variance
    return StationaryPoint("C", "mean predictor", q, v, (landscape.positions - 1) * per_row, per_row)


def nothing(landscape: CategoriesOnly) -> StationaryPoint:
    """Q = v = 0: the prediction is 0 and the loss (M − 1) E Y²; a strict saddle unless q_true is zero.

    >>> landscape = CategoriesOnly([[1.0, 2.0], [0.0, -1.0]], None, positions=3)
    >>> nothing(landscape).loss
    3.0
    """
    law, target = landscape.law, landscape.q_true
    per_row = float(law @ target**2 @ law)
    q, v = torch.zeros_like(target), torch.zeros(landscape.v_shape, dtype=torch.float64)
    return StationaryPoint("D", "q = v = 0", q, v, (landscape.positions - 1) * per_row, per_row)


def check_interaction(landscape: CategoriesOnly) -> None:
    """Refuse a target that depends on the receiver alone, up to rounding: these points are no saddles but solutions."""
    target = landscape.q_true
    rounding = _ROUNDING * target.shape[0] * float(target.abs().max())
    if landscape.interaction_variance <= rounding**2:
        advice = "with such a target the loss is zero without looking at any other token"
        raise ArgumentValueError(expected("q_true", "dependence on the previous category", "equal rows", advice))


def _check_scale(scale: float) -> None:
    if not math.isfinite(scale) or scale == 0.0:
        raise ArgumentValueError(expected("scale", "a finite number other than 0", scale))


def _of_size(pairs: ArrayLike, landscape: CategoriesOnly) -> Tensor:
    matrix = as_square(pairs, "pairs").double()
    if matrix.shape != landscape.q_shape:
        raise ArgumentValueError(expected("pairs", f"shape {landscape.q_shape}", f"{tuple(matrix.shape)}"))
    return matrix


def _uncorrelated(landscape: CategoriesOnly, pairs: Tensor, base: Tensor) -> Tensor:
    """`pairs` off the diagonal and `base` on it, with the mean covariance with q_true projected away."""
    free = 1.0 - torch.eye(len(landscape.law), dtype=torch.float64)
    q = free * pairs + (1.0 - free) * base
    centred = landscape.q_true - landscape.law @ landscape.q_true
    direction = torch.outer(landscape.law, landscape.law) * centred
    movable = free * direction
    return q - movable * ((direction * q).sum() / (movable**2).sum())
