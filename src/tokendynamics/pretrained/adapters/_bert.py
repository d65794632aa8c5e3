"""BERT, MiniLM: separate projections with biases, absolute positions, every token sees every token, post-norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tokendynamics.pretrained.adapters._adapter import Adapter, InitialLaw, Sites, input_heads, output_heads


def _describe(config: Any) -> dict[str, Any]:
    return {
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_attention_heads,
        "dim": config.hidden_size,
        "d_head": config.hidden_size // config.num_attention_heads,
        "context": config.max_position_embeddings,
        "vocabulary": config.vocab_size,
        "positions": "absolute",
        "norm": "layer",
        "norm_placement": "post",
        "causal": bool(config.is_decoder),
        "feed_forward_dim": config.intermediate_size,
        "rotary_base": None,
        "has_final_norm": False,
    }


def _tensors(config: Any) -> dict[str, str]:
    del config
    attention = "encoder.layer.{layer}.attention."
    names = {}
    for part in ("query", "key", "value"):
        names[part] = f"{attention}self.{part}.weight"
        names[f"{part}_bias"] = f"{attention}self.{part}.bias"
    return names | {"output": f"{attention}output.dense.weight", "output_bias": f"{attention}output.dense.bias"}


def _split(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> dict[str, Tensor]:
    heads = facts["heads"]
    parts = {"output": output_heads(tensors["output"], heads), "output_bias": tensors["output_bias"]}
    for name in ("query", "key", "value"):
        parts[name] = input_heads(tensors[name], heads)
        parts[f"{name}_bias"] = tensors[f"{name}_bias"].unflatten(0, (heads, -1))
    return parts


def _law(config: Any, name: str, ndim: int) -> InitialLaw:
    if ndim == 1:
        return InitialLaw(constant=1.0 if name.endswith("LayerNorm.weight") else 0.0)
    zero_row = config.pad_token_id if name.endswith("word_embeddings.weight") else None
    return InitialLaw(std=config.initializer_range, zero_row=zero_row)


ADAPTER = Adapter(
    family="bert",
    model_types=("bert",),
    prefixes=("", "bert."),
    sites=Sites(blocks="encoder.layer", attention="attention", attention_side="output", final_norm=None),
    describe=_describe,
    tensors=_tensors,
    split=_split,
    scale=lambda config, layer: (config.hidden_size // config.num_attention_heads) ** -0.5,
    norm_eps=lambda config: config.layer_norm_eps,
    law=_law,
    renamed=(("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")),
    # The pooler reads the last state and feeds nothing; many checkpoints do not have it.
    options={"add_pooling_layer": False},
)
