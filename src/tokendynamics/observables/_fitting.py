"""Checks that matrices, vectors and second states fit the token states they are used with."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_square, as_states, as_tensor
from tokendynamics.numerics.tolerances import check_positive_definite


def fitting_matrix(states: Tensor, matrix: ArrayLike, argument: str) -> Tensor:
    """Return `matrix` in float64 beside `states`, of shape (…, dim, dim) broadcasting against the systems."""
    form = as_square(matrix, argument)
    dim = states.shape[-1]
    if form.shape[-1] != dim:
        raise ArgumentValueError(argument, f"shape (…, {dim}, {dim}) to fit x", f"shape {tuple(form.shape)}")
    _check_leading(states, form, 2, argument)
    return _beside(states, form)


def fitting_metric(states: Tensor, metric: ArrayLike) -> Tensor:
    """Return `metric` as `fitting_matrix` does; refused unless it is symmetric positive definite."""
    form = fitting_matrix(states, metric, "metric")
    check_positive_definite(form, "metric", as_square(metric, "metric").dtype)
    return form


def fitting_vector(states: Tensor, vector: ArrayLike, argument: str) -> Tensor:
    """Return `vector` in float64 as states of one token, (…, 1, dim), broadcasting against the systems."""
    tensor = as_tensor(vector, argument, ndim_at_least=1, axes="(…, dim)")
    dim = states.shape[-1]
    if tensor.shape[-1] != dim:
        raise ArgumentValueError(argument, f"shape (…, {dim}) to fit x", f"shape {tuple(tensor.shape)}")
    _check_leading(states, tensor, 1, argument)
    return _beside(states, tensor).unsqueeze(-2)


def fitting_states(states: Tensor, other: ArrayLike, argument: str) -> Tensor:
    """Return `other` in float64: one vector per token of `states`, the systems broadcasting."""
    tensor = as_states(other, argument)
    if tensor.shape[-2:] != states.shape[-2:]:
        wanted = f"shape (…, {states.shape[-2]}, {states.shape[-1]}) to fit x"
        raise ArgumentValueError(argument, wanted, f"shape {tuple(tensor.shape)}")
    _check_leading(states, tensor, 2, argument)
    return _beside(states, tensor)


def fitting_points(states: Tensor, points: ArrayLike, argument: str) -> Tensor:
    """Return `points` in float64, of shape (…, point, dim): any number of them, the systems broadcasting."""
    tensor = as_states(points, argument)
    dim = states.shape[-1]
    if tensor.shape[-1] != dim:
        raise ArgumentValueError(argument, f"shape (…, point, {dim}) to fit x", f"shape {tuple(tensor.shape)}")
    _check_leading(states, tensor, 2, argument)
    return _beside(states, tensor)


def _check_leading(states: Tensor, other: Tensor, own_axes: int, argument: str) -> None:
    leading = states.shape[:-2]
    try:
        np.broadcast_shapes(leading, other.shape[: other.ndim - own_axes])
    except ValueError:
        wanted = f"leading axes that broadcast against those of x, {tuple(leading)}"
        raise ArgumentValueError(argument, wanted, f"shape {tuple(other.shape)}") from None


def _beside(states: Tensor, other: Tensor) -> Tensor:
    return other.to(device=states.device, dtype=torch.float64)
