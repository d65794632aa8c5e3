"""Masks that networks make by hand: causal and full ones, windows, padding, and others, which are named."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from tokendynamics.numerics import ArgumentValueError

DIM, HEADS, VOCABULARY, TOKENS = 12, 2, 30, 7


def _shown(form: str, ids: Tensor) -> Tensor:
    """Return which senders receivers may see, (…, receiver, sender)."""
    tokens = ids.shape[1]
    place = torch.arange(tokens)
    distance = place[:, None] - place
    if form == "prefix":
        return (distance >= 0) | (place < 3)
    if form == "window of each head":
        return (distance >= 0) & (distance < torch.tensor([2, 4])[:, None, None])
    if form == "causal in one head":
        return torch.stack([distance >= 0, distance < tokens])
    if form in ("padding", "causal with padding"):
        padding = (torch.arange(tokens) >= 5).expand(len(ids), tokens) & (torch.arange(len(ids)) % 2 == 0)[:, None]
        return ~padding[:, None, None] & (distance >= 0 if form.startswith("causal") else distance < tokens)
    if form == "documents":  # packed side by side
        document = (ids % 3 == 0).cumsum(dim=1)
        return ((document[:, :, None] == document[:, None]) & (distance >= 0))[:, None]
    return {
        "full": distance < tokens,
        "causal": distance >= 0,
        "window": (distance >= 0) & (distance < 3),
        "band": distance.abs() <= 1,
        "later tokens only": distance <= 0,
        "every second": (distance >= 0) & (distance % 2 == 0),
        "not itself": distance != 0,
        "earlier tokens only": (distance > 0) | (place == 0)[:, None] & (distance == 0),
    }[form]


class Block(nn.Module):
    """An attention with a mask of its own, in one of two usual ways of writing it."""

    def __init__(self, form: str, fused: bool) -> None:
        super().__init__()
        self.form, self.fused = form, fused
        self.norm, self.qkv, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        several = self.qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (tensor.unflatten(-1, (HEADS, -1)).transpose(1, 2) for tensor in several)
        shown = _shown(self.form, ids)
        if self.fused:
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=shown)
        else:
            logits = (q @ k.mT / math.sqrt(DIM // HEADS)).masked_fill(~shown, -torch.inf)
            y = logits.softmax(-1) @ v
        return x + self.out(y.transpose(1, 2).flatten(2))


class Network(nn.Module):
    def __init__(self, form: str, fused: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, DIM)
        self.blocks = nn.ModuleList(Block(form, fused) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x, ids)
        return x


def _loaded(form: str, fused: bool) -> Any:
    torch.manual_seed(3)
    return td.load(
        Network(form, fused).eval(), inputs=lambda count: {"ids": torch.randint(0, VOCABULARY, (count, TOKENS))}
    )


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("form", "causal", "window"),
    [
        ("full", False, None),
        ("causal", True, None),
        ("padding", False, None),
        ("causal with padding", True, None),
        ("window", True, 3),
    ],
)
def test_usual_masks_are_those_of_a_flow(form: str, causal: bool, window: int | None, fused: bool) -> None:
    ckpt = _loaded(form, fused)
    attention = ckpt.layout.layers[0].attention
    assert (attention.causal, attention.window, attention.other_mask) == (causal, window, False)
    assert td.audit(ckpt).attrs["besides"] == ("none" if window is None else "windows of 3 tokens")
    assert td.flow_of(ckpt).attention.causal is causal
    if window is not None:
        with pytest.raises(ArgumentValueError, match="windows of 3 tokens, where there are 4"):
            td.flow_of(ckpt, tokens=4)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("form", "causal"),
    [
        ("band", False),
        ("prefix", False),
        ("later tokens only", False),
        ("every second", True),
        ("not itself", False),
        ("earlier tokens only", True),
        ("window of each head", True),
        ("causal in one head", False),
        ("documents", True),
    ],
)
def test_another_mask_is_named_and_is_no_flow(form: str, causal: bool, fused: bool) -> None:
    ckpt = _loaded(form, fused)
    words = "a mask that is neither full nor causal"
    attention = ckpt.layout.layers[0].attention
    assert (attention.causal, attention.window, attention.other_mask) == (causal, None, True)
    audit = td.audit(ckpt)
    assert audit.attrs["besides"] == words
    assert json.loads(audit.attrs["layout"])["kinds"][0]["attention"]["other_mask"] is True
    for made in (td.flow_of, lambda given: td.nearest_statements(given, torch.arange(5))):
        with pytest.raises(ArgumentValueError, match=words):
            made(ckpt)
