"""Feed-forward weights: differences by their definition, none where the function is the same, what cannot be said."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tokendynamics as td
from diagnosis.function_preserving import CHANGES, move_gains, permute_hidden_units
from diagnosis.function_preserving import network_of as network
from diagnosis.planted_damage import damaged
from diagnosis.planted_damage import network as planted
from pretrained.families import network_of
from tokendynamics.diagnosis.comparing._weight_words import feed_forward_finding
from tokendynamics.diagnosis.comparing._weights import FeedForwardDifferences, feed_forward_differences
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.feed_forward import FeedForwardWeights
from tokendynamics.provenance.progress import silent


def differences(*networks: Any) -> FeedForwardDifferences:
    ckpts = [entry if isinstance(entry, Checkpoint) else td.load(entry) for entry in networks]
    result = feed_forward_differences(ckpts, silent)
    return FeedForwardDifferences(
        result.table.assign_coords(model=[str(place) for place in range(len(ckpts))]), result.reasons, result.unmatched
    )


def said(result: FeedForwardDifferences, place: int = 0) -> str:
    table = result.table.isel(other=place)
    return feed_forward_finding(("a", "b"), table, result.reasons[place], result.unmatched[place]).text


def matrices(block: Any) -> list[np.ndarray]:
    """Of a LLaMA's block with its norm's gain, by the features of a state."""
    gain = block.post_attention_layernorm.weight.data.double()
    reads = [gain[:, None] * getattr(block.mlp, name).weight.data.double().mT for name in ("gate_proj", "up_proj")]
    return [entry.numpy() for entry in (*reads, block.mlp.down_proj.weight.data.double())]


def test_differences_and_angles_are_those_of_their_definition() -> None:
    whole = planted("llama")
    other, draw = copy.deepcopy(whole), torch.Generator().manual_seed(3)
    for parameter in other.layers[1].parameters():
        parameter.data += 0.03 * torch.randn(parameter.shape, generator=draw)
    gaps = differences(whole, other)
    pairs = list(zip(matrices(whole.layers[1]), matrices(other.layers[1]), strict=True))
    total = sum(np.linalg.norm(one) ** 2 for one, _ in pairs)
    gap = sum(np.linalg.norm(one - two) ** 2 for one, two in pairs)
    sines = []
    for one, two in pairs:
        spans = [np.linalg.svd(entry)[0][:, :8] for entry in (one, two)]
        sines.append(1 - np.mean(np.linalg.svd(spans[0].T @ spans[1], compute_uv=False) ** 2))
    np.testing.assert_allclose(gaps.table.ff_norm[0, 1], total**0.5, rtol=1e-12)
    np.testing.assert_allclose(
        gaps.table.ff_difference[0], np.array([0.0, float(gap / total) ** 0.5, 0.0]), rtol=1e-9, atol=0
    )
    angle = float(gaps.table.ff_angle[0, 1])
    assert angle == pytest.approx(np.degrees(np.arcsin(np.mean(sines) ** 0.5)), rel=0.05)
    assert 1 < angle < 89
    assert said(gaps).startswith("The feed-forward matrices of b and a differ only in layer 2: by ")


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_planted_damage_is_in_its_layer(family: str) -> None:
    whole = planted(family)
    gaps = differences(whole, damaged(whole, "down_proj × 3", (2, 3)), damaged(whole, "o_proj × 6", (2,)))
    sizes = gaps.table.ff_difference.values
    assert sizes[0, 0] == 0
    assert (sizes[0, 1:] > 0.5).all()
    np.testing.assert_allclose(gaps.table.ff_angle[0], 0, atol=1e-5)  # a factor turns nothing
    assert "only in layers 2–3" in said(gaps)
    assert (sizes[1] == 0).all()  # the attention's weights are none of these
    assert said(gaps, 1) == "The feed-forward matrices of b and a are equal in all compared layers."


@pytest.mark.parametrize(
    ("change", "family"),
    [("gains moved", "gpt2"), ("gains moved", "llama")]
    + [("hidden units", entry) for entry in ("gpt2", "llama", "bert")],
)
def test_what_changes_no_function_is_no_difference(change: str, family: str) -> None:
    whole = network(family)
    gaps = differences(whole, CHANGES[change][0](whole, 1))
    assert float(gaps.table.ff_difference.max()) < 1e-12
    assert float(gaps.table.ff_angle.max()) < 1e-5
    np.testing.assert_allclose(gaps.table.ff_norm[1], gaps.table.ff_norm[0], rtol=1e-12)
    assert said(gaps) == "The feed-forward matrices of b and a are equal in all compared layers."


def test_a_small_change_shows_beneath_another_order_and_gain() -> None:
    whole = network("llama")
    other: Any = permute_hidden_units(move_gains(whole, 1), 2)
    weight = other.model.layers[0].mlp.up_proj.weight.data
    weight += 1e-5 * weight.abs().mean()
    size = float(differences(whole, other).table.ff_difference[0, 0])
    assert 1e-7 < size < 1e-4
    apart = differences(network("llama", 0), network("llama", 1))
    assert float(apart.table.ff_difference.min()) > 1  # drawn apart: no order makes them alike


def test_experts_are_compared_as_they_are_stored() -> None:
    whole = network_of("mixtral")[0]
    other = copy.deepcopy(whole)
    other.layers[1].mlp.experts.down_proj.data[2] *= 2
    gaps = differences(whole, other)
    block = whole.layers[1].mlp
    stored = [block.gate.weight, block.experts.gate_up_proj, block.experts.down_proj]
    total = sum(float(entry.data.double().square().sum()) for entry in stored)
    expected = (float(block.experts.down_proj.data[2].double().square().sum()) / total) ** 0.5
    np.testing.assert_allclose(gaps.table.ff_difference[0], [0, expected, 0], rtol=1e-9, atol=0)
    assert gaps.unmatched == ((),)


@pytest.mark.long
def test_matrices_without_a_partner_are_named() -> None:
    gaps = differences(network_of("llama")[0], network_of("deepseek_v3")[0])
    sizes = gaps.table.ff_difference[0].values
    assert np.isfinite(sizes[0])
    assert np.isnan(sizes[1:]).all()  # a dense first layer, experts in the others
    assert "mlp.experts.gate_up_proj" in gaps.unmatched[0]
    assert "Not in both networks with one name and shape: mlp.gate_proj.weight, " in said(gaps)
    wide = network_of("llama")[0].config
    wide.intermediate_size = 52
    none = differences(network_of("llama")[0], type(network_of("llama")[0])(wide).eval())
    assert said(none).endswith("were not compared because none is in both networks with one name and shape.")


def test_what_cannot_be_compared_says_why(tiny: Callable[..., Checkpoint]) -> None:
    short, long, wide = tiny("gpt2"), tiny("gpt2", n_layer=6), tiny("gpt2", n_embd=16)
    gaps = differences(short, long, wide)
    assert (
        said(gaps, 0) == "The feed-forward weights of b and a were not compared because their depths differ (6 and 3)."
    )
    assert (
        said(gaps, 1) == "The feed-forward weights of b and a were not compared because their widths differ (16 and 8)."
    )
    assert td.load(network_of("mamba")[0]).feed_forward(1) == "it has none"


def test_weights_elsewhere_are_read_or_said_to_be_elsewhere(tiny: Callable[..., Checkpoint]) -> None:
    whole = tiny("gpt2")
    streamed = td.load(whole.name, stream=True)
    gaps = differences(whole, streamed)
    assert streamed.streamed
    assert (gaps.table.ff_difference == 0).all()
    live = planted("llama")
    ckpt = td.load(live)
    live.layers[1].mlp.up_proj.weight = nn.Parameter(torch.empty(40, 48, device="meta"))
    gaps = differences(planted("llama"), ckpt)
    assert said(gaps).endswith("Some layers were not compared (layer 2 of LlamaModel: its weights are not in memory).")
    assert np.isnan(gaps.table.ff_difference[0].values).tolist() == [False, True, False]


def test_an_adapter_counts_with_what_it_stands_on() -> None:
    peft = pytest.importorskip("peft")
    whole = planted("llama")
    settings = peft.LoraConfig(r=2, target_modules=["up_proj"], init_lora_weights=False)
    torch.manual_seed(0)
    adapted = peft.get_peft_model(copy.deepcopy(whole), settings).eval()
    gaps = differences(whole, adapted)
    layer = adapted.base_model.model.layers[0].mlp.up_proj
    gain = whole.layers[0].post_attention_layernorm.weight.data.double()
    change = float((layer.get_delta_weight("default").detach().double() * gain).norm())
    expected = change / float(gaps.table.ff_norm[0, 0])
    assert gaps.unmatched == ((),)
    assert float(gaps.table.ff_difference[0, 0]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.long
def test_the_part_is_all_that_is_no_attention() -> None:
    """In BERT and OPT the module that gives the part's output is the last of two."""
    for family, names in (
        ("bert", {"intermediate.dense.weight", "output.dense.weight"}),
        ("opt", {"fc1.weight", "fc2.weight"}),
        ("t5", {"layer.1.DenseReluDense.wi.weight", "layer.1.DenseReluDense.wo.weight"}),
    ):
        made, half = network_of(family)
        result = td.load(made, half=half).feed_forward(2)
        assert isinstance(result, FeedForwardWeights)
        assert result.matrices.keys() == names
        assert sorted(result.roles.values()) == ["reads", "writes"]
