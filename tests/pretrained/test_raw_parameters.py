"""Projections that are parameters of the attention itself: audited and gated like those that are modules."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from pretrained.test_own_code import DIM, HEADS
from tokendynamics.numerics import AttentionFactorsError, CheckpointError

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


@pytest.mark.long
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


@pytest.mark.parametrize("form", [FORMS[0], *(pytest.param(form, marks=pytest.mark.long) for form in FORMS[1:])])
def test_every_form_of_a_product_gives_the_same_audit(form: str) -> None:
    raw = stack_of()
    other = stack_of(form)
    torch.testing.assert_close(other(IDS), raw(IDS))
    assert_equal(td.audit(load(other)), td.audit(load(Encoder(raw))))


@pytest.mark.long
@pytest.mark.parametrize("form", ["einsum", "fused", "transposed"])
def test_gates_are_those_of_weights_that_are_edited_by_hand(form: str) -> None:
    raw = stack_of(form, first=True)
    states = raw(IDS)
    edited = copy.deepcopy(raw)
    edited.blocks[1].attention.W_O.data[1] = 0.0
    edited.blocks[2].attention.W_O.data *= 0.5
    edited.blocks[2].attention.b_O.data *= 0.5
    ckpt = load(raw).under({"layer 2 head 1": 0.0, "layer 3 attention": 0.5})
    assert_equal(td.trace(ckpt, IDS), td.trace(load(edited), IDS))
    assert torch.equal(raw(IDS), states)


class Special(Raw):
    """Attention whose output projection or queries are made in another way."""

    def __init__(self, kind: str) -> None:
        super().__init__("einsum")
        self.kind = kind
        self.down, self.up = nn.Parameter(0.2 * torch.randn(DIM, 2)), nn.Parameter(0.2 * torch.randn(2, WIDTH))
        self.places = nn.Parameter(torch.randn(16, WIDTH))

    def projected(self, x: Tensor) -> list[Tensor]:
        q, k, v = super().projected(x)
        if self.kind == "low rank":
            q = torch.einsum("bnd,hdk->bhnk", x, self.W_Q + self.down @ self.up) + self.b_Q
        elif self.kind == "softplus":
            q = torch.einsum("bnd,hdk->bhnk", x, functional.softplus(self.W_Q)) + self.b_Q
        elif self.kind == "one for queries and keys":
            k = torch.einsum("bnd,hdk->bhnk", x, self.W_Q) + self.b_K
        elif self.kind == "by input":
            q = torch.einsum("bnd,hdk->bhnk", x, self.W_Q * (1 + x[0, 0, 0]))
        elif self.kind == "by place":
            q = torch.einsum("bnd,hdk->bhnk", x, self.W_Q) + self.places[: x.shape[1]]
        elif self.kind == "in place":
            q = torch.einsum("bnd,hdk->bhnk", x, self.W_Q)
            q += self.b_Q
        elif self.kind == "less":
            k = torch.einsum("bnd,hdk->bhnk", x, self.W_K) - self.b_K
        return [q, k, v]


def special_of(kind: str) -> Any:
    network = stack_of(first=True)
    for block in network.blocks:
        attention = Special(kind).double()
        attention.load_state_dict(block.attention.state_dict(), strict=False)
        block.attention = attention
    return network


def plain_of(network: Any) -> Any:
    """Return a network with the same queries and keys by parameters of their own."""
    other = stack_of(first=True)
    for block, special in zip(other.blocks, (block.attention for block in network.blocks), strict=True):
        attention = block.attention
        if special.kind == "low rank":
            attention.W_Q.data = (special.W_Q + special.down @ special.up).detach()
        elif special.kind == "softplus":
            attention.W_Q.data = functional.softplus(special.W_Q.detach())
        elif special.kind == "one for queries and keys":
            attention.W_K.data = special.W_Q.detach().clone()
        elif special.kind == "less":
            attention.b_K.data = -special.b_K.detach()
    return other


@pytest.mark.long
@pytest.mark.parametrize("made", ["low rank", "softplus", "one for queries and keys", "in place", "less"])
def test_a_matrix_that_is_computed_or_used_twice_is_audited_as_it_acts(made: str) -> None:
    network = special_of(made)
    other = plain_of(network)
    torch.testing.assert_close(network(IDS), other(IDS))
    assert_equal(td.audit(load(network)), td.audit(load(other)))


@pytest.mark.long
@pytest.mark.parametrize("made", ["by input", "by place"])
def test_a_matrix_or_a_bias_that_depends_on_the_token_is_refused(made: str) -> None:
    ckpt = load(special_of(made))
    problems = {layer.problem for layer in ckpt.layout.layers}
    assert "" not in problems
    assert not any("only projections that are modules" in problem for problem in problems)
    with pytest.raises(AttentionFactorsError):
        td.audit(ckpt)


@pytest.mark.long
@pytest.mark.parametrize("form", ["module", "parameter"])
def test_one_output_map_for_every_head_is_no_output_projection(form: str) -> None:
    """It reads each head by itself, and what it gives is added up over the heads."""

    class Shared(Raw):
        def __init__(self) -> None:
            super().__init__("einsum")
            self.out, self.w_out = nn.Linear(WIDTH, DIM, bias=False), nn.Parameter(torch.randn(WIDTH, DIM))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.projected(x)
            heads = (q @ k.mT).softmax(dim=-1) @ v
            return (self.out(heads) if form == "module" else heads @ self.w_out).sum(dim=1)

    network = stack_of(first=True)
    for block in network.blocks:
        block.attention = Shared().double()
    (words,) = {layer.problem for layer in load(network).layout.layers}
    assert words == "no module reads the heads' outputs alone, unchanged and one head after the other"


class Whole(Raw):
    """A block whose feed-forward part has parameters of its own as well."""

    def __init__(self, first: bool) -> None:
        super().__init__("einsum")
        self.first = first
        self.w_in, self.b_in = nn.Parameter(0.2 * torch.randn(DIM, WIDE)), nn.Parameter(0.2 * torch.randn(WIDE))
        self.w_out, self.b_out = nn.Parameter(0.2 * torch.randn(WIDE, DIM)), nn.Parameter(0.2 * torch.randn(DIM))
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        attend = super().forward
        if self.first:
            x = x + attend(self.norm1(x))
            return x + self.wide(self.norm2(x))
        x = self.norm1(x + attend(x))
        return self.norm2(x + self.wide(x))

    def wide(self, x: Tensor) -> Tensor:
        return functional.relu(x @ self.w_in + self.b_in) @ self.w_out + self.b_out


@pytest.mark.long
@pytest.mark.parametrize("first", [False, True])
def test_a_block_with_parameters_alone_has_both_its_parts(first: bool) -> None:
    network, other = stack_of(first=first), stack_of(first=first)
    network.blocks = nn.ModuleList(Whole(first).double() for _ in range(LAYERS))
    for block, whole in zip(other.blocks, network.blocks, strict=True):
        block.attention.load_state_dict(whole.state_dict(), strict=False)
        values = (whole.w_in.mT, whole.b_in, whole.w_out.mT, whole.b_out)
        block.mlp.load_state_dict(dict(zip(("0.weight", "0.bias", "2.weight", "2.bias"), values, strict=True)))
        block.norm1, block.norm2 = whole.norm1, whole.norm2
    torch.testing.assert_close(network(IDS), other(IDS))
    ckpt, by_modules = load(network), load(other)
    assert ckpt.layout.layers[0].parts == ("W_O", "w_out")
    assert_equal(td.audit(ckpt), td.audit(by_modules))
    for changes in ({"layer 2 head 1": 0.0}, {"layer 1 attention": 0.5, "layer 3 feed_forward": 0.0}):
        assert_equal(td.what_if(ckpt, IDS, changes), td.what_if(by_modules, IDS, changes))


class Tied(Raw):
    """The values' matrix is that of the output as well."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.projected(x)
        heads = (q @ k.mT / WIDTH**0.5).softmax(dim=-1) @ v
        return torch.einsum("bhnk,hdk->bnd", heads, self.W_V) + self.b_O


