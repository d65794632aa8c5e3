"""PyTorch's flex_attention is seen: masks, terms of the logits and soft caps, and nothing else that changes logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tokendynamics as td
from tokendynamics.numerics import AttentionFactorsError
from tokendynamics.pretrained.discovery._fused_attention import uncompiled

flex = pytest.importorskip("torch.nn.attention.flex_attention")
pytestmark = pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="PyTorch before 2.6")

DIM, HEADS, VOCABULARY = 24, 4, 40
PROMPT = [5, 9, 33, 21, 7, 30]
SLOPES = torch.tensor([0.1, 0.2, 0.3, 0.4])

SCORES: dict[str, Callable[..., Tensor] | None] = {
    "plain": None,
    "by distance": lambda score, b, h, i, j: score - SLOPES[h] * (i - j).abs(),
    "capped": lambda score, b, h, i, j: 0.5 * torch.tanh(score / 0.5),
    "hidden": lambda score, b, h, i, j: torch.where(i >= j, score, -float("inf")),
    "masked": None,
    "multiplied": lambda score, b, h, i, j: score * (1.0 + SLOPES[h]),
}


def by_hand(form: str, logits: Tensor) -> Tensor:
    """Return the weights of logits (…, head, receiver, sender)."""
    places = torch.arange(logits.shape[-1])
    if form == "by distance":
        logits = logits - SLOPES[:, None, None] * (places[:, None] - places).abs()
    if form == "capped":
        logits = 0.5 * torch.tanh(logits / 0.5)
    if form in ("hidden", "masked"):
        logits = logits.masked_fill(places > places[:, None], -torch.inf)
    return logits.softmax(-1)


class Block(nn.Module):
    def __init__(self, form: str, kv_heads: int, *, plainly: bool) -> None:
        super().__init__()
        self.form, self.kv_heads, self.plainly = form, kv_heads, plainly
        self.norm, self.query, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.key, self.value = (nn.Linear(DIM, kv_heads * 6) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        read, tokens = self.norm(x), x.shape[1]
        q, k, v = (f(read).unflatten(-1, (-1, 6)).transpose(1, 2) for f in (self.query, self.key, self.value))
        if self.plainly:
            k, v = (part.repeat_interleave(HEADS // self.kv_heads, dim=1) for part in (k, v))
            heads = by_hand(self.form, q @ k.mT / math.sqrt(6)) @ v
        else:
            mask = None
            if self.form == "masked":
                mask = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, tokens, tokens, device="cpu")
            given: Any = {"score_mod": SCORES[self.form], "block_mask": mask, "enable_gqa": self.kv_heads != HEADS}
            heads = flex.flex_attention(q, k, v, **given)
        return x + self.out(heads.transpose(1, 2).flatten(2))


class Network(nn.Module):
    def __init__(self, form: str, kv_heads: int, *, plainly: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, DIM)
        self.blocks = nn.ModuleList(Block(form, kv_heads, plainly=plainly) for _ in range(2))

    def forward(self, idx: Tensor) -> Tensor:
        x = self.words(idx)
        for block in self.blocks:
            x = block(x)
        return x


def loaded(form: str, kv_heads: int = HEADS, *, plainly: bool = False) -> Any:
    torch.manual_seed(4)
    network = Network(form, kv_heads, plainly=plainly).eval()
    for parameter in network.parameters():
        parameter.data *= 2.0
    return td.load(network, inputs=lambda count: {"idx": torch.randint(0, VOCABULARY, (count, 7))})


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("form", "kv_heads", "words"),
    [
        ("plain", 2, "what the attention reads"),
        ("by distance", HEADS, "what the attention reads, plus a bias by position"),
        ("capped", HEADS, "what the attention reads, softly capped"),
        ("hidden", HEADS, "what the attention reads"),
        ("masked", 1, "what the attention reads"),
    ],
)
def test_it_is_read_as_the_same_attention_by_hand(form: str, kv_heads: int, words: str) -> None:
    ckpt, plain = loaded(form, kv_heads), loaded(form, kv_heads, plainly=True)
    layout = ckpt.layout.layers[1].attention
    assert layout is not None, ckpt.layout.layers[1].problem
    assert (layout.kv_heads, layout.causal) == (kv_heads, form in ("hidden", "masked"))
    assert layout.soft_cap == (pytest.approx(0.5) if form == "capped" else None)
    audit = td.audit(ckpt)
    assert audit.attrs["form"].endswith(words)
    block: Any = ckpt.model.blocks[1]
    weights, group = ckpt.attention(2), 3 // (HEADS // kv_heads)
    torch.testing.assert_close(weights.query[3], block.query.weight[18:].mT)
    torch.testing.assert_close(weights.key_per_head[3], block.key.weight[6 * group :][:6].mT)
    states = ckpt.states(torch.tensor(PROMPT)).feed_forward
    torch.testing.assert_close(states, plain.states(torch.tensor(PROMPT)).feed_forward)
    pattern = torch.as_tensor(td.attention_seen(ckpt, [PROMPT], patterns=True).pattern.sel(layer=2).values).squeeze()
    read = block.norm(states[1].float())
    q, k = (part(read).unflatten(-1, (-1, 6)).transpose(0, 1) for part in (block.query, block.key))
    wanted = by_hand(form, q @ k.repeat_interleave(HEADS // kv_heads, dim=0).mT / math.sqrt(6))
    torch.testing.assert_close(pattern.to(wanted), wanted.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_states_are_those_of_the_network_as_it_compiles_itself() -> None:
    ckpt = loaded("by distance")
    given: list[Tensor] = []
    hooks = [one.register_forward_hook(lambda *seen: given.append(seen[2][0])) for one in ckpt.model.blocks]
    with torch.no_grad():
        ckpt.model(torch.tensor([PROMPT]))
    for hook in hooks:
        hook.remove()
    states = ckpt.states(torch.tensor(PROMPT)).feed_forward
    assert torch.equal(states[1:].to(given[0]), torch.stack(given))


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["by distance", "masked"])
def test_a_factor_on_its_logits_is_one_on_its_queries(form: str) -> None:
    hotter = loaded(form).under({"logits": 0.5}).states(torch.tensor(PROMPT)).feed_forward
    changed = loaded(form)
    for block in changed.model.blocks:
        block.query.weight.data *= 0.5
        block.query.bias.data *= 0.5
    torch.testing.assert_close(hotter, changed.states(torch.tensor(PROMPT)).feed_forward)


@pytest.mark.long
def test_logits_that_are_changed_in_another_way_are_not_read() -> None:
    ckpt = loaded("multiplied")
    assert [layer.attention for layer in ckpt.layout.layers] == [None, None]
    with pytest.raises(AttentionFactorsError, match="no softmax of products of queries and keys was seen"):
        td.audit(ckpt)


def test_what_is_compiled_runs_as_before_after_blocks_that_overlap() -> None:
    def stance() -> str:
        return torch._dynamo.eval_frame._stance.stance

    first, second = uncompiled(), uncompiled()
    before = stance()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert stance() == "force_eager"
    second.__exit__(None, None, None)
    assert stance() == before
