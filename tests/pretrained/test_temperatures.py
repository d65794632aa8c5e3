"""Factors of the logits that are learned, of a layer or of each head, are part of the query factor or of its scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from tokendynamics.numerics import AttentionFactorsError

DIM, HEADS, TOKENS = 8, 2, 6


class Attention(nn.Module):
    """Its logits are multiplied as `logits` says; `factors` are those of each head."""

    def __init__(self, logits: Callable[[Any, Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(DIM, DIM) for _ in range(4))
        self.one, self.each = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.tensor([[[0.6]], [[1.7]]]))
        self.logits = logits

    def forward(self, x: Tensor) -> Tensor:
        maps = (self.query, self.key, self.value)
        q, k, v = (linear(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for linear in maps)
        mixed = self.logits(self, q, k, x).softmax(dim=-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class FusedAttention(Attention):
    def forward(self, x: Tensor) -> Tensor:
        maps = (self.query, self.key, self.value)
        q, k, v = (linear(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for linear in maps)
        mixed = functional.scaled_dot_product_attention(q * self.each, k, v, scale=1.0)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(DIM), nn.LayerNorm(DIM), attention
        self.mlp = nn.Sequential(nn.Linear(DIM, 12), nn.GELU(), nn.Linear(12, DIM))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Series(nn.Module):
    def __init__(self, attention: Callable[[], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.embed, self.places = nn.Linear(3, DIM), nn.Parameter(torch.randn(16, DIM))
        self.blocks = nn.ModuleList([Block(attention()) for _ in range(2)])

    def forward(self, series: Tensor) -> Tensor:
        states = self.embed(series) + self.places[: series.shape[1]]
        for block in self.blocks:
            states = block(states)
        return states


def loaded(network: Any) -> Any:
    return td.load(network.eval(), inputs=lambda count: {"series": torch.randn(count, TOKENS, 3)})


def _one(module: Any) -> Tensor:
    return module.one.expand(HEADS)


def _each(module: Any) -> Tensor:
    return module.each.flatten()


PLAIN: dict[str, tuple[Callable[[], Attention], Callable[[Any], Tensor]]] = {
    "times a number": (lambda: Attention(lambda own, q, k, x: q @ k.mT * own.one), _one),
    "divided by a number": (lambda: Attention(lambda own, q, k, x: q @ k.mT / own.one), lambda own: 1 / _one(own)),
    "an exponential": (lambda: Attention(lambda own, q, k, x: q @ k.mT * own.one.exp()), lambda own: _one(own).exp()),
    "times a number of each head": (lambda: Attention(lambda own, q, k, x: q @ k.mT * own.each), _each),
    "divided by one of each head": (
        lambda: Attention(lambda own, q, k, x: q @ k.mT / functional.softplus(own.each)),
        lambda own: 1 / functional.softplus(_each(own)),
    ),
    "clamped": (
        lambda: Attention(lambda own, q, k, x: torch.clamp(own.each, max=1.5).exp() * (q @ k.mT)),
        lambda own: _each(own).clamp(max=1.5).exp(),
    ),
    "on queries": (lambda: Attention(lambda own, q, k, x: (q * own.each) @ k.mT), _each),
    "on keys": (lambda: Attention(lambda own, q, k, x: q @ (k * own.each).mT), _each),
    "fused": (lambda: FusedAttention(lambda own, q, k, x: x), _each),
}


@pytest.mark.parametrize("form", PLAIN)
def test_a_learned_factor_is_one_of_the_query_matrix(form: str) -> None:
    made, factors = PLAIN[form]
    network: Any = Series(made)
    folded: Any = Series(lambda: Attention(lambda own, q, k, x: q @ k.mT))
    several = (loaded(network), loaded(folded))
    assert [layer.problem for layer in several[0].layout.layers] == ["", ""]
    for shift in (0.0, 0.4):  # a change in place takes effect
        for block, other in zip(network.blocks, folded.blocks, strict=True):
            ours, theirs = block.attention, other.attention
            with torch.no_grad():
                ours.one += shift
                ours.each += shift
                columns = factors(ours).repeat_interleave(DIM // HEADS)
                theirs.query.weight.copy_(ours.query.weight * columns[:, None])
                theirs.query.bias.copy_(ours.query.bias * columns)
        one, other = (td.audit(ckpt) for ckpt in several)
        for name in (name for name in one.data_vars if one[name].dtype.kind == "f"):
            np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-6, err_msg=str(name))
    series = torch.randn(1, TOKENS, 3)
    for change in ({}, {"logits": 0.5}, {"logits": 2.0, "layer 1 head 1": 0.0}):
        states = [ckpt.under(change).states({"series": series}).feed_forward for ckpt in several]
        torch.testing.assert_close(*states)


def _sharper(own: Any, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    return q @ k.mT * own.out(x)[..., :1].unsqueeze(1).exp()


def _mixed(own: Any, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    return torch.einsum("bhij,hg->bgij", q @ k.mT, own.each[:, :, 0] @ own.each[:, :, 0].T + torch.eye(HEADS))


def _bent(own: Any, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    return torch.tanh(q @ k.mT / own.one)


def _cosines(own: Any, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    return functional.normalize(q, dim=-1) @ functional.normalize(k, dim=-1).mT * own.each.exp()


REFUSED: dict[str, tuple[Callable[[Any, Tensor, Tensor, Tensor], Tensor], str]] = {
    "of each token": (_sharper, r"on its logits \(its logits are multiplied by factors that differ between tokens\)"),
    "mixed heads": (_mixed, r"its logits are multiplied by a matrix, as where heads are mixed"),
    "bent": (_bent, r"tanh acts on its logits"),
    "cosines": (_cosines, "divided by their norms outside of a module, as in attention by cosines"),
}


@pytest.mark.parametrize("form", REFUSED)
def test_what_else_happens_to_logits_is_named(form: str) -> None:
    logits, words = REFUSED[form]
    network = Series(lambda: Attention(logits))
    ckpt, outputs = loaded(network), list[Tensor]()
    with pytest.raises(AttentionFactorsError, match=words):
        td.audit(ckpt)
    series = torch.randn(1, TOKENS, 3)
    hook = network.blocks[1].register_forward_hook(lambda module, given, y: outputs.append(y[0]))
    with torch.inference_mode():
        network(series)
    hook.remove()
    torch.testing.assert_close(ckpt.states({"series": series}).feed_forward[-1], outputs[0])
