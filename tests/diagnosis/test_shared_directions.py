"""Directions that tokens share: closed forms, sums over parts and heads, and the same numbers from hidden states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import tokendynamics as td
from diagnosis import built_recipes as paint
from diagnosis.built_networks import prompts_of
from diagnosis.built_recipes import WORDS
from diagnosis.built_transformer import VOCABULARY, Frame, blank
from diagnosis.test_heads import network_of
from tokendynamics.diagnosis.texts import default_texts
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.pretrained import Checkpoint, load

FAMILIES = ("llama", "gpt2", "gpt_neox", "bert")


def ids_of(count: int = 4, seed: int = 0) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 60, (7 + place,), generator=draw) for place in range(count)]


def network(family: str) -> Any:
    return network_of(family)


def hidden(model: Any, ids: torch.Tensor) -> list[np.ndarray]:
    with torch.no_grad():
        out = getattr(model, "base_model", model)(ids[None], output_hidden_states=True)
    return [x[0].double().numpy() for x in out.hidden_states[:-1]]


def units(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_directions_are_those_of_the_hidden_states(family: str) -> None:
    model, ids = network(family), ids_of()
    table = td.shared_directions(model, ids, sinks=())
    states = [hidden(model, token_id) for token_id in ids]
    for layer in range(3):
        means = np.stack([units(x[layer]).mean(axis=0) for x in states])
        common = means.mean(axis=0) / np.linalg.norm(means.mean(axis=0))
        np.testing.assert_allclose(table.vector.sel(direction="common", layer=layer), common, atol=1e-5)
        direct = means[1] - (means[1] @ common) * common
        np.testing.assert_allclose(table.vector[2, layer], direct / np.linalg.norm(direct), atol=1e-5)
        products = (means @ common)[:, None] * (means @ common)
        of_pairs = products[~np.eye(len(ids), dtype=bool)].mean()
        whole = (means @ means.T)[~np.eye(len(ids), dtype=bool)].mean()
        assert float(table.similarity[0, layer]) == pytest.approx(of_pairs, abs=1e-5)
        if whole > 0:
            assert float(table.carried[0, layer]) == pytest.approx(of_pairs / whole, rel=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_what_parts_and_heads_write_adds_up_to_one(family: str) -> None:
    table = td.shared_directions(network(family), ids_of(), sinks=())
    np.testing.assert_allclose(table.written.sum(["source", "component"]), 1, atol=1e-6)
    assert float(abs(table.written.sel(layer=1, source=[2, 3])).max()) == 0
    if "written_by_head" in table:
        attention = table.written.sel(component="attention").isel(source=slice(1, None))
        heads = (table.written_by_head.sum("head") + table.written_besides_heads).isel(source=slice(1, None))
        np.testing.assert_allclose(heads, attention, atol=1e-6)
    assert ("written_by_head" in table) == (family != "bert")
    assert bool(table.attrs["no_heads"]) == (family == "bert")


def test_heads_write_what_the_columns_of_the_output_projection_write() -> None:
    """Without a bias nothing is left beside the heads; a head whose columns are zero writes nothing."""
    model = network("llama")
    width = model.config.hidden_size // model.config.num_attention_heads
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight[:, width : 2 * width] = 0
    table = td.shared_directions(model, ids_of(), sinks=())
    assert float(abs(table.written_besides_heads.isel(source=slice(1, None))).max()) < 1e-5
    assert float(abs(table.written_by_head.sel(source=2, head=1)).max()) < 1e-9
    assert float(abs(table.written_by_head.sel(source=2, head=0)).max()) > 1e-4


def built(recipe: Any, **settings: Any) -> Checkpoint:
    canvas = blank(Frame(depth=4, seed=2))
    recipe(canvas, **settings)
    return load(canvas.network, inputs=lambda count: {"idx": torch.randint(WORDS, VOCABULARY, (count, 9))})


def of_built(ckpt: Checkpoint) -> xr.Dataset:
    return td.shared_directions(ckpt, [{"idx": torch.tensor([entry])} for entry in prompts_of("even")], sinks=())


def test_a_bias_of_one_layer_is_what_writes_the_common_direction() -> None:
    def shift(canvas: Any) -> None:
        direction = canvas.direction()
        canvas.blocks[2].down.bias.copy_(40.0 * direction)
        canvas.network.wanted = direction

    ckpt = built(shift)
    table = of_built(ckpt)
    common = table.vector.sel(direction="common", layer=4).values
    assert abs(float(common @ ckpt.model.wanted.double().numpy())) > 0.99  # pyright: ignore
    assert float(table.written.sel(direction="common", layer=4, source=3, component="feed_forward")) > 0.9
    assert float(table.carried.sel(direction="common", layer=4)) == pytest.approx(1, abs=0.02)


@pytest.mark.long
def test_an_averaging_layer_writes_the_direction_of_each_text() -> None:
    table = of_built(built(paint.average, layers=[3], gain=40.0))
    share = table.written.sel(layer=4, source=3, component="attention").isel(direction=slice(1, None))
    assert float(share.min()) > 0.8
    assert float(table.carried.sel(layer=4).isel(direction=slice(1, None)).min()) > 0.9


def test_a_direction_is_read_as_the_entry_that_it_is() -> None:
    """The common direction is made an entry of the head's matrix: that entry is read first."""
    model = network("llama")
    with torch.no_grad():
        model.lm_head.weight.normal_()
        direction = model.lm_head.weight[17] / model.lm_head.weight[17].norm()
        model.model.embed_tokens.weight.copy_(0.05 * model.model.embed_tokens.weight + 3.0 * direction)
    table = td.shared_directions(model, ids_of(), words=3, sinks=())
    assert int(table.token_id.sel(direction="common", layer=0, rank=0)) == 17
    assert table.token_id.shape[-1] == 3


