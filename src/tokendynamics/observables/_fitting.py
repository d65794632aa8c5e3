"""Checks that matrices, vectors and second states fit the token states they are used with."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_square, as_states, as_tensor, check_positive_definite


def fitting_matrix(states: Tensor, matrix: ArrayLike, argument: str) -> Tensor:
    """Return `matrix` in float64 beside `states`, of shape (…, dim, dim) broadcasting against the systems."""
    sizes = torch.Size((states.shape[-1], states.shape[-1]))
    return _fitted(states, as_square(matrix, argument), 2, "", sizes, argument)


def fitting_metric(states: Tensor, metric: ArrayLike) -> Tensor:
    """Return `metric` as `fitting_matrix` does; refused unless it is symmetric positive definite."""
    form = fitting_matrix(states, metric, "metric")
    check_positive_definite(form, "metric", as_square(metric, "metric").dtype)
    return form


def fitting_vector(states: Tensor, vector: ArrayLike, argument: str) -> Tensor:
    """Return `vector` in float64 as states of one token, (…, 1, dim), broadcasting against the systems."""
    tensor = as_tensor(vector, argument, ndim_at_least=1, axes="(…, dim)")
    return _fitted(states, tensor, 1, "", states.shape[-1:], argument).unsqueeze(-2)


def fitting_states(states: Tensor, other: ArrayLike, argument: str) -> Tensor:
    """Return `other` in float64: one vector per token of `states`, the systems broadcasting."""
    return _fitted(states, as_states(other, argument), 2, "", states.shape[-2:], argument)


def fitting_points(states: Tensor, points: ArrayLike, argument: str) -> Tensor:
    """Return `points` in float64, of shape (…, point, dim): any number of them, the systems broadcasting."""
    return _fitted(states, as_states(points, argument), 2, "point, ", states.shape[-1:], argument)


def _fitted(states: Tensor, other: Tensor, axes: int, first: str, sizes: torch.Size, argument: str) -> Tensor:
    """Return a tensor in float64 whose last axes have the sizes of those of states, and leading ones that broadcast.

    Args:
        states: What it has to fit.
        other: The tensor.
        axes: How many of its axes do not lead.
        first: What an error calls those of them that have any size.
        sizes: Of the others.
        argument: What an error calls the tensor.
    """
    if other.shape[-len(sizes) :] != sizes:
        wanted = f"shape (…, {first}{', '.join(map(str, sizes))}) to fit x"
        raise ArgumentValueError(argument, wanted, f"shape {tuple(other.shape)}")
    leading = states.shape[:-2]
    try:
        np.broadcast_shapes(leading, other.shape[: other.ndim - axes])
    except ValueError:
        wanted = f"leading axes that broadcast against those of x, {tuple(leading)}"
        raise ArgumentValueError(argument, wanted, f"shape {tuple(other.shape)}") from None
    return other.to(device=states.device, dtype=torch.float64)
