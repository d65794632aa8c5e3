"""GPT-2: one fused projection for queries, keys and values, stored (in, out); learned positions; pre-norm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tokendynamics.pretrained.adapters._adapter import Adapter, InitialLaw, Sites


def _describe(config: Any) -> dict[str, Any]:
    return {
        "layers": config.n_layer,
        "heads": config.n_head,
        "kv_heads": config.n_head,
        "dim": config.n_embd,
        "d_head": config.n_embd // config.n_head,
        "context": config.n_positions,
        "vocabulary": config.vocab_size,
        "positions": "learned",
        "norm": "layer",
        "norm_placement": "pre",
        "causal": True,
        "feed_forward_dim": config.n_inner or 4 * config.n_embd,
        "rotary_base": None,
        "has_final_norm": True,
    }


def _tensors(config: Any) -> dict[str, str]:
    del config
    return {
        "fused": "h.{layer}.attn.c_attn.weight",
        "fused_bias": "h.{layer}.attn.c_attn.bias",
        "output": "h.{layer}.attn.c_proj.weight",
        "output_bias": "h.{layer}.attn.c_proj.bias",
        "norm_gain": "h.{layer}.ln_1.weight",
        "norm_bias": "h.{layer}.ln_1.bias",
    }


def _split(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> dict[str, Tensor]:
    heads = facts["heads"]
    parts = {"output": tensors["output"].unflatten(0, (heads, -1))}
    columns = tensors["fused"].chunk(3, dim=1)
    biases = tensors["fused_bias"].chunk(3)
    for name, weight, bias in zip(("query", "key", "value"), columns, biases, strict=True):
        parts[name] = weight.unflatten(1, (heads, -1)).transpose(0, 1)
        parts[f"{name}_bias"] = bias.unflatten(0, (heads, -1))
    return parts | {name: tensors[name] for name in ("output_bias", "norm_gain", "norm_bias")}


def _scale(config: Any, layer: int) -> float:
    scale = (config.n_embd // config.n_head) ** -0.5 if config.scale_attn_weights else 1.0
    return scale / (layer + 1) if config.scale_attn_by_inverse_layer_idx else scale


def _law(config: Any, name: str, ndim: int) -> InitialLaw:
    if ndim == 1:
        return InitialLaw(constant=1.0 if name.endswith("weight") else 0.0)
    if name.endswith("c_proj.weight"):
        # Both residual parts of each of the n_layer blocks, so that the sum's variance does not grow with depth.
        return InitialLaw(std=config.initializer_range / math.sqrt(2 * config.n_layer))
    return InitialLaw(std=config.initializer_range)


ADAPTER = Adapter(
    family="gpt2",
    model_types=("gpt2",),
    prefixes=("", "transformer."),
    sites=Sites(blocks="h", attention="ln_2", attention_side="input", final_norm="ln_f"),
    describe=_describe,
    tensors=_tensors,
    split=_split,
    scale=_scale,
    norm_eps=lambda config: config.layer_norm_epsilon,
    law=_law,
)
