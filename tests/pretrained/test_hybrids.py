"""Hybrid networks: a layer for every block, the network's own numbers, nothing about attention where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor

import tokendynamics as td
from pretrained.hybrids import HYBRIDS, blocks_of, hybrid_network
from pretrained.test_attention_factors import _attention_by_hand, _normed
from tokendynamics.numerics import AttentionFactorsError, CheckpointError
from tokendynamics.pretrained.other_libraries import silenced
from tokendynamics.words import in_layers

IDS = torch.randint(3, 60, (1, 13), generator=torch.Generator().manual_seed(5))


def _outputs(network: Any) -> tuple[Tensor, list[Tensor]]:
    """What the first block reads, and what each block gives, by hooks on the network's own blocks."""
    read: list[Tensor] = []
    given: list[Tensor] = []
    blocks = blocks_of(network)
    hooks = [
        block.register_forward_hook(lambda m, a, y: given.append((y if isinstance(y, Tensor) else y[0])[0]))
        for block in blocks
    ]
    hooks.append(
        blocks[0].register_forward_pre_hook(
            lambda m, a, k: read.append((a or tuple(k.values()))[0][0]), with_kwargs=True
        )
    )
    with torch.inference_mode(), silenced():
        network(IDS, use_cache=False)
    for hook in hooks:
        hook.remove()
    return read[0], given


_QUICK = ("jamba", "nemotron_h", "zamba2", "falcon_h1")
_EVERY = [pytest.param(name, marks=() if name in _QUICK else pytest.mark.slow) for name in HYBRIDS]


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.every_value_once
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("name", _EVERY)
def test_every_block_is_a_layer_with_its_own_state(name: str, stored: bool, tmp_path: Path) -> None:
    network = hybrid_network(name)
    if stored:
        with silenced():
            network.save_pretrained(tmp_path)
    checkpoint = td.load(tmp_path if stored else network)
    entering, outputs = _outputs(checkpoint.model)
    states = checkpoint.states(IDS)
    assert checkpoint.architecture.layers == len(outputs) == len(blocks_of(network))
    assert torch.equal(states.feed_forward[0], entering)
    assert all(
        torch.equal(actual, reference) for actual, reference in zip(states.feed_forward[1:], outputs, strict=True)
    )
    attending = HYBRIDS[name][2]
    assert checkpoint.layout.attending == attending
    undefined = states.attention.isnan().flatten(1).all(dim=1)
    assert all(undefined[layer] for layer in range(len(states.attention)) if layer not in attending)


@pytest.mark.long
def test_a_jamba_of_another_period_is_read_from_a_copy_of_the_same_kinds(tmp_path: Path) -> None:
    # Single layers cannot be chosen where a period says which of them attend.
    for layer, (block, layout) in enumerate(
        zip(blocks_of(hybrid_network("jamba")), td.load(_saved("jamba", tmp_path)).layout.layers, strict=True), 1
    ):
        assert layout.attends == hasattr(block, "self_attn") == (layer in (3, 6))
        assert (layout.attention is not None) == layout.attends


def _saved(name: str, folder: Path) -> Path:
    with silenced():
        hybrid_network(name).save_pretrained(folder)
    return folder


def _texts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(3, 60, (15,), generator=generator) for _ in range(4)]


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["jamba", "nemotron_h", "granitemoehybrid", "falcon_h1", "zamba2"])
def test_the_trace_says_nothing_about_an_attention_that_does_not_exist(name: str) -> None:
    checkpoint = td.load(hybrid_network(name))
    table = td.trace(checkpoint, _texts())
    after = table.sel(sinks="kept").mean_pair_cosine
    assert bool(after.sel(site="feed_forward").notnull().all())
    read = {number for number, layer in enumerate(checkpoint.layout.layers, 1) if layer.attends and layer.residual}
    for layer in range(1, table.sizes["layer"]):
        assert bool(after.sel(site="attention", layer=layer).notnull().all()) == (layer in read)
        assert bool(table.component_change.sel(layer=layer, component="attention").notnull().all()) == (layer in read)
        assert bool(table.update_ratio.sel(layer=layer, component="attention").notnull().all()) == (layer in read)
        attends = layer in checkpoint.layout.attending
        assert bool(table.attention_received.sel(layer=layer).notnull().any()) == attends
    without = [layer for layer in range(1, table.sizes["layer"]) if layer not in checkpoint.layout.attending]
    if without:
        assert f"{in_layers(without)} have no attention" in table.attrs["notes"]
    else:
        assert "notes" not in table.attrs


def test_the_measures_of_a_hybrid_are_those_of_its_states() -> None:
    checkpoint = td.load(hybrid_network("jamba"))
    prompt = _texts()[0]
    table = td.trace(checkpoint, prompt).sel(sinks="kept").isel(prompt=0)
    states = checkpoint.states(prompt).feed_forward.double()
    unit = torch.nn.functional.normalize(states, dim=-1)
    pairs = (unit.sum(dim=1).square().sum(dim=-1) - 15) / (15 * 14)
    np.testing.assert_allclose(table.mean_pair_cosine.sel(site="feed_forward"), pairs, atol=1e-7)
    shifted = table.component_change.sel(layer=3, component=["attention", "feed_forward"]).sum()
    np.testing.assert_allclose(shifted, float(pairs[3] - pairs[2]), atol=1e-7)


