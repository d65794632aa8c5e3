"""Energies of token states: the interaction potential and quadratic forms."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from tokendynamics.numerics.arguments import ArrayLike, as_square, as_states, check_finite, like
from tokendynamics.numerics.errors import ArgumentValueError, expected


def potential(x: ArrayLike, qk: ArrayLike) -> Any:
    """Return the potential V = −½ Σ_ij exp(x_i^T qk x_j), the sum over all ordered pairs and i = j.

    Source: `asymptotic` (10); the ellipsoid flow with one head, ov = I and qk ≻ 0 is minus its gradient
    (theorem 3.1). At consensus on the ellipsoid y^T qk y = 1 of ℓ tokens it is −½ ℓ² e (the axis printed in
    `asymptotic` Fig. 1 shows 2V).

    Args:
        x: States of shape (…, token, dim).
        qk: The form of the logits, (dim, dim) or (…, dim, dim) broadcasting against the systems of `x`.

    Returns:
        Shape (…,), dimensionless, below 0. It is −inf where the sum exceeds the largest number of the dtype (a
        logit above 709 in float64): `log_potential` stays finite there.

    Raises:
        ArgumentValueError: Shapes that do not fit, or logits that overflow.

    >>> f"{potential([[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]):.6f}"  # −2e
    '-5.436564'
    """
    states, form = _fitting(x, qk, "qk")
    return like(-_log_half_sum(states.double(), form).exp().to(states.dtype), x)


def log_potential(x: ArrayLike, qk: ArrayLike) -> Any:
    """Return log(−V) = log(½ Σ_ij exp(x_i^T qk x_j)), finite where `potential` overflows.

    Source: the logarithm of `asymptotic` (10); up to log 2 also that of h in `positional` (B.4).

    Args:
        x: States of shape (…, token, dim).
        qk: The form of the logits, (dim, dim) or (…, dim, dim) broadcasting against the systems of `x`.

    Returns:
        Shape (…,), dimensionless.

    Raises:
        ArgumentValueError: Shapes that do not fit, or logits that overflow.

    >>> f"{log_potential([[100.0]], [[1.0]]):.6f}"  # 10000 − log 2
    '9999.306853'
    """
    states, form = _fitting(x, qk, "qk")
    return like(_log_half_sum(states.double(), form).to(states.dtype), x)


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
    states, form = _fitting(x, matrix, "matrix")
    wide = states.double()
    result = ((wide @ form) * wide).sum(dim=-1)
    check_finite(result, "x_i^T matrix x_i")
    return like(result.to(states.dtype), x)


def _log_half_sum(
    x: Float64[Tensor, "*system token dim"], form: Float64[Tensor, "*form_system dim dim"]
) -> Float64[Tensor, "*broadcast"]:
    logits = x @ form @ x.mT
    check_finite(logits, "x_i^T qk x_j")
    return logits.flatten(start_dim=-2).logsumexp(dim=-1) - math.log(2)


def _fitting(x: ArrayLike, matrix: ArrayLike, argument: str) -> tuple[Tensor, Tensor]:
    states, form = as_states(x), as_square(matrix, argument)
    dim, leading = states.shape[-1], states.shape[:-2]
    if form.shape[-1] != dim:
        wanted = f"shape (…, {dim}, {dim}) to fit x"
        raise ArgumentValueError(expected(argument, wanted, f"shape {tuple(form.shape)}"))
    try:
        torch.broadcast_shapes(leading, form.shape[:-2])
    except RuntimeError:
        wanted = f"leading axes that broadcast against those of x, {tuple(leading)}"
        raise ArgumentValueError(expected(argument, wanted, f"shape {tuple(form.shape)}")) from None
    return states, form.to(device=states.device, dtype=torch.float64)
