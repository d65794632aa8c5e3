"""Comparisons of networks that add tokens of their own to an input: a learned prompt, a class token, registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

import tokendynamics as td

CPMANT: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "dim_head": 8, "dim_ff": 48,
    "prompt_length": 4, "prompt_types": 4, "segment_types": 4,
}  # fmt: skip
IMAGES: dict[str, Any] = {
    "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40, "image_size": 12,
    "patch_size": 4,
}  # fmt: skip
REGISTERS = {name: value for name, value in IMAGES.items() if name != "intermediate_size"} | {"mlp_ratio": 1}
PROMPTS = [torch.arange(3 + place, 3 + place + length) for place, length in enumerate((13, 10, 21, 16))]
PIXELS = {
    name: {"pixel_values": torch.randn(1, 3, 12, 12, generator=torch.Generator().manual_seed(place))}
    for place, name in enumerate("abcd")
}


def network_of(model_type: str, sizes: dict[str, Any], seed: int) -> Any:
    torch.manual_seed(seed)
    network = AutoModel.from_config(AutoConfig.for_model(model_type, **sizes)).float().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.2)
    return network


@pytest.mark.slow
def test_tokens_in_front_are_no_tokens_of_the_prompt_on_lent_inputs() -> None:
    first, other = network_of("cpmant", CPMANT, 0), network_of("cpmant", CPMANT, 0)
    same = td.compare(first, other, texts=PROMPTS)
    assert same.gaps is not None
    own_difference = same.gaps.isel(other=0).own_difference
    np.testing.assert_array_equal(own_difference.sel(layer=[1, 2], component=["attention", "feed_forward"]), 0.0)
    # Only the second block's feed-forward part is changed: no other part makes anything else of the same inputs.
    with torch.no_grad():
        for name, parameter in other.get_submodule("encoder.layers.1.ffn").named_parameters():
            if "layernorm" not in name:
                parameter.mul_(1.5)
    gaps = td.compare(first, other, texts=PROMPTS).gaps
    assert gaps is not None
    own_difference = gaps.isel(other=0).own_difference
    np.testing.assert_array_equal(own_difference.sel(layer=1, component=["attention", "feed_forward"]), 0.0)
    np.testing.assert_array_equal(own_difference.sel(layer=2, component="attention"), 0.0)
    assert float(own_difference.sel(layer=2, component="feed_forward").min()) > 0.1


@pytest.mark.long
def test_learned_prompts_of_other_lengths_leave_the_tokens_of_the_prompt_in_pairs() -> None:
    first, other = network_of("cpmant", CPMANT, 0), network_of("cpmant", CPMANT | {"prompt_length": 6}, 0)
    state = other.state_dict()
    alike = {name: value for name, value in first.state_dict().items() if value.shape == state[name].shape}
    other.load_state_dict(alike, strict=False)
    with torch.no_grad():  # the table holds the learned prompts behind the tokens of the vocabulary
        other.input_embedding.weight[:60] = first.input_embedding.weight[:60]
    gaps = td.compare(first, other, texts=PROMPTS).gaps
    assert gaps is not None
    embedded = gaps.isel(other=0).state_difference.sel(layer=0, component="feed_forward")
    np.testing.assert_array_equal(embedded, 0.0)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("first", "other", "counts"),
    [
        (("vit", IMAGES), ("deit", IMAGES), "10 and 11"),
        (
            ("dinov2_with_registers", REGISTERS | {"num_register_tokens": 2}),
            ("dinov2_with_registers", REGISTERS | {"num_register_tokens": 4}),
            "12 and 14",
        ),
        (("dinov2", REGISTERS), ("dinov2_with_registers", REGISTERS | {"num_register_tokens": 2}), "10 and 12"),
    ],
)
def test_networks_with_other_numbers_of_tokens_are_compared_without_pairs(
    first: tuple[str, dict[str, Any]], other: tuple[str, dict[str, Any]], counts: str
) -> None:
    networks = [network_of(*first, 0), network_of(*other, 1)]
    comparison = td.compare(*networks, texts=PIXELS)
    assert comparison.gaps is None
    words = " ".join(finding.text for finding in comparison.sentences)
    assert counts in words
    assert "because they add tokens (a class, registers)" in words
    assert "split the texts into different tokens" not in words
    for network, trace in zip(networks, comparison.traces, strict=True):
        alone = td.trace(network, PIXELS)
        np.testing.assert_allclose(trace.mean_pair_cosine, alone.mean_pair_cosine, atol=1e-6)