@pytest.mark.long
def test_the_audit_reads_the_layers_that_attend_and_refuses_the_others() -> None:
    checkpoint = td.load(hybrid_network("bamba"))
    table = td.audit(checkpoint)
    assert table.layer.values.tolist() == [2, 4]
    assert table.attrs["notes"].startswith("layers 1, 3 have no attention")
    weights = checkpoint.attention(4)
    self_attn = blocks_of(checkpoint.model)[3].self_attn
    assert torch.equal(weights.value.movedim(0, 1).flatten(1), self_attn.v_proj.weight.mT)
    with pytest.raises(AttentionFactorsError, match=r"layer 3: expected a layer with an attention.*have one: 2, 4"):
        td.audit(checkpoint, layers=[3])
    with pytest.raises(AttentionFactorsError, match="64 features of a token, and a state has 32"):
        td.audit(td.load(hybrid_network("zamba2")))


def test_attention_patterns_stand_at_their_own_layers() -> None:
    checkpoint = td.load(hybrid_network("lfm2"))
    table = td.attention_seen(checkpoint, _texts()[:1])
    assert table.layer.values.tolist() == [1, 2, 3, 4]
    assert table.entropy.notnull().all(("prompt", "head")).values.tolist() == [False, True, False, True]


@pytest.mark.long
def test_gates_weigh_the_parts_that_exist_and_leave_a_recurrence_alone() -> None:
    network = hybrid_network("jamba")
    checkpoint = td.load(network)
    with checkpoint.varied({"attention": 0.0}):
        gated = checkpoint.states(IDS).feed_forward
    hook = blocks_of(network)[2].self_attn.register_forward_hook(lambda m, a, y: (0 * y[0], *y[1:]))
    other = blocks_of(network)[5].self_attn.register_forward_hook(lambda m, a, y: (0 * y[0], *y[1:]))
    by_hand = checkpoint.states(IDS).feed_forward
    hook.remove()
    other.remove()
    assert torch.equal(gated, by_hand)
    assert not torch.equal(gated[3], checkpoint.states(IDS).feed_forward[3])
    assert torch.equal(gated[2], checkpoint.states(IDS).feed_forward[2])
    # The feed-forward part of a block of Nemotron-H is the block.
    alone = td.load(hybrid_network("nemotron_h"))
    with alone.varied({"layer 2 feed_forward": 0.0}):
        states = alone.states(IDS).feed_forward
    assert torch.equal(states[2], states[1])
    with pytest.raises(td.numerics.ArgumentValueError, match="attention of layer 1: none"):
        alone.under({"layer 1 attention": 0.0})


def test_a_table_that_an_outer_module_computes_is_that_of_the_network(tmp_path: Path) -> None:
    network = hybrid_network("falcon_h1")
    loaded = td.load(_saved("falcon_h1", tmp_path)).model
    tables = dict(network.named_buffers())
    assert all(torch.equal(tables[name], table) for name, table in loaded.named_buffers())


@pytest.mark.long
def test_a_hybrid_is_diagnosed_and_inspected_in_words() -> None:
    checkpoint = td.load(hybrid_network("jamba"))
    diagnosis = td.diagnose(checkpoint, _texts(), levers=False)
    assert isinstance(diagnosis.audit, xr.Dataset)
    assert diagnosis.audit.layer.values.tolist() == [3, 6]
    notes = {convention.name: convention.choice for convention in diagnosis.conventions}
    assert notes["Layers and parts"].startswith("layers 1–2, 4–5 have no attention")


@pytest.mark.slow
def test_layers_without_attention_in_both_networks_are_no_reason_not_to_compare() -> None:
    network, other = hybrid_network("jamba"), hybrid_network("jamba")
    blocks_of(other)[2].self_attn.o_proj.weight.data *= 2
    comparison = td.compare(network, other, texts=_texts())
    words = " ".join(sentence.text for sentence in comparison.sentences)
    assert "the first difference is in the attention of layer 3" in words
    assert "JambaModel [2] and JambaModel [1] differ only in layer 3" in words
    assert "has no attention" not in words
    blocks_of(other)[0].mamba.out_proj.weight.data *= 2
    words = " ".join(sentence.text for sentence in td.compare(network, other, texts=_texts()).sentences)
    assert "the first difference is in the block of layer 1" in words


