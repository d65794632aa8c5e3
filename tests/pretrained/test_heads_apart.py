"""Heads that are modules of their own, as in tutorials that write a GPT from scratch, are those of one attention."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tokendynamics as td
from tokendynamics.diagnosis.gating.sensitivities import sensitivities
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.discovery.attention_call import AttentionCall
from tokendynamics.pretrained.discovery.interface import watching
from tokendynamics.pretrained.edits.gates import HeadGates
from tokendynamics.provenance.progress import silent

DIM, HEADS, WIDTH, VOCABULARY = 24, 4, 6, 40

PROMPTS = [[5, 9, 33, 21, 7], [12, 3, 38, 2, 30, 6], [1, 30, 4, 4, 4, 9], [8, 2, 17, 11], [3, 3, 29, 14, 0, 22, 6]]


class Head(nn.Module):
    """One head: its own maps, mask and dropout."""

    tril: Tensor

    def __init__(self, masked: bool, bias: bool, shared: nn.Module | None = None) -> None:
        super().__init__()
        self.key = nn.Linear(DIM, WIDTH, bias=bias) if shared is None else shared
        self.query, self.value = (nn.Linear(DIM, WIDTH, bias=bias) for _ in range(2))
        self.register_buffer("tril", torch.ones(16, 16).tril())
        self.dropout, self.masked = nn.Dropout(0.1), masked

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.shape[1]
        logits = self.query(x) @ self.key(x).transpose(-2, -1) * WIDTH**-0.5
        if self.masked:
            logits = logits.masked_fill(self.tril[:tokens, :tokens] == 0, float("-inf"))
        return self.dropout(logits.softmax(dim=-1)) @ self.value(x)


class Attention(nn.Module):
    """Heads in a list, or all of them at once with the same maps."""

    def __init__(self, form: str, masked: bool, bias: bool) -> None:
        super().__init__()
        shared = nn.Linear(DIM, WIDTH, bias=bias) if form == "shared keys" else None
        self.heads = nn.ModuleList(Head(masked, bias, shared) for _ in range(HEADS))
        self.dropout, self.form = nn.Dropout(0.1), form
        self.factors = nn.Parameter(torch.linspace(-0.8, 1.5, HEADS))
        self.proj = nn.Linear(DIM, DIM) if form != "no projection" else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "no projection":
            return torch.cat([head(x) for head in self.heads], dim=-1)
        if self.form != "at once":
            outputs = [head(x) for head in self.heads]
            if self.form == "reversed":
                outputs.reverse()
            if self.form == "thirds":
                outputs = [part / 3 for part in outputs]
            if self.form == "with factors":
                outputs = [factor.sigmoid() * part for factor, part in zip(self.factors, outputs, strict=True)]
            return self.dropout(self.proj(torch.cat(outputs, dim=-1)))
        heads: list[Any] = list(self.heads)
        q, k, v = (torch.stack([getattr(head, name)(x) for head in heads], dim=1) for name in ("query", "key", "value"))
        logits, tokens = q @ k.mT * WIDTH**-0.5, x.shape[1]
        if heads[0].masked:
            logits = logits.masked_fill(heads[0].tril[:tokens, :tokens] == 0, float("-inf"))
        return self.proj((logits.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, form: str, masked: bool, bias: bool, norm_first: bool) -> None:
        super().__init__()
        self.sa, self.ln1, self.ln2 = Attention(form, masked, bias), nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.ffwd = nn.Sequential(nn.Linear(DIM, 32), nn.ReLU(), nn.Linear(32, DIM), nn.Dropout(0.1))
        self.norm_first = norm_first

    def forward(self, x: Tensor) -> Tensor:
        if self.norm_first:
            x = x + self.sa(self.ln1(x))
            return x + self.ffwd(self.ln2(x))
        x = self.ln1(x + self.sa(x))
        return self.ln2(x + self.ffwd(x))


class FromScratch(nn.Module):
    def __init__(self, form: str = "modules", masked: bool = True, bias: bool = False, norm_first: bool = True) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, DIM), nn.Embedding(16, DIM)
        self.blocks = nn.Sequential(*[Block(form, masked, bias, norm_first) for _ in range(3)])
        self.ln_f, self.lm_head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCABULARY)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.words(idx) + self.places(torch.arange(idx.shape[1]))
        return self.lm_head(self.ln_f(self.blocks(x)))


def network_of(form: str = "modules", **named: bool) -> Any:
    torch.manual_seed(5)
    network = FromScratch(form, **named).double().eval()
    for parameter in network.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return network


def loaded(network: nn.Module) -> Checkpoint:
    return td.load(network, inputs=lambda count: {"idx": torch.randint(0, VOCABULARY, (count, 7))})


def check_equal(one: Any, other: Any, names: Any, tolerance: float = 1e-6) -> None:
    for name in names:
        if one[name].dtype.kind == "f":
            np.testing.assert_allclose(other[name], one[name], rtol=tolerance, atol=tolerance, err_msg=str(name))


@pytest.mark.long
@pytest.mark.parametrize(
    "named", [{}, {"masked": False}, {"bias": True}, {"norm_first": False}], ids=["plain", "unmasked", "bias", "post"]
)
def test_heads_in_modules_are_the_network_that_has_them_at_once(named: dict[str, bool]) -> None:
    one, other = (loaded(network_of(form, **named)) for form in ("modules", "at once"))
    assert [layer.problem for layer in one.layout.layers] == [""] * 3
    assert [layer.runs for layer in one.layout.layers] == [HEADS] * 3
    assert [layer.runs for layer in other.layout.layers] == [1] * 3
    layouts = [ckpt.layout.layers[1].attention for ckpt in (one, other)]
    assert layouts[0] is not None
    assert (layouts[0].heads, layouts[0].kv_heads, layouts[0].causal) == (HEADS, HEADS, named.get("masked", True))
    audits = [td.audit(ckpt) for ckpt in (one, other)]
    check_equal(*audits, audits[0].data_vars)
    seen = [td.attention_seen(ckpt, PROMPTS, patterns=True) for ckpt in (one, other)]
    check_equal(*seen, seen[0].data_vars)
    traces = [td.trace(ckpt, PROMPTS) for ckpt in (one, other)]
    check_equal(*traces, ("consensus_first", "attention_received"))
    effects = [td.head_effects(ckpt, PROMPTS, candidates=2) for ckpt in (one, other)]
    check_equal(*effects, effects[0].data_vars)


@pytest.mark.long
def test_the_factors_and_circuits_are_products_of_the_heads_own_maps() -> None:
    network = network_of()
    ckpt = loaded(network)
    for number, block in enumerate(network.blocks, 1):
        weights = ckpt.attention(number)
        for head, module in enumerate(block.sa.heads):
            qk = module.query.weight.mT @ module.key.weight
            torch.testing.assert_close(weights.query[head] @ weights.key[head].mT, qk.detach(), rtol=1e-6, atol=1e-9)
            ov = module.value.weight.mT @ block.sa.proj.weight[:, head * WIDTH : (head + 1) * WIDTH].mT
            torch.testing.assert_close(weights.value[head] @ weights.output[head], ov.detach(), rtol=1e-6, atol=1e-9)


def test_the_attention_seen_is_that_which_the_heads_compute() -> None:
    network, given = network_of(), dict[str, Tensor]()
    pattern = td.attention_seen(loaded(network), PROMPTS[:1], patterns=True).pattern
    hooks = [
        network.blocks[layer]
        .sa.heads[head]
        .dropout.register_forward_hook(
            lambda module, args, output, key=f"{layer} {head}": given.update({key: output[0]})
        )
        for layer in range(3)
        for head in range(HEADS)
    ]
    with torch.no_grad():
        network(torch.tensor(PROMPTS[:1]))
    for hook in hooks:
        hook.remove()
    by_hand = torch.stack([torch.stack([given[f"{layer} {head}"] for head in range(HEADS)]) for layer in range(3)])
    np.testing.assert_allclose(np.asarray(pattern).reshape(by_hand.shape), by_hand, atol=1e-7)


def test_heads_of_one_attention_have_one_shape_and_nothing_beside_their_softmax() -> None:
    network, calls, tokens = network_of(), list[AttentionCall](), len(PROMPTS[0])
    with torch.no_grad(), watching(network, calls.append, of_w=True):
        network(torch.tensor(PROMPTS[:1]))
    one, other = calls[:2]
    assert one.has_heads_like(other)
    beside: list[dict[str, Any]] = [
        {"bias": torch.zeros(1, 1, tokens, tokens)}, {"sinks": torch.zeros(1)}, {"further": (one.key, one.value)},
    ]  # fmt: skip
    for change in (*beside, {"soft_cap": 30.0}, {"window": 2}, {"query": one.query[..., :3]}):
        unlike = replace(one, **change)
        assert not unlike.has_heads_like(other)
        assert not other.has_heads_like(unlike)
        assert unlike.has_heads_like(unlike) is (change not in beside)


@pytest.mark.long
def test_a_gate_on_a_head_is_an_edit_of_its_columns_and_its_derivative() -> None:
    network, prompt = network_of(), torch.tensor(PROMPTS[1])
    columns = slice(2 * WIDTH, 3 * WIDTH)

    def edited(factor: float) -> Any:
        other = copy.deepcopy(network)
        other.blocks[1].sa.proj.weight.data[:, columns] *= factor
        return other

    gated = loaded(network).under({"layer 2 head 2": -0.3}).states(prompt).feed_forward
    torch.testing.assert_close(gated, loaded(edited(-0.3)).states(prompt).feed_forward, rtol=1e-9, atol=1e-9)

    def kappa(other: Any) -> float:
        ckpt = loaded(other)
        states = [ckpt.states(torch.tensor(ids)).feed_forward[3].double() for ids in PROMPTS]
        units = [torch.nn.functional.normalize(state, dim=-1) for state in states]
        means = [unit.mean(dim=0) for unit in units]
        common = np.mean([float(first @ second) for first, second in permutations(means, 2)])
        pairs = [(unit @ unit.mT)[~torch.eye(len(unit), dtype=torch.bool)].mean() for unit in units]
        return float((np.mean(pairs) - common) / (1 - common))

    ckpt = loaded(network)
    packs = ckpt.packs([torch.tensor(ids) for ids in PROMPTS])
    with ckpt.gated() as gated:
        by_head = sensitivities(HeadGates(gated), packs, 1e6, silent, 3)
    slope = (kappa(edited(1 + 1e-3)) - kappa(edited(1 - 1e-3))) / 2e-3
    assert float(by_head.kappa[1, 2]) == pytest.approx(slope, rel=1e-4, abs=1e-8)


@pytest.mark.long
def test_hotter_logits_are_those_of_every_head() -> None:
    network, prompt = network_of(), torch.tensor(PROMPTS[1])
    hotter = loaded(network).under({"logits": 0.5}).states(prompt).feed_forward
    changed = copy.deepcopy(network)
    for block in changed.blocks:
        for head in block.sa.heads:
            head.query.weight.data *= 0.5
    torch.testing.assert_close(hotter, loaded(changed).states(prompt).feed_forward, rtol=1e-9, atol=1e-9)


def without_projection() -> tuple[Any, Any]:
    """A network whose heads are what its attention gives, and the same with a projection that changes nothing."""
    one, other = network_of("no projection"), network_of("at once")
    other.load_state_dict({**other.state_dict(), **one.state_dict()})
    for block in other.blocks:
        block.sa.proj.weight.data, block.sa.proj.bias.data = torch.eye(DIM).double(), torch.zeros(DIM).double()
    return one, other


@pytest.mark.long
def test_heads_without_an_output_projection_are_those_of_one_that_changes_nothing() -> None:
    one, other = map(loaded, without_projection())
    assert [layer.problem for layer in one.layout.layers] == [""] * 3
    assert one.layout.layers[1].attention is not None
    assert one.layout.layers[1].attention.output == ("sa", "heads")
    audits = [td.audit(ckpt) for ckpt in (one, other)]
    check_equal(*audits, audits[0].data_vars)
    effects = [td.head_effects(ckpt, PROMPTS, candidates=2) for ckpt in (one, other)]
    check_equal(*effects, effects[0].data_vars)
    prompt = torch.tensor(PROMPTS[1])
    for change in ({"layer 2 head 1": -0.4}, {"layer 2 head 1": 0.5, "layer 2 attention": 2.0}, {"attention": 0.0}):
        states = [ckpt.under(change).states(prompt).feed_forward for ckpt in (one, other)]
        torch.testing.assert_close(*states, rtol=1e-9, atol=1e-9)


@pytest.mark.long
def test_a_head_without_a_projection_is_weighted_by_its_values() -> None:
    network, prompt = without_projection()[0], torch.tensor(PROMPTS[1])
    gated = loaded(network).under({"layer 2 head 1": -0.4}).states(prompt).feed_forward
    weights = loaded(network).attention(2)
    for head in range(HEADS):
        padded = torch.zeros(DIM, DIM).double()
        padded[:, head * WIDTH : (head + 1) * WIDTH] = network.blocks[1].sa.heads[head].value.weight.mT.detach()
        torch.testing.assert_close(weights.value[head] @ weights.output[head], padded)
    network.blocks[1].sa.heads[1].value.weight.data *= -0.4
    torch.testing.assert_close(gated, loaded(network).states(prompt).feed_forward, rtol=1e-9, atol=1e-9)


class _Wrapped(nn.Module):
    """What stands behind heads that a module gives: something that no module does."""

    def __init__(self, heads: nn.Module) -> None:
        super().__init__()
        self.inner, self.mixing = heads, nn.Parameter(0.3 * torch.randn(DIM, DIM).double())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) @ self.mixing


@pytest.mark.long
def test_heads_that_a_raw_matrix_maps_are_not_audited_as_if_nothing_did() -> None:
    network = network_of("no projection")
    for block in network.blocks:
        block.sa = _Wrapped(block.sa)
    ckpt = loaded(network)
    assert {layer.problem for layer in ckpt.layout.layers} == {
        "no module reads the heads' outputs alone, unchanged and one head after the other"
    }
    assert all(layer.attention is None for layer in ckpt.layout.layers)
    assert td.attention_seen(ckpt, PROMPTS[:1]).sizes["head"] == HEADS


def test_heads_that_share_their_keys_module_are_audited_with_it() -> None:
    network = network_of("shared keys")
    ckpt = loaded(network)
    assert [layer.problem for layer in ckpt.layout.layers] == [""] * 3
    weights = ckpt.attention(2)
    for head in range(HEADS):
        torch.testing.assert_close(weights.key_per_head[head], network.blocks[1].sa.heads[head].key.weight.mT.detach())


def test_heads_in_another_order_are_those_of_the_columns_that_read_them() -> None:
    one, other = network_of("reversed"), network_of()
    other.load_state_dict(one.state_dict())
    for block in other.blocks:
        block.sa.heads = nn.ModuleList(reversed(block.sa.heads))
    ckpts = loaded(one), loaded(other)
    assert [layer.order for layer in ckpts[0].layout.layers] == [tuple(range(HEADS))[::-1]] * 3
    assert [layer.order for layer in ckpts[1].layout.layers] == [()] * 3
    check_same_heads(*ckpts)


def check_same_heads(one: Checkpoint, other: Checkpoint) -> None:
    measures: list[Any] = [
        lambda ckpt: td.audit(ckpt),
        lambda ckpt: td.attention_seen(ckpt, PROMPTS, patterns=True),
    ]
    for measure in measures:
        first, second = measure(one), measure(other)
        check_equal(first, second, first.data_vars)
    changed = [ckpt.under({"layer 2 head 1": -0.4}).states(torch.tensor(PROMPTS[1])) for ckpt in (one, other)]
    torch.testing.assert_close(changed[0].feed_forward, changed[1].feed_forward, rtol=1e-9, atol=1e-9)


def test_a_factor_of_each_head_is_one_of_its_columns() -> None:
    one, other = network_of("with factors"), network_of()
    other.load_state_dict(one.state_dict())
    for block in other.blocks:
        block.sa.proj.weight.data *= block.sa.factors.detach().sigmoid().repeat_interleave(WIDTH)
    ckpts = loaded(one), loaded(other)
    attention = ckpts[0].layout.layers[1].attention
    assert attention is not None
    assert attention.head_factor == ("sa.factors", "sigmoid", "head")
    check_same_heads(*ckpts)
    with torch.no_grad():  # it is that which the network has now
        one.blocks[1].sa.factors[2] = 0.0
        other.blocks[1].sa.proj.weight.data[:, 2 * WIDTH : 3 * WIDTH] *= 0.5 / torch.sigmoid(torch.tensor(0.0))
    factors = loaded(one).attention(2).output[2]
    torch.testing.assert_close(factors, 0.5 * one.blocks[1].sa.proj.weight.data[:, 2 * WIDTH : 3 * WIDTH].mT)


def test_factors_of_heads_that_no_parameter_gives_are_named() -> None:
    words = "its heads' outputs are multiplied by factors before sa.proj reads them, and no parameter gives these"
    assert {layer.problem for layer in loaded(network_of("thirds")).layout.layers} == {words}


def test_heads_with_an_output_map_each_are_traced_and_seen() -> None:
    network, prompt = network_of(), torch.tensor(PROMPTS[0])
    for block in network.blocks:
        block.sa = _WithMaps(block.sa.heads)
    network.double().eval()
    ckpt, handed, weights = loaded(network), list[Tensor](), list[Tensor]()
    assert ckpt.layout.blocks == ("blocks.0", "blocks.1", "blocks.2")
    assert {layer.problem for layer in ckpt.layout.layers} == {
        "no module reads the heads' outputs alone, unchanged and one head after the other"
    }
    states = ckpt.states(prompt).feed_forward
    pattern = torch.as_tensor(td.attention_seen(ckpt, PROMPTS[:1], patterns=True).pattern.values)[0]
    for block in network.blocks:
        block.register_forward_hook(lambda *given: handed.append(given[2][0].clone()))
        for head in block.sa.heads:
            head[0].dropout.register_forward_hook(lambda *given: weights.append(given[2][0].clone()))
    with torch.no_grad():
        network(prompt[None])
    assert torch.equal(states[1:], torch.stack(handed))
    torch.testing.assert_close(pattern.flatten(0, 1), torch.stack(weights), check_dtype=False)
    assert ckpt.layout.layers[1].parts == ("sa", "ffwd")


class _WithMaps(nn.Module):
    def __init__(self, heads: nn.Module) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Sequential(head, nn.Linear(WIDTH, DIM)) for head in heads.children())

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([head(x) for head in self.heads]).sum(dim=0)
