"""Linear attention on one-hot tokens in closed form: no product of token vectors is ever taken.

Tokens are x_i = e_{c_i} + e_{N+i}, so the output of attention is linear in the one-hots of the receiver:

    ATT_i = Z[c_i] + Z[N+i],    Z[d] = Σ_j (qk[d, c_j] + qk[d, N+j]) v (e_{c_j} + e_{N+j}),

with qk receiver first. Z has N + M rows for a sequence instead of M² weights, and its four sums over j are three
products of matrices shared by the whole batch. The skip connection adds e_d to Z[d].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokendynamics.circuits.learning.architecture import Design
from tokendynamics.circuits.task import PairTask


@dataclass(frozen=True, eq=False)
class Sequences:
    """Sequences of full length, tokens first.

    Attributes:
        categories: (token, sample), int64, from 0 on.
        by_token: One-hot categories, (token, sample, category).
        by_category: The same, (category, sample, token).
        targets: Y of the tokens from the second on, (token − 1, sample).
    """

    categories: Tensor
    by_token: Tensor
    by_category: Tensor
    targets: Tensor

    @classmethod
    def of(cls, x: Tensor, task: PairTask) -> Sequences:
        """Lay out sequences (sample, token) of categories 1..N."""
        categories = (x - 1).T.contiguous()
        one_hot = torch.nn.functional.one_hot(categories, task.categories).double()
        return cls(categories, one_hot, one_hot.permute(2, 1, 0).contiguous(), task.targets(x)[:, 1:].T.contiguous())

    @property
    def samples(self) -> int:
        """Number of sequences."""
        return self.categories.shape[1]

    def in_pieces(self, tokens: int = 5000) -> tuple[Sequences, ...]:
        """Return consecutive parts of about `tokens` tokens, whose hidden layer fits into the cache of a processor."""
        size = max(1, tokens // len(self.categories))
        parts = (slice(first, first + size) for first in range(0, self.samples, size))
        return tuple(
            Sequences(
                self.categories[:, part].contiguous(),
                self.by_token[:, part].contiguous(),
                self.by_category[:, part].contiguous(),
                self.targets[:, part].contiguous(),
            )
            for part in parts
        )


def stream(design: Design, qk: Tensor, v: Tensor, sequences: Sequences) -> Tensor:
    """Return ``ATT + X`` of the features that the design carries, (token, sample, feature).

    Args:
        design: Which features the circuits see.
        qk: (receiver, sender), over the features that keys see.
        v: Acting on columns, over the features that values see.
        sequences: Full-length sequences.
    """
    if design.pairs == "both":
        return _on_everything(qk, v, sequences)
    if design.pairs == "position":
        return _on_positions(qk, v, sequences)
    return _on_categories(qk, v, sequences)


def _on_positions(qk: Tensor, v: Tensor, sequences: Sequences) -> Tensor:
    """Keys see positions, values see categories: ``v Σ_j qk[i, j] e_{c_j} + e_{c_i}``."""
    added = torch.addmm(sequences.by_token.flatten(0, 1), _summed(qk, sequences), v.T)
    return added.reshape(sequences.by_token.shape)


def _on_categories(qk: Tensor, v: Tensor, sequences: Sequences) -> Tensor:
    """Keys see categories, values see positions: ``Σ_j qk[c_i, c_j] v e_j + e_i``."""
    carried = sequences.by_category @ v.T
    for_category = qk @ carried.flatten(1)
    received = _of_category(for_category.reshape(-1, v.shape[0]), sequences)
    return received.add_(torch.eye(v.shape[0], dtype=v.dtype)[:, None])


def _on_everything(qk: Tensor, v: Tensor, sequences: Sequences) -> Tensor:
    categories = sequences.by_category.shape[0]
    v_category, v_position = v[:, :categories], v[:, categories:]
    counts = sequences.by_category.sum(dim=-1)
    # Σ over the senders j of category a of v x_j, (category, sample, feature).
    carried = torch.addcmul(sequences.by_category @ v_position.T, counts[..., None], v_category.T[:, None])

    def output(receivers: slice) -> Tensor:
        """Return Z of some receiver features without what all sequences share, (receiver × sample, feature)."""
        keyed_by_position = _summed(qk[receivers, categories:], sequences) @ v_category.T
        summed = keyed_by_position.reshape(-1, carried[0].numel())
        keyed = torch.addmm(summed, qk[receivers, :categories], carried.flatten(1))
        return keyed.reshape(-1, v.shape[0])

    shared = (v_position @ qk[:, categories:].T).T + torch.eye(v.shape[0], dtype=v.dtype)
    for_category = output(slice(None, categories)) + shared[:categories].repeat_interleave(sequences.samples, dim=0)
    received = _of_category(for_category, sequences)
    of_position = output(slice(categories, None)).reshape(received.shape)
    return received.add_(of_position).add_(shared[categories:, None])


def _summed(qk: Tensor, sequences: Sequences) -> Tensor:
    """``Σ_j qk[d, j] e_{c_j}``, (receiver feature d × sample, category)."""
    summed = qk @ sequences.by_token.flatten(1)
    return summed.reshape(-1, sequences.by_token.shape[-1])


def _of_category(rows: Tensor, sequences: Sequences) -> Tensor:
    """From rows (category × sample, feature) the one of each token's own category, (token, sample, feature)."""
    index = sequences.categories * sequences.samples + torch.arange(sequences.samples)
    # Not a view of anything: what follows may add to it in place without copies of gradients.
    return torch.nn.functional.embedding(index, rows)