def test_inspect_verifies_the_layers_that_have_an_attention(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from tokendynamics.cli._inspect import inspect_command

    outcome = CliRunner().invoke(inspect_command, [str(_saved("nemotron_h", tmp_path)), "--verify"])
    assert outcome.exit_code == 0, outcome.output
    assert "none; earlier tokens act on a token in another way" in " ".join(outcome.output.split())
    assert "none; no token acts on another" in " ".join(outcome.output.split())


@pytest.mark.slow
def test_a_recurrence_behind_an_attention_is_not_taken_for_the_attention() -> None:
    # Zamba hands what its shared attention gives to a Mamba part, which alone is added to the state.
    for name in ("zamba", "zamba2"):
        layers = td.load(hybrid_network(name)).layout.layers
        assert [layer.residual is None for layer in layers] == [False, True, False, True]
        assert [layer.parts for layer in layers] == [(None, None)] * 4


GATES = {"qwen3_next": "self_attn.q_proj", "qwen3_5": "self_attn.q_proj", "lfm3": "", "bailing_hybrid": ""}
"""Hybrids whose attention has a gate before its output projection, and the module that gives it; empty for any."""


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("name", _EVERY)
def test_factors_give_the_attention_of_a_hybrid_or_say_why_there_are_none(name: str) -> None:
    network = hybrid_network(name)
    checkpoint = td.load(network)
    patterns: list[Tensor] = []
    checkpoint.watch_attention(IDS, lambda call: patterns.append(call.weights[0].double()))
    for number, layer in enumerate(HYBRIDS[name][2]):
        if name.startswith("zamba"):
            with pytest.raises(CheckpointError, match="it reads 64 features of a token"):
                checkpoint.attention(layer)
            continue
        attention = checkpoint.layout.layers[layer - 1].attention
        assert attention is not None
        assert (attention.gate is not None) == (name in GATES)
        assert not GATES.get(name) or attention.gate == GATES[name]
        if attention.gate is not None:
            _check_gate(checkpoint, network, layer)
            continue
        if "value" in attention.normed:  # no product of matrices is what the values of MLA are
            continue
        read, given = _seen_of(checkpoint, network, layer)
        weights = checkpoint.attention(layer)
        # With the patterns of the network, whatever norms or rotations make them: the values and the output.
        x = _normed(read.double(), weights)
        total = torch.zeros_like(x)
        for head, group in enumerate(weights.groups.tolist()):
            value = x @ weights.value[group].double()
            value = value if weights.value_bias is None else value + weights.value_bias[group].double()
            total += patterns[number][head] @ value @ weights.output[head].double()
        total = total if weights.output_bias is None else total + weights.output_bias.double()
        torch.testing.assert_close(total, given.double(), rtol=1e-5, atol=1e-5 * float(given.abs().max()))
        if not attention.normed:  # and all of it, where queries and keys are no more than turned
            by_hand = _attention_by_hand(read, weights, attention.causal)
            torch.testing.assert_close(by_hand, given.double(), rtol=1e-5, atol=1e-5 * float(given.abs().max()))


def _check_gate(checkpoint: td.Checkpoint, network: Any, layer: int) -> None:
    """What the output projection reads is what the heads give, times sigmoids of what the gate's module gives."""
    attention = checkpoint.layout.layers[layer - 1].attention
    assert attention is not None
    assert attention.gate is not None
    block = network.get_submodule(checkpoint.layout.blocks[layer - 1])
    read, gates, heads = list[Tensor](), list[Tensor](), list[Tensor]()
    hooks = [
        block.get_submodule(attention.output[0]).register_forward_pre_hook(lambda m, x: read.append(x[0][0])),
        block.get_submodule(attention.gate).register_forward_hook(lambda m, x, y: gates.append(y[0].sigmoid())),
    ]
    checkpoint.watch_attention(IDS, lambda call: heads.append(call.output[0].flatten(-2)))
    for hook in hooks:
        hook.remove()
    ratio = read[0] / heads[checkpoint.layout.attending.index(layer)]
    assert all(min(float((gate - column).abs().max()) for gate in gates[0].mT) < 1e-4 for column in ratio.mT)
    weights = checkpoint.attention(layer)
    with pytest.raises(CheckpointError, match="a gate acts on what its heads give"):
        td.source_tokens(checkpoint, {"a": [5, 6, 7]})
    assert weights.output.shape[0] == attention.heads


def _seen_of(checkpoint: td.Checkpoint, network: Any, layer: int) -> tuple[Tensor, Tensor]:
    """What a block reads, and what the output projection of its attention gives."""
    block = network.get_submodule(checkpoint.layout.blocks[layer - 1])
    attention = checkpoint.layout.layers[layer - 1].attention
    assert attention is not None
    kept: dict[str, Tensor] = {}

    def before(module: Any, positional: Any, named: Any) -> None:
        del module
        states = (entry for entry in (*positional, *named.values()) if isinstance(entry, Tensor))
        kept["read"] = next(state for state in states if state.is_floating_point())[0]

    def after(module: Any, positional: Any, output: Tensor) -> None:
        del module, positional
        kept["given"] = output[0]

    handles = [
        block.register_forward_pre_hook(before, with_kwargs=True),
        block.get_submodule(attention.output[0]).register_forward_hook(after),
    ]
    with torch.no_grad(), silenced():
        network(input_ids=IDS, use_cache=False)
    for handle in handles:
        handle.remove()
    return kept["read"], kept["given"]
