"""Tiny random configurations of the families that must be readable, and networks of them with nothing at a default."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from tokendynamics.pretrained.other_libraries import silenced

_TEXT: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = _TEXT | {"num_key_value_heads": 2}
_WIDE = _GROUPED | {"head_dim": 16}
_IMAGE: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "image_size": 12,
    "patch_size": 4,
}
_GPT = {
    "vocab_size": 61,
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {"num_experts_per_tok": 2}
_DINO = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "mlp_ratio": 1, "image_size": 12}
_MLA = _TEXT | {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 12,
    "first_k_dense_replace": 1,
}
_WHISPER = {
    "vocab_size": 61,
    "d_model": 48,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_source_positions": 8,
    "num_mel_bins": 10,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
_TOWERS = {"text_config": _TEXT, "vision_config": _IMAGE, "projection_dim": 16}

FAMILIES: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "gpt2": ("gpt2", _GPT, None),
    "gpt_neox": ("gpt_neox", _TEXT, None),
    "opt": ("opt", _TEXT | {"ffn_dim": 40, "word_embed_proj_dim": 48}, None),
    "opt-post-norm": ("opt", _TEXT | {"ffn_dim": 40, "word_embed_proj_dim": 48, "do_layer_norm_before": False}, None),
    "phi": ("phi", _TEXT, None),
    "phi3": ("phi3", _GROUPED, None),
    "llama": ("llama", _GROUPED, None),
    "mistral": ("mistral", _WIDE, None),
    "mixtral": ("mixtral", _GROUPED | _EXPERTS | {"num_local_experts": 4}, None),
    "qwen2": ("qwen2", _GROUPED, None),
    "qwen3": ("qwen3", _WIDE, None),
    "gemma": ("gemma", _WIDE, None),
    "gemma2": ("gemma2", _WIDE, None),
    "gemma3": (
        "gemma3_text",
        _WIDE | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        None,
    ),
    "olmo2": ("olmo2", _GROUPED, None),
    "gpt_oss": ("gpt_oss", _WIDE | _EXPERTS | {"num_local_experts": 4}, None),
    "deepseek_v3": ("deepseek_v3", _MLA, None),
    "bert": ("bert", _TEXT, None),
    "roberta": ("roberta", _TEXT, None),
    "distilbert": (
        "distilbert",
        {"vocab_size": 61, "dim": 48, "n_layers": 3, "n_heads": 4, "hidden_dim": 40, "max_position_embeddings": 64},
        None,
    ),
    "albert": ("albert", _TEXT | {"embedding_size": 24}, None),
    "modernbert": ("modernbert", _TEXT | {"global_attn_every_n_layers": 2, "local_attention": 64}, None),
    "electra": ("electra", _TEXT | {"embedding_size": 24}, None),
    "t5": ("t5", {"vocab_size": 61, "d_model": 48, "d_kv": 12, "num_heads": 4, "num_layers": 3, "d_ff": 40}, "encoder"),
    "whisper": ("whisper", _WHISPER, "encoder"),
    "vit": ("vit", _IMAGE, None),
    "deit": ("deit", _IMAGE, None),
    "dinov2": ("dinov2", _DINO | {"patch_size": 4}, None),
    "clip-text": ("clip", _TOWERS, "text"),
    "clip-vision": ("clip", _TOWERS, "vision"),
    "siglip-text": ("siglip", _TOWERS, "text"),
    "siglip-vision": ("siglip", _TOWERS, "vision"),
    # Not asked for, and read all the same.
    "cohere": ("cohere", _GROUPED, None),
    "granite": ("granite", _GROUPED | {"residual_multiplier": 0.22, "attention_multiplier": 0.3}, None),
    "glm4": ("glm4", _WIDE, None),
    "smollm3": ("smollm3", _GROUPED | {"no_rope_layers": [1, 0, 1]}, None),
    "gpt_bigcode": ("gpt_bigcode", _GPT, None),
    "dinov3": ("dinov3_vit", _IMAGE, None),
    "beit": ("beit", _IMAGE | {"use_relative_position_bias": True}, None),
}
"""Name → model type, settings, half."""

BY_FUNCTIONS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "bloom": ("bloom", {"vocab_size": 61, "hidden_size": 48, "n_layer": 3, "n_head": 4}, None),
    "codegen": ("codegen", _GPT | {"rotary_dim": 8}, None),
    "ctrl": ("ctrl", _GPT | {"dff": 40}, None),
    "deberta-v2": ("deberta-v2", _TEXT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, None),
    "falcon": ("falcon", _TEXT, None),
    "gpt_neo": (
        "gpt_neo",
        {"vocab_size": 61, "hidden_size": 48, "num_layers": 2, "num_heads": 4, "intermediate_size": 40}
        | {"max_position_embeddings": 64, "attention_types": [[["global", "local"], 1]]},
        None,
    ),
    "gptj": ("gptj", _GPT | {"rotary_dim": 8}, None),
    "mpnet": ("mpnet", _TEXT, None),
    "mpt": ("mpt", {"vocab_size": 61, "d_model": 48, "n_layers": 3, "n_heads": 4, "max_seq_len": 64}, None),
    "openai-gpt": ("openai-gpt", _GPT, None),
    "persimmon": ("persimmon", _TEXT, None),
    "roformer": ("roformer", _TEXT | {"embedding_size": 48}, None),
}
"""Those whose attention does not use transformers' interface, and is seen by the functions that compute it."""

