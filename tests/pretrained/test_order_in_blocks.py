"""What inside the blocks tells tokens their order is named, also where their attention is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tokendynamics as td
from tokendynamics.numerics import CheckpointError

DIM, HEADS, VOCABULARY = 16, 2, 30


class Attention(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(DIM, DIM) for _ in range(4))
        self.form, self.distances = form, nn.Parameter(torch.randn(32, DIM // HEADS))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (read(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for read in (self.q, self.k, self.v))
        tokens = x.shape[1]
        logits = q @ k.mT
        if self.form == "distances":  # of a query to a vector of each distance, as in the Music Transformer
            apart = (torch.arange(tokens)[:, None] - torch.arange(tokens)).abs()
            logits = logits + torch.einsum("bhqw,qkw->bhqk", q, self.distances[apart])
        weights = (logits * (DIM // HEADS) ** -0.5).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.attn, self.norm = form, Attention(form), nn.LayerNorm(DIM)
        self.conv = nn.Conv1d(DIM, DIM, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm(x))
        return x + self.conv(x.mT).mT if self.form == "convolution" else x


class Network(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, DIM)
        self.blocks = nn.ModuleList(Block(form) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize(
    ("form", "positions"), [("", "none"), ("distances", "in the blocks"), ("convolution", "in the blocks")]
)
def test_what_tells_the_order_of_the_tokens_is_found_in_blocks_whose_attention_is_read(
    form: str, positions: str
) -> None:
    torch.manual_seed(2)
    network: Any = Network(form).eval()
    ckpt = td.load(network, inputs={"ids": torch.randint(0, VOCABULARY, (4, 9))})
    layout = ckpt.layout
    assert all(layer.attention is not None for layer in layout.layers)
    assert layout.positions == positions
    x = torch.randn(1, 9, DIM)  # swapped tokens swap their states and change no other one where nothing tells the order
    swapped = x[:, [1, 0, *range(2, 9)]]
    alike = torch.allclose(network.blocks[0](x)[:, 2:], network.blocks[0](swapped)[:, 2:], atol=1e-5)
    assert alike is (positions == "none")
    words = "something inside the blocks that no module" if form else "got none"
    with pytest.raises(CheckpointError, match=words):
        ckpt.under({"positions": 0})
