"""What a pass divides out of its states changes no number, or stays in them: networks that people write themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from tokendynamics.pretrained.edits import scaled_states

DIM, HEADS = 8, 2


class Attention(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(DIM, DIM) for _ in range(4))
        self.form, self.added = form, nn.Parameter(torch.randn(DIM))

    def forward(self, x: Tensor) -> Tensor:
        order = (1, 2, 0, 3) if self.form == "tokens first" else (0, 2, 1, 3)
        q, k, v = (projection(x).unflatten(-1, (HEADS, -1)).permute(order) for projection in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        back = (2, 0, 1, 3) if self.form == "tokens first" else (0, 2, 1, 3)
        y = self.out(y.permute(back).flatten(2))
        if self.form == "factor and constant":
            return y * self.added + 0.5
        return y + self.added if self.form == "constant" else y


class Block(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        first = "tokens first" not in form
        further = form == "keys of no token"
        self.native = nn.MultiheadAttention(DIM, HEADS, batch_first=first, add_bias_kv=further)
        for bias in (self.native.in_proj_bias, self.native.out_proj.bias):
            nn.init.normal_(bias)
        self.form, self.attn, self.gate = form, Attention(form), nn.Linear(DIM, DIM)
        self.norm_1, self.norm_2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 16), nn.GELU(), nn.Linear(16, DIM))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm_1(x)
        h = h + self.attn.added if self.form == "shift" else h
        of_torch = "PyTorch" in self.form or self.form == "keys of no token"
        a = self.native(h, h, h, need_weights=False)[0] if of_torch else self.attn(h)
        if self.form == "highway":
            kept = torch.sigmoid(self.gate(x))
            x = kept * x + (1 - kept) * a
        else:
            x = x + a
        return x + self.mlp(self.norm_2(x))


class Network(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.words, self.added = form, nn.Embedding(20, DIM), nn.Parameter(torch.randn(DIM))
        self.blocks = nn.ModuleList(Block(form) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        x = x.transpose(0, 1) if "tokens first" in self.form else x
        for block in self.blocks:
            x = block(x + self.added if self.form == "between" and block is self.blocks[1] else x)
        return x.transpose(0, 1) if "tokens first" in self.form else x


SCALES = {
    "plain": "divided out, in log_norm",
    "PyTorch": "divided out, in log_norm",
    "PyTorch, tokens first": "divided out, in log_norm",
    "tokens first": "divided out, in log_norm",
    "constant": "a constant is added to the output of the attention of layer 1",
    "factor and constant": "a constant is added to the output of the attention of layer 1",
    "shift": "the attention of layer 1 reads neither the state nor a recognized norm of it",
    "highway": "the factors of the sum in layer 1 may depend on its states",
    "keys of no token": "keys and values of layer 1 come from no token",
    "between": "layer 2 reads other states than the layer before it gives",
}


@pytest.mark.parametrize("form", SCALES)
def test_dividing_by_the_scale_changes_no_number_or_is_not_done(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    ckpt = td.load(Network(form).double().eval(), inputs=lambda count: {"ids": torch.randint(0, 20, (count, 7))})
    # As many prompts as tokens: an axis taken for the other one would fit.
    inputs = {name: {"ids": torch.tensor([ids])} for name, ids in (("one", [5, 9]), ("two", [3, 3]))}
    call: dict[str, Any] = {"variant": "attention-only", "feed_back": "before_norm", "positions": "once"}
    monkeypatch.setattr(scaled_states, "_LARGEST", 1.5)
    scaled = td.passes(ckpt, inputs, 3, **call)
    assert scaled.attrs["scale"].removeprefix("as they are: ") == SCALES[form]
    monkeypatch.setattr("tokendynamics.pretrained.edits.repeated_stack.why_not_scaled", lambda layout, variant: "no")
    plain = td.passes(ckpt, inputs, 3, **call)
    for name in ("consensus", "mean_pair_cosine", "log_norm"):
        np.testing.assert_allclose(scaled[name].values, plain[name].values, rtol=1e-9, atol=1e-9, err_msg=name)