def test_a_network_without_a_head_is_not_read() -> None:
    table = of_built(built(paint.average))
    assert "token_id" not in table
    assert table.attrs["no_reading"] == "the network has no language head"


@pytest.mark.long
@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_source_tokens_add_up_to_what_attention_adds(family: str) -> None:
    model, ids = network(family), ids_of()
    table = td.source_tokens(model, ids, sinks=())
    np.testing.assert_allclose(table.contribution.sum("token"), table.added, atol=1e-6)
    assert bool(table.contribution.isel(prompt=0, token=slice(7, None)).isnull().all())
    if family == "llama":  # no bias: what the heads add is all that the attention adds
        shares = td.shared_directions(model, ids, sinks=())
        for layer in (1, 2, 3):
            x = shares.written.sel(layer=layer, source=layer, component="attention")
            total = float(units(hidden(model, ids[1])[layer]).mean(axis=0) @ shares.vector[2, layer].values)
            wanted = float(x[2]) * total
            assert float(table.added.sel(kind="text", layer=layer)[1]) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.long
def test_the_first_token_is_named_where_all_attend_to_it() -> None:
    canvas = blank(Frame(depth=3, heads=2, seed=4, causal=True))
    paint.first_place(canvas)
    ckpt = load(canvas.network, inputs=lambda count: {"idx": torch.randint(WORDS, VOCABULARY, (count, 9))})
    table = td.source_tokens(ckpt, [{"idx": torch.tensor([entry])} for entry in prompts_of("even")], sinks=())
    shares = table.by_position.sel(kind="text")
    assert float(shares.isel(token=0).max()) > 0.9
    assert "of it comes from its first token." in table.attrs["summary"]


@pytest.mark.long
def test_uniform_attention_takes_from_all_tokens_alike() -> None:
    ckpt = built(paint.average, layers=[3], gain=40.0)
    table = td.source_tokens(ckpt, [{"idx": torch.tensor([entry])} for entry in prompts_of("even")], sinks=())
    assert float(table.by_position.sel(kind="text", layer=3).max()) < 0.1
    assert " in layer 3. No position stands out there" in table.attrs["summary"]


@pytest.mark.parametrize("measure", [td.shared_directions, td.source_tokens])
def test_wrong_input_is_refused_by_name(measure: Any) -> None:
    model, ids = network("llama"), ids_of()
    with pytest.raises(ArgumentValueError, match=r"at least two .*s, all different, got 1"):
        measure(model, ids[:1])
    with pytest.raises(ArgumentValueError, match="2 texts, 1 of them different"):
        measure(model, [ids[0], ids[0].clone()])
    with pytest.raises((ArgumentTypeError, ArgumentValueError), match="sinks"):
        measure(model, ids, sinks="none")
    with pytest.raises(ArgumentValueError, match="sink_ratio"):
        measure(model, ids, sink_ratio=0.5)


def test_words_are_a_count() -> None:
    with pytest.raises(ArgumentValueError, match="words"):
        td.shared_directions(network("llama"), ids_of(), words=0)


@pytest.mark.long
def test_without_heads_parts_are_measured_and_sources_refused() -> None:
    model = network_of("deberta")
    table = td.shared_directions(model, ids_of())
    assert table.attrs["no_heads"]
    np.testing.assert_allclose(table.written.sum(["source", "component"]), 1, atol=1e-6)
    with pytest.raises(CheckpointError, match="heads are known"):
        td.source_tokens(model, ids_of())


@pytest.mark.long
def test_one_head_is_the_whole_attention() -> None:
    model = network_of("llama", heads=1)
    table = td.shared_directions(model, ids_of(), sinks=())
    attention = table.written.sel(component="attention").isel(source=slice(1, None))
    np.testing.assert_allclose(table.written_by_head.isel(source=slice(1, None), head=0), attention, atol=1e-5)


@pytest.mark.slow
@pytest.mark.pretrained
def test_smollm2_reads_the_directions_of_its_texts_as_what_they_are_about() -> None:
    texts = dict(list(default_texts().items())[:5])
    table = td.shared_directions("smollm2", texts)
    np.testing.assert_allclose(table.written.sum(["source", "component"]), 1, atol=1e-6)
    assert float(abs(table.written_besides_heads.isel(source=slice(1, None))).max()) < 1e-4
    assert "," in table.token_text.sel(direction="common", layer=9).values
    sources = td.source_tokens("smollm2", texts)
    np.testing.assert_allclose(sources.contribution.sum("token"), sources.added, atol=1e-6)
