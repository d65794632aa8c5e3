"""Projections that are parameters of the attention itself: audited and gated like those that are modules."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from pretrained.test_own_code import DIM, HEADS, SmallGPT, loaded
from tokendynamics.numerics import CheckpointError

WIDTH, WIDE, LAYERS, WORDS = DIM // HEADS, 40, 3, 61
IDS = torch.randint(0, WORDS, (6, 7), generator=torch.Generator().manual_seed(2))


class Raw(nn.Module):
    """Self-attention with parameters of its own, each form in another way."""

    def __init__(self, form: str, *, causal: bool = False, biased: bool = True) -> None:
        super().__init__()
        self.form, self.causal, self.biased = form, causal, biased
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(0.2 * torch.randn(HEADS, DIM, WIDTH)) for _ in range(3))
        self.b_Q, self.b_K, self.b_V = (nn.Parameter(0.2 * torch.randn(HEADS, 1, WIDTH)) for _ in range(3))
        self.W_O, self.b_O = nn.Parameter(0.2 * torch.randn(HEADS, WIDTH, DIM)), nn.Parameter(0.2 * torch.randn(DIM))
        if form == "fused":
            self.qkv = nn.Parameter(torch.stack([self.W_Q, self.W_K, self.W_V]).permute(2, 0, 1, 3).detach().clone())
        if form == "packed":
            weights = [weight.permute(0, 2, 1).reshape(DIM, DIM) for weight in (self.W_Q, self.W_K, self.W_V)]
            self.in_proj_weight = nn.Parameter(torch.cat(weights).detach())
            self.in_proj_bias = nn.Parameter(torch.cat([b.flatten() for b in (self.b_Q, self.b_K, self.b_V)]).detach())

    def projected(self, x: Tensor) -> list[Tensor]:
        weights, biases = (self.W_Q, self.W_K, self.W_V), (self.b_Q, self.b_K, self.b_V)
        flat = [weight.permute(1, 0, 2).reshape(DIM, DIM) for weight in weights]
        if self.form == "einsum":
            several = [torch.einsum("bnd,hdk->bhnk", x, weight) for weight in weights]
        elif self.form == "fused":
            several = list(torch.einsum("bnd,dchk->cbhnk", x, self.qkv).unbind())
        elif self.form == "sliced":
            several = [x @ flat[0], functional.linear(x, flat[1].T), torch.tensordot(x, flat[2], dims=1)]
        elif self.form == "broadcast":
            several = [x[:, None] @ weight for weight in weights]
        elif self.form == "packed":
            several = list(functional.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1))
        elif self.form == "addmm":
            pairs = zip(flat, biases, strict=True)
            several = [torch.addmm(bias.flatten(), x.flatten(0, 1), w).view_as(x) for w, bias in pairs]
        elif self.form == "baddbmm":
            pairs = zip(flat, biases, strict=True)
            several = [torch.baddbmm(bias.view(1, 1, -1), x, w.expand(len(x), -1, -1)) for w, bias in pairs]
        else:
            several = [x.matmul(weight.T.contiguous().T) for weight in flat]
        if self.form not in ("einsum", "fused", "broadcast"):
            several = [part.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for part in several]
        if self.biased and self.form not in ("packed", "addmm", "baddbmm"):
            several = [part + bias for part, bias in zip(several, biases, strict=True)]
        return several

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.projected(x)
        logits = q @ k.mT / WIDTH**0.5
        if self.causal:
            logits = logits.masked_fill(torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        heads = logits.softmax(dim=-1) @ v
        if self.form in ("einsum", "fused", "broadcast"):
            output = torch.einsum("bhnk,hkd->bnd", heads, self.W_O)
        else:
            output = heads.transpose(1, 2).flatten(2) @ self.W_O.flatten(0, 1)
        return output + self.b_O if self.biased else output


FORMS = ("einsum", "fused", "sliced", "broadcast", "packed", "addmm", "baddbmm", "transposed")


class Layer(nn.Module):
    def __init__(self, first: bool, attention: nn.Module) -> None:
        super().__init__()
        self.first, self.attention = first, attention
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, WIDE), nn.ReLU(), nn.Linear(WIDE, DIM))

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class Stack(nn.Module):
    """Embeddings as in BERT, and blocks."""

    def __init__(self, *, form: str = "einsum", first: bool = False, **named: bool) -> None:
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(WORDS, DIM), nn.Embedding(16, DIM), nn.LayerNorm(DIM)
        self.blocks: Any = nn.ModuleList(Layer(first, Raw(form, **named)) for _ in range(LAYERS))

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.norm(self.words(input_ids) + self.places.weight[: input_ids.shape[1]])
        for block in self.blocks:
            x = block(x)
        return x


def stack_of(form: str = "einsum", *, first: bool = False, **named: bool) -> Any:
    torch.manual_seed(4)
    network = Stack(form=form, first=first, **named)
    generator = torch.Generator().manual_seed(5)
    for norm in (module for module in network.modules() if isinstance(module, nn.LayerNorm)):
        for parameter in norm.parameters():
            parameter.data += 0.1 * torch.randn(DIM, generator=generator)
    return network.double().eval()


class Encoder(nn.Module):
    """A network's own embeddings, and its blocks as one of PyTorch's."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        first = network.blocks[0].first
        self.words, self.places, self.norm = network.words, network.places, network.norm
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on nested tensors
            layer = nn.TransformerEncoderLayer(DIM, HEADS, WIDE, 0.0, batch_first=True, norm_first=first)
            self.encoder: Any = nn.TransformerEncoder(layer, LAYERS)
        self.double().eval()
        for other, block in zip(self.encoder.layers, network.blocks, strict=True):
            packed = packed_as(block.attention)
            names = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
            other.self_attn.load_state_dict(dict(zip(names, packed, strict=True)))
            for name, source in (("norm1", block.norm1), ("norm2", block.norm2), ("linear1", block.mlp[0]),
                                 ("linear2", block.mlp[2])):  # fmt: skip
                getattr(other, name).load_state_dict(source.state_dict())

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.encoder(self.norm(self.words(input_ids) + self.places.weight[: input_ids.shape[1]]))


