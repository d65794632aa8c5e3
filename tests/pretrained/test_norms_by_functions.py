"""Queries and keys that functions normalize are read like those that modules do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from tokendynamics.numerics import ArgumentValueError, AttentionFactorsError
from tokendynamics.pretrained.discovery.words import block_in_words

DIM, HEADS, WIDTH, VOCABULARY = 24, 4, 6, 30
PROMPTS = [[3, 17, 8, 22, 5, 11], [9, 2, 28, 4], [1, 1, 20]]


class Cosine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(x, dim=-1)


def by_hand(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


Function = Callable[[Tensor, Tensor], Tensor]
FUNCTIONS: dict[str, tuple[Function, Callable[[], nn.Module], bool]] = {
    "rms": (lambda x, gain: functional.rms_norm(x, (WIDTH,)), lambda: nn.RMSNorm(WIDTH, 1e-12), False),
    "rms, gain": (lambda x, gain: functional.rms_norm(x, (WIDTH,), gain), lambda: nn.RMSNorm(WIDTH, 1e-12), True),
    "layer": (lambda x, gain: functional.layer_norm(x, (WIDTH,)), lambda: nn.LayerNorm(WIDTH, bias=False), False),
    "layer, gain": (
        lambda x, gain: functional.layer_norm(x, (WIDTH,), gain), lambda: nn.LayerNorm(WIDTH, bias=False), True
    ),
    "by hand": (lambda x, gain: by_hand(x, 1e-5) * gain, lambda: nn.RMSNorm(WIDTH, 1e-5), True),
    "by hand, 1 + gain": (lambda x, gain: by_hand(x, 1e-3) * (1 + (gain - 1)), lambda: nn.RMSNorm(WIDTH, 1e-3), True),
    "all heads": (
        lambda x, gain: by_hand(x.transpose(1, 2).flatten(2), 1e-6).unflatten(-1, (HEADS, -1)).transpose(1, 2),
        lambda: nn.RMSNorm(DIM, 1e-6), False,
    ),
    "two steps": (lambda x, gain: x / x.square().mean(-1, keepdim=True).sqrt(), lambda: nn.RMSNorm(WIDTH, 0.0), False),
}  # fmt: skip


def turned(x: Tensor) -> Tensor:
    angles = torch.outer(torch.arange(x.shape[-2], dtype=x.dtype), torch.tensor([1.0, 0.3, 0.1], dtype=x.dtype))
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


class Attention(nn.Module):
    """`bias` is a mask, as in minimal GPTs: no bias of a norm."""

    bias: Tensor

    def __init__(self, form: str, order: str, modules: bool) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.register_buffer("bias", torch.ones(32, 32, dtype=torch.bool).tril())
        self.q_gain, self.k_gain = (nn.Parameter(0.5 + torch.rand(WIDTH)) for _ in range(2))
        self.form, self.order, self.norms = form, order, nn.ModuleList()
        _, module, gained = FUNCTIONS[form]
        for gain in (self.q_gain, self.k_gain) if modules else ():
            norm = module()
            for parameter in norm.parameters():
                parameter.data = gain.data.clone() if gained else torch.ones_like(parameter)
            self.norms.append(norm)

    def normalized(self, x: Tensor, place: int) -> Tensor:
        function, _, _ = FUNCTIONS[self.form]
        if not self.norms:
            return function(x, (self.q_gain, self.k_gain)[place])
        if self.form == "all heads":
            return self.norms[place](x.transpose(1, 2).flatten(2)).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return self.norms[place](x)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, -1))
        if self.order == "turned first":
            q, k = turned(q), turned(k)
        q, k = self.normalized(q, 0), self.normalized(k, 1)
        if self.order == "turned":
            q, k = turned(q), turned(k)
        tokens = x.shape[1]
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.bias[:tokens, :tokens])
        return self.c_proj(y.transpose(1, 2).flatten(2))


class Network(nn.Module):
    def __init__(self, attention: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, DIM)
        self.blocks = nn.ModuleList(Block(attention()) for _ in range(2))

    def forward(self, idx: Tensor) -> Tensor:
        x = self.words(idx)
        for block in self.blocks:
            x = block(x)
        return x


class Block(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(DIM), attention

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(self.norm(x))


def loaded(attention: Callable[[], nn.Module]) -> Any:
    torch.manual_seed(3)
    network = Network(attention).eval()
    return td.load(network, inputs=lambda count: {"idx": torch.randint(0, VOCABULARY, (count, 7))})


# A gain that differs within turned pairs is no gain before the turn, and features without their mean are too few to
# tell a turn by.
ORDERS = {
    form: [
        "",
        *(["turned"] if "layer" not in form else []),
        *(["turned first"] if form in ("rms", "all heads") else []),
    ]
    for form in FUNCTIONS
}


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize(("form", "order"), [(form, order) for form in FUNCTIONS for order in ORDERS[form]])
def test_a_norm_by_a_function_is_that_by_a_module(form: str, order: str) -> None:
    function, module = (loaded(lambda modules=modules: Attention(form, order, modules)) for modules in (False, True))
    layout = function.layout.layers[1].attention
    assert layout is not None, function.layout.layers[1].problem
    assert layout.normed == ("query", "key")
    for name in ("query", "key", "value", "output"):
        pair = (getattr(ckpt.attention(2), name) for ckpt in (function, module))
        torch.testing.assert_close(*pair, check_dtype=False)
    one, other = td.audit(function), td.audit(module)
    torch.testing.assert_close(torch.tensor(one.qk_balance.values), torch.tensor(other.qk_balance.values))
    assert one.attrs["form"] == other.attrs["form"]
    assert "a function in attention (" in str(block_in_words(function.layout.layers[1]))


class Cosines(nn.Module):
    def __init__(self, temperatures: bool, on_logits: bool = False) -> None:
        super().__init__()
        self.on_logits = on_logits
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))
        self.temperature = nn.Parameter(torch.linspace(0.5, 2.0, HEADS).view(HEADS, 1, 1)) if temperatures else None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        if self.on_logits and self.temperature is not None:  # as in Swin
            weights = (q @ k.mT * self.temperature.exp()).softmax(-1)
            return self.o((weights @ v).transpose(1, 2).flatten(2))
        q = q * self.temperature.exp() if self.temperature is not None else q
        return self.o(functional.scaled_dot_product_attention(q, k, v, scale=10.0).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("temperatures", [False, True])
def test_cosines_are_root_mean_squares_times_a_factor(temperatures: bool) -> None:
    ckpt = loaded(lambda: Cosines(temperatures))
    attention, weights = ckpt.model.blocks[1].attention, ckpt.attention(2)
    for head in range(HEADS):
        times = float(attention.temperature.detach()[head].exp()) if temperatures else 1.0
        rows = attention.q.weight.detach()[head * WIDTH : (head + 1) * WIDTH].mT
        torch.testing.assert_close(weights.query[head], rows * times / WIDTH**0.5, check_dtype=False)
    assert weights.scale == 10.0
    assert weights.normed == ("query", "key")


def test_cosines_times_a_temperature_of_each_head_are_audited() -> None:
    ckpt = loaded(lambda: Cosines(temperatures=True, on_logits=True))
    attention, weights = ckpt.model.blocks[1].attention, ckpt.attention(2)
    for head, times in enumerate(attention.temperature.detach().flatten().exp().tolist()):
        query, key = (
            part.weight.detach()[head * WIDTH : (head + 1) * WIDTH].mT / WIDTH**0.5
            for part in (attention.q, attention.k)
        )
        product = weights.scale * weights.query[head] @ weights.key[head].mT
        torch.testing.assert_close(product, times * query @ key.mT, check_dtype=False)


class OtherGain(Attention):
    def normalized(self, x: Tensor, place: int) -> Tensor:
        return by_hand(x, 1e-6) * (self.q_gain, self.k_gain)[place].square()


def test_a_gain_that_is_no_parameter_is_refused() -> None:
    with pytest.raises(AttentionFactorsError, match="no module gives every column of the queries"):
        td.audit(loaded(lambda: OtherGain("rms", "", modules=False)))


@pytest.mark.parametrize("modules", [True, False])
def test_features_without_their_mean_do_not_show_how_they_are_turned(modules: bool) -> None:
    with pytest.raises(AttentionFactorsError, match="these lie in fewer dimensions than they have features"):
        td.audit(loaded(lambda: Attention("layer", "turned", modules)))


class NormedKeys(Attention):
    def normalized(self, x: Tensor, place: int) -> Tensor:
        return by_hand(x, 1e-6) * self.k_gain if place else x


def test_keys_alone_are_said_to_be_normalized_after_their_one_projection() -> None:
    ckpt = loaded(lambda: NormedKeys("rms", "", modules=False))
    assert td.audit(ckpt).attrs["form"].startswith("key is normalized after its projection: the forms")
    with pytest.raises(ArgumentValueError, match="key normalized after its projection"):
        td.flow_of(ckpt, layers=[1])
