"""What blocks give beside one tensor: lists, named tuples of two streams, several streams in one tensor."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, FunnelModel

import tokendynamics as td
from tokendynamics.numerics import ArgumentValueError, CheckpointError
from tokendynamics.pretrained.discovery._calls import all_states_given, states_given, with_states_given

IDS = torch.tensor([7, 21, 3, 40, 55, 12, 9, 33, 4])
TEXTS = [IDS.tolist(), [5, 6, 17, 8, 30], [11, 12, 9, 44, 51, 3, 3]]
SIZES: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
REFORMER: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 48, "num_attention_heads": 4, "attn_layers": ["local", "local", "local"],
    "axial_pos_embds": False, "is_decoder": True, "feed_forward_size": 40, "attention_head_size": 12,
    "local_attn_chunk_length": 8, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip


def network_of(model_type: str, settings: dict[str, Any], *, head: bool = False) -> Any:
    torch.manual_seed(3)
    config = AutoConfig.for_model(model_type, **settings)
    kind: Any = AutoModelForCausalLM if head else AutoModel
    # Funnel's automatic class fails on a configuration that names no architecture.
    network = (FunnelModel(config) if model_type == "funnel" else kind.from_config(config)).float().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return network


@pytest.mark.long
def test_blocks_that_give_lists_are_read_and_run_again() -> None:
    sizes = {"vocab_size": 61, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64}
    network = network_of("openai-gpt", sizes, head=True)
    checkpoint = td.load(network)
    with torch.no_grad():
        output = network(input_ids=IDS[None], output_hidden_states=True)
    states = checkpoint.states(IDS)
    for actual, reference in zip(states.feed_forward, output.hidden_states, strict=True):
        assert torch.equal(actual, reference[0])
    assert bool(states.attention[1:].isfinite().all())
    best = output.logits[0].argmax(dim=-1).tolist()
    assert td.logit_lens(checkpoint, IDS).token_id.values[-1].tolist() == best
    assert td.decode(checkpoint, IDS, [1]).token_id.values[0].tolist() == best
    assert np.isfinite(td.passes(checkpoint, TEXTS, 2).consensus.values).all()
    changed = td.what_if(checkpoint, TEXTS, {"layer 1 attention": 0.5})
    assert float(abs(changed.loss_difference)) > 0
    with checkpoint.varied({"layer 2 attention": 0, "layer 2 feed_forward": 0}), torch.no_grad():
        assert not torch.equal(network(input_ids=IDS[None]).logits, output.logits)
    assert torch.equal(network(input_ids=IDS[None]).logits, output.logits)


@pytest.mark.long
def test_of_two_streams_the_states_are_the_hidden_states_and_nothing_else_is_said() -> None:
    network = network_of("reformer", REFORMER, head=True)
    checkpoint = td.load(network)
    assert checkpoint.layout.streams == 2
    with torch.no_grad():
        reference = network(input_ids=IDS[None], output_hidden_states=True).hidden_states
    states = checkpoint.states(IDS)
    for actual, state in zip(states.feed_forward[:-1], reference, strict=False):
        assert torch.equal(actual, state[0, : len(IDS)])
    assert bool(states.attention.isnan().all())
    assert "2 streams of states" in td.trace(checkpoint, TEXTS).attrs["notes"]
    for refused in (
        lambda: td.passes(checkpoint, IDS, 1),
        lambda: td.deeper(checkpoint, [IDS], 1),
        lambda: td.decode(checkpoint, IDS, [1]),
        lambda: td.logit_lens(checkpoint, IDS),
        lambda: td.what_if(checkpoint, TEXTS, {"layer 1 attention": 0.5}),
    ):
        with pytest.raises(CheckpointError, match="2 streams of states"):
            refused()
    with pytest.raises(ArgumentValueError, match="adds to the states that it reads, got 2 streams of states"):
        td.flow_of(checkpoint)
    assert "2 streams of states" in td.audit(checkpoint).attrs["notes"]
    for layer, weights in enumerate(checkpoint.iter_attention(), start=1):
        module = network.reformer.encoder.layers[layer - 1].attention.self_attention
        query, key = (part.weight.double().unflatten(0, (4, 12)).mT for part in (module.query, module.key))
        product = weights.scale * weights.query.double() @ weights.key_per_head.double().mT
        torch.testing.assert_close(product, query @ key.mT / 12**0.5, rtol=1e-6, atol=1e-7)
    diagnosis = td.diagnose(checkpoint, TEXTS, passes=1)
    assert "2 streams of states" in diagnosis.deeper_refused


@pytest.mark.long
def test_several_streams_in_one_tensor_are_refused_whatever_the_number_of_prompts() -> None:
    sizes = SIZES | {"num_key_value_heads": 2, "head_dim": 12, "hidden_size_per_layer_input": 8, "laurel_rank": 8,
                     "altup_num_inputs": 2, "num_kv_shared_layers": 0, "vocab_size_per_layer_input": 61,
                     "layer_types": ["full_attention"] * 3, "activation_sparsity_pattern": [0.0] * 3}  # fmt: skip
    checkpoint = td.load(network_of("gemma3n_text", sizes))
    assert len(checkpoint.attention(1).query) == 4
    for texts in (TEXTS, TEXTS[:1], [TEXTS[0], TEXTS[0][::-1]]):  # two of one length: as many as there are streams
        with pytest.raises(CheckpointError, match="one state for each token"):
            td.trace(checkpoint, texts)
        with pytest.raises(CheckpointError, match="one state for each token"):
            td.passes(checkpoint, texts, 1)


CANINE: dict[str, Any] = SIZES | {
    "downsampling_rate": 4, "upsampling_kernel_size": 4, "local_transformer_stride": 8, "num_hash_buckets": 64,
}  # fmt: skip


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("model_type", "settings", "words"),
    [
        ("canine", CANINE, "layers with different numbers of tokens"),
        ("funnel", {"vocab_size": 61, "block_sizes": [2, 2], "d_model": 48, "n_head": 4, "d_head": 12, "d_inner": 40},
         "after encoder.blocks.1.0; layers with different numbers of tokens"),
        ("segformer", {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 2], "decoder_hidden_size": 16},
         "layers with different numbers of tokens"),
    ],
)  # fmt: skip
def test_networks_of_other_layouts_are_refused_in_words(
    model_type: str, settings: dict[str, Any], words: str, tmp_path: Any
) -> None:
    settings = {name: value for name, value in settings.items() if model_type != "canine" or name != "vocab_size"}
    network = network_of(model_type, settings)
    with pytest.raises(CheckpointError, match=words):
        td.load(network)
    network.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError):
        td.load(tmp_path)


@pytest.mark.slow
def test_blocks_of_xlnet_have_tokens_first_and_are_read_in_memory_alone(tmp_path: Any) -> None:
    network = network_of("xlnet", {"vocab_size": 61, "d_model": 48, "n_layer": 3, "n_head": 4, "d_inner": 40})
    ids = torch.arange(5, 11)
    with torch.no_grad():
        outputs = network.eval()(input_ids=ids[None], output_hidden_states=True, use_mems=False).hidden_states
    torch.testing.assert_close(td.load(network).states(ids).feed_forward, torch.cat(outputs))
    network.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"with tokens first; .* are read in a network in memory"):
        td.load(tmp_path)


@pytest.mark.long
def test_canine_with_inputs_has_blocks_in_several_lists() -> None:
    settings = {name: value for name, value in CANINE.items() if name != "vocab_size"}
    generator = torch.Generator().manual_seed(1)

    def inputs(count: int) -> dict[str, Any]:
        return {"input_ids": torch.randint(3, 60, (count, 16), generator=generator)}

    with pytest.raises(CheckpointError, match=r"after encoder.layer.0; layers with different numbers of tokens"):
        td.load(network_of("canine", settings), inputs=inputs)


def test_layers_of_different_numbers_of_heads_have_undefined_heads_and_no_error() -> None:
    network = network_of("llama", SIZES | {"num_key_value_heads": 4, "head_dim": 12})
    attention = network.layers[1].self_attn
    fewer = SIZES | {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 12}
    config = AutoConfig.for_model("llama", **fewer)
    config._attn_implementation = network.config._attn_implementation
    network.layers[1].self_attn = type(attention)(config, 1).eval()
    seen = td.attention_seen(network, TEXTS)
    assert seen.sizes["head"] == 4
    assert bool(seen.entropy.sel(layer=2).isel(head=slice(2, 4)).isnull().all())
    assert bool(seen.entropy.sel(layer=2).isel(head=slice(0, 2)).notnull().all())
    assert bool(seen.entropy.sel(layer=[1, 3]).notnull().all())


@pytest.mark.parametrize("output", [torch.ones(2), [torch.ones(2), None], (None, torch.ones(2)), (torch.ones(2), 3)])
def test_states_are_put_back_where_they_stood(output: Any) -> None:
    states = states_given(output)
    assert states is not None
    again = with_states_given(output, states + 1)
    assert type(again) is type(output)
    result = states_given(again)
    assert result is not None
    assert torch.equal(result, states + 1)
    assert len(all_states_given(output)) == 1


class _Slots:
    __slots__ = ("hidden_states",)

    def __init__(self, states: torch.Tensor) -> None:
        self.hidden_states = states


def test_states_in_slots_and_in_other_mappings_are_replaced() -> None:
    """Where nothing were replaced, a gate would do nothing without a word."""
    states, others = torch.ones(1, 2, 3), torch.zeros(1, 2, 3)
    for output in (_Slots(states), UserDict({"out": states})):
        changed = with_states_given(output, others)
        assert states_given(changed) is others
        assert states_given(output) is states
