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
from tokendynamics.diagnosis import Deeper
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.observables.share_decomposition import shares
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.length_dependence import length_class
from tokendynamics.results import Refused

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
    "LongRoPE": (
        "phi3",
        # Phi-3's own setting of that name takes the place of the one among the rotations.
        {"max_position_embeddings": 64, "original_max_position_embeddings": 12, "rope_parameters": LONG_ROPE},
    ),
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


def test_prompts_stand_on_both_sides_of_the_original_length() -> None:
    for name in ("LongRoPE", "dynamic NTK"):
        config = network_of(name).config
        assert len({length_class(config, len(prompt)) for prompt in PROMPTS[:3]}) > 1


def last_states(checkpoint: Checkpoint, prompt: Tensor) -> Tensor:
    states = checkpoint.states(prompt)
    return states.feed_forward[-1] if states.final_norm is None else states.final_norm


@pytest.mark.long
@pytest.mark.few(1)
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


@pytest.mark.long
@pytest.mark.few(1)
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
    np.testing.assert_allclose(seen.entropy, np.concatenate([entry.entropy for entry in by_itself]), atol=1e-6)
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


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "chunks"])  # whose blocks have two streams
@pytest.mark.parametrize("weights", ["fixed", "resample"])
def test_repeated_passes_take_each_prompt_as_alone(name: str, weights: str, tmp_path: Path) -> None:
    checkpoint = td.load(network_of(name))
    prompts = {str(place): prompt for place, prompt in enumerate(PROMPTS[:5])}
    choices: dict[str, Any] = {"weights": weights, "positions": "each", "seed": 4}
    whole = td.passes(checkpoint, prompts, 3, **choices)
    assert whole.prompt.values.tolist() == list(prompts)
    for key, prompt in prompts.items():
        alone_run = td.passes(checkpoint, prompt, 3, **choices)
        for measure in ("consensus", "consensus_signed", "mean_pair_cosine", "log_norm"):
            np.testing.assert_allclose(
                whole[measure].sel(prompt=key), alone_run[measure][0], atol=3e-5, rtol=3e-4, err_msg=measure
            )
    # A run that was stopped goes on to the same numbers, in whatever passes the prompts are.
    td.passes(checkpoint, prompts, 1, store=tmp_path / "run.npz", **choices)
    again = td.passes(checkpoint, prompts, 3, store=tmp_path / "run.npz", **choices)
    np.testing.assert_array_equal(again.consensus, whole.consensus)
    np.testing.assert_array_equal(again.share_own, whole.share_own)


@pytest.mark.long
@pytest.mark.parametrize("name", ["LongRoPE", "dynamic NTK"])
def test_what_prompts_share_after_a_pass_is_of_all_of_them(name: str) -> None:
    checkpoint = td.load(network_of(name))
    whole = td.passes(checkpoint, PROMPTS, 1)
    expected = shares([last_states(checkpoint, prompt) for prompt in PROMPTS])
    for part in ("common", "prompt", "own"):
        assert float(whole[f"share_{part}"][1]) == pytest.approx(float(getattr(expected, part)), abs=1e-5)
    padded = td.passes(checkpoint, PROMPTS[:3], 2, pad_to=40, weights="law")
    assert padded.status.values.tolist() == ["all passes done"] * 3


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["LongRoPE", "dynamic NTK"])
def test_deeper_and_a_diagnosis_run_on_both_sides_of_the_original_length(name: str) -> None:
    checkpoint = td.load(network_of(name, head=True))
    diagnosis = td.diagnose(checkpoint, PROMPTS[:3], passes=2, levers=False, variants=["full", "no-ffn"])
    assert isinstance(diagnosis.deeper, Deeper)
    assert diagnosis.deeper_refused == ""
    for variant in ("full", "no-ffn"):
        for place, prompt in enumerate(PROMPTS[:3]):
            by_itself = td.passes(checkpoint, prompt, 2, variant=variant)
            together = diagnosis.deeper["consensus"].sel(variant=variant).isel(prompt=place)
            np.testing.assert_allclose(together, by_itself.consensus[0], atol=3e-5, rtol=3e-4)
    with pytest.raises(ArgumentValueError, match="weights: expected 'fixed' or 'resample'"):
        td.passes(checkpoint, PROMPTS[:3], 2, weights="law")
    drawn = td.diagnose(checkpoint, PROMPTS[:3], passes=2, levers=False, weights="law")
    assert isinstance(drawn.deeper, Refused)
    assert "'resample'" in drawn.deeper_refused


@pytest.mark.parametrize("name", ["LongRoPE", "dynamic NTK"])
def test_what_is_decoded_is_what_the_network_says_of_each_length(name: str) -> None:
    model = network_of(name, head=True)
    checkpoint = td.load(copy.deepcopy(model))
    for prompt in PROMPTS[:3]:
        decoded = td.decode(checkpoint, prompt, [1])
        assert decoded.token_id.values[0].tolist() == alone(model, prompt).argmax(dim=-1).tolist()
    # Written beyond the original length, one token at a time.
    ids = PROMPTS[2][:10]
    written = td.decode(checkpoint, ids, [1], how="generate", new_tokens=5).token_id.values[0].tolist()
    for token in written:
        assert token == int(alone(model, ids)[-1].argmax())
        ids = torch.cat([ids, torch.tensor([token])])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["LongRoPE", "dynamic NTK"])
def test_comparisons_read_each_as_alone(name: str) -> None:
    checkpoint, other = td.load(network_of(name, head=True)), network_of(name, head=True)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    prompts = {str(place): prompt for place, prompt in enumerate(PROMPTS[:4])}
    compared = td.compare(checkpoint, td.load(other), texts=prompts)
    for key, prompt in prompts.items():
        by_itself = td.compare(checkpoint, td.load(other), texts={key: prompt})
        for table, single in zip(compared.traces, by_itself.traces, strict=True):
            np.testing.assert_allclose(
                table.update_ratio.sel(prompt=key), single.update_ratio.sel(prompt=key), atol=3e-5, rtol=3e-4
            )


def test_in_half_precision_repeated_passes_take_one_prompt_at_a_time() -> None:
    checkpoint = td.load(network_of("LongRoPE").to(torch.bfloat16))
    whole = td.passes(checkpoint, PROMPTS[:3], 2)
    for place, prompt in enumerate(PROMPTS[:3]):
        np.testing.assert_array_equal(whole.consensus[place], td.passes(checkpoint, prompt, 2).consensus[0])
