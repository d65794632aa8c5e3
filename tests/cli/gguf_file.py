"""Writes GGUF files byte by byte, whole ones and ones that no program would write."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
_PLAIN = {0: "B", 1: "b", 2: "H", 3: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", 11: "q", 12: "d"}

VOCABULARY = 32
DIM, LAYERS, HEADS = 8, 2, 2

METADATA: dict[str, tuple[int, Any]] = {
    "general.architecture": (STRING, "llama"),
    "llama.block_count": (U32, LAYERS),
    "llama.context_length": (U32, 64),
    "llama.embedding_length": (U32, DIM),
    "llama.feed_forward_length": (U32, 16),
    "llama.attention.head_count": (U32, HEADS),
    "llama.attention.head_count_kv": (U32, HEADS),
    "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
    "llama.rope.freq_base": (F32, 1e4),
    "llama.vocab_size": (U32, VOCABULARY),
    "tokenizer.ggml.model": (STRING, "gpt2"),
    "tokenizer.ggml.tokens": (ARRAY, (STRING, [*map(chr, range(33, 32 + VOCABULARY)), '!"'])),
    "tokenizer.ggml.token_type": (ARRAY, (I32, [1] * VOCABULARY)),
    "tokenizer.ggml.merges": (ARRAY, (STRING, ['! "'])),
    "tokenizer.ggml.bos_token_id": (U32, 1),
    "tokenizer.ggml.eos_token_id": (U32, 2),
}


def tensors() -> dict[str, tuple[int, ...]]:
    """Name and shape (fastest axis first, as GGUF counts) of every tensor of the tiny model."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (DIM, VOCABULARY), "output_norm.weight": (DIM,)}
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        shapes |= {f"{block}attn_{part}.weight": (DIM, DIM) for part in ("q", "k", "v", "output")}
        shapes |= {f"{block}attn_norm.weight": (DIM,), f"{block}ffn_norm.weight": (DIM,)}
        shapes |= {f"{block}ffn_{part}.weight": (DIM, 16) for part in ("gate", "up")}
        shapes[f"{block}ffn_down.weight"] = (16, DIM)
    return shapes


def text(value: str | bytes) -> bytes:
    """A string as GGUF stores it."""
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind: int, content: Any) -> bytes:
    """A metadata value without its type."""
    if kind == STRING:
        return text(content)
    if kind == ARRAY:
        inner, items = content
        return struct.pack("<IQ", inner, len(items)) + b"".join(value(inner, item) for item in items)
    return struct.pack("<" + _PLAIN[kind], content)


def metadata(entries: Mapping[str, tuple[int, Any]]) -> list[bytes]:
    """One packed entry for each name."""
    return [text(name) + struct.pack("<I", kind) + value(kind, content) for name, (kind, content) in entries.items()]


def information(shapes: Mapping[str, Sequence[int]], kind: int = 0, start: int = 0) -> list[bytes]:
    """One packed tensor description for each name, float32 (0) by default, offsets one after the other."""
    packed, offset = [], start
    for name, shape in shapes.items():
        sides = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        packed.append(text(name) + sides + struct.pack("<IQ", kind, offset))
        offset += -(-int(np.prod(shape, dtype=object)) * 4 // 32) * 32
    return packed


def gguf(
    changes: Mapping[str, tuple[int, Any] | None] | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
    extra: bytes = b"",
    kind: int = 0,
    start: int = 0,
    fill: float | None = None,
) -> bytes:
    """The tiny model with changes: entries replaced (or dropped where None), counts that lie, bytes put in between."""
    entries = {name: entry for name, entry in (METADATA | dict(changes or {})).items() if entry is not None}
    shapes = tensors() if shapes is None else shapes
    described = information(shapes, kind, start)
    tensor_count, entry_count = counts or (len(shapes), len(entries))
    head = magic + struct.pack("<IQQ", version, tensor_count, entry_count)
    head += b"".join(metadata(entries)) + extra + b"".join(described)
    head += bytes(-len(head) % 32)
    generator = np.random.default_rng(0)
    for shape in tensors().values():
        values = generator.standard_normal(int(np.prod(shape))).astype("<f4")
        if fill is not None:
            values[0] = fill
        data = values.tobytes()
        head += data + bytes(-len(data) % 32)
    return head
