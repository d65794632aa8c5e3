"""Random inputs fit what a network reads, also where its configuration does not say in which shape."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tokendynamics as td
from tokendynamics.pretrained.discovery._random_inputs import main_input_of, random_inputs
from tokendynamics.pretrained.other_libraries import silenced

_SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20}


def audio() -> Any:
    from transformers import HubertConfig, HubertModel

    convolutions = {"conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 4), "num_feat_extract_layers": 2}
    small = {**_SIZES, **convolutions, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    return HubertModel(HubertConfig(**small))


def patches() -> Any:
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

    sizes = {"depth": 2, "embed_dim": 24, "num_heads": 2, "hidden_size": 16, "mlp_ratio": 1, "patch_size": 2}
    return Qwen2VisionTransformerPretrainedModel(Qwen2VLVisionConfig(**sizes))


def pictures() -> Any:
    from transformers.models.idefics3.configuration_idefics3 import Idefics3VisionConfig
    from transformers.models.idefics3.modeling_idefics3 import Idefics3VisionTransformer

    return Idefics3VisionTransformer(Idefics3VisionConfig(**_SIZES, image_size=8, patch_size=4))


READ = {"audio": (audio, "input_values"), "patches": (patches, "hidden_states"), "pictures": (pictures, "pixel_values")}


def network_of(name: str) -> Any:
    torch.manual_seed(4)
    with silenced():
        network = READ[name][0]().eval()
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return network


@pytest.mark.parametrize("name", READ)
def test_states_of_random_inputs_are_those_that_hooks_show(name: str) -> None:
    network = network_of(name)
    assert main_input_of(network) == READ[name][1]
    ckpt, inputs, given = td.load(network), random_inputs(network)(1), list[Tensor]()
    assert set(inputs) >= {READ[name][1]}
    for block in ckpt.layout.blocks:
        network.get_submodule(block).register_forward_hook(
            lambda module, arguments, output: given.append(output if isinstance(output, Tensor) else output[0])
        )
    with torch.no_grad(), silenced():
        network(**inputs)
    states = ckpt.states(inputs).feed_forward
    assert states.shape[1] >= 4
    for state, output in zip(states[1:], given, strict=False):
        assert torch.equal(state, output.reshape(state.shape))


def test_patches_of_several_pictures_side_by_side_are_audited() -> None:
    network = network_of("patches")
    ckpt = td.load(network)
    weights, projection = ckpt.attention(2), network.blocks[1].attn.qkv.weight.detach()
    query, _, value = projection.chunk(3)
    for head in range(2):
        rows = slice(12 * head, 12 * head + 12)
        torch.testing.assert_close(weights.query[head], query[rows].mT)
        torch.testing.assert_close(weights.value[head], value[rows].mT)
    seen = list[Tensor]()
    ckpt.watch_attention(random_inputs(network)(1), lambda call: seen.append(call.weights))
    assert [weights.shape for weights in seen] == [(1, 2, 64, 64)] * 2


def test_token_ids_that_stand_for_pictures_are_not_drawn() -> None:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(**_SIZES, vocab_size=12, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    config.image_token_id, config.video_token_index = 5, 7
    ids = random_inputs(LlamaModel(config))(400)["input_ids"]
    assert set(ids.unique().tolist()) == {3, 4, 6, 8, 9, 10}
