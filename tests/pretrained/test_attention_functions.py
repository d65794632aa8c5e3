"""An attention written with PyTorch's functions in any usual way is seen: queries, keys, values, weights and terms."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tokendynamics.pretrained.discovery._attention_layout import _is_causal
from tokendynamics.pretrained.discovery._functions import noticing
from tokendynamics.pretrained.discovery.attention_call import AttentionCall
from tokendynamics.pretrained.discovery.interface import multiplied_logits, watching

BATCH, HEADS, TOKENS, WIDTH = 2, 3, 5, 4
HIDDEN = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
SLOPES = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64).reshape(HEADS, 1, 1)
BY_DISTANCE = -SLOPES * (torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)).abs()


def tensors(kv_heads: int = HEADS) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(BATCH, heads, TOKENS, WIDTH) for heads in (HEADS, kv_heads, kv_heads)]
    query, key, value = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return query, key, value


def _matmul(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / math.sqrt(WIDTH)).softmax(dim=-1) @ v


def _masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    logits = torch.matmul(q * WIDTH**-0.5, k.mT).masked_fill(HIDDEN, float("-inf"))
    return functional.dropout(functional.softmax(logits, dim=-1), 0.1, training=False) @ v


def _in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    logits = torch.matmul(q, k.mT)
    logits /= math.sqrt(WIDTH)
    logits[..., HIDDEN] = -1e30
    return torch.softmax(logits, -1).matmul(v)


def _zeroed_and_added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    seen = (~HIDDEN).double()
    logits = q @ k.mT * WIDTH**-0.5
    return torch.softmax(logits * seen + -1e4 * (1 - seen), dim=-1) @ v


def _einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    weights = torch.einsum("b i h d, b j h d -> b h i j", q, k).mul(WIDTH**-0.5).softmax(-1)
    return torch.einsum("bhij,bjhd->bihd", weights, v).transpose(1, 2)


def _keys_and_values_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As TransformerLens multiplies its weights: behind the values."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    weights = torch.einsum("b j h d, b i h d -> b h i j", k, q).mul(WIDTH**-0.5).softmax(-1)
    return torch.einsum("bjhd,bhij->bihd", v, weights).transpose(1, 2)


def _ellipsis(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (torch.einsum("...id,...jd->...ij", q, k) * torch.tensor(WIDTH**-0.5)).softmax(-1)
    return torch.einsum("...ij,...jd->...id", [weights, v])


def _less_the_largest(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    logits = q @ k.mT * WIDTH**-0.5
    return (logits - logits.amax(dim=-1, keepdim=True)).softmax(dim=-1) @ v


def _queries_by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries, keys and values of each head by a parameter with an axis for heads, as TransformerLens has them."""
    maps = torch.eye(WIDTH, dtype=torch.float64).expand(HEADS, WIDTH, WIDTH)
    q, k, v = (torch.einsum("bhid,hde->bhie", tensor, maps) for tensor in (q, k, v))
    return torch.einsum("bhij,bhjd->bhid", (torch.einsum("bhid,bhjd->bhij", q, k) * WIDTH**-0.5).softmax(-1), v)


