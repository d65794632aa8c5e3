"""The layout of a live network does not depend on its weights: zero parts, pruned heads, equal projections."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tokendynamics as td
from pretrained.families import ALL, half_of_network, network_of
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.other_libraries import silenced


def _second(checkpoint: Checkpoint, network: Any) -> tuple[Any, Any]:
    """The second block, or the only one, and its layout."""
    place = min(1, len(checkpoint.layout.blocks) - 1)
    return network.get_submodule(checkpoint.layout.blocks[place]), checkpoint.layout.layers[place]


def _zero(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.data.zero_()


def _zero_rows(block: nn.Module, parts: Any) -> None:
    for part in parts:
        if part.reads is not None:
            _zero_rows(block, part.reads)
            continue
        module: Any = block.get_submodule(part.module)
        weight, bias, rows = module.weight.data, getattr(module, "bias", None), list(part.rows)
        if isinstance(bias, Tensor):
            bias.data[rows] = 0.0
        if part.does == "in x out":
            weight[:, rows] = 0.0
        else:
            weight[rows] = 0.0


def _attention(block: Any, layout: Any) -> None:
    _zero(block.get_submodule(layout.attention.output[0] if layout.attention else layout.residual.attention))


def _feed_forward(block: Any, layout: Any) -> None:
    if layout.residual.feed_forward is not None:
        _zero(block.get_submodule(layout.residual.feed_forward))


def _both(block: Any, layout: Any) -> None:
    _attention(block, layout)
    _feed_forward(block, layout)


def _one_head(block: Any, layout: Any) -> None:
    if layout.attention is not None:
        name, storage = layout.attention.output
        weight = block.get_submodule(name).weight.data
        (weight if storage == "in x out" else weight.mT)[: layout.attention.d_value] = 0.0


def _columns(name: str) -> Callable[[Any, Any], None]:
    def change(block: Any, layout: Any) -> None:
        if layout.attention is not None:
            _zero_rows(block, getattr(layout.attention, name))

    return change


CHANGES: dict[str, Callable[[Any, Any], None]] = {
    "attention": _attention,
    "feed-forward": _feed_forward,
    "both": _both,
    "one head": _one_head,
    "queries": _columns("query"),
    "keys": _columns("key"),
    "values": _columns("value"),
    "everything": lambda block, layout: _zero(block),
}


_QUICK = ("llama", "opt-post-norm", "gemma3", "bloom")
_EVERY = [pytest.param(family, marks=() if family in _QUICK else pytest.mark.slow) for family in ALL]


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("family", _EVERY)
def test_the_layout_is_the_same_whatever_is_zero(family: str) -> None:
    whole, half = network_of(family)
    original = td.load(whole, half=half)
    expected = original.layout
    for name, change in CHANGES.items():
        zeroed = copy.deepcopy(whole)
        change(*_second(original, half_of_network(zeroed, half)))
        before = {key: value.clone() for key, value in zeroed.state_dict().items()}
        places = [parameter.data_ptr() for parameter in zeroed.parameters()]
        assert td.load(zeroed, half=half).layout == expected, name
        assert places == [parameter.data_ptr() for parameter in zeroed.parameters()]
        assert all(torch.equal(value, before[key]) for key, value in zeroed.state_dict().items())


@pytest.mark.long
@pytest.mark.parametrize("family", ["llama", "opt-post-norm", "gemma3", "phi"])
def test_the_layout_of_a_live_network_is_that_of_its_files(family: str, tmp_path: Path) -> None:
    whole, _ = network_of(family)
    with silenced():
        whole.save_pretrained(tmp_path)
    stored, live = td.load(tmp_path).layout, td.load(whole).layout
    assert _without_errors(stored.layers) == _without_errors(live.layers)
    assert (stored.blocks, stored.final_norm, stored.positional) == (live.blocks, live.final_norm, live.positional)


def _without_errors(layers: Any) -> list[Any]:
    """The layers' layouts without the rounding of the passes on which they were found."""
    return [replace(layer, attention=replace(layer.attention, error=0.0)) for layer in layers]


