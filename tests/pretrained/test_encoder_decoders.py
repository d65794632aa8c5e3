"""Encoder-decoders: two halves of any depths, from a folder and live, with a head and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tokendynamics as td
from tokendynamics.numerics import ArgumentValueError, CheckpointError
from tokendynamics.pretrained.other_libraries import silenced

_SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "d_model": 32,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": 3,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
_FAMILIES: dict[str, dict[str, Any]] = {
    "bart": {},
    "marian": {},
    "mbart": {},
    "pegasus": {},
    "m2m_100": {},
    "blenderbot": {},
    "whisper": {"max_source_positions": 8, "num_mel_bins": 10},
    "t5": {"d_kv": 8, "num_heads": 4, "d_ff": 40},
    "prophetnet": {"hidden_size": 32, "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4},
}
_EVERY = [
    pytest.param(name, marks=() if name in ("bart", "t5", "prophetnet") else pytest.mark.slow) for name in _FAMILIES
]


def _network(name: str, encoder: int, decoder: int, head: bool = False) -> Any:
    from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq

    depths = {"encoder_layers": encoder, "decoder_layers": decoder}
    if name == "t5":
        depths = {"num_layers": encoder, "num_decoder_layers": decoder}
    if name == "prophetnet":
        depths = {"num_encoder_layers": encoder, "num_decoder_layers": decoder}
    with_head: Any = AutoModelForSpeechSeq2Seq if name == "whisper" else AutoModelForSeq2SeqLM
    torch.manual_seed(3)
    with silenced():
        config = AutoConfig.for_model(name, **_SIZES, **_FAMILIES[name], **depths)
        network = (with_head if head else AutoModel).from_config(config).eval()
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.data += 0.05 * torch.randn_like(parameter)
    return network


def _inputs(name: str, half: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    if name == "whisper" and half == "encoder":
        return {"input_features": torch.randn(1, 10, 16, generator=generator)}
    return {"input_ids": torch.randint(4, 60, (1, 11), generator=generator)}


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("depths", [(3, 2), (1, 4), (4, 1)])
@pytest.mark.parametrize("name", _EVERY)
def test_each_half_has_as_many_layers_as_it_has_blocks(name: str, depths: tuple[int, int], tmp_path: Path) -> None:
    network = _network(name, *depths)
    with silenced():
        network.save_pretrained(tmp_path)
    for half, count in zip(("encoder", "decoder"), depths, strict=True):
        stored, inputs = td.load(tmp_path, half=half), _inputs(name, half)
        with torch.inference_mode(), silenced():
            reference = stored.model(**inputs, output_hidden_states=True, use_cache=False).hidden_states
        states = stored.states(inputs)
        assert stored.architecture.layers == count == len(reference) - 1
        assert all(
            torch.equal(actual, state[0])
            for actual, state in zip(states.feed_forward[:-1], reference[:-1], strict=True)
        )
        last = states.feed_forward[-1] if states.final_norm is None else states.final_norm
        assert torch.equal(last, reference[-1][0])
        live = td.load(network, half=half)
        assert torch.equal(live.states(inputs).feed_forward, states.feed_forward)
        assert stored.layout.decoder_alone == live.layout.decoder_alone == (half == "decoder")


@pytest.mark.long
def test_each_layer_of_a_deep_decoder_has_its_own_weights(tmp_path: Path) -> None:
    network = _network("bart", 2, 4)
    with silenced():
        network.save_pretrained(tmp_path)
    checkpoint = td.load(tmp_path, half="decoder")
    for layer, block in enumerate(network.decoder.layers, 1):
        actual = checkpoint.attention(layer).value.movedim(0, 1).flatten(1)
        assert torch.equal(actual, block.self_attn.v_proj.weight.mT)
    assert td.audit(checkpoint).layer.values.tolist() == [1, 2, 3, 4]


@pytest.mark.long
@pytest.mark.parametrize("name", _EVERY)
def test_a_live_network_with_a_head_has_the_halves_of_its_base_model(name: str) -> None:
    network = _network(name, 2, 3, head=True)
    inner = network if name == "t5" else network.base_model
    for half, count in (("encoder", 2), ("decoder", 3)):
        inputs = _inputs(name, half)
        with_head, base = td.load(network, half=half), td.load(getattr(inner, half))
        assert with_head.architecture.layers == count
        assert torch.equal(with_head.states(inputs).feed_forward, base.states(inputs).feed_forward)
    with pytest.raises(ArgumentValueError, match="has two halves; name the one to use"):
        td.load(network)


@pytest.mark.long
def test_a_decoder_that_runs_without_its_encoder_is_noted() -> None:
    network = _network("bart", 2, 2)
    prompts = [torch.randint(4, 60, (11,), generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    decoder, encoder = td.load(network, half="decoder"), td.load(network, half="encoder")
    assert "without its encoder" in td.trace(decoder, prompts).attrs["notes"]
    assert "without its encoder" in td.audit(decoder).attrs["notes"]
    assert "notes" not in td.trace(encoder, prompts).attrs
    directly = td.load(network.decoder)  # nothing says that it is a half, but its cross-attention does not run
    assert directly.layout.decoder_alone
    names = [convention.name for convention in td.diagnose(decoder, prompts, levers=False).conventions]
    assert "Layers and parts" in names


def test_a_file_without_computed_positions_is_complete_and_one_without_learned_ones_is_not(tmp_path: Path) -> None:
    network = _network("marian", 2, 2, head=True)
    with silenced():
        network.save_pretrained(tmp_path / "marian")
    checkpoint = td.load(tmp_path / "marian", half="encoder")
    inputs = _inputs("marian", "encoder")
    assert torch.equal(
        checkpoint.model.get_parameter("embed_positions.weight"), network.model.encoder.embed_positions.weight
    )
    assert torch.equal(
        checkpoint.states(inputs).feed_forward, td.load(network, half="encoder").states(inputs).feed_forward
    )
    learned = _network("bart", 2, 2)
    state = {name: value for name, value in learned.state_dict().items() if "encoder.embed_positions" not in name}
    with silenced():
        learned.save_pretrained(tmp_path / "bart", state_dict=state)
    with pytest.raises(CheckpointError, match=r"embed_positions\.weight: expected shape"):
        td.load(tmp_path / "bart", half="encoder")
