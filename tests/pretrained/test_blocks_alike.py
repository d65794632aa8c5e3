"""The factors of one block are tried on the next: what is found is what a search in each block by itself finds."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pretrained.families import half_of_network, network_of
from tokendynamics.pretrained import load
from tokendynamics.pretrained.discovery import _attention_layout, _block_layout
from tokendynamics.pretrained.discovery._attention_layout import FoundAttention
from tokendynamics.pretrained.discovery._recomputed import TRUSTED
from tokendynamics.pretrained.discovery.layout import AttentionLayout, BlockLayout

DIM, HEADS = 12, 2


class Block(nn.Module):
    """An attention and a feed-forward part; of two blocks the same modules may do something else."""

    def __init__(self, roles: str, base: float | None) -> None:
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.one, self.two, self.three, self.out = (nn.Linear(DIM, DIM) for _ in range(4))
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)
        self.roles, self.base = roles, None if base is None else int(base)

    def forward(self, x: Tensor) -> Tensor:
        """Return the states after this block."""
        normed = self.norm(x)
        given = {"q": self.one(normed), "k": self.two(normed), "v": self.three(normed)}
        several = (given[role].unflatten(-1, (HEADS, -1)).transpose(1, 2) for role in self.roles)
        q, k, v = several
        if self.base is not None:
            q, k = self.turned(q), self.turned(k)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.second_norm(x))))

    def turned(self, x: Tensor) -> Tensor:
        """Return queries or keys with rotary positions."""
        half = x.shape[-1] // 2
        assert self.base is not None
        angles = torch.arange(x.shape[2])[:, None] * self.base ** -(torch.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], dim=-1)


class Network(nn.Module):
    """Blocks on embedded tokens."""

    def __init__(self, *blocks: Block) -> None:
        super().__init__()
        self.embedding, self.blocks, self.norm = nn.Embedding(50, DIM), nn.ModuleList(blocks), nn.LayerNorm(DIM)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the last states."""
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def network(*blocks: tuple[str, float | None]) -> nn.Module:
    torch.manual_seed(0)
    return Network(*(Block(*block) for block in blocks)).eval()


def ids(count: int) -> dict[str, Tensor]:
    return {"input_ids": torch.arange(9 * count).reshape(count, 9) % 50}


def found_in(model: Any) -> tuple[BlockLayout, ...]:
    return load(model, inputs=ids if isinstance(model, Network) else None).layout.layers


def attentions(model: Any) -> list[AttentionLayout]:
    layers = found_in(model)
    return [layer.attention for layer in layers if layer.attention is not None]


def test_modules_with_another_role_in_one_block_are_found_there() -> None:
    result = attentions(network(("qkv", None), ("kqv", None), ("vkq", None), ("vkq", None)))
    modules = [[getattr(one, name)[0].module for name in ("query", "key", "value")] for one in result]
    assert modules == [
        ["one", "two", "three"], ["two", "one", "three"], ["three", "two", "one"], ["three", "two", "one"],
    ]  # fmt: skip
    assert all(one.error <= TRUSTED for one in result)


def test_a_rotation_of_one_block_is_not_taken_for_that_of_another() -> None:
    result = attentions(network(("qkv", 100.0), ("qkv", 10000.0), ("qkv", None), ("qkv", 100.0)))
    second = [None if one.rotation is None else one.rotation.frequencies for one in result]
    for frequencies, base in zip(second, (100.0, 10000.0, None, 100.0), strict=True):
        if base is None or frequencies is None:
            assert frequencies is base
        else:
            assert frequencies == pytest.approx([base ** -(place / 3) for place in range(3)], abs=1e-5)


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3", "bert", "gptj", "bloom", "deberta-v2"])
def test_the_layout_is_that_of_each_block_by_itself(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = half_of_network(*network_of(family))
    searches: list[int] = []
    search = _attention_layout.Tracer.__init__

    def counted(self: Any, *given: Any) -> None:
        searches.append(1)
        search(self, *given)

    monkeypatch.setattr(_attention_layout.Tracer, "__init__", counted)
    together, few = attentions(model), len(searches)
    with monkeypatch.context() as patch:
        patch.setattr(FoundAttention, "is_like", lambda *_: False)
        apart = attentions(model)
    assert few < len(searches) - few
    for one, other in zip(together, apart, strict=True):
        assert plain(one) == plain(other)


def plain(layout: AttentionLayout) -> dict[str, Any]:
    """A layout with its fitted numbers to what a fit is good for, and without its error."""

    def rounded(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: rounded(entry) for name, entry in value.items()}
        if isinstance(value, tuple | list):
            return [rounded(entry) for entry in value]
        return round(value, 5) if isinstance(value, float) else value

    return rounded(dataclasses.asdict(dataclasses.replace(layout, error=0.0)))


def test_a_factor_that_is_not_trusted_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where every error is too large the second block is searched by itself before it is refused."""
    monkeypatch.setattr(_block_layout, "recomputed_error", lambda *_: 1.0)
    layers = found_in(network(("qkv", None), ("qkv", None)))
    assert all(layer.attention is None and "misses by 1" in layer.problem for layer in layers)
