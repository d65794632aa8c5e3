"""Directions without groups that vary as much, and along the same axes, as those that are there."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from tokendynamics.numerics._seeding import generator
from tokendynamics.observables import direction_clusters


def rotated(rows: Float64[Tensor, "token dim"], draws: int, seed: int) -> Float64[Tensor, "draw token axis"]:
    """Mix rows among each other by random rotations that keep their mean, in coordinates of the span of the rows.

    With μ the mean, Q orthogonal and Q 1 = 1, the rows of μ + Q(X − μ) have the mean and the covariance of those of X
    exactly, and each is a random mixture of all: nearly normal, so that no groups are left but by chance (rotation
    tests: Ø. Langsrud, Statistics and Computing 15, 2005).

    Args:
        rows: X.
        draws: How many rotations.
        seed: Of them.

    >>> given = torch.eye(4, dtype=torch.float64)[:, :3]
    >>> drawn = rotated(given, 1, 0)[0]
    >>> round(float(drawn.mean(dim=0).norm() / given.mean(dim=0).norm()), 12)
    1.0
    """
    random = generator(seed)
    coordinates = torch.linalg.qr(rows.mT).R.mT  # the same Gram matrix in as many axes as there are tokens, at most
    mean = coordinates.mean(dim=0)
    count = len(rows)
    # Orthonormal bases of what is orthogonal to (1, …, 1): one fixed, one drawn for each rotation.
    drawn = torch.randn(draws, count, count - 1, dtype=torch.float64, generator=random)
    to = torch.linalg.qr(drawn - drawn.mean(dim=-2, keepdim=True)).Q
    ones = torch.ones(count, 1, dtype=torch.float64)
    base = torch.linalg.qr(torch.cat([ones, torch.eye(count, dtype=torch.float64)[:, 1:]], dim=1)).Q[:, 1:]
    return mean + to @ (base.mT @ (coordinates - mean))


def silhouettes_by_chance(rows: Float64[Tensor, "token dim"], draws: int, seed: int) -> np.ndarray:
    """Return the silhouette of the best division of each of the `rotated` sets of directions."""
    return np.array([direction_clusters(each).silhouette for each in rotated(rows, draws, seed)])
