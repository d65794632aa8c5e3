"""Blocks on a grid of places (input, row, column, feature): audited where every place attends to all, as SAM's do.

Where attention runs in windows, the factors do not give what the block computes of all places: refused, as in three
axes.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from pretrained.test_wrong_networks import DIM, HEADS, Attention
from tokendynamics.numerics import AttentionFactorsError, CheckpointError

SIDE = 4
"""Places in each direction."""


class Fused(Attention):
    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v)


class WindowBlock(nn.Module):
    """Attention within windows of a grid; a window of the grid's size holds every place."""

    def __init__(self, window: int, *, flat: bool) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(DIM), nn.LayerNorm(DIM), Fused()
        self.mlp = nn.Sequential(nn.Linear(DIM, 32), nn.GELU(), nn.Linear(32, DIM))
        self.window, self.flat = window, flat

    def forward(self, x: Tensor) -> Tensor:
        grid = x.unflatten(1, (SIDE, SIDE)) if self.flat else x
        count, size = SIDE // self.window, self.window
        parts = self.norm1(grid).reshape(-1, count, size, count, size, DIM).transpose(2, 3)
        mixed = self.attention(parts.reshape(-1, size * size, DIM)).reshape(parts.shape)
        grid = grid + mixed.transpose(2, 3).reshape(grid.shape)
        grid = grid + self.mlp(self.norm2(grid))
        return grid.flatten(1, 2) if self.flat else grid


class Picture(nn.Module):
    def __init__(self, window: int, *, flat: bool) -> None:
        super().__init__()
        self.patches = nn.Linear(6, DIM)
        self.places = nn.Parameter(torch.randn(SIDE, SIDE, DIM))
        self.blocks = nn.ModuleList([WindowBlock(window, flat=flat) for _ in range(2)])
        self.flat = flat

    def forward(self, patches: Tensor) -> Tensor:
        x = self.patches(patches) + self.places
        x = x.flatten(1, 2) if self.flat else x
        for block in self.blocks:
            x = block(x)
        return x


def network_of(window: int, *, flat: bool = False) -> Any:
    torch.manual_seed(5)
    return Picture(window, flat=flat).eval()


def loaded(network: Any) -> Any:
    return td.load(network, inputs=lambda count: {"patches": torch.randn(count, SIDE, SIDE, 6)})


def over_all_places(block: Any, x: Tensor) -> Tensor:
    """Recompute by hand, from the weights, what attention of every place to all places gives."""
    tokens = block.norm1(x).reshape(len(x), SIDE * SIDE, DIM)
    q, k, v = (third.unflatten(-1, (HEADS, -1)) for third in block.attention.qkv(tokens).chunk(3, -1))
    weights = (torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(DIM // HEADS)).softmax(dim=-1)
    mixed = torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)
    return block.attention.out(mixed).reshape(x.shape)


def attention_of(block: Any, x: Tensor) -> Tensor:
    """What the attention of a block adds to a state, from the block itself without its feed-forward part."""
    for parameter in block.mlp[2].parameters():
        parameter.data.zero_()
    return block(x) - x


@pytest.mark.parametrize("window", [1, 2, 4])
def test_an_audit_on_a_grid_is_of_attention_over_all_places(window: int) -> None:
    network = network_of(window)
    ckpt = loaded(network)
    x = torch.randn(2, SIDE, SIDE, DIM)
    over_all = torch.allclose(attention_of(network.blocks[1], x), over_all_places(network.blocks[1], x), atol=1e-5)
    assert over_all is (window == SIDE)
    if over_all:
        assert td.audit(ckpt).sizes["layer"] == 2
    else:
        words = f"its attention runs over groups of {window**2} of the 16 tokens, as in windows"
        with pytest.raises(AttentionFactorsError, match=words):
            td.audit(ckpt)
    with pytest.raises(CheckpointError, match="one state for each token, got states of shape"):
        td.trace(ckpt, [{"patches": torch.randn(1, SIDE, SIDE, 6)}])


class OneKey(Attention):
    """Heads that share their keys and values, by an axis of windows and one of heads."""

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shape = (len(q) // 4, 4, *q.shape[1:])
        k, v = (part[:, :1].unflatten(0, shape[:2]).expand(shape) for part in (k, v))
        q = q.unflatten(0, shape[:2])
        weights = (torch.einsum("bwhid,bwhjd->bwhij", q, k) / math.sqrt(q.shape[-1])).softmax(dim=-1)
        return torch.einsum("bwhij,bwhjd->bwhid", weights, v).flatten(0, 1)


def test_windows_whose_heads_share_their_keys_are_no_heads() -> None:
    network = network_of(2)
    for block in network.blocks:
        block.attention = OneKey()
    with pytest.raises(AttentionFactorsError, match="over groups of 4 of the 16 tokens, as in windows"):
        td.audit(loaded(network))


class Rows(WindowBlock):
    """Every row is a sequence of its own, as every channel of a series is (PatchTST)."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x).flatten(0, 1)).unflatten(0, x.shape[:2])
        return x + self.mlp(self.norm2(x))


@pytest.mark.long
def test_sequences_side_by_side_are_audited_and_windows_of_as_many_places_are_not() -> None:
    """Two by two windows of four by four places have the counts of rows."""
    network = network_of(2)
    network.blocks = nn.ModuleList([Rows(2, flat=False) for _ in range(2)]).eval()
    ckpt = loaded(network)
    audit = td.audit(ckpt)
    assert audit.sizes["layer"] == 2
    block: Any = network.blocks[1]
    factors = ckpt.attention(2)
    x = torch.randn(1, SIDE, SIDE, DIM)
    with torch.no_grad():
        mixed = attention_of(block, x)
        normed = block.norm1(x)
        for row in range(SIDE):
            q, k, v = (third.unflatten(-1, (HEADS, -1)) for third in block.attention.qkv(normed[0, row]).chunk(3, -1))
            weights = (torch.einsum("ihd,jhd->hij", q, k) * factors.scale).softmax(dim=-1)
            expected = block.attention.out(torch.einsum("hij,jhd->ihd", weights, v).flatten(1))
            torch.testing.assert_close(mixed[0, row], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(AttentionFactorsError, match="groups of 4 of the 16 tokens"):
        td.audit(loaded(network_of(2)))


@pytest.mark.long
@pytest.mark.parametrize("window", [2, 4])
def test_the_same_network_on_tokens_in_a_row_has_the_same_answer(window: int) -> None:
    flat = loaded(network_of(window, flat=True))
    if window == SIDE:
        one, two = td.audit(flat), td.audit(loaded(network_of(window)))
        torch.testing.assert_close(torch.tensor(one.ov_norm.values), torch.tensor(two.ov_norm.values))
    else:
        with pytest.raises(AttentionFactorsError, match="groups of 4 of the 16 tokens"):
            td.audit(flat)
    assert td.trace(flat, [{"patches": torch.randn(1, SIDE, SIDE, 6)}]).sizes["layer"] == 3
