"""Projections that are parameters of the attention itself: its weights are seen, its audit is refused by their name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from pretrained.test_own_code import DIM, HEADS, SmallGPT, loaded

WIDTH = DIM // HEADS


class Raw(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, shape = form, (HEADS, DIM, WIDTH) if form == "einsum" else (DIM, DIM)
        self.w_q, self.w_k, self.w_v = (nn.Parameter(0.2 * torch.randn(shape)) for _ in range(3))
        self.b_q, self.w_o = nn.Parameter(torch.randn(DIM)), nn.Linear(DIM, DIM)
        self.query, self.key, self.value = (nn.Linear(DIM, DIM) for _ in range(3))
        self.pattern = torch.zeros(0)

    def projected(self, x: Tensor, matrix: Tensor) -> Tensor:
        if self.form == "einsum":
            return torch.einsum("bpd,hdw->bphw", x, matrix).flatten(2)
        return functional.linear(x, matrix) if self.form == "linear" else x @ matrix

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "unused":
            q, k, v = self.query(x) + self.b_q, self.key(x), self.value(x)
        else:
            q, k, v = (self.projected(x, matrix) for matrix in (self.w_q, self.w_k, self.w_v))
            q = q + self.b_q
        q, k, v = (part.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for part in (q, k, v))
        self.pattern = (q @ k.mT / WIDTH**0.5).softmax(dim=-1)
        return self.w_o((self.pattern @ v).transpose(1, 2).flatten(2))


def network_of(form: str) -> Any:
    torch.manual_seed(4)
    network: Any = SmallGPT()
    for block in network.h:
        block.attn = Raw(form)
    return network.double().eval()


@pytest.mark.parametrize("form", ["matmul", "linear", "einsum"])
def test_a_raw_matrix_of_queries_is_named_and_its_attention_is_seen(form: str) -> None:
    network, prompt = network_of(form), torch.tensor([[5, 9, 33, 21, 7]])
    ckpt = loaded(network)
    words = (
        "its parameter w_q gives its queries, and only projections that are modules are read: put it into an nn.Linear"
    )
    assert [layer.problem for layer in ckpt.layout.layers] == [words] * 3
    pattern = torch.as_tensor(td.attention_seen(ckpt, prompt, patterns=True).pattern.values)[0]
    network(prompt)
    torch.testing.assert_close(pattern, torch.stack([block.attn.pattern[0].detach() for block in network.h]))


@pytest.mark.long
def test_a_matrix_that_gives_no_queries_is_not_named() -> None:
    """The queries come from a module, and a vector is added to them."""
    (words,) = {layer.problem for layer in loaded(network_of("unused")).layout.layers}
    assert "w_q" not in words
    assert "a vector is added to its queries or keys outside of a module" in words
