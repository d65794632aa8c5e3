"""The Riemannian metric in which the ellipsoid flow is the gradient of the potential."""

from __future__ import annotations

from typing import Any

import torch

from tokendynamics.numerics.arguments import ArrayLike, as_states, check_finite, like
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.observables.fitting import fitting_matrix, fitting_states
from tokendynamics.observables.interactions import log_interaction_sums


@typed_arguments
def riemannian_metric(
    first: ArrayLike, second: ArrayLike, x: ArrayLike, qk: ArrayLike, *, normalization: str = "paper"
) -> Any:
    """Return ⟨X, Y⟩ at x, Σ_i Z_i X_i^T qk Y_i with Z_i = `interaction_sums`, of two fields of tangent vectors.

    Source: `asymptotic` (9). With one head, ov = I, the full mask and qk = M ≻ 0, the velocity F of its flow (7)
    satisfies ⟨F, Y⟩ = −dV(Y) for the potential V, its (10), and all tangent Y (theorem 3.1). The normalization
    has to be the flow's. It is an inner product only where qk is symmetric positive definite; the sum is given
    for any qk. Where it exceeds the largest number of the dtype it is ±inf.

    Args:
        first: X, vectors of shape (…, token, dim).
        second: Y, vectors of shape (…, token, dim).
        x: States of shape (…, token, dim); the systems of all four arguments broadcast.
        qk: The form of the logits and of the metric, (dim, dim) or (…, dim, dim).
        normalization: ``"paper"`` (Z_i with the factor √dim) or ``"plain"``.

    Returns:
        Shape (…,), in the units of X times those of Y, in the type and dtype of `x`.

    Raises:
        ArgumentValueError: Shapes that do not fit, values that overflow, or another normalization.

    >>> identity = [[1.0, 0.0], [0.0, 1.0]]
    >>> riemannian_metric([[0.0, 3.0]], [[0.0, 2.0]], [[1.0, 0.0]], identity, normalization="plain")  # 6e
    16.309690...
    """
    states = as_states(x)
    form = fitting_matrix(states, qk, "qk")
    left, right = fitting_states(states, first, "first"), fitting_states(states, second, "second")
    log_sums = log_interaction_sums(states.double(), form, normalization=normalization)
    products = ((left @ form) * right).sum(dim=-1)
    check_finite(products, "first_i^T qk second_i")
    # The largest Z comes in last, so that weighted products that cancel do not become inf − inf.
    largest = log_sums.amax(dim=-1, keepdim=True)
    total = (products * (log_sums - largest).exp()).sum(dim=-1)
    result = torch.where(total == 0, total, total * largest.squeeze(-1).exp())
    return like(result.to(states.dtype), x)
