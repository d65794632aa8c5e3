"""Modules of one block that differ by a number in their names, or run twice, are distinguished."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from tokendynamics.numerics import CheckpointError
from tokendynamics.pretrained.discovery.random_weights import _changed

DIM, HEADS, VOCABULARY = 24, 4, 40
WIDTH = DIM // HEADS


def _feed_forward() -> nn.Sequential:
    return nn.Sequential(nn.Linear(DIM, 32), nn.GELU(), nn.Linear(32, DIM))


class Block(nn.Module):
    """With a list of four projections, as in the annotated transformer."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.linears = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(4))
        self.mlp1, self.mlp2, self.router = _feed_forward(), _feed_forward(), nn.Linear(DIM, 2)
        self.after1 = nn.RMSNorm(DIM)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (linear(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for linear in list(self.linears)[:3])
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        y = self.linears[3](heads)
        return y + self.mlp1[2](self.mlp1[0](heads)) if self.form == "two outputs" else y

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "norms first":
            beside, read = self.norm2(x), self.norm1(x)
            return x + self.attend(read) + self.mlp1(beside)
        if self.form == "one norm twice":
            return x + self.norm1(self.attend(self.norm1(x)))
        x = x + self.attend(self.norm1(x))
        h = self.norm2(x)
        if self.form == "two feed-forward parts":
            return x + self.mlp1(h) + self.mlp2(h)
        if self.form == "mixed experts":
            shares = self.router(h).softmax(-1)
            return x + shares[..., :1] * self.mlp1(h) + shares[..., 1:] * self.mlp2(h)
        return x + self.mlp2(h)


class Network(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(VOCABULARY, DIM), nn.ModuleList(Block(form) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return x


def _loaded(form: str) -> tuple[Any, Any]:
    torch.manual_seed(4)
    network = Network(form).eval()
    for parameter in network.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return network, td.load(network, inputs=lambda count: {"ids": torch.randint(0, VOCABULARY, (count, 7))})


@pytest.mark.parametrize("form", ["plain", "norms first"])
def test_factors_are_those_of_the_numbered_modules_that_run(form: str) -> None:
    network, ckpt = _loaded(form)
    for number, block in enumerate(network.blocks, 1):
        weights = ckpt.attention(number)
        q, k, v = (
            linear.weight.detach().mT.unflatten(1, (HEADS, WIDTH)).transpose(0, 1) for linear in block.linears[:3]
        )
        torch.testing.assert_close(weights.query @ weights.key.mT, q @ k.mT)
        torch.testing.assert_close(
            weights.value @ weights.output, v @ block.linears[3].weight.mT.unflatten(0, (HEADS, WIDTH)).detach()
        )
        torch.testing.assert_close(weights.norm_gain, block.norm1.weight.detach())
        torch.testing.assert_close(weights.norm_bias, block.norm1.bias.detach())


def test_a_part_that_a_module_gives_which_runs_twice_has_no_gate() -> None:
    """A gate on one of its two runs would be half of what it is said to be."""
    network, ckpt = _loaded("one norm twice")
    ids, handed = torch.arange(6), []
    for block in network.blocks:
        block.register_forward_hook(lambda module, read, given: handed.append(given[0].detach()))
    network(ids[None])
    by_hooks = torch.stack(handed)
    assert torch.equal(ckpt.states(ids).feed_forward[1:], by_hooks)
    assert ckpt.layout.layers[0].attention is not None
    with pytest.raises(CheckpointError, match="what it adds comes from norm1, which runs 2 times in it"):
        ckpt.under({"layer 1 attention": 0.5}).states(ids)


@pytest.mark.parametrize("form", ["two feed-forward parts", "mixed experts"])
def test_a_gate_acts_on_both_modules_of_a_feed_forward_part(form: str) -> None:
    """Also where each token has its own shares of them."""
    network, ckpt = _loaded(form)
    ids = torch.arange(6)
    with ckpt.varied({"feed_forward": 0}):
        varied = ckpt.states(ids).feed_forward
    for block in network.blocks:
        for parameter in (*block.mlp1[-1].parameters(), *block.mlp2[-1].parameters()):
            parameter.data.zero_()
    assert torch.equal(varied, ckpt.states(ids).feed_forward)


def test_heads_that_two_modules_read_have_no_one_output_projection() -> None:
    _, ckpt = _loaded("two outputs")
    with pytest.raises(CheckpointError, match=r"two modules read the heads' outputs .*\(linears.3 and mlp1.0\)"):
        ckpt.attention(1)


@pytest.mark.parametrize("sizes", [(24, 24), (300, 300), (300, 257)])
@pytest.mark.parametrize("along", ["rows", "columns"])
def test_random_weights_of_a_list_have_no_row_and_no_column_in_common(sizes: tuple[int, int], along: str) -> None:
    network = nn.Module()
    network.blocks = nn.ModuleList(nn.ModuleList(nn.Linear(*sizes) for _ in range(3)) for _ in range(2))
    network.w1, network.w2 = nn.Linear(*sizes), nn.Linear(*sizes)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    with _changed(network, "all"):
        matrices = [parameter for parameter in network.parameters() if parameter.ndim == 2]
        for one, other in combinations(matrices, 2):
            several = (one, other) if along == "rows" else (one.mT, other.mT)
            alike = functional.normalize(several[0], dim=1) @ functional.normalize(several[1], dim=1).mT
            assert float(alike.detach().abs().max()) < 0.9
        for matrix in matrices:
            assert float(matrix.detach().std()) == pytest.approx(matrix.shape[1] ** -0.5, rel=0.1)
    assert all(map(torch.equal, network.parameters(), before))
