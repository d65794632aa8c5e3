"""Attention weights as they are in the network: against the weights that transformers itself returns, and by loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tokendynamics as td
from pretrained.families import half_of_network, inputs_of, network_of
from tokendynamics.diagnosis.tracing._attention_seen import measures
from tokendynamics.numerics import CheckpointError, MemoryLimitError
from tokendynamics.numerics import resources as memory
from tokendynamics.pretrained import load
from tokendynamics.pretrained.discovery.interface import AttentionCall
from tokendynamics.pretrained.other_libraries import silenced

IDS = [5, 9, 33, 21, 7, 50, 12]


def _own(network: Any, inputs: dict[str, torch.Tensor]) -> tuple[np.ndarray, Any]:
    """Weights (layer, head, receiver, sender) that the network returns with its plain attention, and its output."""
    network.set_attn_implementation("eager")
    with torch.no_grad(), silenced():
        output = network(**inputs, output_attentions=True)
    network.set_attn_implementation("sdpa" if network._supports_sdpa else "eager")
    return np.stack([weights[0].double().numpy() for weights in output.attentions]), output


@pytest.mark.long
@pytest.mark.few(5)
@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "bert", "t5", "vit", "gpt_oss", "whisper", "qwen3"])
def test_patterns_and_outputs_are_those_of_the_networks_own_implementation(family: str) -> None:
    whole, half = network_of(family)
    network = half_of_network(whole, half)
    inputs = inputs_of(network, tokens=7)
    reference, output = _own(network, inputs)
    live = load(whole, half=half)
    table = td.attention_seen(live, [inputs], patterns=True)
    # The same sums of 48 features in float32, in another order on some machines; no weight is larger than 1.
    np.testing.assert_allclose(table.pattern.values[0], reference, rtol=0, atol=48 * np.finfo(np.float32).eps)
    kept: list[AttentionCall] = []
    live.watch_attention(inputs, lambda call: kept.append(call.kept()))
    last = live.layout.final_norm is None
    states = live.states(inputs)
    end = states.feed_forward[-1] if last else states.final_norm
    torch.testing.assert_close(end, output.last_hidden_state[0], rtol=1e-4, atol=1e-4)
    assert len(kept) == live.architecture.layers


def test_measures_are_the_loops_they_stand_for() -> None:
    network, _ = network_of("gpt2")
    live = load(network)
    table = td.attention_seen(live, [IDS], patterns=True)
    weights = table.pattern.values[0]
    layers, heads, tokens, _ = weights.shape
    for layer in range(layers):
        for head in range(heads):
            w, row = weights[layer, head], table.isel(prompt=0, layer=layer, head=head)
            received = [np.mean([w[i, j] for i in range(j + 1, tokens)]) for j in range(tokens - 1)]
            np.testing.assert_allclose(row.received.values[:-1], received, rtol=1e-12)
            assert np.isnan(row.received.values[-1])  # nobody sees the last token but itself
            entropies = [-sum(p * np.log(p) for p in w[i] if p > 0) for i in range(tokens)]
            assert float(row.entropy) == pytest.approx(np.mean(entropies), rel=1e-12)
            assert float(row.to_self) == pytest.approx(np.mean([w[i, i] for i in range(tokens)]), rel=1e-12)
            assert float(row.to_previous) == pytest.approx(np.mean([w[i, i - 1] for i in range(1, tokens)]), rel=1e-12)
            assert float(row.to_first) == pytest.approx(np.mean([w[i, 0] for i in range(1, tokens)]), rel=1e-12)
            assert float(row.to_sink) == pytest.approx(0.0, abs=1e-6)


def test_without_a_mask_every_token_receives() -> None:
    table = td.attention_seen(load(network_of("bert")[0]), [IDS])
    assert bool(np.isfinite(table.received.values).all())
    assert "pattern" not in table


@pytest.mark.long
def test_what_a_learned_sink_takes_is_missing_from_the_rows() -> None:
    network, _ = network_of("gpt_oss")
    with torch.no_grad():
        network.layers[1].self_attn.sinks.fill_(30.0)
    table = td.attention_seen(load(network), [IDS])
    assert float(table.to_sink.sel(layer=2).min()) > 0.99
    assert float(table.to_sink.sel(layer=1).max()) < 0.9


def test_a_uniform_and_a_copying_head_are_told_apart() -> None:
    tokens = 4
    uniform = torch.full((tokens, tokens), 1 / tokens, dtype=torch.float64)
    copying = torch.eye(tokens, dtype=torch.float64).roll(-1, dims=1)
    result = measures(torch.stack([uniform, copying]))
    assert result["entropy"] == pytest.approx([np.log(tokens), 0.0])
    assert result["to_self"] == pytest.approx([0.25, 0.0])
    assert result["received"][0] == pytest.approx([0.25] * tokens)


@pytest.mark.long
def test_prompts_of_other_lengths_are_padded_with_nothing() -> None:
    table = td.attention_seen(load(network_of("llama")[0]), {"a": IDS, "b": IDS[:3], "c": IDS[:1]}, patterns=True)
    assert bool(np.isnan(table.received.sel(prompt="b").values[..., 3:]).all())
    assert bool(np.isnan(table.pattern.sel(prompt="b").values[..., 3:]).all())
    assert bool(np.isfinite(table.pattern.sel(prompt="b").values[..., :3, :3]).all())
    assert bool(np.isnan(table.to_previous.sel(prompt="c").values).all())
    assert float(table.to_self.sel(prompt="c").min()) == 1.0


@pytest.mark.long
def test_a_network_whose_attention_does_not_show_is_refused() -> None:
    with pytest.raises(
        CheckpointError, match="attention between the tokens shows in every layer, got layer 1: no softmax"
    ):
        td.attention_seen(load(network_of("mamba")[0]), [IDS])


def test_patterns_that_do_not_fit_are_refused_before_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    live = load(network_of("gpt2")[0])
    needed = 3 * 4 * 7 * 7 * 8  # layers, heads, receivers, senders, bytes
    monkeypatch.setattr(memory, "free_memory", lambda: needed - 1)
    with pytest.raises(MemoryLimitError, match="the patterns of prompt 1"):
        td.attention_seen(live, [IDS], patterns=True)
    assert "pattern" not in td.attention_seen(live, [IDS])
    monkeypatch.setattr(memory, "free_memory", lambda: needed)
    assert td.attention_seen(live, [IDS], patterns=True).pattern.nbytes == needed


def test_weights_over_chunks_of_a_long_text_are_refused() -> None:
    from transformers import ReformerConfig, ReformerModel

    torch.manual_seed(0)
    config = ReformerConfig(
        hidden_size=24, num_attention_heads=2, attention_head_size=12, feed_forward_size=32, vocab_size=60,
        attn_layers=["local", "local"], local_attn_chunk_length=8, axial_pos_embds=False, max_position_embeddings=64,
    )  # fmt: skip
    ckpt = td.load(ReformerModel(config).eval())
    short, long = ([torch.arange(start, start + count) for start in (1, 9)] for count in (7, 32))
    assert td.attention_seen(ckpt, short, patterns=True).pattern.shape == (2, 2, 2, 7, 7)
    with pytest.raises(CheckpointError, match="an attention over all tokens of a prompt, got groups of 8 tokens"):
        td.attention_seen(ckpt, long)
    assert bool(td.trace(ckpt, long).attention_received.isnull().all())