def tied_of() -> Any:
    network = stack_of(first=True)
    for block in network.blocks:
        attention = Tied("einsum").double()
        attention.load_state_dict(block.attention.state_dict())
        block.attention = attention
    return network


@pytest.mark.long
def test_a_gate_on_a_head_leaves_its_values_where_their_matrix_is_the_same() -> None:
    network, other = tied_of(), stack_of(first=True)
    for block, tied in zip(other.blocks, network.blocks, strict=True):
        block.attention.W_O.data = tied.attention.W_V.detach().mT.clone()
    torch.testing.assert_close(network(IDS), other(IDS))
    assert_equal(td.audit(load(network)), td.audit(load(other)))
    changes = {"layer 2 head 1": 0.0}
    assert_equal(td.what_if(load(network), IDS, changes), td.what_if(load(other), IDS, changes))


@pytest.mark.long
@pytest.mark.parametrize("tied", [False, True])
def test_what_is_saved_is_the_variant_or_is_refused(tied: bool, tmp_path: Path) -> None:
    from transformers import PretrainedConfig, PreTrainedModel

    class Config(PretrainedConfig):
        model_type = "raw-attention"

    class Network(PreTrainedModel):
        config_class = Config

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.stack = (tied_of() if tied else stack_of(first=True)).float()
            self.post_init()

        def _init_weights(self, module: nn.Module) -> None:
            pass

        def forward(self, input_ids: Tensor) -> Tensor:
            return self.stack(input_ids)

    network: Any = Network(Config()).eval()
    before = network(IDS)
    ckpt = td.load(network, inputs=IDS).under({"layer 2 head 1": 0.0, "layer 3 attention": 0.5})
    if tied:
        with pytest.raises(CheckpointError, match="W_V, or shares it with another projection"):
            ckpt.save(tmp_path / "changed")
    else:
        ckpt.save(tmp_path / "changed")
        states = ckpt.states({"input_ids": IDS[:1]}).feed_forward[-1]
        again: Any = Network.from_pretrained(tmp_path / "changed").eval()
        torch.testing.assert_close(again(IDS[:1]).reshape(states.shape), states)
        assert float((again(IDS) - before).detach().abs().max()) > 1e-2
    assert torch.equal(network(IDS), before)


