"""Networks that people write themselves: attention by hand, in the usual ways, is read like that of transformers."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError

DIM, HEADS, VOCABULARY = 24, 4, 40


class Attention(nn.Module):
    """As in minimal GPTs: one projection for queries, keys and values."""

    bias: Tensor

    def __init__(self, kv_heads: int, form: str) -> None:
        super().__init__()
        width = DIM // HEADS
        self.c_attn, self.c_proj = nn.Linear(DIM, DIM + 2 * kv_heads * width), nn.Linear(DIM, DIM)
        self.register_buffer("bias", torch.ones(64, 64).tril().view(1, 1, 64, 64))
        self.kv_heads, self.form = kv_heads, form

    def forward(self, x: Tensor) -> Tensor:
        tokens, width = x.shape[1], DIM // HEADS
        q, k, v = self.c_attn(x).split([DIM, self.kv_heads * width, self.kv_heads * width], dim=2)
        q, k, v = (tensor.unflatten(-1, (-1, width)).transpose(1, 2) for tensor in (q, k, v))
        k, v = (tensor.repeat_interleave(HEADS // self.kv_heads, dim=1) for tensor in (k, v))
        if self.form == "fused":
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        elif self.form == "einsum":
            hidden = self.bias[:, :, :tokens, :tokens] == 0
            weights = (torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(width)).masked_fill(hidden, -1e30).softmax(-1)
            y = torch.einsum("bhqk,bhkd->bhqd", weights, v)
        elif self.form == "grouped":  # heads that share a key have an axis of their own
            hidden, count = self.bias[:, :, None, :tokens, :tokens] == 0, HEADS // self.kv_heads
            q, k, v = q.unflatten(1, (self.kv_heads, count)), k[:, ::count], v[:, ::count]
            weights = (
                (torch.einsum("bgrqd,bgkd->bgrqk", q, k) / math.sqrt(width)).masked_fill(hidden, -1e30).softmax(-1)
            )
            y = torch.einsum("bgrqk,bgkd->bgrqd", weights, v).flatten(1, 2)
        elif self.form == "copies first":  # likewise, before that of their keys
            hidden, count = self.bias[:, :, None, :tokens, :tokens] == 0, HEADS // self.kv_heads
            q, k, v = q.unflatten(1, (self.kv_heads, count)).transpose(1, 2), k[:, ::count], v[:, ::count]
            logits = torch.einsum("brgqd,bgkd->brgqk", q, k) / math.sqrt(width)
            weights = logits.masked_fill(hidden, -1e30).softmax(-1)
            y = torch.einsum("brgqk,bgkd->brgqd", weights, v).transpose(1, 2).flatten(1, 2)
        elif self.form == "expanded":  # likewise, with keys that stand for all of them
            shape = (len(x), self.kv_heads, HEADS // self.kv_heads, tokens, width)
            k, v = (part.unflatten(1, shape[1:3])[:, :, :1].expand(shape) for part in (k, v))
            y = functional.scaled_dot_product_attention(q.view(shape), k, v, is_causal=True).flatten(1, 2)
        elif self.form == "copied":  # likewise, with keys that a rotation would have copied
            shape = (len(x), self.kv_heads, HEADS // self.kv_heads, tokens, width)
            k, v = (part.unflatten(1, shape[1:3])[:, :, :1].contiguous().expand(shape) for part in (k, v))
            y = functional.scaled_dot_product_attention(q.view(shape), k, v, is_causal=True).flatten(1, 2)
        elif self.form == "stacked":  # the heads of all inputs one below the other, as XGLM and MVP have them
            hidden = self.bias[0, :, :tokens, :tokens] == 0
            q, k, v = (tensor.reshape(-1, tokens, width) for tensor in (q, k, v))
            weights = (torch.bmm(q, k.mT) / math.sqrt(width)).masked_fill(hidden, -1e30).softmax(-1)
            y = torch.bmm(weights, v).unflatten(0, (len(x), HEADS))
        else:
            logits = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(width))
            logits = logits.masked_fill(self.bias[:, :, :tokens, :tokens] == 0, float("-inf"))
            y = functional.softmax(logits, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(*x.shape))


class Block(nn.Module):
    def __init__(self, kv_heads: int, form: str) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn = Attention(kv_heads, form)
        self.mlp = nn.Sequential(nn.Linear(DIM, 32), nn.GELU(), nn.Linear(32, DIM))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class SmallGPT(nn.Module):
    def __init__(self, kv_heads: int = HEADS, form: str = "plain") -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, DIM), nn.Embedding(64, DIM)
        self.h = nn.ModuleList([Block(kv_heads, form) for _ in range(3)])
        self.ln_f = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCABULARY, bias=False)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


def loaded(network: nn.Module) -> Any:
    return td.load(network, inputs=lambda count: {"idx": torch.randint(0, VOCABULARY, (count, 7))})


def network_of(kv_heads: int = HEADS, form: str = "plain") -> Any:
    torch.manual_seed(5)
    network = SmallGPT(kv_heads, form).eval()
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return network


@pytest.mark.few(5)
@pytest.mark.parametrize("form", ["plain", "einsum", "fused", "grouped", "stacked"])
@pytest.mark.parametrize("kv_heads", [HEADS, 2, 1])
def test_the_factors_are_those_of_the_fused_projection(form: str, kv_heads: int) -> None:
    network, width = network_of(kv_heads, form), DIM // HEADS
    ckpt = loaded(network)
    layout = ckpt.layout.layers[1]
    assert layout.attention is not None, layout.problem
    assert (layout.attention.heads, layout.attention.kv_heads, layout.attention.causal) == (HEADS, kv_heads, True)
    assert layout.parts == ("attn", "mlp")
    weights = ckpt.attention(2)
    rows = network.h[1].attn.c_attn.weight.detach()
    gain = network.h[1].ln_1.weight.detach()
    assert weights.norm_gain is not None
    torch.testing.assert_close(weights.norm_gain, gain)
    for head in range(HEADS):
        torch.testing.assert_close(weights.query[head], rows[head * width : (head + 1) * width].mT)
        group, first = head // (HEADS // kv_heads), DIM
        torch.testing.assert_close(weights.key_per_head[head], rows[first + group * width :][:width].mT)
        first += kv_heads * width
        torch.testing.assert_close(weights.value_per_head[head], rows[first + group * width :][:width].mT)
        output = network.h[1].attn.c_proj.weight.detach()[:, head * width : (head + 1) * width].mT
        torch.testing.assert_close(weights.output[head], output)


@pytest.mark.long
def test_all_ways_of_writing_it_are_one_network() -> None:
    prompts = [[5, 9, 33, 21, 7], [12, 3, 38, 2], [1, 30, 4, 4, 4, 9]]
    audits, traces, patterns = [], [], []
    for form in ("plain", "einsum", "fused", "grouped", "copies first", "expanded", "copied", "stacked"):
        ckpt = loaded(network_of(2, form))
        audits.append(td.audit(ckpt))
        traces.append(td.trace(ckpt, prompts))
        patterns.append(td.attention_seen(ckpt, prompts, patterns=True).pattern)
    for audit, trace, pattern in zip(audits[1:], traces[1:], patterns[1:], strict=True):
        for name, values in audits[0].data_vars.items():
            if values.dtype.kind == "f":
                np.testing.assert_allclose(audit[name], values, rtol=1e-6, atol=1e-6, err_msg=str(name))
        np.testing.assert_allclose(trace.consensus_first, traces[0].consensus_first, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(trace.attention_received, traces[0].attention_received, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(pattern, patterns[0], rtol=1e-5, atol=1e-6)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["plain", "einsum", "fused", "stacked"])
def test_a_head_without_effect_is_one_whose_columns_are_zero(form: str) -> None:
    network, width, prompts = network_of(form=form), DIM // HEADS, [[5, 9, 33, 21, 7], [12, 3, 38, 2]]
    with loaded(network).varied({"layer 2 head 1": 0}):
        pass
    without = loaded(network).under({"layer 2 head 1": 0})
    network.h[1].attn.c_proj.weight.data[:, width : 2 * width] = 0
    for prompt in prompts:
        by_hand, gated = loaded(network).states(torch.tensor(prompt)), without.states(torch.tensor(prompt))
        torch.testing.assert_close(gated.feed_forward, by_hand.feed_forward)


@pytest.mark.long
@pytest.mark.parametrize("form", ["plain", "einsum", "fused", "grouped", "stacked"])
def test_a_factor_on_the_logits_is_one_on_the_queries(form: str) -> None:
    network, prompt = network_of(2, form), torch.tensor([5, 9, 33, 21, 7])
    hotter = loaded(network).under({"logits": 0.5}).states(prompt)
    changed = network_of(2, form)
    for block in changed.h:
        block.attn.c_attn.weight.data[:DIM] *= 0.5
        block.attn.c_attn.bias.data[:DIM] *= 0.5
    torch.testing.assert_close(hotter.feed_forward, loaded(changed).states(prompt).feed_forward)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_audit_in_half_precision_is_that_of_its_rounded_weights(dtype: torch.dtype) -> None:
    network = network_of(2).to(dtype)
    audit, of_rounded = (td.audit(loaded(given)) for given in (network, copy.deepcopy(network).float()))
    for name, values in of_rounded.data_vars.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(audit[name], values, rtol=1e-6, atol=1e-6, err_msg=str(name))
    given: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda *seen: given.append(seen[2][0])) for block in network.h]
    prompt = torch.tensor([5, 9, 33, 21, 7])
    with torch.no_grad():
        network(prompt[None])
    for hook in hooks:
        hook.remove()
    assert torch.equal(loaded(network).states(prompt).feed_forward[1:].to(dtype), torch.stack(given))


class Scaled(nn.Module):
    """Blocks whose parts are multiplied in the block itself: by a parameter, or by what a condition makes (DiT)."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.words, self.condition = nn.Embedding(VOCABULARY, DIM), nn.Linear(1, DIM)
        self.blocks = nn.ModuleList(_ScaledBlock(by) for _ in range(2))

    def forward(self, ids: Tensor, time: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x, self.condition(time[:, None]))
        return x