def packed_as(attention: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the weights of an attention as `nn.MultiheadAttention` holds them."""
    weights = [weight.permute(0, 2, 1).reshape(DIM, DIM) for weight in (attention.W_Q, attention.W_K, attention.W_V)]
    biases = [bias.flatten() for bias in (attention.b_Q, attention.b_K, attention.b_V)]
    return torch.cat(weights), torch.cat(biases), attention.W_O.reshape(DIM, DIM).mT, attention.b_O


def bert_of(network: Any) -> Any:
    """Return the same network as one of transformers."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=WORDS, hidden_size=DIM, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=WIDE, hidden_act="relu", max_position_embeddings=16, type_vocab_size=1, layer_norm_eps=1e-5,
    )  # fmt: skip
    bert: Any = BertModel(config, add_pooling_layer=False).double().eval()
    state = {
        "embeddings.word_embeddings.weight": network.words.weight,
        "embeddings.position_embeddings.weight": network.places.weight,
        "embeddings.token_type_embeddings.weight": torch.zeros(1, DIM),
        "embeddings.LayerNorm.weight": network.norm.weight,
        "embeddings.LayerNorm.bias": network.norm.bias,
    }
    for number, block in enumerate(network.blocks):
        weight, bias, out, out_bias = packed_as(block.attention)
        at = f"encoder.layer.{number}."
        for place, name in enumerate(("query", "key", "value")):
            rows = slice(place * DIM, (place + 1) * DIM)
            state |= {f"{at}attention.self.{name}.weight": weight[rows], f"{at}attention.self.{name}.bias": bias[rows]}
        state |= {f"{at}attention.output.dense.weight": out, f"{at}attention.output.dense.bias": out_bias}
        modules = {"attention.output.LayerNorm": block.norm1, "output.LayerNorm": block.norm2,
                   "intermediate.dense": block.mlp[0], "output.dense": block.mlp[2]}  # fmt: skip
        for name, module in modules.items():
            state |= {f"{at}{name}.weight": module.weight, f"{at}{name}.bias": module.bias}
    bert.load_state_dict(state, strict=True)
    return bert


def assert_equal(one: xr.Dataset, other: xr.Dataset) -> None:
    assert set(one.data_vars) == set(other.data_vars)
    for name in one.data_vars:
        values, others = one[name].values, other[name].values
        if values.dtype.kind == "f":
            np.testing.assert_allclose(values, others, rtol=1e-6, atol=1e-6, err_msg=str(name))
        else:
            assert np.array_equal(values, others), name


def load(network: nn.Module) -> Any:
    return td.load(network, inputs=IDS)


@pytest.mark.parametrize("first", [False, True])
def test_audit_and_heads_are_those_of_the_same_encoder_of_pytorch(first: bool) -> None:
    raw = stack_of(first=first)
    ckpt, other = load(raw), load(Encoder(raw))
    assert ckpt.layout.layers[0].attention.output[0] == "attention.W_O"
    assert_equal(td.audit(ckpt), td.audit(other))
    assert_equal(td.head_effects(ckpt, IDS), td.head_effects(other, IDS))
    for changes in ({"layer 2 head 1": 0.0}, {"layer 1 attention": 0.5, "layer 3 feed_forward": 0.0}):
        assert_equal(td.what_if(ckpt, IDS, changes), td.what_if(other, IDS, changes))


@pytest.mark.long
def test_three_ways_to_write_one_network_have_one_verdict() -> None:
    raw = stack_of()
    networks = (raw, Encoder(raw), bert_of(raw))
    torch.testing.assert_close(networks[1](IDS), raw(IDS))
    torch.testing.assert_close(networks[2](input_ids=IDS).last_hidden_state, raw(IDS))
    first, *others = (load(network) for network in networks)
    verdict, audit = td.diagnose(first, IDS, levers=False, baseline=None).verdict, td.audit(first)
    for ckpt in others:
        assert_equal(td.audit(ckpt), audit)
        assert str(td.diagnose(ckpt, IDS, levers=False, baseline=None).verdict) == str(verdict)
    assert td.compare(*(load(network) for network in networks[:2]), texts=IDS) is not None


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_product_gives_the_same_audit(form: str) -> None:
    raw = stack_of()
    other = stack_of(form)
    torch.testing.assert_close(other(IDS), raw(IDS))
    assert_equal(td.audit(load(other)), td.audit(load(raw)))
