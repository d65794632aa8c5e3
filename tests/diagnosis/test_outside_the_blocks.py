"""Embeddings, final norms and language heads are weights too: a comparison names those that differ."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tokendynamics as td
from tokendynamics.diagnosis.comparing.effects import _effect
from tokendynamics.diagnosis.comparing.words import of_norm


def language_model(*, tied: bool = False) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    }
    return LlamaForCausalLM(LlamaConfig(vocab_size=90, **sizes, tie_word_embeddings=tied)).eval()


def sentences(change: Callable[[Any], object], *, tied: bool = False) -> list[str]:
    one = language_model(tied=tied)
    two = copy.deepcopy(one)
    with torch.no_grad():
        change(two)
    texts = np.random.default_rng(1).integers(3, 90, (6, 12)).tolist()
    return [finding.text for finding in td.compare(one, two, texts=texts, names=["a", "b"]).sentences]


@pytest.mark.parametrize(
    ("name", "change", "size"),
    [
        ("lm_head.weight", lambda network: network.lm_head.weight.mul_(1.1), "0.1 of its norm"),
        ("model.embed_tokens.weight", lambda network: network.model.embed_tokens.weight.mul_(1.1), "0.1 of its norm"),
        ("model.norm.weight", lambda network: network.model.norm.weight.mul_(3), "2× its norm"),
    ],
)
def test_a_tensor_outside_the_blocks_is_named(name: str, change: Callable[[Any], object], size: str) -> None:
    words = sentences(change)
    stored = next(text for text in words if "tored tensors" in text)
    assert stored.startswith("All stored tensors of the blocks of b and a are equal, including biases and norms.")
    assert stored.endswith(f" Outside the blocks, {name} (by {size}) differs.")
    assert not any("rounded or trained slightly further" in text for text in words)


def test_a_tied_table_is_named_once() -> None:
    stored = sentences(lambda network: network.lm_head.weight.mul_(1.1), tied=True)
    assert any(
        text.endswith("Outside the blocks, model.embed_tokens.weight (by 0.1 of its norm) differs.") for text in stored
    )


def test_where_nothing_outside_differs_nothing_is_said() -> None:
    for change in (lambda network: None, lambda network: network.model.layers[1].mlp.down_proj.weight.mul_(1.1)):
        assert not any("Outside the blocks" in text for text in sentences(change))


def test_a_changed_embedding_is_no_rounding_of_weights() -> None:
    def embedding(network: Any) -> None:
        network.model.embed_tokens.weight.mul_(1.1)

    def everything(network: Any) -> None:
        generator = torch.Generator().manual_seed(2)
        for weight in network.parameters():
            weight.mul_(1 + 0.002 * torch.randn(weight.shape, generator=generator))

    equal = "No layer stands out: all weights of the blocks are equal, so none of them causes the difference."
    slight = "No layer stands out, which is typical of weights that were rounded or trained slightly further."
    assert any(text.endswith(equal) for text in sentences(embedding))
    assert any(text.endswith(slight) for text in sentences(everything))


def test_damage_to_the_embedding_is_named_beneath_noise_and_noise_is_not() -> None:
    def noisy(network: Any, factor: float) -> None:
        generator = torch.Generator().manual_seed(2)
        for weight in network.parameters():
            weight.mul_(1 + 0.005 * torch.randn(weight.shape, generator=generator))
        network.model.embed_tokens.weight.mul_(factor)

    words = "Outside the blocks, model.embed_tokens.weight (by 0.1 of its norm) differs."
    assert any(text.endswith(words) for text in sentences(lambda network: noisy(network, 1.1)))
    assert not any("Outside the blocks" in text for text in sentences(lambda network: noisy(network, 1.0)))


def test_a_small_effect_of_a_head_does_not_read_zero() -> None:
    assert [_effect(change) for change in (0.00023, -0.00004, 0.0123, 0.0)] == [
        "+0.00023",
        "−4 × 10⁻⁵",
        "+0.012",
        "0.000",
    ]


def test_one_norm_is_written_in_one_way() -> None:
    assert [of_norm(size) for size in (0.9999, 1.0, 0.98, 1.2)] == [
        "1× its norm",
        "1× its norm",
        "0.98 of its norm",
        "1.2× its norm",
    ]