class _ScaledBlock(nn.Module):
    def __init__(self, by: str) -> None:
        super().__init__()
        self.by, self.attn = by, Attention(HEADS, "fused")
        self.ln_1, self.ln_2 = (nn.LayerNorm(DIM, elementwise_affine=by == "parameter") for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(DIM, 32), nn.GELU(), nn.Linear(32, DIM))
        self.scales, self.modulation = nn.Parameter(torch.rand(2, DIM)), nn.Linear(DIM, 6 * DIM)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        if self.by == "parameter":
            x = x + self.scales[0] * self.attn(self.ln_1(x))
            return x + self.scales[1] * self.mlp(self.ln_2(x))
        a, b, c, d, e, f = self.modulation(condition)[:, None].chunk(6, dim=-1)
        x = x + c * self.attn(self.ln_1(x) * (1 + a) + b)
        return x + f * self.mlp(self.ln_2(x) * (1 + d) + e)


@pytest.mark.parametrize("by", ["parameter", "condition"])
def test_factors_of_features_on_the_parts_of_a_block_are_found(by: str) -> None:
    torch.manual_seed(5)
    network = Scaled(by).eval()
    # One time step for each input of the example.
    example = {"ids": torch.randint(0, VOCABULARY, (2, 7)), "time": torch.tensor([0.3, 0.7])}
    ckpt = td.load(network, inputs=example)
    layer = ckpt.layout.layers[1]
    assert layer.attention is not None, layer.problem
    assert layer.residual is not None, layer.problem
    assert (layer.parts, layer.residual.attention_factor) == (("attn", "mlp"), None)
    prompt = {name: value[:1] for name, value in example.items()}
    block: Any = network.blocks[0]
    x = network.words(prompt["ids"])
    states, condition = ckpt.states(prompt), network.condition(prompt["time"][:, None])
    torch.testing.assert_close(states.feed_forward[1], block(x, condition)[0].detach())
    handed: list[Tensor] = []
    hook = block.ln_2.register_forward_hook(lambda module, read, given: handed.append(read[0][0].detach()))
    block(x, condition)
    hook.remove()
    torch.testing.assert_close(states.attention[1], handed[0])
    without = ckpt.under({"layer 1 attention": 0.0}).states(prompt).feed_forward[1]
    block.attn.c_proj.weight.data.zero_()
    block.attn.c_proj.bias.data.zero_()
    torch.testing.assert_close(without, block(x, condition)[0].detach())


