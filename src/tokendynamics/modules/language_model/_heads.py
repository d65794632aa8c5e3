"""The head of many words, and the table of tokens that serves a head as well."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from tokendynamics.modules._precision import at_least_float32


class AdaptiveSoftmax(nn.Module):
    """A softmax over the frequent words and the clusters of the others, and one over the words of each cluster.

    Words are numbered by falling frequency, and cluster i has those from ``cutoffs[i]`` to the next cutoff:
    ``p(word) = p(cluster | state) p(word | cluster, state)``. Training asks for the words of a cluster only where one
    of them is the next. Every word has a row of full width in `weight`, which an embedding may share.

    Args:
        dim: Features of a state.
        words: Of the vocabulary.
        cutoffs: Where clusters begin, rising, between 1 and words − 1.

    Source: `positional` D.3, whose network (Transformer-XL) has this head without narrower clusters.

    >>> head = AdaptiveSoftmax(4, 10, [3, 6])
    >>> log_p = head(torch.ones(2, 4)).detach()
    >>> torch.allclose(log_p.exp().sum(-1), torch.ones(2))
    True
    >>> torch.allclose(head.nats(torch.ones(2, 4), torch.tensor([1, 7])).detach(), -log_p[[0, 1], [1, 7]])
    True
    """

    def __init__(self, dim: int, words: int, cutoffs: Sequence[int]) -> None:
        super().__init__()
        self.ranges = list(zip(cutoffs, [*cutoffs[1:], words], strict=True))
        self.weight = nn.Parameter(torch.empty(words, dim))
        self.bias = nn.Parameter(torch.empty(words))
        self.clusters = nn.Linear(dim, len(cutoffs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the rows as nn.Linear starts; no word and no cluster is preferred."""
        spread = 1 / math.sqrt(self.weight.shape[1])
        nn.init.uniform_(self.weight, -spread, spread)
        nn.init.zeros_(self.bias)
        nn.init.zeros_(self.clusters.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the log-probabilities of all words, (…, word), for states (…, dim)."""
        first = self._first(x)
        frequent = self.ranges[0][0]
        inner = [
            self._within(x, start, end) + first[..., frequent + cluster, None]
            for cluster, (start, end) in enumerate(self.ranges)
        ]
        return torch.cat([first[..., :frequent], *inner], dim=-1)

    def nats(self, x: Tensor, words: Tensor) -> Tensor:
        """Return −log p of one word for each state, (token,), for states (token, dim)."""
        frequent, place = self.ranges[0][0], words.clone()
        within = []
        for cluster, (start, end) in enumerate(self.ranges):
            rows = ((words >= start) & (words < end)).nonzero()[:, 0]
            place[rows] = frequent + cluster
            if len(rows):
                within.append((rows, self._within(x[rows], start, end).gather(-1, words[rows, None] - start)[:, 0]))
        nats = -self._first(x).gather(-1, place[:, None])[:, 0]
        for rows, log_p in within:
            nats = nats.index_add(0, rows, -log_p)
        return nats

    def _first(self, x: Tensor) -> Tensor:
        frequent = self.ranges[0][0]
        weight = torch.cat([self.weight[:frequent], self.clusters.weight])
        bias = torch.cat([self.bias[:frequent], self.clusters.bias])
        return at_least_float32(functional.linear(x, weight, bias)).log_softmax(-1)

    def _within(self, x: Tensor, start: int, end: int) -> Tensor:
        return at_least_float32(functional.linear(x, self.weight[start:end], self.bias[start:end])).log_softmax(-1)


class SharedEmbedding(nn.Embedding):
    """A table whose rows are multiplied by √dim as they are read: as a head it then gives logits of size 1.

    Args:
        words: Of the vocabulary.
        dim: Features of a token.

    >>> table = SharedEmbedding(3, 4)
    >>> torch.equal(table(torch.tensor([2]))[0], 2 * table.weight[2])
    True
    """

    def __init__(self, words: int, dim: int) -> None:
        super().__init__(words, dim)

    def reset_parameters(self) -> None:
        """Draw the rows with entries of standard deviation 1/√dim."""
        nn.init.normal_(self.weight, 0.0, 1 / math.sqrt(self.embedding_dim))

    def forward(self, input: Tensor) -> Tensor:
        """Return the embedding of token ids, (…, dim)."""
        return super().forward(input) * math.sqrt(self.embedding_dim)
