"""Networks that compute otherwise for a longer input: every prompt gets the states that it gets alone."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import tokendynamics as td
from tokendynamics.pretrained import Checkpoint

SIZES: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
LONG_ROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 12,
    "short_factor": [1.0, 1.0, 1.0, 1.0], "long_factor": [1.5, 4.0, 9.0, 20.0],
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "LongRoPE": ("phi3", {"max_position_embeddings": 64, "rope_parameters": LONG_ROPE}),
    "dynamic NTK": ("llama", {"max_position_embeddings": 12, "rope_parameters": DYNAMIC}),
    "block sparse": ("big_bird", {"attention_type": "block_sparse", "block_size": 2, "num_random_blocks": 1}),
    "chunks": (
        "reformer",
        {
            "attn_layers": ["local", "local"], "axial_pos_embds": False, "is_decoder": False, "feed_forward_size": 48,
            "attention_head_size": 8, "local_attn_chunk_length": 8, "max_position_embeddings": 128,
        },
    ),
}  # fmt: skip
PROMPTS = [torch.arange(3 + place, 3 + place + length) for place, length in enumerate((30, 5, 12, 7, 26, 13, 4, 30))]


def network_of(name: str, *, head: bool = False) -> Any:
    network_type, further = NETWORKS[name]
    sizes = SIZES | further
    if network_type == "reformer":
        del sizes["intermediate_size"], sizes["num_hidden_layers"]
    config = AutoConfig.for_model(network_type, **sizes)
    torch.manual_seed(0)
    model = (AutoModelForCausalLM if head else AutoModel).from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.3)
    return model


def alone(model: Any, prompt: Tensor) -> Tensor:
    """Return the output of an untouched copy, which has read nothing before."""
    with torch.no_grad():
        return copy.deepcopy(model)(input_ids=prompt[None])[0][0]


def last_states(checkpoint: Checkpoint, prompt: Tensor) -> Tensor:
    states = checkpoint.states(prompt)
    return states.feed_forward[-1] if states.final_norm is None else states.final_norm


@pytest.mark.parametrize("name", NETWORKS)
def test_every_prompt_gets_the_states_that_it_gets_alone(name: str) -> None:
    model = network_of(name)
    fresh = copy.deepcopy(model)
    checkpoint = td.load(model)
    outputs = [alone(fresh, prompt) for prompt in PROMPTS]
    compared = name != "chunks"  # the output of reversible layers is none of their two states
    reference = [last_states(td.load(copy.deepcopy(fresh)), prompt) for prompt in PROMPTS]
    for packed in (True, False):
        seen = set()
        for pack in checkpoint.states_in_packs(PROMPTS, packed=packed):
            for number, place in enumerate(pack.places):
                states = pack.of(number)
                last = states.feed_forward[-1] if states.final_norm is None else states.final_norm
                torch.testing.assert_close(last, reference[place], atol=3e-5, rtol=3e-5)
                if compared:
                    torch.testing.assert_close(last, outputs[place], atol=3e-5, rtol=3e-5)
                seen.add(place)
        assert seen == set(range(len(PROMPTS)))
    assert torch.equal(alone(model, PROMPTS[2]), outputs[2])  # and the network is as it was


@pytest.mark.parametrize("name", ["LongRoPE", "dynamic NTK"])
def test_what_reads_prompts_reads_each_as_alone(name: str, tmp_path: Path) -> None:
    model = network_of(name, head=True)
    model.save_pretrained(tmp_path)
    checkpoint = td.load(tmp_path)
    whole = td.what_if(checkpoint, PROMPTS[:3], {"layer 1 attention": 0.5})
    losses = []
    for prompt in PROMPTS[:3]:
        logits = alone(model, prompt)
        losses.append(float(torch.nn.functional.cross_entropy(logits[:-1], prompt[1:])))
    assert float(whole.loss.sel(model="as it is")) == pytest.approx(np.mean(losses), abs=1e-5)
    for prompt in PROMPTS[:3]:
        lens = td.logit_lens(checkpoint, prompt)
        assert lens.token_id.values[-1].tolist() == alone(model, prompt).argmax(dim=-1).tolist()
    seen = td.attention_seen(checkpoint, PROMPTS[:3])
    by_itself = [td.attention_seen(td.load(tmp_path), prompt) for prompt in PROMPTS[:3]]
    np.testing.assert_allclose(seen.entropy, np.concatenate([each.entropy for each in by_itself]), atol=1e-6)
    sensitivities = td.levers(checkpoint, PROMPTS[:7], candidates=1)
    one_by_one = td.levers(checkpoint, PROMPTS[:7], candidates=1, packed=False)
    np.testing.assert_allclose(
        sensitivities.table.consensus_sensitivity, one_by_one.table.consensus_sensitivity, atol=1e-5
    )


@pytest.mark.parametrize("name", ["LongRoPE", "dynamic NTK"])
def test_a_streamed_network_reads_each_as_alone(name: str, tmp_path: Path) -> None:
    model = network_of(name)
    model.save_pretrained(tmp_path)
    streamed = td.load(tmp_path, stream=True)
    for pack in streamed.states_in_packs(PROMPTS[:4]):
        (place,) = pack.places
        torch.testing.assert_close(pack.of(0).final_norm, alone(model, PROMPTS[place]), atol=3e-5, rtol=3e-5)


def test_dynamic_scaling_allows_prompts_beyond_the_original_length() -> None:
    assert td.load(network_of("dynamic NTK")).architecture.context == 48
    assert td.load(network_of("LongRoPE")).architecture.context == 64
