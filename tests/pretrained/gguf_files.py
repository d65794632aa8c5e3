"""Tiny GGUF files, written tensor by tensor, so that some can be left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

LAYERS, DIM, HIDDEN, VOCABULARY = 2, 8, 12, 20


def tensors(seed: int = 0, dim: int = DIM, hidden: int = HIDDEN) -> dict[str, np.ndarray]:
    """Every tensor of a llama with two layers and four heads, by GGUF's names."""
    random = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCABULARY, dim), "output_norm.weight": (dim,)}
    for layer in range(LAYERS):
        of_layer = {
            "attn_norm": (dim,), "attn_q": (dim, dim), "attn_k": (dim, dim), "attn_v": (dim, dim),
            "attn_output": (dim, dim), "ffn_norm": (dim,), "ffn_gate": (hidden, dim), "ffn_up": (hidden, dim),
            "ffn_down": (dim, hidden),
        }  # fmt: skip
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    shapes["output.weight"] = (VOCABULARY, dim)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def quantised(shape: tuple[int, ...], kind: str, random: np.random.Generator) -> np.ndarray:
    """Bytes of a quantised matrix: any bytes are one, as long as the scales of its blocks are numbers."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    made = random.integers(0, 256, (shape[0], shape[1] // block, size), dtype=np.uint8)
    scale = np.frombuffer(np.float16(0.01).tobytes(), dtype=np.uint8)
    places = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[kind]
    for place in places:
        made[..., place : place + 2] = scale
    return made.reshape(shape[0], -1)


def write_gguf(
    path: Path,
    *,
    keep: Callable[[str], bool] = lambda name: True,
    block_count: int = LAYERS,
    seed: int = 0,
    dim: int = DIM,
    hidden: int = HIDDEN,
    given: Mapping[str, tuple[np.ndarray, str]] | None = None,
    most_tensors: int = 0,
) -> Path:
    """A file with the tensors that `keep` is true of; some as they are given, raw and of a kind; split after some."""
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(str(path), "llama", split_max_tensors=most_tensors)
    writer.add_context_length(32)
    writer.add_embedding_length(dim)
    writer.add_block_count(block_count)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_rope_dimension_count(dim // 4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    words = ["<s>", "</s>", *(chr(ord("a") + number) for number in range(VOCABULARY - 3)), "ab"]
    writer.add_token_list(words)
    writer.add_token_types([3, 3, *[1] * (VOCABULARY - 2)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for name, values in tensors(seed, dim, hidden).items():
        if given is not None and name in given:
            raw, kind = given[name]
            writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType[kind])
        elif keep(name):
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


Settings = Mapping[str, bool | int | float | str | list[float]]


def write_network(
    path: Path,
    network: Any,
    architecture: str,
    settings: Settings | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
    drop: tuple[str, ...] = (),
) -> Path:
    """A file of a network of transformers as llama.cpp lays it out, by the format's own table of names.

    Args:
        path: The file.
        network: With its head.
        architecture: GGUF's name for it.
        settings: Metadata of the architecture beside the sizes, without its name.
        extra: Tensors beside the network's.
        drop: Metadata that is left out.
    """
    from gguf import MODEL_ARCH_NAMES, GGUFWriter, get_tensor_name_map

    config = network.config
    arch = next(key for key, name in MODEL_ARCH_NAMES.items() if name == architecture)
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    names = get_tensor_name_map(arch, layers)
    writer = GGUFWriter(str(path), architecture)
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    sizes: dict[str, Any] = {
        "context_length": getattr(config, "max_position_embeddings", 64),
        "embedding_length": config.hidden_size,
        "block_count": layers,
        "feed_forward_length": getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        "attention.head_count": heads,
        "attention.head_count_kv": 1 if architecture == "falcon" else kv_heads,
        "vocab_size": config.vocab_size,
    }
    if width * heads != config.hidden_size or architecture.startswith("gemma"):
        sizes |= {"attention.key_length": width, "attention.value_length": width}
    for key, value in (sizes | dict(settings or {})).items():
        if key in drop:
            continue
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(f"{architecture}.{key}", value)
    _add_words(writer, config.vocab_size)
    tied = config.tie_word_embeddings
    for name, tensor in network.state_dict().items():
        if name == "lm_head.weight" and tied:
            continue
        base, _, leaf = name.rpartition(".")
        stored = names.get_name(base) or names.get_name(base.removeprefix("transformer."))
        assert stored is not None, name
        values = _as_llama_cpp(architecture, name, tensor.float().numpy(), heads, kv_heads)
        writer.add_tensor(f"{stored}.{leaf}", np.ascontiguousarray(values))
    for name, values in (extra or {}).items():
        writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_words(writer: Any, vocabulary: int) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    words = ["<s>", "</s>", *(chr(ord("a") + number) for number in range(26))]
    writer.add_token_list([*words, *(f"w{number}" for number in range(vocabulary - len(words) - 1)), "ab"])
    writer.add_token_types([3, 3, *[1] * (vocabulary - 2)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def _as_llama_cpp(architecture: str, name: str, values: np.ndarray, heads: int, kv_heads: int) -> np.ndarray:
    """What llama.cpp's converter does to the numbers of one tensor."""
    if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
        count = heads if "q_proj" in name else kv_heads
        halves = values.reshape(count, 2, values.shape[0] // count // 2, *values.shape[1:])
        return halves.swapaxes(1, 2).reshape(values.shape)
    if architecture in ("gemma2", "gemma3", "nemotron") and name.endswith("norm.weight"):
        return values + 1
    if architecture == "nemotron" and "layernorm" in name and name.endswith("weight"):
        return values + 1
    if architecture == "bloom" and "query_key_value" in name:
        grouped = values.reshape(heads, 3, values.shape[0] // heads // 3, *values.shape[1:])
        return grouped.swapaxes(0, 1).reshape(values.shape)
    if architecture == "gpt2" and values.ndim == 2 and ("c_attn" in name or "c_proj" in name or "c_fc" in name):
        return values.T
    return values
