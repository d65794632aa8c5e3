"""The metadata of a GGUF file as a transformers configuration: each key is applied, known to be harmless, or refused.

transformers reads some keys of an architecture and drops the others; what is dropped may be a scaling of the rotations
or a cap of the logits, and the states are then those of another network. What a key means is what llama.cpp does with
it, the program that defines the format.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from typing import Any

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import shown
from tokendynamics.pretrained.sources._configuration import check_settings

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
    # A factor without a type is linear scaling to llama.cpp.
    alone = float(keys.get("rope.scaling.factor", keys.get("rope.scale_linear", 0.0)))
    kind = keys.get("rope.scaling.type", "none" if alone in (0.0, 1.0) else "linear")
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


_SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "vocab_size": "vocab_size",
}
_RMS, _LAYER = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "nextn_predict_layers": (0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "attention.scale": (0.0,),
}
"""Values with which a key that most architectures do not have changes nothing."""

_HARMLESS = ("tensor_data_layout", "pooling_type", "rope.scaling.finetuned", _RMS, _LAYER)
"""Keys that say how the file came about, or an epsilon of the kind of norm that the architecture does not have."""


@dataclass(frozen=True)
class _Family:
    """How the keys of one architecture are read.

    Attributes:
        epsilon: Key of the epsilon of its norms, and the name of the setting.
        names: Names of the settings that are not those of most.
        rotates: Whether it has rotary positions.
        partial: Whether only a part of a head's features may rotate.
        windows: Whether its attention may have a sliding window. llama.cpp applies that of no other architecture here:
            one that no input reaches is harmless.
        biases: Tensors that say whether a setting is on.
        settle: What is particular to it; it returns the keys that it has read.
    """

    epsilon: tuple[str, str]
    names: Mapping[str, str] = field(default_factory=dict)
    rotates: bool = True
    partial: bool = False
    windows: bool | None = None
    biases: Mapping[str, str] = field(default_factory=dict)
    settle: Callable[[Any, _File], Collection[str]] | None = None


@dataclass(frozen=True)
class _File:
    """A GGUF file.

    Attributes:
        path: In a message.
        architecture: Its general.architecture.
        keys: Metadata of the architecture, without its name before them.
        tensors: Names of its tensors.
        factors: Factors of its rotations by the name of their tensor.
    """

    path: Path
    architecture: str
    keys: Mapping[str, Any]
    tensors: Collection[str]
    factors: Mapping[str, list[float]]

    def refused(self, key: str, wanted: str, came: object = None) -> CheckpointError:
        """Return the error for a key that cannot be applied."""
        value = came if came is not None else shown(self.keys.get(key))
        value = "an array" if isinstance(self.keys.get(key), range) else value
        advice = "read the original checkpoint, in safetensors"
        return CheckpointError(str(self.path), f"{self.architecture}.{key} {wanted}", value, advice)


def configured(config: Any, path: Path, metadata: Mapping[str, Any], tensors: Collection[str], factors: Any) -> Any:
    """Set everything in a configuration that a GGUF file says of its network.

    Args:
        config: As transformers reads it from the file; it is changed and returned.
        path: The file.
        metadata: Its values by key; of an array its length alone, as a range.
        tensors: Names of its tensors.
        factors: Factors of its rotations, by the name of their tensor.

    Raises:
        CheckpointError: A key of the architecture that is not known, or has a value that cannot be applied.
    """
    architecture = str(metadata["general.architecture"])
    start = f"{architecture}."
    keys = {key.removeprefix(start): value for key, value in metadata.items() if key.startswith(start)}
    file, family = _File(path, architecture, keys, tensors, factors), FAMILIES[architecture]
    sizes = _SIZES | dict(family.names) | {family.epsilon[0]: family.epsilon[1]}
    applied = set()
    if family.epsilon[0] not in keys:
        raise file.refused(family.epsilon[0], "to be there", "none")
    for key, name in sizes.items():
        if key in keys:
            if isinstance(keys[key], range):
                raise file.refused(key, "as one number")
            if name:
                setattr(config, name, keys[key])
            applied.add(key)
    # The default of the class is a token of another vocabulary.
    config.pad_token_id = metadata.get("tokenizer.ggml.padding_token_id")
    applied |= _heads(config, file)
    if family.settle is not None:
        applied |= set(family.settle(config, file))
    if family.rotates:
        applied |= _rotations(config, file, family)
    window = keys.get("attention.sliding_window", 0)
    if family.windows:
        config.sliding_window = window or None
    if family.windows or (family.windows is False and (window == 0 or window >= keys["context_length"])):
        applied.add("attention.sliding_window")
    for name, tensor in family.biases.items():
        if hasattr(config, name):
            setattr(config, name, tensor in tensors)
    for key in keys:
        neutral = _NEUTRAL.get(key, ())
        if key not in applied and key not in _HARMLESS and keys[key] not in neutral:
            wanted = f"of {neutral[-1]}" if neutral else "not to be there, since its meaning here is not known"
            raise file.refused(key, wanted)
    check_settings(config.to_dict(), str(path))
    return config


def _heads(config: Any, file: _File) -> set[str]:
    """Set the width of a head where it is not the common one."""
    keys, heads = file.keys, file.keys["attention.head_count"]
    common = keys["embedding_length"] // heads
    if common < 1:
        raise file.refused("attention.head_count", f"of at most {keys['embedding_length']}, its embedding_length")
    stated = {key: keys[key] for key in ("attention.key_length", "attention.value_length") if key in keys}
    width = stated.get("attention.key_length", common)
    fixed = isinstance(getattr(type(config), "head_dim", None), property)
    for key, value in stated.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1 or value != width:
            raise file.refused(
                key, f"of {width}, as its key_length" if "value" in key else "as a whole number from 1 on"
            )
        if fixed and value != common:
            raise file.refused(key, f"of {common}, its embedding_length divided by its heads")
    if "head_dim" in vars(config) or width != common:
        config.head_dim = width
    return set(stated)


def _width(config: Any, file: _File) -> int:
    return file.keys.get("attention.key_length", file.keys["embedding_length"] // file.keys["attention.head_count"])


def _rotations(config: Any, file: _File, family: _Family) -> set[str]:
    """Set the rotary positions of all layers; of a network that has two kinds, of those without a window."""
    width = _width(config, file)
    turning = file.keys.get("rope.dimension_count", width)
    if turning % 2 or (turning != width and not (family.partial and 0 < turning < width)):
        wanted = f"as an even number up to {width}" if family.partial else f"of {width}, the width of a head"
        raise file.refused("rope.dimension_count", wanted)
    rotation = rotation_of(file.keys, file.factors, turning // 2, file.refused)
    if family.partial:
        rotation["partial_rotary_factor"] = turning / width
    former: Any = config.rope_parameters
    if isinstance(former, dict) and "sliding_attention" in former:
        near = {"rope_type": "default", "rope_theta": float(file.keys.get("rope.freq_base_swa", 10_000.0))}
        config.rope_parameters = {"full_attention": rotation, "sliding_attention": near}
        return {*ROTATION_KEYS, "rope.freq_base_swa"}
    if "original_max_position_embeddings" in rotation and hasattr(config, "original_max_position_embeddings"):
        config.original_max_position_embeddings = rotation["original_max_position_embeddings"]
    config.rope_parameters = rotation
    return set(ROTATION_KEYS)


def _qwen(config: Any, file: _File) -> Collection[str]:
    config.use_sliding_window, config.sliding_window = False, None
    config.layer_types = ["full_attention"] * file.keys["block_count"]
    return ()


def _falcon(config: Any, file: _File) -> Collection[str]:
    # llama.cpp stores the queries, keys and values of several groups in another order than transformers reads them.
    if file.keys.get("attention.head_count_kv", 1) != 1 or "blk.0.attn_norm_2.weight" in file.tensors:
        raise file.refused("attention.head_count_kv", "of 1, one key-value head for all")
    config.multi_query, config.new_decoder_architecture, config.parallel_attn = True, False, True
    config.ffn_hidden_size = file.keys["feed_forward_length"]
    return ()


def _check_ungrouped(config: Any, file: _File) -> None:
    if file.keys.get("attention.head_count_kv", config.n_head) != config.n_head:
        raise file.refused("attention.head_count_kv", f"of {config.n_head}, as its head_count")


def _gpt2(config: Any, file: _File) -> Collection[str]:
    inner, dim = file.keys["feed_forward_length"], file.keys["embedding_length"]
    config.n_inner = None if inner == 4 * dim else inner
    _check_ungrouped(config, file)
    return ()


def _bloom(config: Any, file: _File) -> Collection[str]:
    inner, dim = file.keys["feed_forward_length"], file.keys["embedding_length"]
    if inner != 4 * dim:
        raise file.refused("feed_forward_length", f"of {4 * dim}, four times its embedding_length")
    _check_ungrouped(config, file)
    # The slopes of its positions are part of the architecture; llama.cpp states the largest of them as 8.
    return ("attention.max_alibi_bias",) if file.keys.get("attention.max_alibi_bias", 8.0) == 8.0 else ()


def _stablelm(config: Any, file: _File) -> Collection[str]:
    config.use_parallel_residual = parallel = "blk.0.ffn_norm.weight" not in file.tensors
    return ("use_parallel_residual",) if file.keys.get("use_parallel_residual", parallel) == parallel else ()


_GEMMA_27B = {"gemma2": 46, "gemma3": 62}
_GEMMA_HEAD = 256
"""Width of a head of every Gemma but those of 27 billion parameters."""


def _query_scale(config: Any, file: _File) -> None:
    """Set the scale of the queries: the file's, or else the one of the published sizes.

    llama.cpp knows them by the number of layers; of another size the file does not say what its network was trained
    with.
    """
    scale, width, key = file.keys.get("attention.scale", 0.0), _width(config, file), "attention.scale"
    if scale:
        scalar = round(scale**-2)
        if scalar < 1 or abs(scalar * scale**2 - 1) > 1e-4:
            raise file.refused(key, "as the inverse root of a whole number, which transformers needs")
        config.query_pre_attn_scalar = scalar
    elif file.keys["block_count"] == _GEMMA_27B[file.architecture]:
        config.query_pre_attn_scalar = file.keys["embedding_length"] // file.keys["attention.head_count"]
    elif width == _GEMMA_HEAD:
        config.query_pre_attn_scalar = width
    else:
        wanted = f"for a network whose heads are {width} wide, which is no published size"
        raise file.refused(key, wanted, "none")


def _cap(file: _File, key: str, usual: float) -> float | None:
    """Return a soft cap of logits; 0 stands for none."""
    cap = file.keys.get(key, usual)
    if not isinstance(cap, float) or not cap >= 0.0:
        raise file.refused(key, "as a number of 0 or more")
    return cap or None


def _gemma2(config: Any, file: _File) -> Collection[str]:
    _query_scale(config, file)
    config.attn_logit_softcapping = _cap(file, "attn_logit_softcapping", 50.0)
    config.final_logit_softcapping = _cap(file, "final_logit_softcapping", 30.0)
    config.sliding_window = file.keys.get("attention.sliding_window", 4096)
    _layer_kinds(config, file, 2)
    return (*_OF_GEMMA, "attn_logit_softcapping")


def _gemma3(config: Any, file: _File) -> Collection[str]:
    _query_scale(config, file)
    config.final_logit_softcapping = _cap(file, "final_logit_softcapping", 0.0)
    window = file.keys.get("attention.sliding_window", 0)
    config.sliding_window = window or None
    _layer_kinds(config, file, 6 if window else 1)
    return _OF_GEMMA


_OF_GEMMA = (
    "attention.scale",
    "final_logit_softcapping",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
)


def _layer_kinds(config: Any, file: _File, usual: int) -> None:
    """State which layers have a window: all but every n-th."""
    key = "attention.sliding_window_pattern"
    every = file.keys.get(key, usual)
    if isinstance(every, range | bool) or not isinstance(every, int) or every < 1:
        raise file.refused(key, "as a whole number from 1 on")
    layers = range(1, file.keys["block_count"] + 1)
    config.layer_types = ["sliding_attention" if layer % every else "full_attention" for layer in layers]


_BIASES = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
_UNGROUPED = {"attention.head_count_kv": "", "feed_forward_length": ""}

FAMILIES: Mapping[str, _Family] = {
    "llama": _Family((_RMS, "rms_norm_eps"), windows=False, biases=_BIASES),
    "qwen2": _Family((_RMS, "rms_norm_eps"), windows=False, settle=_qwen),
    "qwen3": _Family(
        (_RMS, "rms_norm_eps"), windows=False, biases={"attention_bias": "blk.0.attn_q.bias"}, settle=_qwen
    ),
    "phi3": _Family((_RMS, "rms_norm_eps"), partial=True, windows=True),
    "gemma2": _Family((_RMS, "rms_norm_eps"), settle=_gemma2),
    "gemma3": _Family((_RMS, "rms_norm_eps"), settle=_gemma3),
    "starcoder2": _Family((_LAYER, "norm_epsilon"), windows=True, biases={"use_bias": "blk.0.attn_q.bias"}),
    "stablelm": _Family(
        (_LAYER, "layer_norm_eps"), partial=True, biases={"use_qkv_bias": "blk.0.attn_q.bias"}, settle=_stablelm
    ),
    "nemotron": _Family((_LAYER, "norm_eps"), partial=True, biases=_BIASES),
    "falcon": _Family(
        (_LAYER, "layer_norm_epsilon"), _UNGROUPED, biases={"bias": "blk.0.attn_qkv.bias"}, settle=_falcon
    ),
    "gpt2": _Family(
        (_LAYER, "layer_norm_epsilon"),
        {"context_length": "n_positions", "embedding_length": "n_embd", "block_count": "n_layer"}
        | {"attention.head_count": "n_head", **_UNGROUPED},
        rotates=False,
        settle=_gpt2,
    ),
    "bloom": _Family(
        (_LAYER, "layer_norm_epsilon"),
        {"context_length": "", "block_count": "n_layer", "attention.head_count": "n_head", **_UNGROUPED},
        rotates=False,
        settle=_bloom,
    ),
}
"""By general.architecture: those whose every key is known and whose tensors transformers reads."""
