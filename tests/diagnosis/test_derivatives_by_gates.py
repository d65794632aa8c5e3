"""Derivatives by gates of networks that write in place, checkpoint activations, or cut derivatives off."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import tokendynamics as td
from diagnosis.text_halves import finding
from tokendynamics.numerics import CheckpointError

DIM, HEADS, VOCABULARY = 16, 2, 40

Way = Literal["plain", "in place", "kept in a list", "checkpoints", "reentrant", "detached", "no gradients", "frozen"]

TEXTS = [torch.randint(0, VOCABULARY, (9,), generator=torch.Generator().manual_seed(seed)) for seed in range(6)]


class Block(nn.Module):
    """A block whose norms keep the state for their backward pass; `in_place` adds to that very state."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.n1(x)).chunk(3, -1))
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        if not self.in_place:
            x = x + self.out(heads)
            return x + self.down(functional.gelu(self.up(self.n2(x))))
        x += self.out(heads)
        x += self.down(functional.gelu(self.up(self.n2(x))))
        return x


class Network(nn.Module):
    def __init__(self, way: Way) -> None:
        super().__init__()
        self.way: Way = way
        self.words, self.head = nn.Embedding(VOCABULARY, DIM), nn.Linear(DIM, VOCABULARY)
        self.blocks = nn.ModuleList(Block(way == "in place") for _ in range(3))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for place, block in enumerate(self.blocks):
            if self.way in ("checkpoints", "reentrant"):
                x = checkpoint(block, x, use_reentrant=self.way == "reentrant")
                continue
            with torch.set_grad_enabled(
                torch.is_grad_enabled() and self.way != "no gradients" and (self.way != "frozen" or place > 1)
            ):
                x = block(x.detach() if self.way == "detached" else x)
        return self.head(x)


def network_of(way: Way) -> Network:
    torch.manual_seed(0)
    network = Network(way).eval()
    for parameter in network.parameters():
        parameter.data += 0.15 * torch.randn_like(parameter)
    return network


def sensitivities(way: Way) -> tuple[np.ndarray, ...]:
    """Return the derivatives of κ and of the loss by gates on parts and on heads."""
    ckpt = td.load(network_of(way), inputs=lambda count: {"ids": torch.randint(0, VOCABULARY, (count, 7))})
    trials = td.levers(ckpt, TEXTS, candidates=1)
    heads = td.head_effects(ckpt, TEXTS, candidates=1)
    tables = (trials.table, heads)
    return tuple(table[f"{name}_sensitivity"].values for table in tables for name in ("consensus", "loss"))


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("way", ["in place", "checkpoints", "reentrant"])
def test_derivatives_are_those_of_the_same_network_written_plainly(way: Way) -> None:
    for _ in range(3):  # copies made on writing went wrong in some runs, where tensors had the address of others
        for values, plain in zip(sensitivities(way), sensitivities("plain"), strict=True):
            np.testing.assert_allclose(values, plain, rtol=1e-5, atol=1e-8)


def test_derivatives_are_differences_of_the_loss_with_edited_weights() -> None:
    network = network_of("in place")
    measured = sensitivities("in place")[1]
    with torch.no_grad():
        for layer, part in ((0, "out"), (2, "down")):
            losses = []
            for factor in (1.01, 0.99 / 1.01):  # one after the other
                for parameter in network.blocks[layer].get_submodule(part).parameters():
                    parameter *= factor
                logits = [(network(ids[None])[0, :-1].double(), ids[1:]) for ids in finding(TEXTS)]
                losses.append(np.mean([float(functional.cross_entropy(*pair)) for pair in logits]))
            for parameter in network.blocks[layer].get_submodule(part).parameters():
                parameter /= 0.99
            slope = (losses[0] - losses[1]) / 0.02
            assert measured[layer, int(part == "down")] == pytest.approx(slope, rel=1e-2)


@pytest.mark.parametrize(("way", "layer"), [("detached", 2), ("no gradients", 2), ("frozen", 2)])
def test_derivatives_that_the_network_cuts_off_are_refused_and_not_zero(way: Way, layer: int) -> None:
    with pytest.raises(CheckpointError, match=f"has derivatives, got one that cuts them off before layer {layer} "):
        sensitivities(way)
