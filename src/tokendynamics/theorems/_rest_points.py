"""Where the tokens of a free flow can come to rest: at zero only, or also away from it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention import AbsolutePositions, RotaryPositions
from tokendynamics.dynamics import Flow


def rests_only_at_zero(flow: Flow, tokens: int) -> np.ndarray:
    """Tell for which systems x = 0 (x + p = 0 with absolute positions) is proved to be the only equilibrium.

    One head with an invertible ov is at rest where every average ``Σ_j w_ij x_j`` vanishes.

    - Softmax weights under a causal mask: the first token averages itself alone, so it is zero, and with it the next.
    - Full mask, sym(qk) definite: at rest every x_i is a minimum of the convex function ``u ↦ Σ_j exp(u·qk x_j)``, so
      ``(x_i − x_k)·qk x_j = 0`` for all i, k, j and ``q_qk(x_i − x_k) = 0``: all tokens are equal, hence zero. Where
      sym(qk) is indefinite tokens on a line of its null cone, with mean zero, are at rest at any norm.
    - Linear weights, sym(qk) definite: ``S qk^T S = 0`` for the second moment S, so S = 0; under a causal mask the
      same holds token by token.
    - A rotary term of norm ε beside a definite qk, λ the smallest |eigenvalue| of sym(qk): near zero, at rest, the
      first order of ``Σ_j s_ij x_j`` is the same vector for all i and tokens have mean zero. Its product with
      ``qk^T x_i``, summed over i, is at least ``(λ (λ − ε) − (ℓ − 1) ε²/4) Σ_i |x_i|⁴`` and is zero, so that there is
      no rest near zero where the bracket is positive.

    Several heads can cancel each other; about other positions nothing is known.

    Args:
        flow: A free flow; for circuits that vary in time nothing is proved, and the answer is no.
        tokens: The number of tokens ℓ.

    Returns:
        Booleans, (*system,).

    Source: `positional` B.5 for sym(qk) ≻ 0; the other cases are derived above.
    """
    attention = flow.attention
    positions, nothing = attention.positions, np.zeros(attention.system_shape, dtype=bool)
    if attention.heads != 1 or not attention.constant:
        return nothing
    ov = _matrix(attention.ov.matrix_at(0.0))
    singular_values = torch.linalg.svdvals(ov)
    invertible = singular_values[..., -1] > _rounding(attention.ov.matrix_at(0.0)) * singular_values[..., 0]
    if positions is not None and not isinstance(positions, AbsolutePositions | RotaryPositions):
        return nothing
    if attention.causal and attention.weights == "softmax":
        return np.asarray((invertible & torch.ones(attention.system_shape, dtype=torch.bool)).numpy())
    qk = _matrix(attention.qk.matrix_at(0.0))
    values = torch.linalg.eigvalsh((qk + qk.mT) / 2)
    rounding = _rounding(attention.qk.matrix_at(0.0)) * torch.linalg.matrix_norm(qk, 2)
    smallest = torch.maximum(values[..., 0], -values[..., -1])
    definite = smallest > rounding
    if isinstance(positions, RotaryPositions):
        if attention.causal or attention.weights != "softmax":
            return nothing
        term = _rotary_norm(positions)
        definite = definite & (positions.scale != 0) & (smallest * (smallest - term) > (tokens - 1) * term**2 / 4)
    return np.asarray((invertible & definite).expand(attention.system_shape).numpy())


def _matrix(matrices: Tensor) -> Tensor:
    """Return the matrix of the one head, (*system, dim, dim), float64."""
    return matrices[..., 0, :, :].detach().double().cpu()


def _rounding(matrices: Tensor) -> float:
    return matrices.shape[-1] * torch.finfo(matrices.dtype).eps


def _rotary_norm(positions: RotaryPositions) -> Tensor:
    """Return a bound of the norm of ``Q̄ R K̄^T`` relative to the logits of qk, over all rotations."""
    norms = [torch.linalg.matrix_norm(_matrix(part.matrix_at(0.0)), 2) for part in (positions.query, positions.key)]
    return norms[0] * norms[1]
