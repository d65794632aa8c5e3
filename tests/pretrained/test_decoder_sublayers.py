"""Decoder layers whose parts stand in modules that add them to the state: each gate acts on the part that it names."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tokendynamics as td

DIM, VOCABULARY = 16, 30


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 32), nn.Linear(32, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor, causal: bool) -> Tensor:
        given = zip(self.linears, (x, memory, memory), strict=False)
        q, k, v = (linear(states).unflatten(-1, (2, -1)).transpose(1, 2) for linear, states in given)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.linears[3](mixed.transpose(1, 2).flatten(2))


class Adding(nn.Module):
    """A part with its norm, which gives the state plus it."""

    def __init__(self, part: nn.Module, *, post_norm: bool) -> None:
        super().__init__()
        self.part, self.norm, self.post_norm = part, nn.LayerNorm(DIM), post_norm

    def forward(self, x: Tensor, *given: Any) -> Tensor:
        if self.post_norm:
            return self.norm(x + self.part(x, *self._memory(x, given)))
        h = self.norm(x)
        return x + self.part(h, *self._memory(h, given))

    def _memory(self, h: Tensor, given: Any) -> Any:
        if isinstance(self.part, FeedForward):
            return ()
        return (h if given[0] is None else given[0], given[0] is None)


class Layer(nn.Module):
    def __init__(self, *, post_norm: bool) -> None:
        super().__init__()
        self.itself, self.other = (Adding(Attention(), post_norm=post_norm) for _ in range(2))
        self.last = Adding(FeedForward(), post_norm=post_norm)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.last(self.other(self.itself(x, None), memory))


class Decoder(nn.Module):
    def __init__(self, *, post_norm: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, DIM)
        self.layers = nn.ModuleList(Layer(post_norm=post_norm) for _ in range(2))

    def forward(self, ids: Tensor, memory: Tensor) -> Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x, memory)
        return x


def inputs(count: int) -> dict[str, Tensor]:
    return {"ids": torch.randint(0, VOCABULARY, (count, 7)), "memory": torch.randn(count, 5, DIM)}


@pytest.mark.parametrize("post_norm", [False, True])
def test_gates_of_a_layer_of_modules_that_add_are_edits_of_the_weights(post_norm: bool) -> None:
    torch.manual_seed(3)
    network: Any = Decoder(post_norm=post_norm).eval()
    ckpt, prompt = td.load(network, inputs=inputs), inputs(1)
    for layer in ckpt.layout.layers:
        assert layer.problem == "its cross-attention reads another sequence and is not audited"
        assert layer.parts == ("itself.part", None if post_norm else "last.part")
        assert layer.attention is not None
        assert layer.attention.after_output == ""
    for part, edited in {"attention": ("itself",), "feed_forward": ("other", "last")}.items():
        if post_norm and part == "feed_forward":
            continue
        changed = copy.deepcopy(network)
        for name in edited:
            last = changed.layers[0].get_submodule(f"{name}.part")
            for parameter in (last.down if name == "last" else last.linears[3]).parameters():
                parameter.data *= 0.5
        gated = ckpt.under({f"layer 1 {part}": 0.5}).states(prompt).feed_forward
        x, by_hand = network.words(prompt["ids"]), []
        for layer in changed.layers:
            x = layer(x, prompt["memory"])
            by_hand.append(x[0].detach())
        torch.testing.assert_close(gated[1:], torch.stack(by_hand))


def test_a_module_of_torch_may_have_the_name_of_a_list_of_layers() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(VOCABULARY, DIM)
            self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(DIM, 2, 32, batch_first=True), 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.layers(self.words(ids))

    ckpt = td.load(Named().eval(), inputs={"ids": torch.randint(0, VOCABULARY, (4, 7))})
    assert ckpt.layout.blocks == ("layers.layers.0", "layers.layers.1")