@pytest.mark.long
def test_an_attention_that_reads_a_modulated_norm_is_no_flow_of_the_states() -> None:
    torch.manual_seed(5)
    example = {"ids": torch.randint(0, VOCABULARY, (2, 7)), "time": torch.tensor([0.3, 0.7])}
    for by, changed in (("parameter", False), ("condition", True)):
        ckpt = td.load(Scaled(by).eval(), inputs=example)
        attention = ckpt.layout.layers[0].attention
        assert attention is not None
        assert attention.changed is changed
        assert ("neither the state nor a recognized norm of it" in td.audit(ckpt).attrs["form"]) is changed
        words = (
            "an input that is neither the state nor a recognized norm of it"
            if changed
            else "a factor of what its output"
        )
        with pytest.raises(ArgumentValueError, match=words):
            td.flow_of(ckpt, layers=[1])


class _AfterOutput(Attention):
    """Something acts on what its output projection gives, within the attention or in the block."""

    def __init__(self, form: str) -> None:
        super().__init__(HEADS, "fused")
        self.after, self.gain, self.second = form, nn.Parameter(torch.tensor(-0.6)), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.after == "negative":
            return -y
        if self.after == "gain":
            return self.gain * y
        return self.second(y) if self.after == "second" else y


class _GainedBlock(Block):
    """Sums with learned gains, one after the other or in parallel; or with a number."""

    def __init__(self, form: str) -> None:
        super().__init__(HEADS, "fused")
        self.attn, self.form = _AfterOutput(form), form
        self.a, self.b = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.tensor(0.4))

    def forward(self, x: Tensor) -> Tensor:
        if "parallel" in self.form:
            h, (a, b) = self.ln_1(x), (0.3, 0.7) if self.form == "numbers in parallel" else (self.a, self.b)
            return x + a * self.attn(h) + b * self.mlp(h)
        a, b = (self.a, self.b) if self.form == "gains" else (1.0, 1.0)
        x = x + a * self.attn(self.ln_1(x))
        return x + b * self.mlp(self.ln_2(x))


AFTER = {
    "none": "", "negative": "a factor", "gain": "a factor", "second": "a function",
    "gains": "a factor", "gains in parallel": "a factor", "numbers in parallel": "",
}  # fmt: skip


