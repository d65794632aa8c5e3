"""The other projection onto the ellipsoid of metric ov^T ov."""

from __future__ import annotations

from typing import Any

import torch

from tokendynamics.numerics.arguments import ArrayLike, as_square, as_states, like
from tokendynamics.numerics.errors import ArgumentValueError, expected


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
        came = f"shapes {tuple(given.shape)} and {tuple(matrix.shape)}"
        raise ArgumentValueError(expected("vectors, ov", wanted, came))
    rank = int(torch.linalg.matrix_rank(matrix))
    if rank < len(matrix):
        raise ArgumentValueError(expected("ov", "a regular matrix", f"one of rank {rank} of {len(matrix)}"))
    image = points @ matrix.mT
    along = (image * given.to(points)).sum(dim=-1, keepdim=True)
    return like(torch.linalg.solve(matrix, (given.to(points) - along * image).mT).mT, vectors)