def _queries_by_matmul(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    maps = torch.eye(WIDTH, dtype=torch.float64).expand(HEADS, WIDTH, WIDTH)
    return ((q @ maps) @ (k @ maps).mT * WIDTH**-0.5).softmax(-1) @ (v @ maps)


def _heads_in_the_batch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (tensor.flatten(0, 1) for tensor in (q, k, v))
    bias = BY_DISTANCE.repeat(BATCH, 1, 1)
    logits = torch.baddbmm(bias, q, k.mT, beta=2.0, alpha=WIDTH**-0.5).view(BATCH, HEADS, TOKENS, TOKENS)
    weights = functional.softmax(logits, dim=-1).view(BATCH * HEADS, TOKENS, TOKENS)
    return torch.bmm(weights, v).view(BATCH, HEADS, TOKENS, WIDTH)


def _by_distance(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    logits = torch.add(2 * BY_DISTANCE, q @ k.mT, alpha=WIDTH**-0.5)
    return logits.softmax(-1) @ v


def _twice_negative(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (0.0 - (-q @ k.mT) * WIDTH**-0.5).softmax(-1) @ v


def _fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _fused_by_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One head after the other, without an axis for heads."""
    return torch.stack([functional.scaled_dot_product_attention(q[:, h], k[:, h], v[:, h]) for h in range(HEADS)], 1)


PLAIN = (
    _matmul, _einsum, _keys_and_values_first, _ellipsis, _less_the_largest,
    _twice_negative, _queries_by_einsum, _queries_by_matmul
)  # fmt: skip
CAUSAL = (_masked, _in_place, _zeroed_and_added, _fused)
BIASED = (_heads_in_the_batch, _by_distance)


def seen_of(
    attention: Callable[[Tensor, Tensor, Tensor], Tensor], *given: Tensor
) -> tuple[list[AttentionCall], Tensor]:
    calls: list[AttentionCall] = []
    with noticing(lambda call: calls.append(call.kept())):
        output = attention(*given)
    return calls, output


@pytest.mark.parametrize("attention", [*PLAIN, *CAUSAL, *BIASED], ids=lambda function: function.__name__)
def test_an_attention_is_seen_with_all_that_makes_its_weights(attention: Any) -> None:
    q, k, v = tensors()
    (call,), output = seen_of(attention, q, k, v)
    assert torch.equal(output, attention(q, k, v))
    added = 2 * BY_DISTANCE if attention in BIASED else torch.zeros(TOKENS, TOKENS, dtype=torch.float64)
    if attention in CAUSAL:
        added = added.masked_fill(HIDDEN, -torch.inf)
    weights = (q @ k.mT / math.sqrt(WIDTH) + added).softmax(dim=-1)
    torch.testing.assert_close(call.scale * call.query @ call.key.mT, q @ k.mT / math.sqrt(WIDTH))
    torch.testing.assert_close(call.value, v)
    torch.testing.assert_close(call.weights, weights)
    torch.testing.assert_close(call.output.transpose(1, 2), weights @ v)
    mask = call.mask
    if attention in PLAIN:
        assert mask is None
    else:
        assert mask is not None
        torch.testing.assert_close((call.scale * call.query @ call.key.mT + mask).softmax(dim=-1), weights)
        assert bool((mask[..., HIDDEN] < -1e30).all()) is (attention in CAUSAL)
        visible = (mask - mask.amax(dim=-1, keepdim=True))[..., ~HIDDEN]
        expected = (added - added.amax(dim=-1, keepdim=True)).expand(BATCH, HEADS, -1, -1)[..., ~HIDDEN]
        torch.testing.assert_close(visible.expand_as(expected), expected)


@pytest.mark.parametrize("attention", [*PLAIN, *CAUSAL, *BIASED], ids=lambda function: function.__name__)
@pytest.mark.parametrize("size", [1.0, 12.0])
def test_what_a_token_may_see_is_what_the_mask_does_not_hide(attention: Any, size: float) -> None:
    query, key, value = tensors()
    seen: list[AttentionCall] = []
    with noticing(seen.append):
        attention(size * query, size * key, value)
    (call,) = seen
    mask, rows = call.mask, slice(0, TOKENS)
    by_mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    if mask is not None:
        by_mask = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    shown = call.shown(rows)
    by_weights = torch.ones(TOKENS, TOKENS, dtype=torch.bool) if shown is None else shown
    wanted = ~HIDDEN if attention in CAUSAL else torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    both = torch.broadcast_tensors(by_weights, by_mask, wanted)
    assert torch.equal(both[0], both[1])
    if attention not in BIASED:
        assert torch.equal(both[0], both[2])


@pytest.mark.parametrize("attention", [*PLAIN, *CAUSAL, *BIASED], ids=lambda function: function.__name__)
def test_multiplied_logits_are_those_of_multiplied_queries(attention: Any) -> None:
    q, k, v = tensors()
    factors = torch.tensor([0.25, 3.0], dtype=torch.float64)
    expected = attention(q * factors.reshape(-1, 1, 1, 1), k, v)
    with multiplied_logits(torch.nn.Identity(), factors.log):
        torch.testing.assert_close(attention(q, k, v), expected)
        calls, output = seen_of(attention, q, k, v)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(calls[0].output.transpose(1, 2), expected)
    with multiplied_logits(torch.nn.Identity(), factors.log), multiplied_logits(torch.nn.Identity(), factors.log):
        torch.testing.assert_close(attention(q, k, v), attention_of(attention, q, k, v, factors**2))


def attention_of(attention: Any, q: Tensor, k: Tensor, v: Tensor, factors: Tensor) -> Tensor:
    from contextvars import Context

    return Context().run(lambda: attention(q * factors.reshape(-1, 1, 1, 1), k, v))


def test_heads_that_share_keys_are_seen_as_they_are() -> None:
    q, k, v = tensors(kv_heads=1)
    below = q.flatten(1, 2)  # heads one below the other, as in multi-query attention

    def shared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = (torch.matmul(q, k.mT) * WIDTH**-0.5).view(BATCH, HEADS, TOKENS, TOKENS)
        return (logits.softmax(dim=-1).view(BATCH, HEADS * TOKENS, TOKENS) @ v).view(BATCH, HEADS, TOKENS, WIDTH)

    for attention, given in (
        (shared, (below, k[:, 0], v[:, 0])),
        (lambda q, k, v: (torch.einsum("bhid,bjd->bhij", q, k) / 2).softmax(-1) @ v[:, None], (q, k[:, 0], v[:, 0])),
        (lambda q, k, v: torch.einsum("bhij,bjd->bihd", (q @ k[:, None].mT / 2).softmax(-1), v), (q, k[:, 0], v[:, 0])),
    ):
        (call,), _ = seen_of(attention, *given)
        assert call.key.shape[1] == call.value.shape[1] == 1
        weights = (q @ k.mT / math.sqrt(WIDTH)).softmax(dim=-1)
        torch.testing.assert_close(call.query, q)
        torch.testing.assert_close(call.weights, weights)
        torch.testing.assert_close(call.output.transpose(1, 2), weights @ v)


def test_without_an_axis_for_heads_there_is_one_head() -> None:
    q, k, v = tensors()
    calls, _ = seen_of(_fused_by_head, q, k, v)
    for head, call in enumerate(calls):
        assert call.query.shape == (BATCH, 1, TOKENS, WIDTH)
        torch.testing.assert_close(call.weights[:, 0], (q[:, head] @ k[:, head].mT / 2).softmax(-1))
    (call,), _ = seen_of(lambda q, k, v: (q @ k.mT).softmax(-1) @ v, q[:, 0], k[:, 0], v[:, 0])
    torch.testing.assert_close(call.output[:, :, 0], (q[:, 0] @ k[:, 0].mT).softmax(-1) @ v[:, 0])


@pytest.mark.parametrize("boolean", [False, True])
@pytest.mark.parametrize(
    "lead", [(), (1,), (HEADS,), (1, HEADS), (HEADS, 1), (HEADS, HEADS), (1, 1, HEADS), (2, HEADS, 1)]
)
def test_a_mask_of_the_fused_attention_may_have_any_axes_in_front(lead: tuple[int, ...], boolean: bool) -> None:
    """Of as many inputs as heads, so that taking one axis for the other does not fail."""
    generator = torch.Generator().manual_seed(4)
    shape = (2, HEADS, HEADS, TOKENS, WIDTH) if len(lead) == 3 else (HEADS, HEADS, TOKENS, WIDTH)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    mask = torch.randn(*lead, TOKENS, TOKENS, generator=generator, dtype=torch.float64)
    if boolean:
        mask = (mask > 0) | torch.eye(TOKENS, dtype=torch.bool)
    (call,), output = seen_of(partial(functional.scaled_dot_product_attention, attn_mask=mask), q, k, v)
    added = torch.zeros(()).double().masked_fill(~mask, -torch.inf) if boolean else mask
    weights = (q @ k.mT / math.sqrt(WIDTH) + added).softmax(dim=-1)
    torch.testing.assert_close(output, weights @ v)
    torch.testing.assert_close(call.weights, weights.flatten(0, -4))


@pytest.mark.parametrize(("ahead", "causal"), [(0, True), (1, False), (2, False)])
def test_attention_is_causal_where_no_later_token_is_seen(ahead: int, causal: bool) -> None:
    hidden = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1 + ahead)
    (call,), _ = seen_of(lambda q, k, v: (q @ k.mT).masked_fill(hidden, -torch.inf).softmax(-1) @ v, *tensors())
    assert _is_causal(call) is causal


NOT_SEEN: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "bent": lambda q, k, v: (torch.asinh(q @ k.mT)).softmax(-1) @ v,
    "bent in place": lambda q, k, v: (q @ k.mT).sigmoid_().softmax(-1) @ v,
    "capped twice": lambda q, k, v: (q @ k.mT).tanh_().tanh().softmax(-1) @ v,
    "over receivers": lambda q, k, v: (q @ k.mT).softmax(-2) @ v,
    "no softmax": lambda q, k, v: (q @ k.mT / TOKENS) @ v,
    "of a part": lambda q, k, v: (q @ k.mT)[..., :3].softmax(-1) @ v[:, :, :3],
    "by a tensor": lambda q, k, v: (q @ k.mT * (1 + torch.arange(TOKENS)[:, None])).softmax(-1) @ v,
    "turned": lambda q, k, v: (k @ q.mT).transpose(-1, -2).softmax(-1) @ v,
    "bounded": lambda q, k, v: (q @ k.mT).clamp(min=-1.0).softmax(-1) @ v,
    "two axes": lambda q, k, v: torch.einsum("bhid,bhjd->bij", q, k).softmax(-1) @ v[:, 0],
    "weights squared": lambda q, k, v: (q @ k.mT).softmax(-1).square() @ v,
}


@pytest.mark.parametrize("name", NOT_SEEN)
def test_what_is_no_softmax_of_a_product_is_not_taken_for_one(name: str) -> None:
    q, k, v = tensors()
    calls, output = seen_of(NOT_SEEN[name], q, k, v)
    assert calls == []
    assert torch.equal(output, NOT_SEEN[name](q, k, v))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_watched_network_gives_the_states_of_its_own_implementation(implementation: str) -> None:
    """Falcon with ALiBi rounds its bias in one implementation and not in the other, and has no interface."""
    from transformers import AutoConfig, AutoModel

    config: Any = AutoConfig.for_model(
        "falcon", vocab_size=31, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, alibi=True,
        new_decoder_architecture=False, multi_query=False, parallel_attn=False,
    )  # fmt: skip
    config._attn_implementation = implementation
    torch.manual_seed(2)
    network = AutoModel.from_config(config).eval()
    for parameter in network.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    ids, calls = torch.randint(0, 31, (1, 9)), []
    with torch.no_grad():
        alone = network(ids)[0]
        with watching(network, calls.append):
            watched = network(ids)[0]
        with multiplied_logits(network, lambda: torch.zeros(1)):
            multiplied = network(ids)[0]
    assert len(calls) == 2
    torch.testing.assert_close(watched, alone)
    torch.testing.assert_close(multiplied, alone, rtol=1e-4, atol=1e-4)