@pytest.mark.parametrize("form", AFTER)
def test_what_acts_behind_the_output_projection_is_named_and_no_head_is_added_up_without_it(form: str) -> None:
    torch.manual_seed(7)
    network: Any = SmallGPT(HEADS, "fused").eval()
    network.h = nn.ModuleList(_GainedBlock(form) for _ in range(2))
    ckpt, after = loaded(network), AFTER[form]
    attention, residual = ckpt.layout.layers[0].attention, ckpt.layout.layers[0].residual
    assert attention is not None
    assert residual is not None
    assert attention.after_output == after
    if form in ("none", "second", "numbers in parallel"):
        assert residual.attention_factor == pytest.approx(0.3 if "numbers" in form else 1.0)
    elif "gains" in form:
        assert residual.attention_factor is None
    assert ("acts on what attn.c_proj gives and is left out" in td.audit(ckpt).attrs["form"]) is bool(after)
    prompts = [[5, 9, 33, 21, 7], [12, 3, 38, 2], [1, 30, 4, 4, 9]]
    if after:
        for adds_up_heads in (td.source_tokens, lambda *given: td.flow_of(given[0], layers=[1])):
            with pytest.raises((CheckpointError, ArgumentValueError), match=f"{after} (acts on|of) what its output"):
                adds_up_heads(ckpt, prompts)
    states, x = ckpt.states(torch.tensor(prompts[0])), network.wte(torch.tensor([prompts[0]]))
    x = x + network.wpe(torch.arange(5))
    block: Any = network.h[0]
    if form == "gains in parallel":
        assert bool(states.attention[1].isnan().all())
    else:
        a = {"gains": block.a, "numbers in parallel": 0.3}.get(form, 1.0)
        torch.testing.assert_close(states.attention[1], (x + a * block.attn(block.ln_1(x)))[0].detach())


class _GivesDictionary(Block):
    def forward(self, x: Tensor) -> Any:
        return {"out": super().forward(x), "aux": torch.zeros(1)}


@dataclass(frozen=True)
class _Output:
    out: Tensor
    aux: Tensor


class _GivesDataclass(Block):
    def forward(self, x: Tensor) -> Any:
        return _Output(super().forward(x), torch.zeros(1))


class _GivesNamespace(Block):
    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(aux=None, out=super().forward(x))


class _GivesWeightsFirst(Block):
    def forward(self, x: Tensor) -> Any:
        return torch.full((len(x), HEADS, x.shape[1], x.shape[1]), 1.0 / x.shape[1]), super().forward(x)


