"""What an attention that is not read is refused for: heads before inputs, and convolutions over tokens."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from tokendynamics.numerics import AttentionFactorsError, CheckpointError

DIM, HEADS = 16, 4


class SetAttention(nn.Module):
    """As in set transformers: heads are cut from the features and put one behind the other, each with all inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        query = self.q(x)
        q, k, v = (torch.cat(part.split(DIM // HEADS, 2), 0) for part in (query, self.k(x), self.v(x)))
        weights = torch.softmax(q.bmm(k.mT) / math.sqrt(DIM), 2)
        y = torch.cat((q + weights.bmm(v)).split(len(x), 0), 2)
        y = self.norm(y)
        return y + functional.relu(self.o(y))


class ConvolvedQueries(nn.Module):
    """As in networks that let queries and keys see the tokens just before them."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))
        self.convolution = nn.Conv1d(DIM, DIM, 3, padding=2, groups=DIM)

    def forward(self, x: Tensor) -> Tensor:
        q, k = (self.convolution(part(x).mT)[..., : x.shape[1]].mT for part in (self.q, self.k))
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (q, k, self.v(x)))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.o(y.transpose(1, 2).flatten(2))


def loaded(block: type[nn.Module]) -> Any:
    torch.manual_seed(2)
    return td.load(nn.Sequential(block(), block(), block()).eval(), inputs=torch.randn(1, 7, DIM))


def test_heads_before_inputs_are_named() -> None:
    ckpt = loaded(SetAttention)
    words = "each of its heads stands with all inputs behind the last one"
    assert ckpt.layout.layers[1].problem.startswith(words)
    with pytest.raises(CheckpointError, match=words):
        td.attention_seen(ckpt, [torch.randn(7, DIM)])
    with pytest.raises(AttentionFactorsError, match=words):
        td.audit(ckpt)


def test_a_convolution_of_queries_is_no_vector_added_to_them() -> None:
    ckpt = loaded(ConvolvedQueries)
    words = "convolution, a convolution over several tokens, runs in it, and no module gives its queries and keys"
    with pytest.raises(AttentionFactorsError, match=words):
        td.audit(ckpt)