class Other(nn.Module):
    """Causal attention with parameters in other places, or shared by heads."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.by_name = nn.ParameterDict({name: 0.2 * torch.randn(DIM, DIM) for name in "qkvo"})
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))
        self.one_k, self.one_v = (nn.Parameter(0.2 * torch.randn(DIM, WIDTH)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        p = self.by_name
        if self.form == "uncalled":
            several = [functional.linear(x, one.weight, one.bias) for one in (self.q, self.k, self.v)]
        elif self.form == "features first":
            several = [(p[name] @ x.mT).mT for name in "qkv"]
        elif self.form == "one key":
            several = [x @ p["q"], (x @ self.one_k).repeat(1, 1, HEADS), x @ self.one_v]
        else:
            several = [x @ p[name] for name in "qkv"]
        q, k, v = (part.unflatten(-1, (-1, WIDTH)).transpose(1, 2) for part in several)
        if self.form == "one value":
            logits = (q @ k.mT / WIDTH**0.5).masked_fill(torch.ones(*2 * x.shape[1:2], dtype=torch.bool).triu(1), -1e9)
            heads = logits.softmax(dim=-1) @ (x @ self.one_v)[:, None]
        else:
            heads = functional.scaled_dot_product_attention(q, k, v.expand(-1, HEADS, -1, -1), is_causal=True)
        output = heads.transpose(1, 2).flatten(2) @ p["o"]
        return output + x @ p["o"] if self.form == "twice" else output


def other_of(form: str) -> Any:
    network = stack_of(first=True)
    for block in network.blocks:
        block.attention = Other(form).double()
    return network


@pytest.mark.long
@pytest.mark.parametrize("form", ["by name", "uncalled", "features first", "one key", "one value"])
def test_parameters_in_other_places_and_shared_keys_are_read(form: str) -> None:
    """Each audit recomputes the attention; a gate is the edited weight."""
    network = other_of(form)
    ckpt = load(network)
    attention = ckpt.layout.layers[0].attention
    assert attention.causal
    assert attention.output[0] == "attention.by_name.o"
    assert attention.kv_heads == (1 if form == "one key" else HEADS)
    assert td.audit(ckpt).sizes["head"] == HEADS
    edited = copy.deepcopy(network)
    edited.blocks[1].attention.by_name["o"].data[WIDTH : 2 * WIDTH] = 0.0
    assert_equal(td.trace(ckpt.under({"layer 2 head 1": 0.0}), IDS), td.trace(load(edited), IDS))


@pytest.mark.long
def test_an_output_projection_that_projects_another_tensor_is_refused() -> None:
    """A gate on a head would act on both."""
    words = "its parameter attention.by_name.o projects 2 tensors, one of which is the heads' outputs"
    assert {layer.problem for layer in load(other_of("twice")).layout.layers} == {words}


@pytest.mark.long
def test_a_pass_without_a_gated_projection_is_refused() -> None:
    """The layout was found with another output projection."""
    network = stack_of(first=True)
    ckpt = load(network).under({"layer 2 head 1": 0.0})
    for block in network.blocks:
        block.attention.form = "transposed"
        block.attention.W_O = nn.Parameter(block.attention.W_O.detach().clone())
    with pytest.raises(CheckpointError, match="W_O does something else than where it was found"):
        td.trace(ckpt, IDS)
