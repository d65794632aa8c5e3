"""The derivatives of section 3 as `logical` prints them, to be held against the true ones."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.circuits.landscape.landscape import Landscape


def by_attention(q: Tensor, v: Tensor) -> Tensor:
    """(3.7) and (3.8): ∂E[SSE]/∂q_ji for equally likely categories, (M, M); the first column has no target.

    Args:
        q: (M, M), [sender j, receiver i].
        v: (N, N).
    """
    count = v.shape[0]
    own, others = v.trace() / count, v.sum() / count**2
    of_sums, of_squares = (v.T @ v).sum() / count**2, (v.T @ v).trace() / count
    linear = torch.full_like(q, float(others))
    linear.diagonal(1).fill_(float(own))
    printed = linear - of_sums * q.sum(dim=0) - q * (of_squares - of_sums)
    printed[:, 0] = 0.0
    return printed


def by_values(q: Tensor, v: Tensor) -> Tensor:
    """(3.18) summed over i = 2 … M: ∂E[SSE]/∂v_kl for equally likely categories, (N, N)."""
    count = v.shape[0]
    sums, squares, own = q.sum(dim=0)[1:], q.square().sum(dim=0)[1:], q.diagonal(1)
    row_sums = v.sum(dim=1, keepdim=True)
    identity = torch.eye(count, dtype=q.dtype)
    linear = sums.sum() / count**2 + own.sum() * (identity / count - 1 / count**2)
    return linear - sums.square().sum() * row_sums / count**2 - squares.sum() * (v / count - row_sums / count**2)


def by_positions(q_true: Tensor, q: Tensor, v: Tensor) -> Tensor:
    """(3.37) for the rows i = 2 … M, (M, M): what is printed is E[(Ŷ_i − Y_i) q(X_s, X_i)] = 2 ∂E[SSE]/∂v_is.

    The expectation is over all N^M texts of equally likely categories, one by one.

    Args:
        q_true: (N, N), [previous, current].
        q: (N, N), [category of the sender, of the receiver].
        v: (M, M), [receiver, sender].
    """
    positions, categories = v.shape[0], q.shape[0]
    texts = torch.cartesian_prod(*[torch.arange(categories)] * positions)
    pairs = q[texts[:, None, :], texts[:, :, None]]  # (text, receiver i, sender s)
    predicted = (v * pairs).sum(dim=-1)
    errors = predicted[:, 1:] - q_true[texts[:, :-1], texts[:, 1:]]
    printed = torch.zeros_like(v)
    printed[1:] = (errors[:, :, None] * pairs[:, 1:]).mean(dim=0) / 2
    return printed


def true_over_printed(landscape: Landscape, q: Tensor, v: Tensor, printed: dict[str, Tensor]) -> dict[str, Tensor]:
    """The quotients of the true and the printed derivatives by "q" or "v", entries without influence left out."""
    gradient = landscape.gradient(q, v)
    true = {"q": gradient.attention, "v": gradient.v}
    return {name: true[name][values != 0] / values[values != 0] for name, values in printed.items()}
