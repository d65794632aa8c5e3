"""Quadratic forms of tokens and of their differences, with their rates along a flow."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from tokendynamics.numerics.arguments import ArrayLike, as_states, check_finite, like
from tokendynamics.observables._fitting import fitting_matrix, fitting_states


def quadratic_form(matrix: ArrayLike, x: ArrayLike) -> Any:
    """Return q_B(x_i) = x_i^T B x_i for every token.

    Only the symmetric part (B + B^T)/2 counts. Source: the forms of A and W in `positional` (theorems 3.1, 3.3).

    Args:
        matrix: B, of shape (dim, dim) or (…, dim, dim) broadcasting against the systems of `x`.
        x: States of shape (…, token, dim).

    Returns:
        Shape (…, token), in the squared units of `x` times those of B.

    Raises:
        ArgumentValueError: Shapes that do not fit, or values that overflow.

    >>> quadratic_form([[2.0, 1.0], [0.0, -1.0]], [[1.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
    [2.0, -9.0, 2.0]
    """
    states = as_states(x)
    form, wide = fitting_matrix(states, matrix, "matrix"), states.double()
    result = ((wide @ form) * wide).sum(dim=-1)
    check_finite(result, "x_i^T matrix x_i")
    return like(result.to(states.dtype), x)


def quadratic_form_rate(matrix: ArrayLike, x: ArrayLike, velocity: ArrayLike) -> Any:
    """Return the time derivative of `quadratic_form` along a flow, x_i^T (B + B^T) dx_i/dt.

    Source: the left-hand side of `positional` proposition 3.3 with B = A.

    Args:
        matrix: B, of shape (dim, dim) or (…, dim, dim) broadcasting against the systems of `x`.
        x: States of shape (…, token, dim).
        velocity: dx_i/dt, of the shape of `x` up to broadcasting systems.

    Returns:
        Shape (…, token), in the units of `quadratic_form` per unit of time.

    Raises:
        ArgumentValueError: Shapes that do not fit, or values that overflow.

    >>> quadratic_form_rate([[1.0, 0.0], [0.0, 1.0]], [[1.0, 2.0]], [[3.0, 4.0]])
    [22.0]
    """
    states = as_states(x)
    form, moving = fitting_matrix(states, matrix, "matrix"), fitting_states(states, velocity, "velocity")
    result = ((states.double() @ (form + form.mT)) * moving).sum(dim=-1)
    check_finite(result, "x_i^T (matrix + matrix^T) velocity_i")
    return like(result.to(states.dtype), x)


def pair_quadratic_form(matrix: ArrayLike, x: ArrayLike) -> Any:
    """Return q_B(x_i − x_j) for every pair of tokens.

    Taken from the differences, so that coincident tokens give exactly 0 and near-coincident ones keep their
    relative precision. Source: `positional` theorem 3.1, by which it does not decrease with time for B = A
    symmetric.

    Args:
        matrix: B, of shape (dim, dim) or (…, dim, dim) broadcasting against the systems of `x`.
        x: States of shape (…, token, dim).

    Returns:
        Shape (…, token, token), exactly symmetric with a zero diagonal, in the squared units of `x` times those
        of B.

    Raises:
        ArgumentValueError: Shapes that do not fit, or values that overflow.

    >>> pair_quadratic_form([[1.0, 0.0], [0.0, -1.0]], [[0.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    [[0.0, 4.0, -9.0], [4.0, 0.0, -5.0], [-9.0, -5.0, 0.0]]
    """
    states = as_states(x)
    wide = states.double()
    result = _over_pairs(fitting_matrix(states, matrix, "matrix"), wide, wide)
    check_finite(result, "(x_i − x_j)^T matrix (x_i − x_j)")
    return like(result.to(states.dtype), x)


def pair_quadratic_form_rate(matrix: ArrayLike, x: ArrayLike, velocity: ArrayLike) -> Any:
    """Return the time derivative of `pair_quadratic_form`, (x_i − x_j)^T (B + B^T) (dx_i/dt − dx_j/dt).

    Source: `positional` theorem 3.1, whose proof shows that it is not negative for B = A symmetric.

    Args:
        matrix: B, of shape (dim, dim) or (…, dim, dim) broadcasting against the systems of `x`.
        x: States of shape (…, token, dim).
        velocity: dx_i/dt, of the shape of `x` up to broadcasting systems.

    Returns:
        Shape (…, token, token), exactly symmetric with a zero diagonal, in the units of `pair_quadratic_form`
        per unit of time.

    Raises:
        ArgumentValueError: Shapes that do not fit, or values that overflow.

    >>> pair_quadratic_form_rate([[1.0]], [[0.0], [2.0]], [[0.0], [3.0]])
    [[0.0, 12.0], [12.0, 0.0]]
    """
    states = as_states(x)
    form, moving = fitting_matrix(states, matrix, "matrix"), fitting_states(states, velocity, "velocity")
    result = _over_pairs(form + form.mT, states.double(), moving)
    check_finite(result, "(x_i − x_j)^T (matrix + matrix^T) (velocity_i − velocity_j)")
    return like(result.to(states.dtype), x)


def quadratic_form_rate_bound(x: ArrayLike, qk: ArrayLike) -> Any:
    """Return 2 − 2L exp(−q_qk(x_l)) for every token, L being their number.

    Source: `positional` proposition 3.3: a lower bound of `quadratic_form_rate` with A = qk·ov^{−1} along the free
    flow, if A is symmetric. It is −inf where the exponential exceeds the largest number of the dtype.

    Args:
        x: States of shape (…, token, dim).
        qk: The form of the logits, (dim, dim) or (…, dim, dim) broadcasting against the systems of `x`.

    Returns:
        Shape (…, token), per unit of time, below 2.

    Raises:
        ArgumentValueError: Shapes that do not fit, or values that overflow.

    >>> quadratic_form_rate_bound([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]])
    [-4.0, -4.0, -4.0]
    """
    states = as_states(x)
    form = quadratic_form(fitting_matrix(states, qk, "qk"), states.double())
    return like((2 - 2 * states.shape[-2] * (-form).exp()).to(states.dtype), x)


def _over_pairs(
    form: Float64[Tensor, "*form_system dim dim"],
    x: Float64[Tensor, "*system token dim"],
    y: Float64[Tensor, "*other_system token dim"],
) -> Float64[Tensor, "*broadcast token token"]:
    # Row by row above the diagonal: the memory of the answer, never that of all differences.
    tokens = x.shape[-2]
    systems = np.broadcast_shapes(form.shape[:-2], x.shape[:-2], y.shape[:-2])
    upper = x.new_zeros(*systems, tokens, tokens)
    for i in range(tokens - 1):
        left, right = x[..., i : i + 1, :] - x[..., i + 1 :, :], y[..., i : i + 1, :] - y[..., i + 1 :, :]
        upper[..., i, i + 1 :] = ((left @ form) * right).sum(dim=-1)
    return upper + upper.mT