def _prompts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, 60, (14,), generator=generator) for _ in range(4)]


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("stored", [False, True])
def test_what_is_zero_is_said_of_the_part_that_is(stored: bool, tmp_path: Path) -> None:
    whole, _ = network_of("llama")
    zeroed = copy.deepcopy(whole)
    _attention(*_second(td.load(whole), zeroed))
    if stored:
        with silenced():
            zeroed.save_pretrained(tmp_path)
    checkpoint, prompts = td.load(tmp_path if stored else zeroed), _prompts()
    ratio = td.trace(checkpoint, prompts).update_ratio.sel(layer=2)
    assert bool((ratio.sel(component="attention") == 0).all())
    assert bool((ratio.sel(component="feed_forward") > 0.1).all())
    changed = td.what_if(checkpoint, prompts, {"layer 2 attention": 0.0})
    assert float(np.abs(changed.consensus_within_difference).max()) == 0.0
    other = td.what_if(checkpoint, prompts, {"layer 2 feed_forward": 0.0})
    assert float(np.abs(other.consensus_within_difference).max()) > 1e-3
    table = td.audit(checkpoint)
    assert table.V_rank.sel(layer=2) == 0
    assert table.ov_norm.sel(layer=2) == 0
    words = " ".join(sentence.text for sentence in td.compare(whole, checkpoint, texts=prompts).sentences)
    assert "the first difference is in the attention of layer 2" in words


@pytest.mark.long
def test_a_saved_variant_of_a_network_with_a_zero_part_is_the_variant(tmp_path: Path) -> None:
    whole, _ = network_of("llama")
    _both(*_second(td.load(whole), whole))
    variant = td.load(whole).under({"layer 2 attention": 0.5, "layer 3 feed_forward": 0.5})
    prompt = _prompts()[0]
    saved = td.load(variant.save(tmp_path / "saved"))
    torch.testing.assert_close(saved.states(prompt).feed_forward, variant.states(prompt).feed_forward)
    assert torch.equal(saved.states(prompt).feed_forward[2], saved.states(prompt).feed_forward[1])


@pytest.mark.long
def test_blocks_that_were_added_and_do_nothing_yet_are_layers() -> None:
    whole, _ = network_of("llama")
    first = td.load(whole)
    prompt = _prompts()[0]
    states = first.states(prompt).feed_forward
    added = copy.deepcopy(whole.layers[1])
    _both(added, first.layout.layers[1])
    grown = copy.deepcopy(whole)
    grown.layers.insert(2, added)
    grown.config.num_hidden_layers += 1
    loaded = td.load(grown)
    assert [layer.residual for layer in loaded.layout.layers] == [first.layout.layers[0].residual] * 4
    assert torch.equal(loaded.states(prompt).feed_forward, states[[0, 1, 2, 2, 3]])
    assert td.audit(loaded).V_rank.values.tolist()[2] == 0


def test_queries_that_are_equal_to_keys_are_read_from_their_own_module() -> None:
    whole, _ = network_of("opt")
    for block in whole.decoder.layers:
        block.self_attn.k_proj.load_state_dict(block.self_attn.q_proj.state_dict())
        block.self_attn.v_proj.load_state_dict(block.self_attn.q_proj.state_dict())
    layout = td.load(whole).layout.layers[0].attention
    assert layout is not None
    for name, parts in (("q_proj", layout.query), ("k_proj", layout.key), ("v_proj", layout.value)):
        assert [part.module for part in parts] == [f"self_attn.{name}"]


class _Rooted(nn.Module):
    """A block that takes the root of a parameter, which must not be negative."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.query, self.value = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(16, 16)
        self.out, self.mlp = nn.Linear(16, 16), nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU())
        self.gain = nn.Parameter(torch.full((16,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        q, k = self.query(normed).chunk(2, dim=-1)
        q, k, v = (entry.unflatten(-1, (2, 8)).transpose(1, 2) for entry in (q, k, self.value(normed)))
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(x * self.gain.sqrt())


class _Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(31, 16)
        self.blocks = nn.ModuleList([_Rooted() for _ in range(2)])

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return x


def test_a_network_that_does_not_run_with_random_weights_runs_with_its_own() -> None:
    torch.manual_seed(4)
    network = _Own().eval()
    _zero(network.blocks[1].get_submodule("out"))
    loaded = td.load(network, inputs=lambda count: {"ids": torch.randint(0, 31, (count, 6))})
    assert [layer.problem for layer in loaded.layout.layers] == ["", ""]
    assert [layer.parts for layer in loaded.layout.layers] == [("out", "mlp")] * 2
    assert not bool(network.blocks[1].get_parameter("out.weight").any())
