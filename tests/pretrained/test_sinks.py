"""Attention sinks concatenated to the logits by hand, and softmax written as exponentials over their sum."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from tokendynamics.numerics import CheckpointError

DIM, HEADS, VOCABULARY = 16, 4, 40
WIDTH = DIM // HEADS


class Attention(nn.Module):
    """One way of making weights of logits; `weights` keeps those of the last pass."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))
        self.sink, self.form, self.weights = nn.Parameter(torch.randn(HEADS)), form, torch.empty(0)

    def weighed(self, logits: Tensor, x: Tensor) -> Tensor:
        column = self.sink.view(1, -1, 1, 1).expand(*logits.shape[:3], 1)
        highest = logits.amax(dim=-1, keepdim=True)
        match self.form:
            case "last":
                return torch.cat([logits, column], dim=-1).softmax(dim=-1)[..., :-1]
            case "first":
                return torch.cat([column, logits], dim=-1).softmax(dim=-1)[..., 1:]
            case "largest off":
                both = torch.cat([logits, column], dim=-1)
                return functional.softmax(both - both.max(dim=-1, keepdim=True).values, dim=-1)[..., :-1]
            case "copied":
                column = self.sink.reshape(1, -1, 1, 1).repeat(len(logits), 1, logits.shape[2], 1)
                return torch.softmax(torch.cat((logits, column), dim=3), dim=-1).narrow(-1, 0, logits.shape[-1])
            case "split":
                both = torch.cat([logits, column], dim=-1).softmax(dim=-1)
                return both.split([logits.shape[-1], 1], dim=-1)[0]
            case "zero":
                return torch.cat([logits, torch.zeros_like(logits[..., :1])], dim=-1).softmax(dim=-1)[..., :-1]
            case "padded":
                return functional.pad(logits, (0, 1)).softmax(dim=-1)[..., :-1]
            case "1 more":
                return logits.exp() / (1 + logits.exp().sum(dim=-1, keepdim=True))
            case "1 more, largest off":
                highest = highest.clamp(min=0)
                shares = (logits - highest).exp()
                return shares / (shares.sum(dim=-1, keepdim=True) + torch.exp(-highest))
            case "sum":
                return logits.exp() / logits.exp().sum(dim=-1, keepdim=True)
            case "sum, largest off":
                shares = (logits - highest).exp()
                return shares / (shares.sum(dim=-1, keepdim=True) + 1e-9)
            case "masked afterwards":
                shares = (logits.masked_fill(logits.isinf(), 0.5)).exp() * (~logits.isinf())
                return shares / shares.sum(dim=-1, keepdim=True)
            case "log of the sum":
                return (logits - logits.logsumexp(dim=-1, keepdim=True)).exp()
            case "log of a softmax":
                return functional.log_softmax(logits, dim=-1).exp()
            case "5 more":
                return logits.exp() / (5 + logits.exp().sum(dim=-1, keepdim=True))
            case "of the token":
                column = x[..., :1].unsqueeze(1).expand(-1, HEADS, -1, 1)
                return torch.cat([logits, column], dim=-1).softmax(dim=-1)[..., :-1]
            case "several":
                return torch.cat([logits, column, column], dim=-1).softmax(dim=-1)[..., :-2]
            case "other cut":
                return torch.cat([logits, column], dim=-1).softmax(dim=-1)[..., 1:]
            case "of the largest":
                values, places = logits.topk(3, dim=-1)
                return torch.full_like(logits, float("-inf")).scatter(-1, places, values).softmax(dim=-1)
        raise ValueError(self.form)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        logits = (q @ k.mT * WIDTH**-0.5).masked_fill(hidden, float("-inf"))
        self.weights = self.weighed(logits, x)
        return self.o((self.weights @ v).transpose(1, 2).flatten(2))


