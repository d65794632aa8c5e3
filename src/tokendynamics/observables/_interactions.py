"""Quadratic forms of tokens and of pairs, and sums of exponentials of logits: energies, gradient, Z_i and metric."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_states, check_finite, like
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.observables._fitting import fitting_matrix, fitting_points, fitting_states


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


def log_interaction(u: ArrayLike, x: ArrayLike, qk: ArrayLike) -> Any:
    """Return f(u) = log Σ_j exp(u^T qk x_j), the potential that token states make at the points u.

    Convex in u. Source: `positional` (3); under its free flow A dx_l/dt is the gradient of f at x_l, its (4),
    which `log_interaction_gradient` gives.

    Args:
        u: Points of shape (…, point, dim); pass the states themselves for f(x_l).
        x: States of shape (…, token, dim), the senders.
        qk: The form of the logits, (dim, dim) or (…, dim, dim) broadcasting against the systems.

    Returns:
        Shape (…, point), dimensionless, in the type and dtype of `x`.

    Raises:
        ArgumentValueError: Shapes that do not fit, or logits that overflow.

    >>> log_interaction([[0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]])  # log 2
    [0.693147...]
    """
    states = as_states(x)
    logits = _logits(fitting_points(states, u, "u"), states.double(), fitting_matrix(states, qk, "qk"))
    return like(logits.logsumexp(dim=-1).to(states.dtype), x)


def log_interaction_gradient(u: ArrayLike, x: ArrayLike, qk: ArrayLike) -> Any:
    """Return the gradient of `log_interaction` in u: qk Σ_j w_j(u) x_j with w = softmax_j(u^T qk x_j).

    Source: `positional` (4). With one head and ov = A^{−1} qk it equals A dx_l/dt of the free flow at u = x_l.

    Args:
        u: Points of shape (…, point, dim).
        x: States of shape (…, token, dim), the senders.
        qk: The form of the logits, (dim, dim) or (…, dim, dim) broadcasting against the systems.

    Returns:
        Shape (…, point, dim), in the units of qk x, in the type and dtype of `x`.

    Raises:
        ArgumentValueError: Shapes that do not fit, or logits that overflow.

    >>> log_interaction_gradient([[0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 4.0]])
    [[1.0, 2.0]]
    """
    states = as_states(x)
    form, wide = fitting_matrix(states, qk, "qk"), states.double()
    weights = _logits(fitting_points(states, u, "u"), wide, form).softmax(dim=-1)
    return like((weights @ wide @ form.mT).to(states.dtype), x)


@typed_arguments
def interaction_sums(x: ArrayLike, qk: ArrayLike, *, normalization: str = "paper", causal: bool = False) -> Any:
    """Return Z_i = c Σ_j exp(x_i^T qk x_j), over all tokens j, or over j ≤ i if `causal`.

    c = √dim for ``"paper"``, where Z_i is the denominator of the weights of `asymptotic` (7) and, summed over all
    tokens, stands in its metric (9); c = 1 for ``"plain"``, the denominator of the softmax. It is inf
    where it exceeds the largest number of the dtype: `log_interaction_sums` stays finite there.

    Args:
        x: States of shape (…, token, dim).
        qk: The form of the logits, (dim, dim) or (…, dim, dim) broadcasting against the systems of `x`.
        normalization: ``"paper"`` or ``"plain"``.
        causal: Whether each token sums over itself and the tokens before it only.

    Returns:
        Shape (…, token), dimensionless, above 0.

    Raises:
        ArgumentValueError: Shapes that do not fit, logits that overflow, or another normalization.

    >>> interaction_sums([[1.0], [0.0]], [[0.0]], normalization="plain")
    [2.0, 2.0]
    """
    states = as_states(x)
    return like(_log_sums(states, qk, normalization, causal).exp().to(states.dtype), x)


@typed_arguments
def log_interaction_sums(x: ArrayLike, qk: ArrayLike, *, normalization: str = "paper", causal: bool = False) -> Any:
    """Return log Z_i, finite where `interaction_sums` overflows; arguments and refusals are the same.

    With ``normalization="plain"`` it is f(x_i) of `positional` (3), `log_interaction` at the tokens themselves.

    Args:
        x: States of shape (…, token, dim).
        qk: The form of the logits, (dim, dim) or (…, dim, dim) broadcasting against the systems of `x`.
        normalization: ``"paper"`` or ``"plain"``.
        causal: Whether each token sums over itself and the tokens before it only.

    Returns:
        Shape (…, token), dimensionless.

    Raises:
        ArgumentValueError: Shapes that do not fit, logits that overflow, or another normalization.

    >>> log_interaction_sums([[100.0], [0.0]], [[1.0]])
    [10000.0, 0.693147...]
    """
    states = as_states(x)
    return like(_log_sums(states, qk, normalization, causal).to(states.dtype), x)


def _log_sums(states: Tensor, qk: ArrayLike, normalization: str, causal: bool) -> Float64[Tensor, "*broadcast token"]:
    if normalization not in ("paper", "plain"):
        raise ArgumentValueError("normalization", "'paper' or 'plain'", repr(normalization))
    wide = states.double()
    logits = _logits(wide, wide, fitting_matrix(states, qk, "qk"))
    if causal:
        later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(diagonal=1)
        logits = logits.masked_fill(later, -torch.inf)
    return logits.logsumexp(dim=-1) + (math.log(states.shape[-1]) / 2 if normalization == "paper" else 0.0)


def _logits(
    u: Float64[Tensor, "*point_system point dim"],
    x: Float64[Tensor, "*system token dim"],
    form: Float64[Tensor, "*form_system dim dim"],
) -> Float64[Tensor, "*broadcast point token"]:
    logits = u @ form @ x.mT
    check_finite(logits, "u^T qk x_j")
    return logits


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
