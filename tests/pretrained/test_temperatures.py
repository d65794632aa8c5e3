"""Factors of the logits that are learned, of a layer or of each head, are part of the query factor or of its scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from tokendynamics.numerics import ArgumentValueError, AttentionFactorsError, CheckpointError
from tokendynamics.pretrained.discovery.words import block_in_words

DIM, HEADS, TOKENS = 8, 2, 6


class Attention(nn.Module):
    """Its logits are multiplied as `logits` says; `factors` are those of each head."""

    def __init__(self, logits: Callable[[Any, Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(DIM, DIM) for _ in range(4))
        self.one, self.each = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.tensor([[[0.6]], [[1.7]]]))
        self.logits, self.features = logits, nn.Parameter(torch.linspace(-1.0, 1.0, DIM // HEADS))

    def forward(self, x: Tensor) -> Tensor:
        maps = (self.query, self.key, self.value)
        q, k, v = (linear(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for linear in maps)
        mixed = self.weights(self.logits(self, q, k, x).softmax(dim=-1)[..., :TOKENS]) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))

    def weights(self, weights: Tensor) -> Tensor:
        return weights


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
    "times a number": (lambda: Attention(lambda value, q, k, x: q @ k.mT * value.one), _one),
    "divided by a number": (
        lambda: Attention(lambda value, q, k, x: q @ k.mT / value.one),
        lambda value: 1 / _one(value),
    ),
    "an exponential": (
        lambda: Attention(lambda value, q, k, x: q @ k.mT * value.one.exp()),
        lambda value: _one(value).exp(),
    ),
    "times a number of each head": (lambda: Attention(lambda value, q, k, x: q @ k.mT * value.each), _each),
    "divided by one of each head": (
        lambda: Attention(lambda value, q, k, x: q @ k.mT / functional.softplus(value.each)),
        lambda value: 1 / functional.softplus(_each(value)),
    ),
    "clamped": (
        lambda: Attention(lambda value, q, k, x: torch.clamp(value.each, max=1.5).exp() * (q @ k.mT)),
        lambda value: _each(value).clamp(max=1.5).exp(),
    ),
    "on queries": (lambda: Attention(lambda value, q, k, x: (q * value.each) @ k.mT), _each),
    "on keys": (lambda: Attention(lambda value, q, k, x: q @ (k * value.each).mT), _each),
    "fused": (lambda: FusedAttention(lambda value, q, k, x: x), _each),
    "of each feature": (
        lambda: Attention(lambda value, q, k, x: (q * functional.softplus(value.features)) @ k.mT),
        lambda value: functional.softplus(value.features).repeat(HEADS),
    ),
}


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("form", PLAIN)
def test_a_learned_factor_is_one_of_the_query_matrix(form: str) -> None:
    made, factors = PLAIN[form]
    network: Any = Series(made)
    folded: Any = Series(lambda: Attention(lambda value, q, k, x: q @ k.mT))
    several = (loaded(network), loaded(folded))
    assert [layer.problem for layer in several[0].layout.layers] == ["", ""]
    for shift in (0.0, 0.4):  # a change in place takes effect
        for block, other in zip(network.blocks, folded.blocks, strict=True):
            actual, reference = block.attention, other.attention
            with torch.no_grad():
                actual.one += shift
                actual.each += shift
                actual.features += shift
                columns = factors(actual)
                columns = columns.repeat_interleave(DIM // len(columns))
                reference.query.weight.copy_(actual.query.weight * columns[:, None])
                reference.query.bias.copy_(actual.query.bias * columns)
        one, other = (td.audit(ckpt) for ckpt in several)
        for name in (name for name in one.data_vars if one[name].dtype.kind == "f"):
            np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-6, err_msg=str(name))
    series = torch.randn(1, TOKENS, 3)
    for change in ({}, {"logits": 0.5}, {"logits": 2.0, "layer 1 head 1": 0.0}):
        states = [ckpt.under(change).states({"series": series}).feed_forward for ckpt in several]
        torch.testing.assert_close(*states)


def _after(module: Any, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    return torch.tanh(q @ k.mT * module.each) * 3


def _masked(module: Any, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    cap = 2 * module.one
    capped = cap * (q @ k.mT / cap).tanh() + torch.arange(TOKENS)
    return capped.masked_fill(torch.ones(TOKENS, TOKENS).triu(1) == 1, -torch.inf)


CAPPED: dict[str, tuple[Callable[[Any, Tensor, Tensor, Tensor], Tensor], Callable[[Any], tuple[Tensor, float]]]] = {
    "factors and a cap": (_after, lambda value: (3 * _each(value), 3.0)),
    "a learned cap, a term and a mask": (_masked, lambda value: (torch.ones(HEADS), 2 * float(value.one))),
}


@pytest.mark.parametrize("form", CAPPED)
def test_a_soft_cap_by_hand_is_one_of_the_products(form: str) -> None:
    logits, factors_of = CAPPED[form]
    network: Any = Series(lambda: Attention(logits))
    with torch.no_grad():
        network.blocks[1].attention.one += 0.4
        network.blocks[1].attention.query.weight *= 6  # so that the cap matters
    ckpt, direct = loaded(network), network.blocks[1].attention
    layout = ckpt.layout.layers[1].attention
    assert layout is not None
    assert layout.soft_cap is not None
    assert (layout.causal, layout.relative_bias) == ("mask" in form, "mask" in form)
    assert ", softly capped" in td.audit(ckpt).attrs["form"]
    weights, (factors, cap) = ckpt.attention(2), factors_of(direct)
    query = (direct.query.weight.unflatten(0, (HEADS, -1)) * factors[:, None, None]).mT
    torch.testing.assert_close(weights.scale * weights.query, query.detach())
    series = {"series": torch.randn(1, TOKENS, 3)}
    read: list[Tensor] = []
    hook = direct.register_forward_pre_hook(lambda module, given: read.append(given[0]))
    with torch.no_grad():
        network(**series)
        hook.remove()
        q, k = (linear(read[0]).unflatten(-1, (HEADS, -1)).transpose(1, 2) for linear in (direct.query, direct.key))
        pattern = direct.logits(direct, q, k, read[0]).softmax(dim=-1)
    seen = td.attention_seen(ckpt, [series], patterns=True).pattern.values[0, 1]
    np.testing.assert_allclose(seen, pattern[0], rtol=1e-5, atol=1e-6)
    assert float((q @ k.mT).abs().max()) > cap
    with pytest.raises(CheckpointError, match="a soft cap"):
        ckpt.under({"logits": 0.5}).states(series)


def _sharper(module: Any, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    return q @ k.mT * module.out(x)[..., :1].unsqueeze(1).exp()


def _mixed(module: Any, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    return torch.einsum("bhij,hg->bgij", q @ k.mT, module.each[:, :, 0] @ module.each[:, :, 0].T + torch.eye(HEADS))


def _bent(module: Any, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    return torch.asinh(q @ k.mT / module.one)


def _capped_with_a_term(module: Any, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    return 2 * torch.tanh(q @ k.mT + torch.ones(TOKENS, TOKENS).tril())


def _turned_round(module: Any, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    return -2 * torch.tanh(q @ k.mT)


def _cosines(module: Any, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    q, k = (functional.normalize(part * part.abs(), dim=-1) for part in (q, k))
    return q @ k.mT * module.each.exp()


def _mixed_from_the_left(module: Any, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    return torch.einsum("gh,bhij->bgij", module.each[:, :, 0] @ module.each[:, :, 0].T + torch.eye(HEADS), q @ k.mT)


REFUSED: dict[str, tuple[Callable[[Any, Tensor, Tensor, Tensor], Tensor], str]] = {
    "of each token": (_sharper, r"on its logits \(its logits are multiplied by factors that differ between tokens\)"),
    "mixed heads": (_mixed, r"its logits are multiplied by a matrix, as where heads are mixed"),
    "bent": (_bent, r"asinh acts on its logits"),
    "capped with a term": (_capped_with_a_term, r"tanh acts on its logits"),
    "turned round": (_turned_round, r"its softly capped logits are multiplied by a factor that is not positive"),
    "mixed heads from the left": (_mixed_from_the_left, r"its logits are multiplied by a matrix"),
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


class _Weighted(Attention):
    """Something acts on its weights between the softmax and the values."""

    def __init__(self, form: str) -> None:
        super().__init__(lambda value, q, k, x: q @ k.mT)
        self.form = form

    def weights(self, weights: Tensor) -> Tensor:
        if self.form == "difference":  # as in differential attention
            return weights - self.one * weights.flip(1)
        if self.form == "mixed heads":
            return torch.einsum("gh,bhij->bgij", self.each[:, :, 0] @ self.each[:, :, 0].T, weights)
        if self.form == "mixed heads behind":
            return torch.einsum("bhij,hg->bgij", weights, self.each[:, :, 0] @ self.each[:, :, 0].T)
        if self.form == "a factor of each head":
            return weights * self.each
        return weights.square()


@pytest.mark.parametrize(
    ("form", "function"),
    [
        ("difference", "flip"),
        ("mixed heads", "einsum"),
        ("mixed heads behind", "einsum"),
        ("a factor of each head", "mul"),
        ("square", "square"),
    ],
)
def test_what_happens_to_weights_after_the_softmax_is_named(form: str, function: str) -> None:
    ckpt = loaded(Series(lambda: _Weighted(form)))
    with pytest.raises(AttentionFactorsError, match=f"{function} acts on the weights that its softmax gives"):
        td.audit(ckpt)


def _log_of_tokens(module: Any, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    return q @ k.mT * (module.one * math.log(x.shape[1]))


def _queries_times_log_of_tokens(module: Any, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    return ((q * math.log(x.shape[1])) @ k.mT).masked_fill(hidden, -torch.inf)


@pytest.mark.parametrize("logits", [_log_of_tokens, _queries_times_log_of_tokens])
def test_a_factor_that_depends_on_the_number_of_tokens_is_named(logits: Any) -> None:
    network = Series(lambda: Attention(logits))
    ckpt = loaded(network)
    attention: Any = network.blocks[1].attention
    weights, factor = ckpt.attention(2), math.log(TOKENS)
    factor *= float(attention.one) if logits is _log_of_tokens else 1.0
    q, k = (
        linear.weight.detach().mT.unflatten(1, (HEADS, -1)).transpose(0, 1)
        for linear in (attention.query, attention.key)
    )
    torch.testing.assert_close(weights.scale * weights.query @ weights.key.mT, factor * q @ k.mT)
    audit = td.audit(ckpt)
    words = "a factor of the logits that depends on the number of tokens"
    assert f"; their factor depends on the number of tokens and is taken for {TOKENS} of them" in audit.attrs["form"]
    assert audit.attrs["besides"] == words
    with pytest.raises(ArgumentValueError, match=words):
        td.flow_of(ckpt)
    other = loaded(Series(lambda: Attention(lambda value, q, k, x: q @ k.mT * value.one)))
    assert "number of tokens" not in td.audit(other).attrs["form"]
    td.flow_of(other)


def _by_calls(module: Any, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    module.calls = getattr(module, "calls", 0) + 1
    return q @ k.mT * (1 + 1 / module.calls)


def test_a_factor_that_depends_on_earlier_calls_is_not_called_one_of_the_number_of_tokens() -> None:
    layout = loaded(Series(lambda: Attention(_by_calls))).layout
    assert layout.varies
    assert all(layer.attention is None or layer.attention.scaled_for is None for layer in layout.layers)


def test_a_learned_factor_is_shown_as_the_network_has_it() -> None:
    ckpt = loaded(Series(lambda: Attention(lambda module, q, k, x: q @ k.mT * module.one.exp())))
    words = dict(block_in_words(ckpt.layout.layers[0]))
    assert words["scale"].endswith(" with random weights, where it may be learned")
    ckpt.attention(1)
    shown = dict(block_in_words(ckpt.verified_layout().layers[0], verified=True))
    assert float(shown["scale"]) == pytest.approx(math.exp(0.7), rel=1e-5)
    assert dict(block_in_words(ckpt.verified_layout().layers[1]))["scale"].endswith("learned")
