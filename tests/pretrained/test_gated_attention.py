"""A gate before the output projection of an attention is named, left out of the factors, and in the way of sums."""

from __future__ import annotations

import re
from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from tokendynamics.numerics import ArgumentValueError, CheckpointError
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.discovery.words import form_in_words

DIM, HEADS, VOCABULARY = 24, 4, 30

Kind = Literal["sigmoid", "by head", "tanh", "of the output"]


class Block(nn.Module):
    """An attention whose heads' outputs are multiplied by a gate of the token."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind: Kind = kind
        self.norm, self.qkv, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.gate = nn.Linear(DIM, HEADS if kind == "by head" else DIM)

    def forward(self, x: Tensor) -> Tensor:
        read = self.norm(x)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(read).chunk(3, -1))
        heads = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        if self.kind == "tanh":
            return x + self.out(heads * self.gate(read).tanh())
        if self.kind == "of the output":
            return x + self.out(heads * self.gate(heads).sigmoid())
        gate = self.gate(read).sigmoid()
        return x + self.out(heads * (gate.repeat_interleave(DIM // HEADS, -1) if self.kind == "by head" else gate))


class Network(nn.Module):
    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(VOCABULARY, DIM), nn.ModuleList(Block(kind) for _ in range(2))

    def forward(self, idx: Tensor) -> Tensor:
        x = self.words(idx)
        for block in self.blocks:
            x = block(x)
        return x


def loaded(kind: Kind) -> Checkpoint:
    torch.manual_seed(3)
    return td.load(Network(kind).eval(), inputs=lambda count: {"idx": torch.randint(0, VOCABULARY, (count, 7))})


@pytest.mark.few(2)
@pytest.mark.parametrize("form", ["sigmoid", "by head", "of the output"])
def test_factors_are_those_without_the_gate_which_is_named(form: Kind) -> None:
    ckpt = loaded(form)
    attention = ckpt.layout.layers[0].attention
    assert attention is not None
    assert attention.gate == "gate"
    assert form_in_words(attention).endswith("a gate (gate) multiplies the heads' outputs and is left out")
    block = ckpt.model.get_submodule("blocks.0")
    weights, (query, _, value) = ckpt.attention(1), block.qkv.weight.double().chunk(3)
    for head in range(HEADS):
        rows = slice(head * 6, head * 6 + 6)
        torch.testing.assert_close(weights.query[head].double(), query[rows].mT)
        torch.testing.assert_close(weights.value[head].double(), value[rows].mT)
        torch.testing.assert_close(weights.output[head].double(), block.out.weight.double()[:, rows].mT)
    assert "a gate (gate)" in td.audit(ckpt).attrs["form"]


def test_what_adds_up_heads_refuses_a_gate() -> None:
    ckpt = loaded("sigmoid")
    with pytest.raises(CheckpointError, match="a gate acts on what its heads give"):
        td.source_tokens(ckpt, {"a": [1, 2, 3]})
    with pytest.raises(ArgumentValueError, match=re.escape("layer 1 with a gate of the heads' outputs")):
        td.diagnosis.flow_of(ckpt)


@pytest.mark.long
def test_a_gate_of_another_form_is_not_read() -> None:
    assert [layer.attention for layer in loaded("tanh").layout.layers] == [None, None]
    assert (
        "no module reads the heads' outputs alone, unchanged and one head after the other"
        in loaded("tanh").layout.layers[0].problem
    )
