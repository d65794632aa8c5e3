"""Small transformers whose weights are set by hand: an own class, and live GPT-2, LLaMA and BERT, seen the same way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 200


class Block(nn.Module):
    """Attention and feed-forward part, with the norms before or after them."""

    def __init__(self, dim: int, heads: int, *, causal: bool, post: bool, rms: bool) -> None:
        super().__init__()
        norm = nn.RMSNorm if rms else nn.LayerNorm
        self.norm_1, self.norm_2 = norm(dim), norm(dim)
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.heads, self.causal, self.post = heads, causal, post

    def attention(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        seen = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.out(seen.transpose(1, 2).flatten(2))

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.gelu(self.up(x)))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.post:
            x = self.norm_1(x + self.attention(x, mask))
            return self.norm_2(x + self.feed_forward(x))
        x = x + self.attention(self.norm_1(x), mask)
        return x + self.feed_forward(self.norm_2(x))


class Own(nn.Module):
    """A transformer that is none of transformers'."""

    def __init__(self, frame: Frame) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, frame.dim), nn.Embedding(64, frame.dim)
        kind = {"causal": frame.causal, "post": frame.post, "rms": frame.rms}
        self.blocks = nn.ModuleList(Block(frame.dim, frame.heads, **kind) for _ in range(frame.depth))
        self.last = nn.Identity() if frame.post else (nn.RMSNorm if frame.rms else nn.LayerNorm)(frame.dim)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.words(idx) + self.places(torch.arange(idx.shape[-1]))
        for block in self.blocks:
            x = block(x)
        return self.last(x)


@dataclass(frozen=True)
class Frame:
    """What a network is before its weights are set. GPT-2 and LLaMA are causal and pre-norm, BERT neither."""

    family: str = "own"
    dim: int = 64
    depth: int = 6
    heads: int = 2
    causal: bool = False
    post: bool = False
    rms: bool = False
    seed: int = 0
    noise: float = 0.01
    """Standard deviation of every weight of the blocks to begin with."""


@dataclass(frozen=True)
class Part:
    """One linear map, as views: what is written here is written into the network."""

    weight: Tensor  # (out, in)
    bias: Tensor


@dataclass(frozen=True)
class Parts:
    """The linear maps of one block, and the gains and shifts of its norms; a gate only in LLaMA."""

    query: Part
    key: Part
    value: Part
    out: Part
    up: Part
    down: Part
    gate: Part | None = None

    def all(self) -> list[Part]:
        return [var for var in vars(self).values() if var is not None]


@dataclass(frozen=True)
class Canvas:
    """A network to be painted on: noise in every block, unit normal words, no positions."""

    frame: Frame
    network: nn.Module
    words: Tensor  # (id, dim)
    places: Tensor | None  # (position, dim); LLaMA rotates instead
    blocks: list[Parts]
    draw: torch.Generator

    def direction(self) -> Tensor:
        """Draw a unit vector that a norm which takes the mean off leaves alone."""
        v = torch.randn(self.frame.dim, generator=self.draw)
        v = v - v.mean()
        return v / v.norm()

    def frame_of(self, count: int) -> Tensor:
        """Draw orthonormal vectors of that kind as columns."""
        basis = torch.randn(self.frame.dim, count, generator=self.draw)
        return torch.linalg.qr(basis - basis.mean(dim=0))[0]


def blank(frame: Frame) -> Canvas:
    """Build a network that does next to nothing."""
    draw = torch.Generator().manual_seed(frame.seed)
    network = Own(frame) if frame.family == "own" else _of_transformers(frame)
    network.eval().requires_grad_(False)
    words, places, blocks = _PARTS[frame.family](network)
    words.normal_(0.0, 1.0, generator=draw)
    for part in (part for block in blocks for part in block.all()):
        part.weight.copy_(torch.randn(part.weight.shape, generator=draw) * frame.noise)
        part.bias.zero_()
    for table in (places, *_further_tables(network)):
        if table is not None:
            table.zero_()
    return Canvas(frame, network, words, places, blocks, draw)


def _of_transformers(frame: Frame) -> nn.Module:
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, LlamaConfig, LlamaModel

    named = {
        "vocab_size": VOCABULARY,
        "hidden_size": frame.dim,
        "num_hidden_layers": frame.depth,
        "num_attention_heads": frame.heads,
        "intermediate_size": 2 * frame.dim,
        "max_position_embeddings": 64,
    }
    if frame.family == "bert":
        return BertModel(BertConfig(**named), add_pooling_layer=False)
    if frame.family == "llama":
        return LlamaModel(LlamaConfig(**named, attention_bias=True, mlp_bias=True))
    sizes = {"n_embd": frame.dim, "n_layer": frame.depth, "n_head": frame.heads, "n_inner": 2 * frame.dim}
    return GPT2Model(GPT2Config(vocab_size=VOCABULARY, n_positions=64, **sizes))


def _part(module: Any) -> Part:
    return Part(module.weight.data, module.bias.data)


def _column(module: Any, start: int = 0, stop: int | None = None) -> Part:
    """Part of GPT-2's linear map, which is stored with inputs first."""
    return Part(module.weight.data[:, start:stop].T, module.bias.data[start:stop])


def _own(network: Any) -> tuple[Tensor, Tensor, list[Parts]]:
    blocks = [Parts(*(_part(getattr(b, name)) for name in _OWN_NAMES)) for b in network.blocks]
    return network.words.weight.data, network.places.weight.data, blocks


_OWN_NAMES = ("query", "key", "value", "out", "up", "down")


def _gpt2(network: Any) -> tuple[Tensor, Tensor, list[Parts]]:
    dim = network.config.n_embd
    blocks = [
        Parts(
            *(_column(b.attn.c_attn, start, start + dim) for start in (0, dim, 2 * dim)),
            *(_column(entry) for entry in (b.attn.c_proj, b.mlp.c_fc, b.mlp.c_proj)),
        )
        for b in network.h
    ]
    return network.wte.weight.data, network.wpe.weight.data, blocks


def _llama(network: Any) -> tuple[Tensor, None, list[Parts]]:
    blocks = [
        Parts(
            *(_part(getattr(b.self_attn, name)) for name in ("q_proj", "k_proj", "v_proj", "o_proj")),
            *(_part(getattr(b.mlp, name)) for name in ("up_proj", "down_proj", "gate_proj")),
        )
        for b in network.layers
    ]
    return network.embed_tokens.weight.data, None, blocks


def _bert(network: Any) -> tuple[Tensor, Tensor, list[Parts]]:
    blocks = [
        Parts(
            *(_part(getattr(b.attention.self, name)) for name in ("query", "key", "value")),
            *(_part(entry.dense) for entry in (b.attention.output, b.intermediate, b.output)),
        )
        for b in network.encoder.layer
    ]
    table = network.embeddings
    return table.word_embeddings.weight.data, table.position_embeddings.weight.data, blocks


def _further_tables(network: Any) -> list[Tensor]:
    """BERT adds a vector that says which of two sentences a token is of."""
    table = getattr(network, "embeddings", None)
    return [] if table is None else [table.token_type_embeddings.weight.data]


_PARTS: dict[str, Any] = {"own": _own, "gpt2": _gpt2, "llama": _llama, "bert": _bert}
