"""The rotary positions that a GGUF file describes, as transformers' `rope_parameters`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log
from typing import Any

from tokendynamics.numerics import CheckpointError

ROTATION_KEYS = (
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
)
"""Keys that `rotation_of` and its caller apply."""

FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors by which the frequencies are divided: at all lengths, or below and above the original context."""

_Refused = Callable[..., CheckpointError]


def rotation_of(
    keys: Mapping[str, Any], factors: Mapping[str, list[float]], pairs: int, refused: _Refused
) -> dict[str, Any]:
    """Return the `rope_parameters` of the keys and factors of a file.

    Factors for all lengths (those of Llama 3.1) become "longrope" with the same factors on both sides of the original
    length, which divides the frequencies by them and does nothing else.

    Args:
        keys: Metadata without the name of the architecture.
        factors: By the name of their tensor.
        pairs: How many pairs of features rotate.
        refused: Makes the error for a key.

    Raises:
        CheckpointError: A kind of scaling that is not known, or one without what it needs.
    """
    kind, factor = _scaling(keys, refused)
    rotation: dict[str, Any] = {"rope_type": "default", "rope_theta": float(keys.get("rope.freq_base", 10_000.0))}
    context = keys["context_length"]
    original = keys.get("rope.scaling.original_context_length", context)
    magnitude = float(keys.get("rope.scaling.attn_factor", 1.0))
    for name, values in factors.items():
        if len(values) != pairs:
            raise refused(name, f"as a tensor of {pairs} factors, one for each pair that rotates", len(values))
    if factors and kind not in ("none", "longrope"):
        raise refused("rope.scaling.type", f"to be none beside the tensor {next(iter(factors))}")
    if "rope_freqs.weight" in factors:
        both = factors["rope_freqs.weight"]
        sides = {"short_factor": both, "long_factor": both, "original_max_position_embeddings": context}
        return rotation | {"rope_type": "longrope", "attention_factor": magnitude} | sides
    if factors or kind == "longrope":
        short, long = (factors.get(f"rope_factors_{side}.weight") for side in ("short", "long"))
        if short is None or long is None:
            raise refused(
                "rope.scaling.type", "with the tensors rope_factors_short.weight and rope_factors_long.weight"
            )
        sides = {"short_factor": short, "long_factor": long, "original_max_position_embeddings": original}
        return rotation | {"rope_type": "longrope", "attention_factor": magnitude} | sides
    if kind == "none":
        if magnitude != 1.0:
            raise refused("rope.scaling.attn_factor", "of 1 without a scaling")
        return rotation
    if kind == "linear":
        if magnitude != 1.0:
            raise refused("rope.scaling.attn_factor", "of 1 beside linear scaling")
        return rotation | {"rope_type": "linear", "factor": factor}
    return rotation | {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "attention_factor": magnitude * (1.0 + 0.1 * log(factor) if factor > 1 else 1.0),
        "beta_fast": float(keys.get("rope.scaling.yarn_beta_fast", 32.0)),
        "beta_slow": float(keys.get("rope.scaling.yarn_beta_slow", 1.0)),
    }


def _scaling(keys: Mapping[str, Any], refused: _Refused) -> tuple[str, float]:
    """Return the kind of scaling and its factor, checked."""
    kind = keys.get("rope.scaling.type", "linear" if _linear_by_factor(keys) else "none")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise refused("rope.scaling.type", "as none, linear, yarn or longrope")
    old = "rope.scale_linear" in keys and "rope.scaling.factor" not in keys
    key = "rope.scale_linear" if old else "rope.scaling.factor"
    factor = float(keys.get(key, 0.0))
    if kind in ("linear", "yarn") and not 0.0 < factor < float("inf"):
        raise refused(key, f"above 0 for {kind} scaling", None if key in keys else "none")
    if kind == "none" and factor not in (0.0, 1.0):
        raise refused(key, "of 1 without a scaling")
    return kind, factor


def _linear_by_factor(keys: Mapping[str, Any]) -> bool:
    """Tell whether a factor without a type is there: llama.cpp takes it for linear scaling."""
    return float(keys.get("rope.scaling.factor", keys.get("rope.scale_linear", 0.0))) not in (0.0, 1.0)
