"""Linear attention on one-hot tokens in closed form: no product of token vectors is ever taken.

Tokens are x_i = e_{c_i} + e_{N+i}, so the output of attention is linear in the one-hots of the receiver:

    ATT_i = Z[c_i] + Z[N+i],    Z[d] = Σ_j (K[c_j, d] + K[N+j, d]) v (e_{c_j} + e_{N+j}),

with K = k^t q, sender first. Z has N + M rows for a sequence instead of M² weights, and its four sums over j are three
products of matrices shared by the whole batch. The skip connection adds e_d to Z[d].
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.circuits.learning.architecture import Design
from tokendynamics.circuits.learning.sequences import Sequences


def stream(design: Design, key_query: Tensor, v: Tensor, sequences: Sequences) -> Tensor:
    """``ATT + X`` of the features that the design carries, (token, sample, feature).

    Args:
        design: Which features the circuits see.
        key_query: ``k^t q``, sender first, over the features that keys see.
        v: Acting on columns, over the features that values see.
        sequences: Full-length sequences.
    """
    if design.pairs == "both":
        return _on_everything(key_query, v, sequences)
    if design.pairs == "position":
        return _on_positions(key_query, v, sequences)
    return _on_categories(key_query, v, sequences)


def _on_positions(key_query: Tensor, v: Tensor, sequences: Sequences) -> Tensor:
    """Keys see positions, values see categories: ``v Σ_j K[j, i] e_{c_j} + e_{c_i}``."""
    categories = sequences.by_token.shape[-1]
    summed = _summed(key_query, sequences).reshape(-1, categories)
    return torch.addmm(sequences.by_token.reshape(-1, categories), summed, v.T).reshape(sequences.by_token.shape)


def _on_categories(key_query: Tensor, v: Tensor, sequences: Sequences) -> Tensor:
    """Keys see categories, values see positions: ``Σ_j K[c_j, c_i] v e_j + e_i``."""
    positions, samples = sequences.categories.shape
    carried = sequences.by_category @ v.T
    for_category = (key_query.T @ carried.flatten(1)).reshape(-1, positions)
    received = _of_category(for_category, sequences).reshape(positions, samples, positions)
    return received.add_(torch.eye(positions, dtype=v.dtype)[:, None])


def _on_everything(key_query: Tensor, v: Tensor, sequences: Sequences) -> Tensor:
    categories, samples = sequences.by_category.shape[:2]
    width = v.shape[0]
    from_category, from_position = key_query[:categories], key_query[categories:]
    v_category, v_position = v[:, :categories], v[:, categories:]
    counts = sequences.by_category.sum(dim=-1)
    # Σ over the senders j of category a of v x_j, (category, sample, feature).
    carried = sequences.by_category @ v_position.T + counts[..., None] * v_category.T[:, None]
    keyed_by_position = _summed(from_position, sequences).reshape(-1, categories) @ v_category.T
    output = torch.addmm(keyed_by_position.reshape(width, -1), from_category.T, carried.flatten(1))
    output = output.reshape(width, samples, width)
    fixed = (v_position @ from_position).T + torch.eye(width, dtype=v.dtype)
    for_category = (output[:categories] + fixed[:categories, None]).reshape(-1, width)
    received = _of_category(for_category, sequences).reshape(-1, samples, width)
    return received.add_(output[categories:]).add_(fixed[categories:, None])


def _summed(key_query: Tensor, sequences: Sequences) -> Tensor:
    """``Σ_j K[j, d] e_{c_j}``, (receiver feature d, sample, category)."""
    return (key_query.T @ sequences.by_token.flatten(1)).reshape(-1, *sequences.by_token.shape[1:])


def _of_category(rows: Tensor, sequences: Sequences) -> Tensor:
    """From rows (category × sample, feature) the one of each token's own category, (token × sample, feature)."""
    samples = sequences.samples
    index = sequences.categories * samples + torch.arange(samples)
    return torch.nn.functional.embedding(index.flatten(), rows)