class Network(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, DIM)
        self.blocks = nn.ModuleList(Block(form) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return x


class Block(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(DIM), Attention(form)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attn(self.norm(x))


IDS = torch.randint(0, VOCABULARY, (9,), generator=torch.Generator().manual_seed(1))


@cache
def read(form: str) -> tuple[Any, Any]:
    """Return a network and its checkpoint, which no test changes."""
    torch.manual_seed(0)
    network = Network(form).eval()
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return network, td.load(network, inputs=lambda count: {"ids": torch.randint(0, VOCABULARY, (count, 7))})


SINKS = {
    **dict.fromkeys(("last", "first", "largest off", "split"), "attn.sink"),
    **dict.fromkeys(("zero", "padded", "1 more", "1 more, largest off"), "a logit of 0"),
    "copied": "a logit that is computed",
    **dict.fromkeys(("sum", "sum, largest off", "masked afterwards", "log of the sum", "log of a softmax"), None),
}
"""What is said of the sink of each form."""


@pytest.mark.few(5)
@pytest.mark.parametrize("form", SINKS)
def test_factors_and_weights_are_those_of_the_attention(form: str) -> None:
    network, ckpt = read(form)
    layout = ckpt.layout.layers[1].attention
    assert layout is not None, ckpt.layout.layers[1].problem
    assert (layout.sinks, layout.scale, layout.causal) == (SINKS[form], WIDTH**-0.5, True)
    assert (layout.relative_bias, layout.token_bias, layout.other_mask) == (False, False, False)
    weights, attn = ckpt.attention(2), network.blocks[1].attn
    for head in range(HEADS):
        rows = slice(head * WIDTH, (head + 1) * WIDTH)
        torch.testing.assert_close(weights.query[head], attn.q.weight.detach()[rows].mT)
        torch.testing.assert_close(weights.key_per_head[head], attn.k.weight.detach()[rows].mT)
        torch.testing.assert_close(weights.value_per_head[head], attn.v.weight.detach()[rows].mT)
        torch.testing.assert_close(weights.output[head], attn.o.weight.detach()[:, rows].mT)
    seen = td.attention_seen(ckpt, [IDS], patterns=True)
    with torch.no_grad():
        network(IDS[None])
    wanted = torch.stack([block.attn.weights[0] for block in network.blocks])
    torch.testing.assert_close(torch.from_numpy(seen.pattern.values[0]).to(wanted), wanted)
    to_sink = 1 - wanted.sum(dim=-1).mean(dim=-1)
    torch.testing.assert_close(torch.from_numpy(seen.to_sink.values[0]).to(wanted), to_sink, atol=1e-5, rtol=1e-4)
    assert bool((to_sink > 1e-3).all()) == (SINKS[form] is not None)


@pytest.mark.parametrize("form", SINKS)
def test_multiplied_logits_are_those_of_multiplied_queries(form: str) -> None:
    network, ckpt = read(form)
    if SINKS[form] is not None:
        with pytest.raises(CheckpointError, match="got a logit of a sink"):
            ckpt.under({"logits": 0.5}).states(IDS)
        return
    changed = copy.deepcopy(network)
    for block in changed.blocks:
        for parameter in block.attn.q.parameters():
            parameter.data *= 0.5
    states: list[Tensor] = []
    changed.blocks[-1].register_forward_hook(lambda *given: states.append(given[2].detach()))
    changed(IDS[None])
    torch.testing.assert_close(ckpt.under({"logits": 0.5}).states(IDS).feed_forward[-1], states[0][0])


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("5 more", "its exponentials are not divided by their sum"),
        ("of the token", "cat acts on its logits"),
        ("several", "cat acts on its logits"),
        ("other cut", "a choice of entries acts on the weights that its softmax gives"),
        ("of the largest", "topk chooses among its logits"),
    ],
)
def test_other_weights_are_refused_in_words(form: str, words: str) -> None:
    ckpt = read(form)[1]
    assert ckpt.layout.layers[1].attention is None
    assert words in ckpt.layout.layers[1].problem
    with pytest.raises(CheckpointError, match="whose attention between the tokens shows"):
        td.attention_seen(ckpt, [IDS])


def test_a_learned_key_beside_those_of_the_tokens_is_named() -> None:
    class Learned(Attention):
        def __init__(self) -> None:
            super().__init__("")
            self.further = nn.Parameter(torch.randn(2, 1, HEADS, 1, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
            k, v = (
                torch.cat([of_tokens, further.expand(len(x), -1, -1, -1)], dim=2)
                for of_tokens, further in zip((k, v), self.further, strict=True)
            )
            return self.o(((q @ k.mT).softmax(dim=-1) @ v).transpose(1, 2).flatten(2))

    network = Network("last")
    for block in network.blocks:
        block.attn = Learned()
    ckpt = td.load(network.eval(), inputs=lambda count: {"ids": torch.randint(0, VOCABULARY, (count, 7))})
    assert "its queries and keys are not one for each token" in ckpt.layout.layers[0].problem


def test_a_vector_that_is_added_to_the_queries_is_named() -> None:
    class Shifted(Attention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
            weights = ((q + self.sink[:, None, None]) @ k.mT).softmax(dim=-1)
            return self.o((weights @ v).transpose(1, 2).flatten(2))

    network = Network("last")
    for block in network.blocks:
        block.attn = Shifted("")
    ckpt = td.load(network.eval(), inputs=lambda count: {"ids": torch.randint(0, VOCABULARY, (count, 7))})
    words = "a vector is added to its queries or keys outside of a module"
    assert words in ckpt.layout.layers[0].problem
    assert words not in read("of the token")[1].layout.layers[0].problem