UNREAD: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "deberta": ("deberta", _TEXT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, None),
}
"""Those whose attention is seen, and whose queries are no output of a module: biases are added to them by hand."""

UNSEEN: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "fnet": ("fnet", _TEXT | {"use_tpu_fourier_optimizations": False}, None),
    "mamba": ("mamba", {"vocab_size": 61, "hidden_size": 48, "num_hidden_layers": 3}, None),
}
"""Those that have no softmax attention at all."""

ALL = FAMILIES | BY_FUNCTIONS | UNREAD | UNSEEN

FEW = (
    "gpt2", "gpt_neox", "opt-post-norm", "llama", "mixtral", "gemma3", "olmo2", "gpt_oss", "deepseek_v3", "granite",
    "cohere", "bert", "bloom", "albert", "modernbert", "t5", "whisper", "vit", "dinov2", "clip-text", "mamba",
)  # fmt: skip
"""Families that have every form of a block between them: norms before, after and on branches, parallel parts, experts,
scaled branches, blocks that run again, encoders and decoders, words, images and sounds, with and without factors."""


def most_slow(families: Iterable[str]) -> list[Any]:
    """All families as parameters of a test of which most run with the slow tests only."""
    return [pytest.param(family, marks=() if family in FEW else pytest.mark.slow) for family in families]


def network_of(family: str) -> tuple[Any, str | None]:
    """A network of the family with random weights, gains and biases, and which half of it is meant."""
    from transformers import AutoConfig, AutoModel

    model_type, settings, half = ALL[family]
    torch.manual_seed(11)
    with silenced():
        network = AutoModel.from_config(AutoConfig.for_model(model_type, **settings)).eval()
    for name, parameter in network.named_parameters():
        if "embed_positions" not in name or family != "roformer":  # a table of angles, which no training changes
            parameter.data += 0.1 * torch.randn_like(parameter)
    return network, half


def half_of_network(network: Any, half: str | None) -> Any:
    """The half by the name that its class has for it."""
    names = {"encoder": "encoder", "text": "text_model", "vision": "vision_model"}
    return network if half is None else getattr(network, names[half])


def inputs_of(network: Any, tokens: int = 9) -> dict[str, Tensor]:
    """One random input of what the network reads."""
    generator = torch.Generator().manual_seed(5)
    name, config = network.main_input_name, network.config
    if name == "input_ids":
        return {name: torch.randint(3, 60, (1, tokens), generator=generator)}
    if name == "pixel_values":
        return {name: torch.randn(1, 3, 12, 12, generator=generator)}
    return {name: torch.randn(1, config.num_mel_bins, 2 * config.max_source_positions, generator=generator)}
