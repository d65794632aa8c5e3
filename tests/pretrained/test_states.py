from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.pretrained.edits.states import SiteStates
from tokendynamics.pretrained.other_libraries import silenced


def _hidden_states(checkpoint: Checkpoint, ids: Tensor) -> Tensor:
    # The mode of `states`: another one may take other kernels, which round otherwise.
    with torch.inference_mode(), silenced():
        return torch.stack(checkpoint.model(ids, output_hidden_states=True).hidden_states)[:, 0]


def _check_against_hidden_states(checkpoint: Checkpoint, ids: Tensor) -> SiteStates:
    hidden, states = _hidden_states(checkpoint, ids), checkpoint.states(ids)
    torch.testing.assert_close(states.feed_forward[:-1], hidden[:-1])
    last = states.feed_forward[-1] if states.final_norm is None else states.final_norm
    torch.testing.assert_close(last, hidden[-1])
    return states


@pytest.mark.few(4)
def test_states_are_the_networks_hidden_states(kind: str, tiny: Any, prompt_ids: Tensor) -> None:
    checkpoint = load(tiny.folder(kind))
    states = _check_against_hidden_states(checkpoint, prompt_ids)
    assert (states.final_norm is not None) == checkpoint.architecture.has_final_norm


def test_the_last_block_is_read_before_the_final_norm(tiny: Any, prompt_ids: Tensor) -> None:
    checkpoint = load(tiny.folder("llama"))
    states = checkpoint.states(prompt_ids)
    with torch.no_grad():
        torch.testing.assert_close(checkpoint.model.get_submodule("norm")(states.feed_forward[-1]), states.final_norm)


@pytest.mark.parametrize(
    ("architecture", "block", "norm", "mlp"),
    [("gpt2", "h.{}", "ln_2", "mlp"), ("llama", "layers.{}", "post_attention_layernorm", "mlp")],
)
def test_the_feed_forward_part_leads_from_one_site_to_the_next(
    architecture: str, block: str, norm: str, mlp: str, tiny: Any, prompt_ids: Tensor
) -> None:
    checkpoint = load(tiny.folder(architecture))
    states = checkpoint.states(prompt_ids)
    for layer in range(1, 4):
        part = checkpoint.model.get_submodule(block.format(layer - 1))
        after = states.attention[layer]
        with torch.no_grad():
            after = after + part.get_submodule(mlp)(part.get_submodule(norm)(after[None]))[0]
        torch.testing.assert_close(after, states.feed_forward[layer])


def test_the_feed_forward_part_of_post_norm_blocks_leads_from_one_site_to_the_next(
    tiny: Any, prompt_ids: Tensor
) -> None:
    checkpoint = load(tiny.folder("bert"))
    states = checkpoint.states(prompt_ids)
    for layer in range(1, 4):
        block: Any = checkpoint.model.get_submodule(f"encoder.layer.{layer - 1}")
        after = states.attention[layer]
        with torch.no_grad():
            after = block.output(block.intermediate(after), after)
        torch.testing.assert_close(after, states.feed_forward[layer])


def test_states_take_one_forward_pass_and_leave_no_hooks(tiny: Any, prompt_ids: Tensor) -> None:
    checkpoint = load(tiny.folder("gpt2"))
    calls = []
    handle = checkpoint.model.register_forward_hook(lambda *_: calls.append(1))
    checkpoint.states(prompt_ids)
    handle.remove()
    assert len(calls) == 1
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in checkpoint.model.modules())


def test_states_own_their_memory_and_allow_arithmetic_in_place(tiny: Any, prompt_ids: Tensor) -> None:
    checkpoint = load(tiny.folder("gpt2"))
    first, second = checkpoint.states(prompt_ids), checkpoint.states(prompt_ids[0])
    assert not first.attention.is_inference()
    first.attention.zero_()
    assert first.final_norm is not None
    first.final_norm.add_(1.0)
    again = checkpoint.states(prompt_ids).attention
    torch.testing.assert_close(again[1:], second.attention[1:], rtol=0, atol=0)
    # No attention stands before the first block.
    assert bool(again[0].isnan().all())


def test_the_model_is_ready_to_run_and_frozen(tiny: Any) -> None:
    checkpoint = load(tiny.folder("bert"), dtype="float64")
    assert not checkpoint.model.training
    assert {p.dtype for p in checkpoint.model.parameters()} == {torch.float64}
    assert not any(p.requires_grad or p.is_meta for p in checkpoint.model.parameters())
    assert checkpoint.model is checkpoint.model


def test_impossible_ids_are_refused(tiny: Any) -> None:
    checkpoint = load(tiny.folder("gpt2"))
    for ids in (torch.zeros(1, 65, dtype=torch.long), torch.zeros(2, 3, dtype=torch.long)):
        with pytest.raises(ArgumentValueError, match=r"ids: expected one prompt, .* 1 to 64 tokens"):
            checkpoint.states(ids)
    with pytest.raises(ArgumentValueError, match="ids from 0 to 100, got ids from 4 to 101"):
        checkpoint.states(torch.tensor([[4, 101]]))


@pytest.mark.slow
@pytest.mark.pretrained
def test_smollm2_states_show_the_known_norms(sentence: str) -> None:
    checkpoint = load("smollm2")
    states = _check_against_hidden_states(checkpoint, checkpoint.encode(sentence).ids)
    norms = states.feed_forward[12].norm(dim=-1)
    assert len(norms) == 26
    assert float(norms[0]) == pytest.approx(2.26e4, rel=0.02)
    assert 100 < float(norms[1:].min()) < float(norms[1:].max()) < 600


@pytest.mark.long
@pytest.mark.pretrained
def test_minilm_states_are_its_hidden_states(sentence: str) -> None:
    checkpoint = load("minilm")
    assert _check_against_hidden_states(checkpoint, checkpoint.encode(sentence).ids).final_norm is None


def test_the_final_state_is_that_of_all_tokens_where_the_norm_runs_again_for_one() -> None:
    from transformers import BlipVisionConfig, BlipVisionModel

    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20}
    torch.manual_seed(0)
    network = BlipVisionModel(BlipVisionConfig(**sizes, image_size=8, patch_size=4)).eval()
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    pixels = {"pixel_values": torch.randn(1, 3, 8, 8)}
    with torch.no_grad():
        wanted = network(**pixels).last_hidden_state[0]
    final = load(network).states(pixels).final_norm
    assert final is not None
    assert torch.equal(final, wanted)
