"""Networks that look like transformers and are none, or that change what they are given: measured right, or refused."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from tokendynamics.diagnosis.tracing.words import attention_finding
from tokendynamics.numerics import AttentionFactorsError, CheckpointError
from tokendynamics.pretrained.discovery.layout import OTHER_PLACES

DIM, HEADS, VOCABULARY = 24, 4, 40
PROMPT = torch.tensor([5, 9, 33, 21, 7, 2])


class Attention(nn.Module):
    """Softmax attention by hand; others differ in how they mix."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.qkv, self.out, self.dropout = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (third.unflatten(-1, (HEADS, -1)).transpose(1, 2) for third in self.qkv(x).chunk(3, -1))
        return self.out(self.mixed(q, k, v).transpose(1, 2).flatten(2))

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.dropout((q @ k.mT / math.sqrt(DIM // HEADS)).softmax(dim=-1)) @ v


class Kernel(Attention):
    """Linear attention of two positive features."""

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        return q @ (k.mT @ v) / (q @ k.sum(dim=-2, keepdim=True).mT)


class Efficient(Attention):
    """Linear attention with a softmax over the features of queries, and one over the tokens of keys."""

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q.softmax(dim=-1) @ (k.softmax(dim=-2).mT @ v)


class Channels(Attention):
    """Channels attend to channels, as in XCiT."""

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = (functional.normalize(tensor.mT, dim=-1) for tensor in (q, k))
        return ((q @ k.mT).softmax(dim=-1) @ v.mT).mT


class FusedChannels(Attention):
    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q.mT, k.mT, v.mT).mT


class Flipped(Attention):
    """Keys and values stand in the other direction: sender j is no token j."""

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super().mixed(q, k.flip(2), v.flip(2))


class Mixed(Attention):
    """As many keys and values as tokens, each a sum over all of these (Linformer)."""

    def __init__(self) -> None:
        super().__init__()
        self.along = nn.Linear(6, 6, bias=False)

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super().mixed(q, self.along(k.mT).mT, self.along(v.mT).mT)


class Strided(Attention):
    """A key and a value for each two tokens (PVT): the last of nine tokens has no part in them."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = nn.Conv1d(2 * DIM, 2 * DIM, 2, 2)

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        both = torch.cat((k, v), dim=1).mT.flatten(1, 2)
        k, v = self.pairs(both).unflatten(1, (2 * HEADS, -1)).mT.chunk(2, dim=1)
        return super().mixed(q, k, v)


class Learned(Attention):
    """Two keys and values stand before those of the tokens, as prefix tuning has them."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Parameter(torch.randn(2, HEADS, 2, DIM // HEADS))

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (
            torch.cat((one.expand(len(q), -1, -1, -1), direct), 2)
            for one, direct in zip(self.before, (k, v), strict=True)
        )
        return super().mixed(q, k, v)


class Fourier(nn.Module):
    """As in FNet: no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.map(torch.fft.fft2(x).real / 5)


class Block(nn.Module):
    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2, self.mixer = nn.LayerNorm(DIM), nn.LayerNorm(DIM), mixer
        self.mlp = nn.Sequential(nn.Linear(DIM, 32), nn.GELU(), nn.Linear(32, DIM))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class InPlace(Block):
    """Adds up in the tensor that it is given."""

    def forward(self, x: Tensor) -> Tensor:
        x += self.mixer(self.norm1(x))
        x += self.mlp(self.norm2(x))
        return x


class ByTime(Block):
    """Tokens of three times; those of one time attend to each other."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.unflatten(1, (3, -1)).flatten(0, 1)).unflatten(0, (len(x), 3)).flatten(1, 2)


class Turned(Block):
    """Tokens change places before the attention, and back after it."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(self.norm1(x).roll(2, 1)).roll(-2, 1)
        return x + self.mlp(self.norm2(x))


class Network(nn.Module):
    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, DIM), nn.Embedding(16, DIM)
        self.blocks, self.end = nn.ModuleList([block() for _ in range(3)]), nn.LayerNorm(DIM)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = self.between(block(x))
        return self.end(x)

    def between(self, x: Tensor) -> Tensor:
        return x


def network_of(mixer: Callable[[], nn.Module], block: type[Block] = Block, kind: type[Network] = Network) -> Any:
    torch.manual_seed(3)
    return kind(lambda: block(mixer())).eval()


def loaded(network: nn.Module, tokens: int = 9) -> Any:
    return td.load(network, inputs=lambda count: {"ids": torch.randint(0, VOCABULARY, (count, tokens))})


def by_hooks(network: Any, ids: Tensor) -> Tensor:
    """Return the states before the first block and after each, (layer, token, dim)."""
    states: list[Tensor] = []
    hooks = [network.blocks[0].register_forward_pre_hook(lambda module, given: states.append(given[0][0].clone()))]
    hooks += [block.register_forward_hook(lambda m, given, y: states.append(y[0].clone())) for block in network.blocks]
    with torch.inference_mode():
        network(ids[None].clone())
    for hook in hooks:
        hook.remove()
    return torch.stack(states)


NO_SOFTMAX = (
    "no softmax of products of queries and keys was seen in it; it may have no attention, one without a softmax, or "
    "one that runs as one function"
)
NO_AUDIT: dict[str, tuple[Callable[[], nn.Module], type[Block], int, str]] = {
    "kernel": (Kernel, Block, 9, NO_SOFTMAX),
    "efficient": (Efficient, Block, 9, NO_SOFTMAX),
    "no attention": (Fourier, Block, 9, NO_SOFTMAX),
    "channels": (Channels, Block, 9, "its attention runs over 6 channels of each head, not over the 9 tokens"),
    "as many tokens": (Channels, Block, 6, "its attention runs over 6 channels of each head, not over the 6 tokens"),
    "fused": (FusedChannels, Block, 6, "its attention runs over 6 channels of each head, not over the 6 tokens"),
    "flipped": (Flipped, Block, 9, OTHER_PLACES),
    "mixed": (Mixed, Block, 6, OTHER_PLACES),
    "strided": (Strided, Block, 9, rf"{OTHER_PLACES} \(9 queries, 4 keys\)"),
    "learned": (Learned, Block, 9, rf"{OTHER_PLACES} \(9 queries, 11 keys\)"),
    "by time": (Attention, ByTime, 12, "its attention runs over groups of 4 of the 12 tokens"),
}


@pytest.mark.long
@pytest.mark.few(4)
@pytest.mark.parametrize("case", NO_AUDIT)
def test_what_is_no_softmax_attention_over_tokens_is_traced_and_not_audited(case: str) -> None:
    mixer, block, tokens, words = NO_AUDIT[case]
    network = network_of(mixer, block)
    ckpt = loaded(network, tokens)
    assert torch.equal(ckpt.states(PROMPT).feed_forward, by_hooks(network, PROMPT))
    trace = td.trace(ckpt, [PROMPT.tolist()])
    assert bool(trace.attention_received.isnull().all())
    why = attention_finding(trace).text
    assert re.search(rf"not measured because the attention weights .* are not accessible \(layer 1: {words}", why)
    with pytest.raises(CheckpointError, match=f"between the tokens shows in every layer, got layer 1: {words}"):
        td.attention_seen(ckpt, [PROMPT.tolist()])
    assert not ckpt.layout.causal
    with pytest.raises(AttentionFactorsError, match=f"whose factors are found, got none .{words}") as refusal:
        td.audit(ckpt)
    assert refusal.value.args[0].count("\n") == 0
    part = ckpt.layout.layers[0].residual
    assert (part is None) is (case == "by time")
    if part is not None:
        expected = network.blocks[0].norm2.register_forward_pre_hook(lambda module, x: seen.append(x[0][0]))
        seen: list[Tensor] = []
        by_hooks(network, PROMPT)
        expected.remove()
        assert torch.equal(ckpt.states(PROMPT).attention[1], seen[0])


class Sigmoid(Attention):
    """No softmax; a token sees those before it, and as many of those behind it as `ahead` says."""

    ahead = 0

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1 + self.ahead)
        return (q @ k.mT).masked_fill(hidden, -torch.inf).sigmoid() @ v


class SigmoidAhead(Sigmoid):
    ahead = 1


class Scored(nn.Module):
    def __init__(self, mixer: type[nn.Module]) -> None:
        super().__init__()
        self.network, self.head = network_of(mixer), nn.Linear(DIM, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.network(ids))


@pytest.mark.long
def test_whether_attention_without_a_softmax_looks_ahead_is_measured() -> None:
    prompts = [torch.randint(0, VOCABULARY, (9,)).tolist() for _ in range(6)]
    network: Any = Scored(Sigmoid).eval()
    ckpt = loaded(network)
    assert ckpt.causal
    effect = td.what_if(ckpt, prompts, {"layer 1 attention": 0.5})
    losses = [functional.cross_entropy(network(torch.tensor([ids]))[0, :-1], torch.tensor(ids[1:])) for ids in prompts]
    assert float(effect.loss.sel(model="as it is")) == pytest.approx(torch.stack(losses).mean().item(), abs=1e-5)
    # The token at the end is seen by its neighbour alone, of any two neighbours the first sees the second.
    assert not loaded(Scored(SigmoidAhead).eval()).causal
    assert not loaded(Scored(Fourier).eval()).causal


@pytest.mark.long
def test_weights_between_tokens_in_another_order_are_not_measured() -> None:
    prompt, usual = list(range(14)), loaded(network_of(Attention))
    assert not bool(td.trace(usual, [prompt]).attention_received.isnull().all())
    ckpt = loaded(network_of(Attention, Turned))
    assert td.audit(ckpt).sizes["layer"] == 3
    assert bool(td.trace(ckpt, [prompt]).attention_received.isnull().all())
    with pytest.raises(CheckpointError, match=OTHER_PLACES):
        td.attention_seen(ckpt, [PROMPT.tolist()])


def test_attention_over_as_many_tokens_as_features_is_audited() -> None:
    assert td.audit(loaded(network_of(Attention), 6)).sizes["layer"] == 3


class Pooling(Network):
    def between(self, x: Tensor) -> Tensor:
        return x[:, ::2]


class Extending(Network):
    def between(self, x: Tensor) -> Tensor:
        return torch.cat([x, x.mean(dim=1, keepdim=True)], dim=1)


@pytest.mark.few(1)
@pytest.mark.parametrize(("between", "second"), [(Pooling, 4), (Extending, 9)])
def test_tokens_that_change_between_blocks_are_named(between: type[Network], second: int) -> None:
    words = rf"\(8, 24\) after blocks.0 and \({second}, 24\) after blocks.1; .* numbers of tokens"
    with pytest.raises(CheckpointError, match=words):
        loaded(network_of(Attention, kind=between), 8)


def test_a_network_in_training_gives_the_numbers_of_evaluation_and_stays_in_training() -> None:
    network = network_of(lambda: Attention(dropout=0.5))
    expected = by_hooks(network, PROMPT)
    network.train()
    network.blocks[1].eval()
    modes = [module.training for module in network.modules()]
    ckpt = loaded(network)
    results = [ckpt.states(PROMPT).feed_forward for _ in range(2)]
    assert all(torch.equal(states, expected) for states in results)
    assert ckpt.layout.layers[0].attention is not None
    assert [module.training for module in network.modules()] == modes


def test_a_parameter_without_values_is_named() -> None:
    network = network_of(Attention)
    network.blocks[1].mixer.out.to("meta")
    with pytest.raises(CheckpointError, match=r"blocks.1.mixer.out.weight and others on the meta device; load them"):
        loaded(network)


def test_a_weight_that_is_nan_is_named_also_after_loading() -> None:
    network = network_of(Attention)
    ckpt = loaded(network)
    network.blocks[1].mixer.out.weight.data[3, 4] = torch.nan
    with pytest.raises(CheckpointError, match=r"layer 2: mixer.out.weight: expected finite numbers, got nan at .*3, 4"):
        td.audit(ckpt)
    with pytest.raises(CheckpointError, match="layer 2: expected finite states after its attention, got nan"):
        td.trace(ckpt, [PROMPT.tolist()])
    with pytest.raises(CheckpointError, match=r"blocks.1.mixer.out.weight: expected finite numbers, got nan"):
        loaded(network)


@pytest.mark.long
def test_states_of_blocks_that_write_into_their_input_are_those_at_the_time() -> None:
    network, other = network_of(Attention, InPlace), network_of(Attention)
    ckpt, plain = loaded(network), loaded(other)
    assert ckpt.layout.layers[0].attention is not None
    states, expected = ckpt.states(PROMPT), plain.states(PROMPT)
    assert torch.equal(states.feed_forward, by_hooks(network, PROMPT))
    assert torch.equal(states.feed_forward, expected.feed_forward)
    assert torch.equal(states.attention[1:], expected.attention[1:])
    half: Any = {"layer 2 attention": 0.5, "layer 1 head 2": 0}
    gated, by_other = ckpt.under(half).states(PROMPT), plain.under(half).states(PROMPT)
    torch.testing.assert_close(gated.feed_forward, by_other.feed_forward)
    torch.testing.assert_close(gated.attention[1:], by_other.attention[1:])


class Counting(Network):
    """Takes its ids one further, in the caller's tensor."""

    def forward(self, ids: Tensor) -> Tensor:
        ids += 1
        return super().forward(ids)


class Centring(nn.Module):
    """Takes its series apart from their mean, in the caller's tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(Attention()) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        x -= x.mean(dim=1, keepdim=True)
        x *= 2
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.long
def test_what_a_network_writes_into_is_a_copy() -> None:
    network, ids = network_of(Attention, kind=Counting), PROMPT.clone()
    example = torch.randint(0, VOCABULARY - 1, (2, 7))
    kept = example.clone()
    ckpt = td.load(network, inputs=lambda count: {"ids": example[:count].repeat(1 + count // 2, 1)[:count]})
    assert torch.equal(example, kept)
    for _ in range(2):
        assert torch.equal(ckpt.states(ids).feed_forward, by_hooks(network, PROMPT))
        ckpt.under({"layer 1 attention": 0.5}).states({"ids": ids[None]})
        td.attention_seen(ckpt, [{"ids": ids[None]}])
        assert torch.equal(ids, PROMPT)
    centring, series = Centring().eval(), torch.randn(4, 7, DIM) + 3
    kept = series.clone()
    series_ckpt = td.load(centring, inputs=lambda count: {"x": series[torch.arange(count) % 4]})
    by_view = td.load(centring, inputs=series)
    one = {"x": series[:1]}
    for of_series in (series_ckpt, by_view):
        assert of_series.layout.layers[0].attention is not None
        td.trace(of_series, [one])
        assert torch.equal(of_series.states(one).feed_forward, by_hooks(centring, kept[0]))
    assert torch.equal(series, kept)


class Observing(Attention):
    """Rounds by the largest number that it ever read, and keeps its last input, as observers of quantisation do."""

    largest: Tensor
    counts: Tensor
    last: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.tensor(0.01))
        self.register_buffer("counts", torch.zeros(1, dtype=torch.long))
        self.register_buffer("last", None)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.largest.copy_(torch.maximum(self.largest, x.detach().abs().max()))
        self.counts, self.last, self.calls = self.counts + 1, x.detach(), self.calls + 1
        step = self.largest / 127
        return super().forward((x / step).round() * step)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_buffers_that_a_network_writes_into_are_put_back(dtype: torch.dtype) -> None:
    network = network_of(Observing).to(dtype)
    network(PROMPT[None])  # a pass of its own: these are the numbers of the user
    attentions = [block.mixer for block in network.blocks]

    def remembered() -> list[tuple[Tensor, Tensor, int, Tensor]]:
        return [
            (attention.largest.clone(), attention.counts.clone(), attention.calls, attention.last.clone())
            for attention in attentions
        ]

    before, prompts = remembered(), [[5, 9, 33, 21], [7, 2, 8, 30], [1, 3, 39, 4]]
    expected = by_hooks(copy.deepcopy(network), PROMPT)
    ckpt = loaded(network)
    for _ in range(2):
        assert torch.equal(ckpt.states(PROMPT).feed_forward, expected)
    td.diagnose(ckpt, texts=prompts)
    td.attention_seen(ckpt, prompts)
    td.what_if(ckpt, prompts, {"layer 1 attention": 0.5})
    for kept, now in zip(before, remembered(), strict=True):
        assert kept[2] == now[2]
        assert all(torch.equal(*pair) for pair in zip((*kept[:2], kept[3]), (*now[:2], now[3]), strict=True))
    network(PROMPT[None])
    assert [attention.calls for attention in attentions] == [2, 2, 2]


class SelfAndCross(nn.Module):
    """Two attentions in one block, either by hand or PyTorch's own."""

    def __init__(self, *, by_hand: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(DIM) for _ in range(3)])
        self.by_hand = by_hand
        if by_hand:
            self.own, self.other = Attention(), Attention()
        else:
            self.own, self.other = (nn.MultiheadAttention(DIM, HEADS, batch_first=True) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(DIM, 32), nn.GELU(), nn.Linear(32, DIM))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        y = self.norms[0](x)
        x = x + (self.own(y) if self.by_hand else self.own(y, y, y)[0])
        y = self.norms[1](x)
        x = x + (self.other(torch.cat([y, memory], dim=1))[:, : y.shape[1]] if self.by_hand else
                 self.other(y, memory, memory)[0])  # fmt: skip
        return x + self.mlp(self.norms[2](x))


class Crossing(nn.Module):
    def __init__(self, *, by_hand: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, DIM)
        self.blocks = nn.ModuleList([SelfAndCross(by_hand=by_hand) for _ in range(2)])

    def forward(self, ids: Tensor, memory: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x, self.words(memory))
        return x


@pytest.mark.long
@pytest.mark.parametrize("by_hand", [False, True])
def test_two_attentions_in_a_block_are_never_mixed_up(by_hand: bool) -> None:
    torch.manual_seed(4)
    network: Any = Crossing(by_hand=by_hand).eval()

    def inputs(count: int) -> dict[str, Tensor]:
        return {name: torch.randint(0, VOCABULARY, (count, 6)) for name in ("ids", "memory")}

    ckpt, one = td.load(network, inputs=inputs), inputs(1)
    outputs: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda m, given, y: outputs.append(y[0])) for block in network.blocks]
    with torch.inference_mode():
        network(**one)
    for hook in hooks:
        hook.remove()
    # PyTorch's own takes a fused path by itself, which rounds otherwise.
    torch.testing.assert_close(ckpt.states(one).feed_forward[1:], torch.stack(outputs))
    if by_hand:
        with pytest.raises(AttentionFactorsError, match=r"it has 2 attentions \(own, other\); one can be read"):
            td.audit(ckpt)
        return
    assert "layers 1–2 have a cross-attention, which reads another sequence" in td.audit(ckpt).attrs["notes"]
    layout = ckpt.layout.layers[1].attention
    assert layout is not None
    assert layout.module == "own"
    packed = network.blocks[1].own.in_proj_weight.detach()
    torch.testing.assert_close(ckpt.attention(2).key[1], packed[DIM + 6 : DIM + 12].mT)
    seen = td.attention_seen(ckpt, [one], patterns=True).pattern
    y = network.blocks[0].norms[0](network.words(one["ids"]))
    _, weights = network.blocks[0].own(y, y, y, average_attn_weights=False)
    np.testing.assert_allclose(seen[0, 0], weights[0].detach(), atol=1e-6, rtol=1e-5)
