"""Sums of exponentials of logits: log Σ_j exp(u^T qk x_j), its gradient, and the sums Z_i over the senders."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from tokendynamics.numerics.arguments import ArrayLike, as_states, check_finite, like
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.observables.fitting import fitting_matrix, fitting_points


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
        raise ArgumentValueError(expected("normalization", "'paper' or 'plain'", repr(normalization)))
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
