"""Weights that a parametrization computes are read as evaluation uses them, and reading them changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

import tokendynamics as td

DIM, HEADS, VOCABULARY = 16, 4, 40


class Halved(nn.Module):
    """Another weight in training than in evaluation, as with noise on weights."""

    def forward(self, weight: Tensor) -> Tensor:
        return 0.5 * weight if self.training else weight


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.n1(x)).chunk(3, -1))
        bias = -(torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])).abs() * torch.tensor(
            [0.5, 0.25, 0.1, 1.0]
        ).reshape(HEADS, 1, 1)
        heads = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias[None].to(self.bias_dtype(q)))
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.n2(x))))

    @staticmethod
    def bias_dtype(query: Tensor) -> torch.dtype:
        return query.dtype


class BlockInSingle(Block):
    """Makes its bias in single precision, whatever the precision of its queries."""

    @staticmethod
    def bias_dtype(query: Tensor) -> torch.dtype:
        return torch.float32


class Network(nn.Module):
    def __init__(self, kind: type[Block] = Block) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(VOCABULARY, DIM), nn.ModuleList(kind() for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return x


def inputs(count: int) -> dict[str, Tensor]:
    return {"ids": torch.randint(0, VOCABULARY, (count, 9))}


def network_of(kind: type[Block] = Block) -> Any:
    torch.manual_seed(0)
    network = Network(kind)
    for parameter in network.parameters():
        parameter.data += 0.15 * torch.randn_like(parameter)
    return network


def test_weights_of_a_network_in_training_are_those_of_evaluation() -> None:
    network = network_of()
    for block in network.blocks:
        parametrize.register_parametrization(block.qkv, "weight", Halved())
        parametrize.register_parametrization(block.down, "weight", Halved())
    ckpt = td.load(network, inputs=inputs)
    weights, feed_forward = ckpt.attention(1), ckpt.feed_forward(1)
    assert network.training
    assert not isinstance(feed_forward, str)
    with torch.no_grad():
        query, down = (
            part.parametrizations.weight.original for part in (network.blocks[0].qkv, network.blocks[0].down)
        )
        torch.testing.assert_close(weights.query.transpose(1, 2).flatten(0, 1), query[:DIM])
        torch.testing.assert_close(feed_forward.matrices["down.weight"], down.mT.double())


def test_reading_weights_does_not_iterate_a_spectral_norm() -> None:
    network = network_of()
    for block in network.blocks:
        for part in (block.qkv, block.out, block.down):
            parametrizations.spectral_norm(part)
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    ckpt = td.load(network, inputs=inputs)
    td.audit(ckpt)
    ckpt.feed_forward(1)
    ckpt.block_tensors(1)
    assert network.training
    assert all(torch.equal(buffer, before[name]) for name, buffer in network.named_buffers())


def pruned(module: nn.Linear) -> nn.Linear:
    return prune.random_unstructured(module, "weight", amount=0.3)


@pytest.mark.parametrize("norm", [weight_norm, parametrizations.weight_norm, spectral_norm, pruned])
def test_computed_matrices_are_those_that_the_network_multiplies_by(norm: Any) -> None:
    """Also where another pass than its own, or none, came last."""
    network = network_of()
    normed, fused = norm(network.blocks[0].down), norm(network.blocks[0].qkv)
    ckpt = td.load(network.eval(), inputs=inputs)
    feed_forward = ckpt.feed_forward(1)
    assert not isinstance(feed_forward, str)
    assert feed_forward.roles == {"up.weight": "reads", "down.weight": "writes"}
    with torch.no_grad():
        units = torch.eye(2 * DIM)
        product = normed(units) - normed(torch.zeros(1, 2 * DIM))
        read = ckpt.attention(1).query  # before any other pass
        query = (fused(torch.eye(DIM)) - fused(torch.zeros(1, DIM)))[:, :DIM].mT.unflatten(0, (HEADS, -1)).mT
    torch.testing.assert_close(feed_forward.matrices["down.weight"], product.double(), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(read, query, atol=1e-6, rtol=1e-5)


def test_a_bias_in_single_precision_does_not_hide_the_factors() -> None:
    """Some of PyTorch's kernels read it beside float64 queries as float64."""
    for kind in (Block, BlockInSingle):
        network = network_of(kind).eval()
        weights = td.load(network, inputs=inputs).attention(1)
        torch.testing.assert_close(weights.query.transpose(1, 2).flatten(0, 1), network.blocks[0].qkv.weight[:DIM])


class InHalf(Network):
    def forward(self, ids: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(ids)


def test_a_network_that_asks_for_autocast_is_read_and_keeps_its_own_states() -> None:
    torch.manual_seed(0)
    network = InHalf().eval()
    ckpt, states = td.load(network, inputs=inputs), list[Tensor]()
    ids = torch.arange(9)
    hooks = [block.register_forward_hook(lambda *given: states.append(given[2].clone())) for block in network.blocks]
    with torch.no_grad():
        network(ids[None])
    for hook in hooks:
        hook.remove()
    assert torch.equal(ckpt.states(ids).feed_forward[1:], torch.cat(states))
    query = ckpt.attention(1).query.transpose(1, 2).flatten(0, 1)
    torch.testing.assert_close(query, network.blocks[0].qkv.weight[:DIM])  # pyright: ignore
    assert not torch.is_autocast_enabled("cpu")
