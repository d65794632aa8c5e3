"""A batch of sequences in the layouts that the closed forms multiply."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokendynamics.circuits.pair_task import PairTask


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
        """Consecutive parts of about `tokens` tokens, whose hidden layer fits into the cache of a processor."""
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
