"""Tiny GGUF files, written tensor by tensor, so that some can be left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

LAYERS, DIM, HIDDEN, VOCABULARY = 2, 8, 12, 20


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """Every tensor of a llama with two layers and four heads, by GGUF's names."""
    random = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCABULARY, DIM), "output_norm.weight": (DIM,)}
    for layer in range(LAYERS):
        of_layer = {
            "attn_norm": (DIM,), "attn_q": (DIM, DIM), "attn_k": (DIM, DIM), "attn_v": (DIM, DIM),
            "attn_output": (DIM, DIM), "ffn_norm": (DIM,), "ffn_gate": (HIDDEN, DIM), "ffn_up": (HIDDEN, DIM),
            "ffn_down": (DIM, HIDDEN),
        }  # fmt: skip
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    shapes["output.weight"] = (VOCABULARY, DIM)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path, *, keep: Callable[[str], bool] = lambda name: True, block_count: int = LAYERS, seed: int = 0
) -> Path:
    """A file with the tensors that `keep` is true of."""
    from gguf import GGUFWriter

    writer = GGUFWriter(str(path), "llama")
    writer.add_context_length(32)
    writer.add_embedding_length(DIM)
    writer.add_block_count(block_count)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_rope_dimension_count(DIM // 4)
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
    for name, values in tensors(seed).items():
        if keep(name):
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
