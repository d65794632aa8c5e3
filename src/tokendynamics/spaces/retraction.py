"""Retraction onto y^T M y = 1 and the tangent part of vectors, with the other projection of `asymptotic` Remark 5.1."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_square, as_states, first_token, like


def inner(
    first: Float[Tensor, "*batch token dim"],
    second: Float[Tensor, "*batch token dim"],
    metric: Float[Tensor, "*system dim dim"] | None,
) -> Float[Tensor, "*batch token 1"]:
    """Return ``x_i^T M y_i`` for each token; the plain inner product where metric is None."""
    return (first * (second if metric is None else second @ metric)).sum(dim=-1, keepdim=True)


def retract(
    x: Float[Tensor, "*batch token dim"], metric: Float[Tensor, "*system dim dim"] | None, argument: str
) -> Float[Tensor, "*batch token dim"]:
    """Return ``x / |x|_M``, safe for tokens of any size.

    Raises:
        ArgumentValueError: A zero token; its index is printed.
    """
    refuse_zero(x, argument)
    return normalized(x, metric)


def refuse_zero(x: Float[Tensor, "*batch token dim"], argument: str) -> None:
    """Raise for a token that is zero.

    Raises:
        ArgumentValueError: A zero token; its index is printed.
    """
    zero = x.abs().amax(dim=-1) == 0
    if bool(zero.any()):
        advice = "zero has no direction and cannot be projected: remove or mask that token"
        raise ArgumentValueError(argument, "tokens that are not zero", f"a zero vector at {first_token(zero)}", advice)


def normalized(
    x: Float[Tensor, "*batch token dim"], metric: Float[Tensor, "*system dim dim"] | None
) -> Float[Tensor, "*batch token dim"]:
    """Return ``x / |x|_M`` without the check: a zero token gives NaN."""
    scaled = x / x.abs().amax(dim=-1, keepdim=True)
    once = scaled / inner(scaled, scaled, metric).sqrt()
    # The second pass removes the rounding of the first: the constraint then holds to the last digit or two.
    return once * (1.5 - 0.5 * inner(once, once, metric))


def tangent_part(
    y: Float[Tensor, "*batch token dim"],
    vectors: Float[Tensor, "*batch token dim"],
    metric: Float[Tensor, "*system dim dim"] | None,
) -> Float[Tensor, "*batch token dim"]:
    """Return ``v − (y^T M v) y``."""
    return vectors - inner(y, vectors, metric) * y


def remark_5_1_projection(y: ArrayLike, vectors: ArrayLike, ov: ArrayLike) -> Any:
    """Return ``Π_y X = ov^(−1) (I − ov y y^T ov^T) X``, tangent to ``y^T M y = 1`` with ``M = ov^T ov``.

    Unlike the orthogonal projection of the metric (`Ellipsoid.tangent`) it moves the vector through ov^(−1), so that
    after ``z = ov y`` a flow with the values ov becomes one on the sphere with the identity for values. Source:
    `asymptotic` Remark 5.1.

    Args:
        y: Points of the ellipsoid, (…, token, dim).
        vectors: One vector for each point, (…, token, dim).
        ov: Regular, (dim, dim).

    Returns:
        Shape (…, token, dim), in the type of `vectors`.

    Raises:
        ArgumentValueError: Shapes that do not fit, or a singular ov.

    >>> remark_5_1_projection([[0.5, 0.0]], [[2.0, 3.0]], [[2.0, 0.0], [0.0, 1.0]])
    [[0.0, 3.0]]
    """
    points, given = as_states(y, "y"), as_states(vectors, "vectors")
    matrix = as_square(ov, "ov").to(points)
    if given.shape != points.shape or matrix.shape != (points.shape[-1],) * 2:
        wanted = f"vectors of shape {tuple(points.shape)} and ov of shape ({points.shape[-1]}, {points.shape[-1]})"
        raise ArgumentValueError("vectors, ov", wanted, f"shapes {tuple(given.shape)} and {tuple(matrix.shape)}")
    rank = int(torch.linalg.matrix_rank(matrix))
    if rank < len(matrix):
        raise ArgumentValueError("ov", "a regular matrix", f"one of rank {rank} of {len(matrix)}")
    image = points @ matrix.mT
    along = (image * given.to(points)).sum(dim=-1, keepdim=True)
    return like(torch.linalg.solve(matrix, (given.to(points) - along * image).mT).mT, vectors)
