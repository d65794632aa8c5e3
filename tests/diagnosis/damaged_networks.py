"""Known damages of a live network of LLaMA's kind: each returns a damaged copy, and where it begins.

    healthy = llama_like(seed=0)
    damaged, (layer, part) = louder_attention(healthy, 3, 4)

Layers count from 1, the part is "attention" or "feed_forward"; up to there both networks compute the same, bit by bit.
They take any network with `layers`, or `model.layers`, of blocks named as in LLaMA (Mistral, Qwen2, SmolLM2, …).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Place: TypeAlias = tuple[int, str]
Damage: TypeAlias = Callable[[nn.Module], tuple[nn.Module, Place]]


def llama_like(seed: int = 0, depth: int = 8) -> nn.Module:
    """A causal language model whose layers are alike: updates of about a tenth of a token, gains near 1."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=200,
        hidden_size=48,
        num_hidden_layers=depth,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=96,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    network = LlamaForCausalLM(config).eval().requires_grad_(False)
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in network.named_parameters():
        noise = torch.randn(parameter.shape, generator=draw)
        scale = 1.0 if "embed" in name else 0.08
        parameter.copy_(1.0 + 0.1 * noise if "norm" in name else scale * noise)
    return network


def louder_attention(network: nn.Module, first: int, last: int, factor: float = 6.0) -> tuple[nn.Module, Place]:
    """Multiply the attention's output projection in some layers."""
    damaged, blocks = _copied(network)
    for block in blocks[first - 1 : last]:
        block.self_attn.o_proj.weight.mul_(factor)
    return damaged, (first, "attention")


def scaled_identity(network: nn.Module, layer: int, factor: float = 3.0) -> tuple[nn.Module, Place]:
    """Let the sum over heads of O V be a multiple of the identity in one layer.

    Where heads share their values these have fewer features than a token: the identity is then one on those.
    """
    damaged, blocks = _copied(network)
    attention = blocks[layer - 1].self_attn
    value, out, width = attention.v_proj.weight, attention.o_proj.weight, attention.head_dim
    sharing = out.shape[1] // value.shape[0]
    draw = torch.Generator().manual_seed(layer)
    basis = torch.linalg.qr(torch.randn(value.shape[1], value.shape[0], generator=draw))[0].to(value)
    value.copy_(basis.T)
    shared = basis.unflatten(1, (-1, width)).repeat_interleave(sharing, dim=1).flatten(1)
    out.copy_(factor / sharing * shared)
    return damaged, (layer, "attention")


def larger_gain(
    network: nn.Module, layer: int, part: str = "attention", factor: float = 10.0
) -> tuple[nn.Module, Place]:
    """Multiply the gain of the norm before one part."""
    damaged, blocks = _copied(network)
    norm = {"attention": "input_layernorm", "feed_forward": "post_attention_layernorm"}[part]
    getattr(blocks[layer - 1], norm).weight.mul_(factor)
    return damaged, (layer, part)


def silenced_head(network: nn.Module, layer: int, head: int = 0) -> tuple[nn.Module, Place]:
    """Set what one head writes to zero."""
    damaged, blocks = _copied(network)
    attention = blocks[layer - 1].self_attn
    attention.o_proj.weight[:, head * attention.head_dim : (head + 1) * attention.head_dim] = 0.0
    return damaged, (layer, "attention")


def louder_feed_forward(network: nn.Module, layer: int, factor: float = 6.0) -> tuple[nn.Module, Place]:
    """Multiply the feed-forward part's output projection in one layer."""
    damaged, blocks = _copied(network)
    blocks[layer - 1].mlp.down_proj.weight.mul_(factor)
    return damaged, (layer, "feed_forward")


def silenced_part(network: nn.Module, layer: int, part: str = "feed_forward") -> tuple[nn.Module, Place]:
    """Set what one part writes to zero."""
    damaged, blocks = _copied(network)
    block = blocks[layer - 1]
    (block.self_attn.o_proj if part == "attention" else block.mlp.down_proj).weight.zero_()
    return damaged, (layer, part)


DAMAGES: dict[str, Damage] = {
    "attention × 6 in layers 3 and 4": partial(louder_attention, first=3, last=4),
    "attention × 6 in the first layer": partial(louder_attention, first=1, last=1),
    "O V = 3 I in layer 5": partial(scaled_identity, layer=5),
    "gain × 10 before the attention of layer 4": partial(larger_gain, layer=4),
    "gain × 10 before the feed-forward part of layer 2": partial(larger_gain, layer=2, part="feed_forward"),
    "head 1 of layer 6 silent": partial(silenced_head, layer=6, head=1),
    "feed-forward part × 6 in layer 7": partial(louder_feed_forward, layer=7),
    "feed-forward part of layer 3 silent": partial(silenced_part, layer=3),
}
"""For networks of at least seven layers."""


def _copied(network: nn.Module) -> tuple[nn.Module, Any]:
    """Return a copy whose weights may be written to, and its blocks."""
    damaged = copy.deepcopy(network).requires_grad_(False)
    inner: Any = getattr(damaged, "model", damaged)
    return damaged, inner.layers


def parts_written(network: nn.Module, ids: Tensor) -> dict[Place, Tensor]:
    """Return what every part of every layer adds to the residual stream, in the order of the pass."""
    blocks: Any = getattr(network, "model", network).layers
    by_name: dict[Place, Tensor] = {}

    def keep(place: Place, _: Any, __: Any, out: Any) -> None:
        by_name[place] = out if torch.is_tensor(out) else out[0]

    hooks = [
        module.register_forward_hook(partial(keep, (number, part)))
        for number, block in enumerate(blocks, start=1)
        for part, module in (("attention", block.self_attn), ("feed_forward", block.mlp))
    ]
    with torch.no_grad():
        network(ids)
    for hook in hooks:
        hook.remove()
    return by_name
