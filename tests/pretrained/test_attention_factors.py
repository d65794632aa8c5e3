"""The factors, put through a plain attention written here, give what the network's own attention gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tokendynamics.pretrained import AttentionWeights, load
from tokendynamics.pretrained.other_libraries import silenced

_ATTENTION_MODULE = {
    "gpt2": ("h.{}.attn", "h.{}"),
    "llama": ("layers.{}.self_attn", "layers.{}"),
    "mistral": ("layers.{}.self_attn", "layers.{}"),
    "qwen2": ("layers.{}.self_attn", "layers.{}"),
    "bert": ("encoder.layer.{}.attention.output.dense", "encoder.layer.{}"),
}


def _normed(x: Tensor, weights: AttentionWeights) -> Tensor:
    if weights.norm_gain is None:
        return x
    if weights.norm_kind == "layer":
        x = x - x.mean(-1, keepdim=True)
    x = x / ((x * x).mean(-1, keepdim=True) + weights.norm_eps).sqrt() * weights.norm_gain.double()
    return x if weights.norm_bias is None else x + weights.norm_bias.double()


def _rotated(x: Tensor, weights: AttentionWeights) -> Tensor:
    """Each feature pair as one complex number, turned by position times frequency."""
    if weights.rotary_frequencies is None:
        return x
    half = x.shape[-1] // 2
    angles = torch.arange(len(x), dtype=torch.float64)[:, None] * weights.rotary_frequencies.double()
    turned = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=1)


def _biased(x: Tensor, bias: Tensor | None, head: int) -> Tensor:
    return x if bias is None else x + bias[head].double()


def _attention_by_hand(state: Tensor, weights: AttentionWeights, causal: bool) -> Tensor:
    x = _normed(state.double(), weights)
    total = torch.zeros_like(x)
    for head, group in enumerate(weights.groups.tolist()):
        q = _rotated(_biased(x @ weights.query[head].double(), weights.query_bias, head), weights)
        k = _rotated(_biased(x @ weights.key[group].double(), weights.key_bias, group), weights)
        v = _biased(x @ weights.value[group].double(), weights.value_bias, group)
        scores = weights.scale * q @ k.T
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        total += scores.softmax(-1) @ v @ weights.output[head].double()
    return total if weights.output_bias is None else total + weights.output_bias.double()


def _attention_of_the_network(network: Any, family: str, ids: Tensor) -> list[tuple[Tensor, Tensor]]:
    """(state the block reads, output of its attention module), per layer."""
    inputs, outputs, handles = [], [], []

    def keep_input(module: Any, arguments: Any) -> None:
        inputs.append(arguments[0][0])

    def keep_output(module: Any, arguments: Any, output: Any) -> None:
        outputs.append((output[0] if isinstance(output, tuple) else output)[0])

    attention, block = _ATTENTION_MODULE[family]
    for layer in range(network.config.num_hidden_layers):
        handles.append(network.get_submodule(block.format(layer)).register_forward_pre_hook(keep_input))
        handles.append(network.get_submodule(attention.format(layer)).register_forward_hook(keep_output))
    with torch.no_grad(), silenced():
        network(ids)
    for handle in handles:
        handle.remove()
    return list(zip(inputs, outputs, strict=True))


def _worst_disagreement(checkpoint: Any, network: Any, ids: Tensor) -> float:
    facts = checkpoint.architecture
    worst = 0.0
    for layer, (state, output) in enumerate(_attention_of_the_network(network, checkpoint.config.model_type, ids), 1):
        by_hand = _attention_by_hand(state, checkpoint.attention(layer), facts.causal)
        worst = max(worst, float((by_hand - output).abs().max() / max(1.0, float(output.abs().max()))))
    return worst


def _from_transformers(folder: Path) -> Any:
    from transformers import AutoModel

    with silenced():
        return AutoModel.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.few(6)
def test_factors_recompute_the_attention_output(kind: str, tiny: Any, prompt_ids: Tensor) -> None:
    folder = tiny.folder(kind)
    assert _worst_disagreement(load(folder), _from_transformers(folder), prompt_ids) < 1e-5


@pytest.mark.long
def test_factors_of_half_precision_weights_come_in_single(tiny: Any) -> None:
    single, half = load(tiny.folder("llama")).attention(2), tiny.root / "half"
    with silenced():
        tiny.network("llama").to(torch.bfloat16).save_pretrained(half)
    query = load(half).attention(2).query
    assert query.dtype == torch.float32
    torch.testing.assert_close(query, single.query.bfloat16().float(), rtol=0, atol=0)


def test_grouped_heads_share_their_keys_and_values(tiny: Any) -> None:
    weights = load(tiny.folder("llama")).attention(1)
    assert weights.groups.tolist() == [0, 0, 1, 1]
    assert torch.equal(weights.key_per_head[1], weights.key[0])
    assert torch.equal(weights.value_per_head[2], weights.value[1])


def test_one_shared_head_is_expanded_without_a_copy(tiny: Any) -> None:
    weights = load(tiny.folder("multi-query")).attention(1)
    assert weights.key_per_head.shape == weights.query.shape
    assert weights.key_per_head.data_ptr() == weights.key.data_ptr()


def test_attention_refuses_a_layer_that_does_not_exist(tiny: Any) -> None:
    checkpoint = load(tiny.folder("gpt2"))
    for layer in (-1, 0, 4):
        with pytest.raises(ValueError, match="layer: expected a layer from 1 to 3, got"):
            checkpoint.attention(layer)


@pytest.mark.few(4)
def test_the_networks_own_values_are_loaded(kind: str, tiny: Any, prompt_ids: Tensor) -> None:
    folder = tiny.folder(kind)
    with torch.no_grad(), silenced():
        reference = _from_transformers(folder)(prompt_ids).last_hidden_state
        actual = load(folder).model(prompt_ids).last_hidden_state
    torch.testing.assert_close(actual, reference, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.pretrained
def test_factors_recompute_the_attention_output_of_smollm2(sentence: str) -> None:
    checkpoint = load("smollm2")
    facts = checkpoint.architecture
    assert (facts.layers, facts.dim, facts.heads, facts.kv_heads, facts.d_head) == (30, 576, 9, 3, 64)
    assert _worst_disagreement(checkpoint, checkpoint.model, checkpoint.encode(sentence).ids) < 1e-5


@pytest.mark.long
@pytest.mark.pretrained
def test_factors_recompute_the_attention_output_of_minilm(sentence: str) -> None:
    checkpoint = load("minilm")
    assert checkpoint.architecture.causal is False
    assert _worst_disagreement(checkpoint, checkpoint.model, checkpoint.encode(sentence).ids) < 1e-5
