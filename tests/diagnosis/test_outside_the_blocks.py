"""Embeddings, final norms and language heads are weights too: a comparison names those that differ."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tokendynamics as td
from tokendynamics.diagnosis.comparing._weight_words import of_norm
from tokendynamics.diagnosis.comparing.effects import _effect


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


@pytest.mark.long
@pytest.mark.few(1)
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


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("family", "inner", "embedding", "norm"),
    [
        ("llama", "model", "embed_tokens.weight", "norm.weight"),
        ("gpt2", "transformer", "wte.weight", "ln_f.weight"),
        ("bert", "bert", "embeddings.word_embeddings.weight", "embeddings.LayerNorm.weight"),
    ],
)
def test_tensors_of_a_network_with_a_head_are_those_of_one_without(
    family: str, inner: str, embedding: str, norm: str
) -> None:
    """Names begin with the module around the blocks in one of them only."""
    whole: Any = with_head(family)
    base: Any = copy.deepcopy(whole.get_submodule(inner))
    texts = np.random.default_rng(1).integers(3, 60, (4, 12)).tolist()
    names = ["base", "headed"]
    assert "Outside the blocks" not in str(td.compare(base, whole, texts=texts, names=names, heads=False))
    with torch.no_grad():
        base.get_parameter(embedding).mul_(1.1)
        whole.get_submodule(inner).get_parameter(norm).mul_(3.0)
    for pair in ((base, whole), (whole, base)):
        words = str(td.compare(*pair, texts=texts, names=names if pair[0] is base else names[::-1], heads=False))
        size = "0.091" if pair[0] is base else "0.1"  # of the larger one
        gain = "2× its norm" if pair[0] is base else "0.67 of its norm"
        assert f"Outside the blocks, {norm} (by {gain}) and {embedding} (by {size} of its norm) differ." in words


def with_head(family: str) -> Any:
    from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    if family == "llama":
        return language_model()
    if family == "gpt2":
        return GPT2LMHeadModel(GPT2Config(vocab_size=60, n_embd=32, n_layer=3, n_head=4, n_positions=64)).eval()
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
    return BertForMaskedLM(BertConfig(vocab_size=60, **sizes, num_attention_heads=4)).eval()


@pytest.mark.long
def test_a_tied_table_is_named_once() -> None:
    stored = sentences(lambda network: network.lm_head.weight.mul_(1.1), tied=True)
    assert any(
        text.endswith("Outside the blocks, model.embed_tokens.weight (by 0.1 of its norm) differs.") for text in stored
    )


@pytest.mark.long
def test_where_nothing_outside_differs_nothing_is_said() -> None:
    for change in (lambda network: None, lambda network: network.model.layers[1].mlp.down_proj.weight.mul_(1.1)):
        assert not any("Outside the blocks" in text for text in sentences(change))


@pytest.mark.long
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


@pytest.mark.long
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
