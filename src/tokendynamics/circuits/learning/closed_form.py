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
    added = torch.addmm(sequences.by_token.flatten(0, 1), _summed(key_query, sequences), v.T)
    return added.reshape(sequences.by_token.shape)


def _on_categories(key_query: Tensor, v: Tensor, sequences: Sequences) -> Tensor:
    """Keys see categories, values see positions: ``Σ_j K[c_j, c_i] v e_j + e_i``."""
    carried = sequences.by_category @ v.T
    for_category = key_query.T @ carried.flatten(1)
    received = _of_category(for_category.reshape(-1, v.shape[0]), sequences)
    return received.add_(torch.eye(v.shape[0], dtype=v.dtype)[:, None])


def _on_everything(key_query: Tensor, v: Tensor, sequences: Sequences) -> Tensor:
    categories = sequences.by_category.shape[0]
    v_category, v_position = v[:, :categories], v[:, categories:]
    counts = sequences.by_category.sum(dim=-1)
    # Σ over the senders j of category a of v x_j, (category, sample, feature).
    carried = torch.addcmul(sequences.by_category @ v_position.T, counts[..., None], v_category.T[:, None])

    def output(receivers: slice) -> Tensor:
        """Z of some receiver features without what all sequences share, (receiver × sample, feature)."""
        keyed_by_position = _summed(key_query[categories:, receivers], sequences) @ v_category.T
        summed = keyed_by_position.reshape(-1, carried[0].numel())
        keyed = torch.addmm(summed, key_query[:categories, receivers].T, carried.flatten(1))
        return keyed.reshape(-1, v.shape[0])

    shared = (v_position @ key_query[categories:]).T + torch.eye(v.shape[0], dtype=v.dtype)
    for_category = output(slice(None, categories)) + shared[:categories].repeat_interleave(sequences.samples, dim=0)
    received = _of_category(for_category, sequences)
    of_position = output(slice(categories, None)).reshape(received.shape)
    return received.add_(of_position).add_(shared[categories:, None])


def _summed(key_query: Tensor, sequences: Sequences) -> Tensor:
    """``Σ_j K[j, d] e_{c_j}``, (receiver feature d × sample, category)."""
    summed = key_query.T @ sequences.by_token.flatten(1)
    return summed.reshape(-1, sequences.by_token.shape[-1])


def _of_category(rows: Tensor, sequences: Sequences) -> Tensor:
    """From rows (category × sample, feature) the one of each token's own category, (token, sample, feature)."""
    index = sequences.categories * sequences.samples + torch.arange(sequences.samples)
    # Not a view of anything: what follows may add to it in place without copies of gradients.
    return torch.nn.functional.embedding(index, rows)
