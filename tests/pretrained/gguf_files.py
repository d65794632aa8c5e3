"""Tiny GGUF files, written tensor by tensor, so that some can be left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

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
