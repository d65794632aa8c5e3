"""What a diagnosis sees of a network with a remedy: its attention as it is, its layout as W alone has it, λA in W."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tokendynamics as td
from pretrained.families import network_of
from tokendynamics.numerics import AttentionFactorsError
from tokendynamics.pretrained import apply_remedy, load, remedy_coefficients, remedy_parameters
from tokendynamics.results import Refused

IDS = torch.tensor([[5, 9, 33, 21, 7, 50, 12, 3, 40, 8, 31, 17, 22, 59, 6, 11]])
TEXTS = [IDS[0].tolist(), IDS[0].flip(0).tolist(), [4, 4, 18, 25, 39, 2, 41, 60, 13, 27]]


def remedied(family: str, start: float = -0.3) -> tuple[Any, Any]:
    """A network of the family, and the same with a remedy of which no two coefficients are alike."""
    bare, _ = network_of(family)
    model = apply_remedy(copy.deepcopy(bare), start=start)
    generator = torch.Generator().manual_seed(3)
    for parameter in remedy_parameters(model):
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    return bare, model


def turned(rows: Tensor, frequencies: Tensor | None) -> Tensor:
    """Queries or keys (head, token, d_head) with each pair, half of the columns apart, turned."""
    if frequencies is None:
        return rows
    angle = torch.arange(rows.shape[-2])[:, None] * frequencies
    first, second = rows.chunk(2, dim=-1)
    return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], dim=-1)


@pytest.mark.few(2)
@pytest.mark.parametrize("family", ["llama", "qwen2", "phi", "gemma", "gemma2", "cohere", "smollm3"])
def test_the_factors_of_a_layer_give_the_attention_that_is_seen(family: str) -> None:
    _, model = remedied(family)
    network = load(model)
    seen, read = [], []
    hooks = [
        model.get_submodule(f"{block}.{layer.attention.module}").register_forward_pre_hook(
            lambda module, positional, named: read.append((*positional, named.get("hidden_states"))[0]),
            with_kwargs=True,
        )
        for block, layer in zip(network.layout.blocks, network.layout.layers, strict=True)
    ]
    network.watch_attention(IDS, lambda call: seen.append(call.weights[0].clone()))
    for hook in hooks:
        hook.remove()
    for number, layer in enumerate(network.layout.layers, start=1):
        weights, x = network.attention(number), read[number - 1][0]
        query, key = x @ weights.query, x @ weights.key_per_head
        if weights.query_bias is not None and weights.key_bias is not None:
            query, key = query + weights.query_bias[:, None], key + weights.key_bias[weights.groups][:, None]
        query, key = (turned(entry, weights.rotary_frequencies) for entry in (query, key))
        scores = weights.scale * query @ key.mT
        if layer.attention.soft_cap is not None:
            scores = layer.attention.soft_cap * torch.tanh(scores / layer.attention.soft_cap)
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        torch.testing.assert_close(
            scores.masked_fill(later, -torch.inf).softmax(-1), seen[number - 1], rtol=1e-4, atol=1e-5
        )


@pytest.mark.long
def test_the_sum_over_heads_has_lambda_a_in_it_and_the_layout_is_that_of_w() -> None:
    bare, model = remedied("llama")
    before, after = load(bare), load(model)
    assert after.layout == before.layout
    assert after.architecture.parameters - before.architecture.parameters == 3 * (48 + 1)
    for number in (1, 2, 3):
        with_it, without = (
            entry.scale * (entry.query @ entry.key_per_head.mT).sum(0)
            for entry in (network.attention(number) for network in (after, before))
        )
        added = (with_it - without).detach()
        torch.testing.assert_close(added, remedy_coefficients(model)[number - 1].diag(), rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_the_audit_counts_negative_eigenvalues_that_a_strong_remedy_makes() -> None:
    bare, model = remedied("llama", start=-100.0)
    assert (td.audit(load(bare)).W_inertia.sel(sign="negative").values < 48).all()
    assert (td.audit(load(model)).W_inertia.sel(sign="negative").values == 48).all()


@pytest.mark.long
def test_normalized_queries_have_no_matrix_that_a_remedy_could_stand_beside() -> None:
    _, model = remedied("qwen3")
    with pytest.raises(AttentionFactorsError, match="normalized ones beside λA") as refusal:
        load(model).attention(2)
    assert refusal.value.reason == "layer 2: λA stands beside normalized queries and keys, which have no matrix"
    diagnosis = td.diagnose(load(model), TEXTS, levers=False)
    assert isinstance(diagnosis.audit, Refused)
    assert diagnosis.audit_refused.startswith("layer 1: λA stands beside")


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_trace_and_attention_see_the_remedy(implementation: str) -> None:
    bare, model = remedied("llama")
    reference = td.trace(load(model), TEXTS)
    network, _ = network_of("llama")
    network.set_attn_implementation(implementation)
    apply_remedy(network).load_state_dict(model.state_dict())
    computed, without = td.trace(load(network), TEXTS), td.trace(load(bare), TEXTS)
    assert network.config._attn_implementation == f"tokendynamics-remedy-{implementation}"
    for name in ("norm_median", "consensus_relative", "attention_sink_mass"):
        np.testing.assert_allclose(computed[name], reference[name], rtol=1e-3, atol=1e-4, err_msg=name)
        assert float(abs(computed[name] - without[name]).max()) > 0.01
    seen = td.attention_seen(load(network), [TEXTS[0]], patterns=True)
    np.testing.assert_allclose(seen.pattern.sum("sender"), 1.0, atol=1e-5)
    assert float(abs(seen.entropy - td.attention_seen(load(bare), [TEXTS[0]]).entropy).max()) > 0.01


@pytest.mark.slow
def test_a_comparison_says_that_qk_alone_has_changed_and_nothing_at_zero() -> None:
    bare, model = remedied("llama")
    comparison = td.compare(bare, model, texts=TEXTS)
    text = " ".join(sentence.text for sentence in comparison.sentences)
    assert comparison.models == ("LlamaModel", "LlamaModel with λA")
    assert comparison.first_difference is None  # every layer has a term, so that none stands out among its neighbours
    assert "No layer stands out" in text
    assert "The QK products of LlamaModel with λA and LlamaModel differ in every layer" in text
    assert "OV" not in text
    unchanged = td.compare(bare, apply_remedy(copy.deepcopy(bare)), texts=TEXTS)
    text = " ".join(sentence.text for sentence in unchanged.sentences)
    assert "The QK and OV products of LlamaModel with λA and LlamaModel are equal in all compared layers" in text
