"""LLaMA, Mistral, Qwen2, SmolLM2: separate projections, grouped-query heads, rotary positions, RMS norm before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tokendynamics.pretrained.adapters._adapter import Adapter, InitialLaw, Sites, input_heads, output_heads


def _d_head(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _describe(config: Any) -> dict[str, Any]:
    return {
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "dim": config.hidden_size,
        "d_head": _d_head(config),
        "context": config.max_position_embeddings,
        "vocabulary": config.vocab_size,
        "positions": "rotary",
        "norm": "rms",
        "norm_placement": "pre",
        "causal": True,
        "feed_forward_dim": config.intermediate_size,
        "rotary_base": float(config.rope_parameters["rope_theta"]),
        "has_final_norm": True,
    }


def _biased(config: Any) -> tuple[str, ...]:
    """Return the projections that carry a bias: Qwen2's always do, LLaMA's only if the configuration says so."""
    if config.model_type == "qwen2":
        return ("query", "key", "value")
    return ("query", "key", "value", "output") if getattr(config, "attention_bias", False) else ()


def _tensors(config: Any) -> dict[str, str]:
    names = {part: f"layers.{{layer}}.self_attn.{part[0]}_proj.weight" for part in ("query", "key", "value", "output")}
    names |= {f"{part}_bias": f"layers.{{layer}}.self_attn.{part[0]}_proj.bias" for part in _biased(config)}
    return names | {"norm_gain": "layers.{layer}.input_layernorm.weight"}


def _split(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> dict[str, Tensor]:
    parts = {"output": output_heads(tensors["output"], facts["heads"]), "norm_gain": tensors["norm_gain"]}
    for name, heads in (("query", facts["heads"]), ("key", facts["kv_heads"]), ("value", facts["kv_heads"])):
        parts[name] = input_heads(tensors[name], heads)
        if f"{name}_bias" in tensors:
            parts[f"{name}_bias"] = tensors[f"{name}_bias"].unflatten(0, (heads, -1))
    if "output_bias" in tensors:
        parts["output_bias"] = tensors["output_bias"]
    return parts


def _rotary(config: Any) -> tuple[Tensor, float]:
    # The three model types share this class word for word; it knows the scaled variants (llama3, YaRN, …).
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(config)
    return rotary.get_buffer("inv_freq"), float(rotary.attention_scaling)


def _law(config: Any, name: str, ndim: int) -> InitialLaw:
    if ndim == 1:
        return InitialLaw(constant=1.0 if name.endswith("weight") else 0.0)
    zero_row = config.pad_token_id if name == "embed_tokens.weight" else None
    return InitialLaw(std=config.initializer_range, zero_row=zero_row)


ADAPTER = Adapter(
    family="llama",
    model_types=("llama", "mistral", "qwen2"),
    prefixes=("model.", ""),
    sites=Sites(blocks="layers", attention="post_attention_layernorm", attention_side="input", final_norm="norm"),
    describe=_describe,
    tensors=_tensors,
    split=_split,
    scale=lambda config, layer: _d_head(config) ** -0.5,
    norm_eps=lambda config: config.rms_norm_eps,
    rotary=_rotary,
    law=_law,
)
