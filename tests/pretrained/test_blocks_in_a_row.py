"""Blocks without an attention that shows, which stand in an nn.Sequential among other modules."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tokendynamics as td
from tokendynamics.numerics import CheckpointError

DIM, VOCABULARY = 16, 40


class Linear(nn.Module):
    """An attention without a softmax of products."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(q.softmax(-1) @ (k.softmax(-2).mT @ v))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix, self.up, self.down = nn.LayerNorm(DIM), Linear(), nn.Linear(DIM, 24), nn.Linear(24, DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.norm(x))
        return x + self.down(torch.relu(self.up(x)))


class Pool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, ::2]


class Network(nn.Module):
    def __init__(self, *between: nn.Module) -> None:
        super().__init__()
        stages: list[nn.Module] = [Block(), Block(), *between, Block()]
        head = nn.Sequential(nn.Linear(DIM, 9), nn.ReLU(), nn.Linear(9, 2))
        self.parts = nn.Sequential(nn.Embedding(VOCABULARY, DIM), *stages, nn.LayerNorm(DIM), head)

    def forward(self, ids: Tensor) -> Tensor:
        return self.parts(ids)


def network_of(*between: nn.Module) -> Any:
    torch.manual_seed(0)
    network = Network(*between).eval()
    for parameter in network.parameters():
        parameter.data += 0.15 * torch.randn_like(parameter)
    return network


def inputs(count: int) -> dict[str, Tensor]:
    return {"ids": torch.randint(0, VOCABULARY, (count, 8))}


IDS = torch.randint(0, VOCABULARY, (9,), generator=torch.Generator().manual_seed(1))


def states_of(network: Any) -> Tensor:
    """Return what the embedding and the blocks give."""
    states = [network.parts[0](IDS[None])]
    for place in (1, 2, 3):
        states.append(network.parts[place](states[-1]))
    return torch.cat(states)


def test_states_and_gates_are_those_of_the_blocks() -> None:
    network = network_of()
    ckpt = td.load(network, inputs=inputs)
    assert ckpt.layout.blocks == ("parts.1", "parts.2", "parts.3")
    assert ckpt.layout.final_norm is not None
    assert ckpt.layout.final_norm[0] == "parts.4"
    edited = copy.deepcopy(network)
    with torch.no_grad():
        assert torch.equal(ckpt.states(IDS).feed_forward, states_of(network))
        edited.parts[2].mix.out.weight *= 0.3
        edited.parts[2].mix.out.bias *= 0.3
        wanted = states_of(edited)
    with ckpt.varied({"layer 2 attention": 0.3}):
        torch.testing.assert_close(ckpt.states(IDS).feed_forward, wanted)


def test_blocks_of_one_class_on_both_sides_of_another_module_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"all blocks in one list .*, got 2 of 3 Block in the longest"):
        td.load(network_of(Pool()), inputs=inputs)


class Normed(nn.Module):
    """A norm between blocks without attention, as in TimesNet; or around what each adds, where they give no states."""

    def __init__(self, *, around: bool) -> None:
        super().__init__()
        self.blocks: Any = nn.ModuleList(nn.Sequential(Linear()) if around else Block() for _ in range(3))
        self.norm, self.around = nn.LayerNorm(DIM), around

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.norm(x + block(x) if self.around else block(x))
        return x


def test_blocks_with_a_norm_between_them_hand_on_their_states() -> None:
    torch.manual_seed(0)
    network, x = Normed(around=False).eval(), torch.randn(1, 6, DIM)
    ckpt = td.load(network, inputs=lambda count: {"x": torch.randn(count, 6, DIM)})
    states = ckpt.states({"x": x}).feed_forward
    for number, block in enumerate(network.blocks, 1):
        x = block(x)
        torch.testing.assert_close(states[number], x[0].detach())
        x = network.norm(x)
    assert [layer.joins for layer in ckpt.layout.layers] == [False, True, True]
    with pytest.raises(CheckpointError, match="whose modules read what the one before them gave"):
        td.load(Normed(around=True).eval(), inputs=lambda count: {"x": torch.randn(count, 6, DIM)})
