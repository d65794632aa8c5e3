"""Energies of token states: the interaction potential and the sum in it, with their logarithms."""

from __future__ import annotations

import math
from typing import Any

from jaxtyping import Float64
from torch import Tensor

from tokendynamics.numerics.arguments import ArrayLike, as_states, check_finite, like
from tokendynamics.observables._fitting import fitting_matrix


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
    states = as_states(x)
    log_sum = _log_sum(states.double(), fitting_matrix(states, qk, "qk"))
    return like(-(log_sum - math.log(2)).exp().to(states.dtype), x)


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
    states = as_states(x)
    log_sum = _log_sum(states.double(), fitting_matrix(states, qk, "qk"))
    return like((log_sum - math.log(2)).to(states.dtype), x)


def interaction_energy(x: ArrayLike, qk: ArrayLike) -> Any:
    """Return h = Σ_ij exp(x_i^T qk x_j), which is −2 times `potential`.

    Source: `positional`, proof of lemma B.4: it does not increase along the free flow if A = qk·ov^{−1} is
    symmetric negative definite and qk is symmetric positive definite; then it tends to ℓ², its value at 0.

    Args:
        x: States of shape (…, token, dim).
        qk: The form of the logits, (dim, dim) or (…, dim, dim) broadcasting against the systems of `x`.

    Returns:
        Shape (…,), dimensionless, above 0. It is inf where the sum exceeds the largest number of the dtype:
        `log_interaction_energy` stays finite there.

    Raises:
        ArgumentValueError: Shapes that do not fit, or logits that overflow.

    >>> interaction_energy([[0.0], [0.0], [0.0]], [[1.0]])
    9.0...
    """
    states = as_states(x)
    return like(_log_sum(states.double(), fitting_matrix(states, qk, "qk")).exp().to(states.dtype), x)


def log_interaction_energy(x: ArrayLike, qk: ArrayLike) -> Any:
    """Return log h, finite where `interaction_energy` overflows: `log_potential` plus log 2.

    Source: the logarithm of h in `positional`, lemma B.4.

    Args:
        x: States of shape (…, token, dim).
        qk: The form of the logits, (dim, dim) or (…, dim, dim) broadcasting against the systems of `x`.

    Returns:
        Shape (…,), dimensionless.

    Raises:
        ArgumentValueError: Shapes that do not fit, or logits that overflow.

    >>> log_interaction_energy([[100.0]], [[1.0]])
    10000.0
    """
    states = as_states(x)
    return like(_log_sum(states.double(), fitting_matrix(states, qk, "qk")).to(states.dtype), x)


def _log_sum(
    x: Float64[Tensor, "*system token dim"], form: Float64[Tensor, "*form_system dim dim"]
) -> Float64[Tensor, "*broadcast"]:
    logits = x @ form @ x.mT
    check_finite(logits, "x_i^T qk x_j")
    return logits.flatten(start_dim=-2).logsumexp(dim=-1)
