"""Small hybrid networks: blocks with a convolution, a recurrence or a feed-forward part alone, and some that attend."""

from __future__ import annotations

from typing import Any

import torch

from tokendynamics.pretrained.other_libraries import silenced

_BASE: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GATED_DELTA = {
    "head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_expand": 2}
_MLA = {
    "num_key_value_heads": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "kv_lora_rank": 16,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": None,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
}

_GRANITE = {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 40}
_NEMOTRON = {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1, "head_dim": 8}
_ZAMBA = {"layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "mamba_d_state": 8, "use_mamba_kernels": False}
_ALTERNATING = {"layer_types": ["conv", "full_attention", "conv", "full_attention"]}
_JAMBA = {"num_experts": 2, "mamba_d_state": 8, "use_mamba_kernels": False}

HYBRIDS: dict[str, tuple[str, dict[str, Any], list[int]]] = {
    "qwen3_next": ("qwen3_next", _GATED_DELTA | _EXPERTS | {"shared_expert_intermediate_size": 16}, [4]),
    "qwen3_5": ("qwen3_5_text", _GATED_DELTA, [4]),
    "olmo_hybrid": ("olmo_hybrid", _GATED_DELTA, [4]),
    "jamba": ("jamba", _JAMBA | {"attn_layer_period": 3, "attn_layer_offset": 2, "num_hidden_layers": 6}, [3, 6]),
    "bamba": ("bamba", _MAMBA2 | {"attn_layer_indices": [1, 3]}, [2, 4]),
    "lfm2": ("lfm2", _ALTERNATING, [2, 4]),
    "lfm3": ("lfm3", _ALTERNATING, [2, 4]),
    "recurrent_gemma": ("recurrent_gemma", {"num_hidden_layers": 6}, [3, 6]),
    "granitemoehybrid": (
        "granitemoehybrid",
        _MAMBA2 | _GRANITE | {"layer_types": ["mamba", "attention", "mamba", "attention"]},
        [2, 4],
    ),
    "nemotron_h": (
        "nemotron_h",
        _NEMOTRON | {"layers_block_type": ["mamba", "mlp", "attention", "mlp"]},
        [3],
    ),
    "zamba": ("zamba", _ZAMBA | {"n_mamba_heads": 2, "attention_hidden_size": 64, "attention_head_dim": 16}, [2, 4]),
    "zamba2": ("zamba2", _ZAMBA | {"n_mamba_heads": 4, "mamba_ngroups": 1}, [2, 4]),
    "minimax": (
        "minimax",
        {"layer_types": ["linear_attention", "full_attention"] * 2, "num_local_experts": 4, "num_experts_per_tok": 2,
         "head_dim": 8},
        [2, 4],
    ),
    "kimi_linear": ("kimi_linear", _MLA | {"linear_head_dim": 8, "linear_num_heads": 4, "head_dim": 8}, [4]),
    "bailing_hybrid": ("bailing_hybrid", _MLA | {"linear_head_dim": 8, "linear_num_heads": 4, "head_dim": 8}, [4]),
    "falcon_h1": (
        "falcon_h1",
        {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8,
         "head_dim": 8},
        [1, 2, 3, 4],
    ),
}  # fmt: skip
"""Name → model type, settings, and the layers with an attention."""


def hybrid_network(name: str) -> Any:
    """A hybrid network with random weights, gains and biases."""
    from transformers import AutoConfig, AutoModel

    model_type, settings, _ = HYBRIDS[name]
    torch.manual_seed(13)
    with silenced():
        network = AutoModel.from_config(AutoConfig.for_model(model_type, **(_BASE | settings))).eval()
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return network


def blocks_of(network: Any) -> Any:
    """The longest-weighted list of modules: the blocks."""
    lists = [module for module in network.modules() if isinstance(module, torch.nn.ModuleList)]
    return max(lists, key=lambda entry: sum(parameter.numel() for parameter in entry.parameters()))
