"""Norms inside an attention: of the heads' outputs, and of queries and keys that positions have already turned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from tokendynamics.numerics import ArgumentValueError, AttentionFactorsError, CheckpointError
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.discovery.words import form_in_words

DIM, HEADS, VOCABULARY, WIDTH = 24, 4, 30, 6
PROMPT = [3, 17, 8, 22, 5, 11]

Kind = Literal["rms", "layer", "rms of each head", "turned"]


def turned(x: Tensor) -> Tensor:
    """Turn the pairs of features (f, f + 3) of (…, token, feature), slower from pair to pair."""
    angles = torch.outer(torch.arange(x.shape[-2], dtype=x.dtype), torch.tensor([1.0, 0.3, 0.1], dtype=x.dtype))
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


class Block(nn.Module):
    def __init__(self, kind: Kind, norm: nn.Module | None) -> None:
        super().__init__()
        self.kind: Kind = kind
        self.norm, self.qkv, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.q_norm = self.k_norm = self.inner = None
        if kind == "turned":
            self.q_norm, self.k_norm = norm, norm
        else:
            self.inner = norm

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(turned(q)), self.k_norm(turned(k))
        heads = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        if self.inner is None:
            heads = heads.flatten(2)
        elif self.kind == "rms of each head":
            heads = self.inner(heads).flatten(2)
        else:
            heads = self.inner(heads.flatten(2))
        return x + self.out(heads)


class Network(nn.Module):
    def __init__(self, kind: Kind, norms: list[nn.Module | None]) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, DIM)
        self.blocks = nn.ModuleList(Block(kind, norm) for norm in norms)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.words(idx)
        for block in self.blocks:
            x = block(x)
        return x


def loaded(kind: Kind, norms: list[nn.Module | None]) -> Checkpoint:
    torch.manual_seed(3)
    network = Network(kind, norms).double().eval()
    return td.load(network, inputs=lambda count: {"idx": torch.randint(0, VOCABULARY, (count, 7))})


def shaken(norm: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(8)
    for parameter in norm.parameters():
        parameter.data = 0.5 + torch.rand(parameter.shape, generator=generator)
    return norm


def after_heads(kind: Kind) -> list[nn.Module | None]:
    width = WIDTH if kind == "rms of each head" else DIM
    made = nn.LayerNorm if kind == "layer" else nn.RMSNorm
    return [shaken(made(width, eps=1e-6)) for _ in range(2)]


@pytest.mark.few(2)
@pytest.mark.parametrize("form", ["rms", "layer", "rms of each head"])
def test_heads_divided_by_their_size_pass_the_output_factor_to_what_the_block_adds(form: Kind) -> None:
    ckpt = loaded(form, after_heads(form))
    layout = ckpt.layout.layers[1].attention
    assert layout is not None, ckpt.layout.layers[1].problem
    assert layout.output_norm is not None
    assert layout.output_norm[0] == "inner"
    assert "a norm (inner) follows the heads" in td.audit(ckpt).attrs["form"]
    weights = ckpt.attention(2)
    block: Any = ckpt.model.get_submodule("blocks.1")
    states = ckpt.states(torch.tensor(PROMPT)).feed_forward.double()
    x, wanted = states[1], states[2] - states[1]
    read = block.norm(x)
    q, k, v = (
        torch.einsum("td,hdv->htv", read, factor.double()) + bias.double()[:, None]
        for factor, bias in (
            (weights.query, weights.query_bias),
            (weights.key_per_head, weights.key_bias),
            (weights.value_per_head, weights.value_bias),
        )
        if bias is not None
    )
    heads = (weights.scale * q @ k.mT).softmax(-1) @ v
    if form == "rms of each head":
        size = heads.square().mean(-1, keepdim=True).add(1e-6).sqrt()
    else:
        features = heads.transpose(0, 1).flatten(1)
        centred = features - features.mean(-1, keepdim=True) if form == "layer" else features
        size = centred.square().mean(-1).add(1e-6).sqrt()[None, :, None]
    assert weights.output_bias is not None
    added = torch.einsum("htv,hvd->td", heads / size, weights.output.double()) + weights.output_bias.double()
    torch.testing.assert_close(added, wanted, rtol=1e-6, atol=1e-6)


def test_what_adds_up_heads_refuses_a_norm_of_them() -> None:
    ckpt = loaded("rms", after_heads("rms"))
    with pytest.raises(CheckpointError, match="a norm acts on what its heads give"):
        td.source_tokens(ckpt, {"a": [1, 2, 3]})
    with pytest.raises(ArgumentValueError, match="layer 1 with a norm of the heads' outputs"):
        td.diagnosis.flow_of(ckpt)


def of_turned(gain: list[float] | None) -> nn.Module:
    norm = nn.RMSNorm(WIDTH, eps=1e-6, elementwise_affine=gain is not None)
    if gain is not None:
        norm.weight.data = torch.tensor(gain)
    return norm


ALIKE = [0.7, 1.2, 0.9, 0.7, 1.2, 0.9]


@pytest.mark.parametrize("gain", [None, ALIKE])
def test_a_norm_of_turned_features_is_a_turned_norm_where_its_gain_is_the_same_in_each_pair(
    gain: list[float] | None,
) -> None:
    ckpt = loaded("turned", [of_turned(gain), of_turned(gain)])
    layout = ckpt.layout.layers[1].attention
    assert layout is not None, ckpt.layout.layers[1].problem
    assert layout.normed == ("query", "key")
    assert layout.rotation is not None
    assert form_in_words(replace(layout, relative_bias=True)).endswith("gains included, plus a bias by position")
    weights, block = ckpt.attention(2), ckpt.model.get_submodule("blocks.1")
    rows, by_feature = block.qkv.weight, torch.ones(WIDTH) if gain is None else torch.tensor(gain)
    torch.testing.assert_close(weights.query[1].double(), rows[6:12].mT * by_feature.double(), rtol=1e-6, atol=1e-7)
    assert weights.rotary_frequencies is not None
    torch.testing.assert_close(weights.rotary_frequencies, torch.tensor([1.0, 0.3, 0.1]), rtol=1e-6, atol=1e-6)
    read = block.norm(ckpt.states(torch.tensor(PROMPT)).feed_forward.double()[1])
    q, k, _ = (part.unflatten(-1, (HEADS, -1)).transpose(0, 1) for part in block.qkv(read).chunk(3, -1))
    q, k = (turned(functional.rms_norm(part, (WIDTH,), by_feature.double(), 1e-6)) for part in (q, k))
    pattern = (weights.scale * q @ k.mT).softmax(-1)
    seen = torch.as_tensor(td.attention_seen(ckpt, [PROMPT], patterns=True).pattern.sel(layer=2).values).squeeze()
    torch.testing.assert_close(seen.to(pattern), pattern, rtol=1e-5, atol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("norm", ["gain", "layer"])
def test_another_norm_of_turned_features_is_refused_by_name(norm: str) -> None:
    gains = [0.7, 1.2, 0.9, 0.8, 1.2, 0.9]
    norms = [of_turned(gains) if norm == "gain" else shaken(nn.LayerNorm(WIDTH)) for _ in range(2)]
    ckpt = loaded("turned", list(norms))
    assert ckpt.layout.layers[0].attention is None
    assert "what positions turn is normalized after it, by " in ckpt.layout.layers[0].problem
    assert ckpt.states(torch.tensor(PROMPT)).feed_forward.shape[-1] == DIM
    with pytest.raises(AttentionFactorsError, match="normalized after it"):
        td.audit(ckpt)