class _ReadsByName(Block):
    def forward(self, *, tokens_in: Tensor, mask: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        del mask
        return super().forward(tokens_in)


class _AttentionGivesWeightsFirst(Block):
    def forward(self, x: Tensor) -> Any:
        _, attended = self.attn(self.ln_1(x))
        return x + attended + self.mlp(self.ln_2(x + attended))


class _WithWeights(Attention):
    def forward(self, x: Tensor) -> Any:
        return torch.full((len(x), HEADS, x.shape[1], x.shape[1]), 1.0 / x.shape[1]), super().forward(x)


class _InAttributes(SmallGPT):
    """Blocks as attributes of their own, or in a dictionary."""

    def __init__(self, dictionary: bool) -> None:
        super().__init__()
        blocks = dict(zip("abc", self.h, strict=True))
        del self.h
        if dictionary:
            self.blocks = nn.ModuleDict(blocks)
        else:
            self.a, self.b, self.c = blocks.values()

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for name in "abc":
            x = (self.blocks[name] if hasattr(self, "blocks") else getattr(self, name))(x)
        return self.head(self.ln_f(x))


@pytest.mark.long
@pytest.mark.parametrize("dictionary", [False, True])
def test_blocks_in_attributes_or_a_dictionary_are_read_like_those_of_a_list(dictionary: bool) -> None:
    plain, network = network_of(), _InAttributes(dictionary).eval()
    prefix = "blocks." if dictionary else ""
    names = {f"h.{place}.": f"{prefix}{name}." for place, name in enumerate("abc")}
    weights = {
        next((name.replace(old, new) for old, new in names.items() if name.startswith(old)), name): value
        for name, value in plain.state_dict().items()
    }
    network.load_state_dict(weights)
    expected, ckpt = loaded(plain), loaded(network)
    assert ckpt.layout.blocks == tuple(f"{prefix}{name}" for name in "abc")
    assert [layer.problem for layer in ckpt.layout.layers] == [""] * 3
    prompt = {"idx": torch.arange(7)[None]}
    for gates in ({}, {"layer 2 attention": 0.0}):
        states, others = expected.under(gates).states(prompt), ckpt.under(gates).states(prompt)
        torch.testing.assert_close(others.feed_forward, states.feed_forward)
    for layer in (1, 3):
        for name in ("query", "key", "value", "output"):
            factors = (getattr(net.attention(layer), name) for net in (ckpt, expected))
            torch.testing.assert_close(*factors)


class _OneBlock(SmallGPT):
    def __init__(self) -> None:
        super().__init__()
        self.block = self.h[0]
        del self.h

    def forward(self, idx: Tensor) -> Tensor:
        return self.head(self.ln_f(self.block(self.wte(idx) + self.wpe(torch.arange(idx.shape[1])))))


def test_the_one_block_of_a_small_network_is_read() -> None:
    torch.manual_seed(5)
    network = _OneBlock().eval()
    ckpt = loaded(network)
    assert ckpt.layout.blocks == ("block",)
    assert ckpt.layout.layers[0].problem == ""
    ids = torch.arange(7)
    x = network.wte(ids) + network.wpe(torch.arange(7))
    block: Any = network.block
    torch.testing.assert_close(ckpt.states({"idx": ids[None]}).feed_forward[1], block(x[None])[0].detach())
    rows = block.attn.c_attn.weight.detach()
    for head in range(HEADS):
        torch.testing.assert_close(ckpt.attention(1).query[head], rows[head * 6 : (head + 1) * 6].mT)


HANDED_ON = {
    "dictionary": _GivesDictionary,
    "dataclass": _GivesDataclass,
    "namespace": _GivesNamespace,
    "weights first": _GivesWeightsFirst,
    "by name": _ReadsByName,
    "attention gives weights first": _AttentionGivesWeightsFirst,
}


class _HandsOn(SmallGPT):
    def __init__(self, block: str) -> None:
        super().__init__()
        self.h = nn.ModuleList(HANDED_ON[block](HEADS, "plain") for _ in range(3))
        if block == "attention gives weights first":
            for inner in self.h:
                inner.attn = _WithWeights(HEADS, "plain")

    def forward(self, idx: Tensor) -> Tensor:
        x: Any = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            mask = torch.zeros(1, idx.shape[1], idx.shape[1])
            x = block(mask=mask, tokens_in=x) if isinstance(block, _ReadsByName) else block(x)
            x = x["out"] if isinstance(x, dict) else x[1] if isinstance(x, tuple) else getattr(x, "out", x)
        return self.head(self.ln_f(x))


@pytest.mark.long
@pytest.mark.parametrize("block", HANDED_ON)
def test_states_are_read_whatever_else_a_block_or_an_attention_gives_and_however_it_is_called(block: str) -> None:
    plain = network_of()
    network = _HandsOn(block).eval()
    network.load_state_dict(plain.state_dict())
    expected, ckpt = loaded(plain), loaded(network)
    assert [layer.problem for layer in ckpt.layout.layers] == [""] * 3
    prompt = {"idx": torch.arange(7)[None]}
    for gates in ({}, {"layer 2 attention": 0.0}, {"layer 3 feed_forward": 0.5}):
        states, others = expected.under(gates).states(prompt), ckpt.under(gates).states(prompt)
        for part in ("attention", "feed_forward"):
            torch.testing.assert_close(getattr(others, part), getattr(states, part), equal_nan=True)
    for quantity in ("effective_rank", "attention_received", "attention_uniform"):
        measured, wanted = (td.trace(net, {"a": prompt})[quantity] for net in (ckpt, expected))
        np.testing.assert_allclose(measured, wanted, rtol=1e-4, atol=1e-6)


class _StaysOn(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(functional.dropout(x, 0.1))


@pytest.mark.long
def test_a_network_whose_dropout_stays_on_is_diagnosed_with_a_word_on_it() -> None:
    steady = network_of()
    network = network_of()
    network.h[1].__class__ = _StaysOn
    for net, varies in ((steady, False), (network, True)):
        ckpt = loaded(net)
        assert ckpt.layout.varies is varies
        diagnosis = td.diagnose(ckpt, [{"idx": torch.randint(0, VOCABULARY, (1, 7))} for _ in range(2)])
        assert ("different numbers" in str(diagnosis)) is varies
        assert ("different numbers" in diagnosis.trace.attrs.get("notes", "")) is varies


@pytest.mark.parametrize("prompt", [torch.tensor([3, 999, 1]), {"idx": torch.tensor([[3, 999, 1]])}, [3, 999, 1]])
def test_ids_beyond_the_table_are_refused_with_its_size(prompt: Any) -> None:
    ckpt = loaded(network_of())
    words = (
        f"idx: expected ids from 0 to {VOCABULARY - 1}, as its table .* has {VOCABULARY} rows, got ids from 1 to 999"
    )
    for measured in (td.trace, td.attention_seen, lambda ckpt, texts: ckpt.states(texts[0])):
        with pytest.raises(ArgumentValueError, match=words):
            measured(ckpt, [torch.tensor(prompt) if isinstance(prompt, list) else prompt])
    with pytest.raises(ArgumentValueError, match=r"idx: .* got ids from -1 to 999"):
        td.load(network_of(), inputs=lambda count: {"idx": torch.tensor([[-1, 999, 2, 4, 5]]).repeat(count, 1)})


class _Aside(nn.Module):
    """The last module that runs reads nothing of the blocks; one feature of the first token is very large."""

    def __init__(self, network: Any, size: float) -> None:
        super().__init__()
        self.network, self.last, self.size = network, nn.Linear(1, 1), size

    def forward(self, idx: Tensor) -> Any:
        handle = self.network.h[0].register_forward_hook(lambda module, given, y: y + self.massive(y))
        self.network(idx)
        handle.remove()
        return self.last(torch.ones(len(idx), 1))

    def massive(self, y: Tensor) -> Tensor:
        added = torch.zeros_like(y)
        added[:, 0, 0] = self.size
        return added


@pytest.mark.long
@pytest.mark.parametrize("size", [0.0, 1e6])
@pytest.mark.parametrize("varies", [False, True])
def test_chance_in_a_block_is_seen_wherever_it_ends_and_however_large_other_tokens_are(
    varies: bool, size: float
) -> None:
    network = network_of()
    if varies:
        network.h[1].__class__ = _StaysOn
    assert loaded(_Aside(network, size)).layout.varies is varies


class _Adapted(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.down, self.up = inner, nn.Linear(DIM, 3), nn.Linear(3, DIM)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y + self.up(self.down(y).relu())


@pytest.mark.parametrize("place", [0, 2])
def test_an_adapter_around_some_attentions_is_read(place: int) -> None:
    network: Any = network_of()
    prompt, width = torch.tensor([5, 9, 33, 21, 7]), DIM // HEADS
    block = network.h[place]
    inner = block.attn
    block.attn = _Adapted(inner).eval()
    ckpt = loaded(network)
    assert [layer.problem for layer in ckpt.layout.layers] == [""] * 3
    assert td.audit(ckpt).sizes["layer"] == 3
    without = ckpt.under({f"layer {place + 1} head 1": 0}).states(prompt).feed_forward
    inner.c_proj.weight.data[:, width : 2 * width] = 0
    torch.testing.assert_close(without, loaded(network).states(prompt).feed_forward)


class _Skipping(SmallGPT):
    """Adds states of an earlier block to those of a later one, outside of the blocks, as U-shaped networks do."""

    def forward(self, idx: Tensor) -> Tensor:
        first = self.h[0](self.wte(idx) + self.wpe(torch.arange(idx.shape[1])))
        return self.head(self.ln_f(self.h[2](self.h[1](first) + 5 * first)))


@pytest.mark.long
def test_a_change_outside_of_the_blocks_is_named_and_is_no_update_of_an_attention() -> None:
    torch.manual_seed(5)
    texts = [torch.randint(0, VOCABULARY, (7,)) for _ in range(4)]
    several = (_Skipping().eval(), network_of())
    skipping, plain = (
        td.diagnose(loaded(network), texts, levers=False, heads=False, directions=False, baseline=None)
        for network in several
    )
    assert [layer.joins for layer in loaded(several[0]).layout.layers] == [False, False, True]
    words = "efore layer 3 the network changes the states outside of its blocks"
    assert words in skipping.trace.notes
    assert words in skipping.markdown()
    assert float(skipping.trace.update_ratio.median("prompt").sel(layer=3, component="attention")) > 3
    assert "attention of layer 3 (" not in skipping.markdown()
    assert "outside of its blocks" not in plain.markdown() + plain.trace.attrs.get("notes", "")


class _Pooling(SmallGPT):
    """Has attentions of one more kind before and behind its blocks."""

    def __init__(self) -> None:
        super().__init__(form="fused")
        self.stem, self.pool = (nn.MultiheadAttention(DIM, HEADS, batch_first=True) for _ in range(2))

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        x = x + self.stem(x, x, x)[0]
        for block in self.h:
            x = block(x)
        return self.head(self.pool(x, x, x)[0])


def test_attentions_outside_of_the_blocks_are_named_and_not_taken_for_those_of_layers() -> None:
    torch.manual_seed(5)
    network, prompt = _Pooling().eval(), torch.randint(0, VOCABULARY, (13,))
    ckpt = loaded(network)
    assert ckpt.layout.outside == ("stem", "pool")
    given: list[Tensor] = []
    for block in network.h:
        block.attn.c_attn.register_forward_hook(lambda *seen: given.append(seen[2]))  # pyright: ignore
    with torch.no_grad():
        network(prompt[None])
    parts = [part.unflatten(-1, (3, HEADS, DIM // HEADS)).permute(2, 0, 3, 1, 4) for part in given]
    hidden = torch.ones(13, 13, dtype=torch.bool).triu(1)
    weights = [(q @ k.mT / math.sqrt(DIM // HEADS)).masked_fill(hidden, -torch.inf).softmax(-1) for q, k, _ in parts]
    pattern = td.attention_seen(ckpt, [prompt], patterns=True).pattern[0]
    np.testing.assert_allclose(pattern, torch.cat(weights), rtol=1e-5, atol=1e-6)
    trace = td.trace(ckpt, [prompt])
    assert "layers are h.0 to h.2, and 2 attentions outside of them (stem and pool) are not measured" in trace.notes
    last = weights[1][0].mean(0)[4:, 0].mean()
    assert float(trace.attention_received.sel(layer=2)[0, 0]) == pytest.approx(float(last), rel=1e-5)


def test_a_comparison_says_where_differences_can_be_those_of_two_passes() -> None:
    network = network_of()
    texts = [{"idx": torch.randint(0, VOCABULARY, (1, 7))} for _ in range(3)]
    same = td.compare(loaded(network), loaded(network), texts=texts, names=["a", "b"])
    network.h[1].__class__ = _StaysOn
    varying = td.compare(loaded(network_of()), loaded(network), texts=texts, names=["a", "b"])
    assert "different numbers" not in str(same)
    assert str(varying).split("\n")[1].startswith("- Two passes of b over the same input give different numbers")


class _OtherName(SmallGPT):
    def forward(self, tokens: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(tokens)


@pytest.mark.long
def test_networks_whose_only_arguments_have_other_names_are_compared_on_the_same_tokens() -> None:
    network = network_of()
    other: Any = _OtherName().eval()
    other.load_state_dict(network.state_dict())
    texts = [torch.randint(0, VOCABULARY, (7,)) for _ in range(3)]
    made = td.load(other, inputs={"tokens": torch.randint(0, VOCABULARY, (2, 7))})
    same = td.compare(loaded(network), made, texts=texts, halved=False).summary()
    assert "all states are equal to the last bit" in same
    other.h[1].attn.c_proj.weight.data *= 2
    changed = td.compare(loaded(network), made, texts=texts, halved=False).summary()
    assert "the first difference is in the attention of layer 2" in changed


class Letters:
    """A tokenizer of letters."""

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) % VOCABULARY for letter in text]}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [f"<{number}>" for number in ids]

    def decode(self, ids: list[int], **_: Any) -> str:
        return " ".join(self.convert_ids_to_tokens(ids))


@pytest.mark.long
def test_a_text_is_refused_without_a_tokenizer_and_read_with_one() -> None:
    network = network_of()
    with pytest.raises(ArgumentTypeError, match=r"expected token ids, since no tokenizer .* pass a tokenizer as in td"):
        td.trace(loaded(network), "a text")

    tokenizer = Letters()
    read = td.load(network, tokenizer, inputs=lambda count: {"idx": torch.randint(0, VOCABULARY, (count, 7))})
    ids = tokenizer("a text")["input_ids"]
    by_text, by_ids = td.trace(read, "a text"), td.trace(read, ids)
    np.testing.assert_array_equal(by_text.consensus_within, by_ids.consensus_within)
    assert by_text.token_text.values.tolist() == [[f"<{number}>" for number in ids]]
    windows = td.trace(read, {"a": "a text of some length"}, window=8)
    assert windows.sizes["prompt"] > 1
    assert windows.token_text.values.tolist()[0] == [f"<{number}>" for number in tokenizer("a text o")["input_ids"]]
    with pytest.raises(ArgumentTypeError, match="expected token ids, since no tokenizer"):
        td.trace(loaded(network), {"a": "a text of some length"}, window=8)


class _BeginsWithNorm(Attention):
    """Normalizes what it reads by itself, as in vit-pytorch."""

    def __init__(self) -> None:
        super().__init__(HEADS, "fused")
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))


class _WithoutFirstNorm(Block):
    def __init__(self) -> None:
        super().__init__(HEADS, "fused")
        self.attn, self.ln_1 = _BeginsWithNorm(), nn.Identity()


def test_a_norm_by_which_an_attention_begins_is_that_of_its_block() -> None:
    outside = network_of(form="fused")
    within: Any = network_of(form="fused")
    blocks: list[Any] = [_WithoutFirstNorm() for _ in range(3)]
    within.h = nn.ModuleList(blocks)
    for block, other in zip(blocks, outside.h, strict=True):
        block.attn.norm, block.ln_2, block.mlp = other.ln_1, other.ln_2, other.mlp
        block.attn.c_attn, block.attn.c_proj = other.attn.c_attn, other.attn.c_proj
    ckpts = [loaded(within.eval()), loaded(outside)]
    assert [ckpt.layout.layers[1].norms[0] for ckpt in ckpts] == ["attn.norm", "ln_1"]
    one, other = map(td.audit, ckpts)
    for name in (name for name in one.data_vars if one[name].dtype.kind == "f"):
        np.testing.assert_allclose(one[name], other[name], rtol=1e-6, atol=1e-7, err_msg=str(name))
    for change in ({}, "no-norm", {"layer 2 head 1": 0.0}):
        states = [ckpt.under(change).states(torch.tensor([5, 9, 33, 21, 7])).feed_forward for ckpt in ckpts]
        torch.testing.assert_close(*states)


class _OneHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(DIM, DIM // HEADS, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1) == 1
        logits = self.query(x) @ self.key(x).mT * (DIM // HEADS) ** -0.5
        return logits.masked_fill(hidden, float("-inf")).softmax(dim=-1) @ self.value(x)


class _ListOfHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads, self.proj = nn.ModuleList(_OneHead() for _ in range(HEADS)), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))


@pytest.mark.long
@pytest.mark.parametrize("of_blocks", [nn.ModuleList, nn.Sequential])
def test_blocks_with_a_list_of_heads_are_traced(of_blocks: Any) -> None:
    torch.manual_seed(3)
    network: Any = SmallGPT().eval()
    for block in network.h:
        block.attn = _ListOfHeads()
    network.h = nn.ModuleList(network.h) if of_blocks is nn.ModuleList else nn.Sequential(*network.h)
    prompt, handed = torch.tensor([5, 9, 33, 21, 7]), list[Tensor]()
    ckpt = loaded(network)
    hooks = [block.register_forward_hook(lambda *given: handed.append(given[2][0])) for block in network.h]
    with torch.no_grad():
        network(prompt[None])
    for hook in hooks:
        hook.remove()
    assert torch.equal(ckpt.states(prompt).feed_forward[1:], torch.stack(handed))
    assert ckpt.layout.layers[0].parts == ("attn", "mlp")
    assert td.audit(ckpt).sizes["head"] == HEADS


class _InOneRow(SmallGPT):
    """All inputs stand in one row of tokens, as in Pixtral: a token sees those of its input, or any before it."""

    apart = False

    def forward(self, idx: Tensor) -> Tensor:
        if self.apart:
            document = torch.arange(idx.numel()) // idx.shape[1]
            for block in self.h:
                block.attn.bias = (document[:, None] == document).tril()[None, None]  # pyright: ignore
        x = (self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))).flatten(0, 1)[None]
        self.states = [x]
        for block in self.h:
            x = block(x)
            self.states.append(x)
        return self.head(self.ln_f(x)).unflatten(1, idx.shape)[0]


@pytest.mark.long
@pytest.mark.parametrize("apart", [False, True])
def test_inputs_in_one_row_are_traced_and_not_audited(apart: bool) -> None:
    torch.manual_seed(5)
    network = _InOneRow(4, "plain").eval()
    network.apart = apart
    ckpt = td.load(network, inputs=lambda count: {"idx": torch.randint(0, VOCABULARY, (count, 7))})
    words = "all inputs share 1 row of tokens, too few to find what positions do"
    assert [layer.problem for layer in ckpt.layout.layers] == [words] * 3
    prompts = [[5, 9, 33, 21, 7], [12, 3, 38, 2, 9], [1, 30, 4, 4, 4]]
    states = ckpt.states(torch.tensor(prompts[0]))
    network(torch.tensor(prompts[:1]))
    assert torch.equal(states.feed_forward, torch.cat(network.states))
    trace, alone = td.trace(ckpt, prompts), td.trace(ckpt, prompts[0])
    np.testing.assert_allclose(trace.mean_pair_cosine[0], alone.mean_pair_cosine[0], atol=1e-6)
    assert td.attention_seen(ckpt, prompts).sizes["prompt"] == 3


class _Sublayer(nn.Module):
    """A residual connection that calls what belongs to the layer, as in the Annotated Transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor, called: Any) -> Tensor:
        return x + called(self.norm(x))


class _Cross(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        q, k, v = (
            map_(states).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for map_, states in ((self.q, x), (self.k, memory), (self.v, memory))
        )
        return self.o(((q @ k.mT / math.sqrt(DIM // HEADS)).softmax(-1) @ v).transpose(1, 2).flatten(2))


class _OfSublayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.cross, self.mlp = Attention(HEADS, "plain"), _Cross(), nn.Linear(DIM, DIM)
        self.sublayers = nn.ModuleList(_Sublayer() for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = self.sublayers[0](x, self.attn)
        x = self.sublayers[1](x, lambda states: self.cross(states, memory))
        return self.sublayers[2](x, self.mlp)


class _Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(VOCABULARY, DIM), nn.ModuleList(_OfSublayers() for _ in range(2))

    def forward(self, ids: Tensor, memory: Tensor) -> Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x, memory)
        return x


def test_a_layer_of_residual_connections_that_call_its_attentions_is_one_block() -> None:
    torch.manual_seed(5)
    network: Any = _Decoder().double().eval()
    ckpt = td.load(network, inputs={"ids": torch.arange(14).view(2, 7), "memory": torch.randn(2, 4, DIM).double()})
    assert ckpt.layout.blocks == ("layers.0", "layers.1")
    weights, rows = ckpt.attention(2), network.layers[1].attn.c_attn.weight.detach()
    torch.testing.assert_close(weights.query, rows[:DIM].mT.unflatten(1, (HEADS, -1)).transpose(0, 1))
    given = {"ids": torch.tensor([[5, 9, 33, 21]]), "memory": torch.randn(1, 4, DIM).double()}
    assert torch.equal(ckpt.states(given).feed_forward[2:], network(**given))


class _Zeros(nn.Module):
    def forward(self, ids: Tensor) -> Tensor:
        return torch.zeros(*ids.shape, DIM, dtype=torch.float64)


def test_sums_with_a_state_of_zeros_are_not_guessed() -> None:
    """Queries of DETR begin at zero: what normalizes the attention's part could be in the sum or around it."""
    torch.manual_seed(5)
    network: Any = _Decoder().double().eval()
    network.words = _Zeros()
    given = {"ids": torch.arange(14).view(2, 7), "memory": torch.randn(2, 4, DIM).double()}
    first, second = td.load(network, inputs=given).layout.layers
    assert "it reads zeros for every token" in first.problem
    assert first.residual is None
    assert "it reads zeros" not in second.problem
