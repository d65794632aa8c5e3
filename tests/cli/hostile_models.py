"""Models that nobody should be able to hurt the program with: each case makes its files and returns the arguments."""
# ruff: noqa: E501  (a table reads better in long rows)

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cli.gguf_file import ARRAY, BOOL, F32, I32, STRING, U32, U64, gguf, tensors, text

Case = Callable[[Path], list[str]]
"""Fills an empty folder and returns what follows ``tokendynamics``."""

GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 32, "vocab_size": 16}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 16,
    "hidden_size": 8, "intermediate_size": 16, "max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
BERT = {
    "model_type": "bert", "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 16,
    "vocab_size": 16, "max_position_embeddings": 32, "pad_token_id": 0,
}  # fmt: skip
DEEP = "[" * 100_000


def _config(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values).replace('"DIGITS"', "9" * 4400).replace('"DEEP"', DEEP).encode()


def gpt2_tensors() -> dict[str, np.ndarray]:
    """Weights of the tiny GPT-2, all different."""
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (16, 8), "wpe.weight": (32, 8)}
    for block in ("h.0.", "h.1."):
        shapes |= {f"{block}ln_{n}.{part}": (8,) for n in (1, 2) for part in ("weight", "bias")}
        shapes |= {f"{block}attn.c_attn.weight": (8, 24), f"{block}attn.c_attn.bias": (24,)}
        shapes |= {f"{block}attn.c_proj.weight": (8, 8), f"{block}attn.c_proj.bias": (8,)}
        shapes |= {f"{block}mlp.c_fc.weight": (8, 32), f"{block}mlp.c_fc.bias": (32,)}
        shapes |= {f"{block}mlp.c_proj.weight": (32, 8), f"{block}mlp.c_proj.bias": (8,)}
    shapes |= {"ln_f.weight": (8,), "ln_f.bias": (8,)}
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def safetensors(arrays: Mapping[str, np.ndarray], changes: Mapping[str, Any] | None = None) -> bytes:
    """A safetensors file; `changes` replace parts of the header entry of one tensor, or add entries."""
    header: dict[str, Any] = {}
    data = b""
    for name, array in arrays.items():
        raw = array.tobytes()
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    for name, change in (changes or {}).items():
        header[name] = header[name] | change if name in header else change
    written = json.dumps(header).encode()
    return struct.pack("<Q", len(written)) + written + data


TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"?": 0, "a": 1, "b": 2, "c": 3}, "unk_token": "?"},
}  # fmt: skip
WHOLE = {
    "config.json": _config(GPT2),
    "model.safetensors": safetensors(gpt2_tensors()),
    "tokenizer.json": json.dumps(TOKENIZER).encode(),
    "tokenizer_config.json": b'{"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "?"}',
}


def stored(**changes: bytes | None) -> Case:
    """The tiny GPT-2 with files replaced (names with __ for the dot), or left out where None."""

    def make(folder: Path) -> list[str]:
        files = WHOLE | {name.replace("__", "."): content for name, content in changes.items()}
        model = folder / "model"
        model.mkdir()
        for name, content in files.items():
            if content is not None:
                (model / name).write_bytes(content)
        return ["diagnose", str(model), "--prompt", "a b c a"]

    return make


def special(name: str, make_entry: Callable[[Path], Any]) -> Case:
    """The tiny GPT-2 with one file replaced by something that is no file."""

    def make(folder: Path) -> list[str]:
        arguments = stored(**{name.replace(".", "__"): None})(folder)
        make_entry(folder / "model" / name)
        return arguments

    return make


def untrained(base: Mapping[str, Any], **changes: Any) -> Case:
    """A drawn network of a changed configuration."""

    def make(folder: Path) -> list[str]:
        (folder / "config.json").write_bytes(_config(base | changes))
        return ["diagnose", f"random:{folder}", "--prompt", "a b c"]

    return make


def gguf_file(content: bytes) -> Case:
    def make(folder: Path) -> list[str]:
        (folder / "model.gguf").write_bytes(content)
        return ["diagnose", str(folder / "model.gguf"), "--prompt", '!"#$']

    return make


def called(*arguments: str) -> Case:
    """The whole tiny GPT-2 as MODEL, in another call."""

    def make(folder: Path) -> list[str]:
        stored()(folder)
        return [str(folder / "model") if word == "MODEL" else word for word in arguments]

    return make


_COUNTS = (-1, 0, 10**9, 2**63, "DIGITS", 1.5, "two", None, [2], {}, "DEEP")
_GPT2_COUNTS = ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")

CONFIGURATIONS: dict[str, Case] = {
    f"gpt2 {key} {str(value)[:12]}": untrained(GPT2, **{key: value}) for key in _GPT2_COUNTS for value in _COUNTS
} | {
    f"llama {key} {value}": untrained(LLAMA, **{key: value})
    for key, values in {
        "num_hidden_layers": (-1, 0, 10**9, 10_001),
        "num_attention_heads": (-2, 0, 3, 2**40),
        "num_key_value_heads": (-1, 0, 3, 5),
        "head_dim": (-4, 2**40, 3),
        "hidden_size": (-8, 0, 2**40),
        "intermediate_size": (-1, 2**50),
        "max_position_embeddings": (0, -5),
        "rms_norm_eps": ("small", [1]),
        "rope_parameters": ("x", {"rope_type": "nonsense", "rope_theta": 1.0}, [3]),
        "hidden_act": ("no-such-function", 5),
        "pad_token_id": (10**9, -40),
        "dtype": ("no-such-type",),
        "quantization_config": ({"bits": 4}, "x"),
    }.items()
    for value in values
} | {
    f"bert {key} {value}": untrained(BERT, **{key: value})
    for key, values in {
        "num_attention_heads": (-1, 0, 3),
        "num_hidden_layers": (0, -1, 10**8),
        "hidden_size": (10**9,),
        "pad_token_id": (99,),
        "model_type": ("mamba", None, 5, [], {}, "gpt2\x1b[2J", "x" * 10_000, "../bert"),
    }.items()
    for value in values
}  # fmt: skip

_BYTES = {
    "empty": b"", "zeros": bytes(1000), "open": b"{", "list": b"[]", "null": b"null", "deep list": DEEP.encode(),
    "deep object": b'{"a":' * 100_000, "utf-16": _config(GPT2).decode().encode("utf-16"), "latin-1": b'{"\xe4": 1}',
    "digits": b'{"n_layer": ' + b"9" * 5000 + b"}", "long key": b'{"' + b"k" * 100_000 + b'": 1',
    "escape": b'{"model_type": "\\u001b[2J\\u0000"}', "nothing": b"{}",
}  # fmt: skip
_ENTRIES: dict[str, Callable[[Path], Any]] = {
    "folder": Path.mkdir,
    "fifo": os.mkfifo,
    "symlink loop": lambda path: path.symlink_to(path),
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "/dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "/dev/null": lambda path: path.symlink_to("/dev/null"),
}

JSON_FILES: dict[str, Case] = (
    {f"config.json {name}": stored(config__json=content) for name, content in _BYTES.items()}
    | {f"config.json {name}": special("config.json", make) for name, make in _ENTRIES.items()}
    | {f"tokenizer.json {name}": stored(tokenizer__json=content) for name, content in _BYTES.items()}
    | {f"tokenizer.json {name}": special("tokenizer.json", make) for name, make in _ENTRIES.items()}
    | {
        f"tokenizer_config.json {name}": stored(tokenizer_config__json=_BYTES[name])
        for name in ("open", "deep list", "deep object", "utf-16", "zeros", "digits")
    }
    | {
        "tokenizer beyond the vocabulary": stored(
            tokenizer__json=json.dumps(
                TOKENIZER | {"model": TOKENIZER["model"] | {"vocab": {"?": 0, "a": 99}}}  # type: ignore[operator]
            ).encode()
        ),
        "another family": stored(config__json=_config(LLAMA)),
        "ten thousand layers of two": stored(config__json=_config(GPT2 | {"n_layer": 10_000})),
        "a billion layers of two": stored(config__json=_config(GPT2 | {"n_layer": 10**9})),
        "wider than its files": stored(config__json=_config(GPT2 | {"n_embd": 2**30, "n_head": 2})),
        "no heads": stored(config__json=_config(GPT2 | {"n_head": 0})),
        "negative heads": stored(config__json=_config(GPT2 | {"n_head": -2})),
    }
)


def _with_value(value: float) -> bytes:
    arrays = gpt2_tensors()
    arrays["h.1.attn.c_attn.weight"][3, 2] = value
    return safetensors(arrays)


def _without(*names: str) -> bytes:
    return safetensors({name: array for name, array in gpt2_tensors().items() if name not in names})


_FILE = WHOLE["model.safetensors"]
_WTE = {"shape": [16, 8], "data_offsets": [0, 512]}
_BROKEN = {
    "empty": b"", "garbage": bytes(range(256)) * 40, "zeros": bytes(10_000), "cut header": _FILE[:100],
    "cut data": _FILE[:-100], "more data": _FILE + bytes(10), "length 2^63": struct.pack("<Q", 2**63) + _FILE[8:],
    "length 2^64": b"\xff" * 8 + _FILE[8:], "header of nothing": struct.pack("<Q", 2) + b"{}",
    "deep header": struct.pack("<Q", len(DEEP)) + DEEP.encode(), "text": b"version https://git-lfs.github.com/spec/v1\n",
    "overlap": safetensors(gpt2_tensors(), {"wpe.weight": {"data_offsets": [0, 1024]}}),
    "backwards": safetensors(gpt2_tensors(), {"wte.weight": {"data_offsets": [512, 0]}}),
    "beyond the end": safetensors(gpt2_tensors(), {"wte.weight": {"data_offsets": [2**62, 2**62 + 512]}}),
    "negative shape": safetensors(gpt2_tensors(), {"wte.weight": {"shape": [-16, 8]}}),
    "huge shape": safetensors(gpt2_tensors(), {"wte.weight": {"shape": [2**40, 2**40]}}),
    "unknown dtype": safetensors(gpt2_tensors(), {"wte.weight": {"dtype": "F\x1b[2J"}}),
    "integers": safetensors(gpt2_tensors(), {"wte.weight": {"dtype": "I32"}}),
    "booleans": safetensors(gpt2_tensors() | {"wte.weight": np.ones((16, 8), np.uint8)}, {"wte.weight": {"dtype": "BOOL"}}),
    "float8": safetensors(gpt2_tensors() | {"wte.weight": np.ones((16, 8), np.uint8)}, {"wte.weight": {"dtype": "F8_E4M3"}}),
    "float8 e5m2": safetensors(gpt2_tensors() | {"wte.weight": np.ones((16, 8), np.uint8)}, {"wte.weight": {"dtype": "F8_E5M2"}}),
    "float8 scales": safetensors(gpt2_tensors() | {"wte.weight": np.ones((16, 8), np.uint8)}, {"wte.weight": {"dtype": "F8_E8M0"}}),
    "transposed": safetensors(gpt2_tensors(), {"h.0.attn.c_attn.weight": {"shape": [24, 8]}}),
    "one tensor missing": _without("h.1.mlp.c_fc.weight"), "a norm missing": _without("ln_f.bias"),
    "a layer missing": _without(*(name for name in gpt2_tensors() if name.startswith("h.1."))),
    "other names": safetensors({f"x{n}\x1b[2J": a for n, a in enumerate(gpt2_tensors().values())}),
    "NaN": _with_value(float("nan")), "inf": _with_value(float("inf")), "-inf": _with_value(float("-inf")),
}  # fmt: skip

_INDEX = {
    "outside": {"weight_map": {"wte.weight": "../../../etc/passwd"}},
    "absolute": {"weight_map": {"wte.weight": "/dev/zero"}},
    "parent": {"weight_map": {"wte.weight": ".."}},
    "empty name": {"weight_map": {"wte.weight": ""}},
    "null byte": {"weight_map": {"wte.weight": "a\0b"}},
    "escape": {"weight_map": {"wte.weight": "\x1b[2J.safetensors"}},
    "missing shard": {"weight_map": {"wte.weight": "model-00001-of-00002.safetensors"}},
    "long name": {"weight_map": {"wte.weight": "x" * 100_000}},
    "number": {"weight_map": {"wte.weight": 5}},
    "mixed": {"weight_map": {"wte.weight": 5, "wpe.weight": "a.safetensors"}},
    "nested": {"weight_map": {"wte.weight": ["model.safetensors"]}},
    "list": {"weight_map": ["model.safetensors"]},
    "nothing": {"weight_map": {}},
    "no map": {"metadata": {}},
}
_INDEX_FILE = "model__safetensors__index__json"

WEIGHTS: dict[str, Case] = (
    {f"safetensors {name}": stored(model__safetensors=content) for name, content in _BROKEN.items()}
    | {f"safetensors {name}": special("model.safetensors", make) for name, make in _ENTRIES.items()}
    | {
        f"index {name}": stored(model__safetensors=None, **{_INDEX_FILE: json.dumps(index).encode()})
        for name, index in _INDEX.items()
    }
    | {
        f"index {name}": stored(model__safetensors=None, **{_INDEX_FILE: _BYTES[name]})
        for name in ("open", "deep list", "digits", "zeros")
    }
    | {
        "only pickled": stored(model__safetensors=None, pytorch_model__bin=b"\x80\x04."),
        "two files": stored(model__safetensors=None, a__safetensors=_FILE, b__safetensors=_FILE),
    }
)

_GGUF_VALUES: dict[str, tuple[int, Any] | None] = {
    "general.architecture": (U32, 5),
    "general.architecture ": None,
    "general.architecture unknown": (STRING, "mamba\x1b[2J"),
    "general.architecture bytes": (STRING, b"\xff\xfe"),
    "general.architecture long": (STRING, "x" * 10_000),
    "llama.block_count": (U32, 10**9),
    "llama.block_count 3": (U32, 3),
    "llama.block_count 0": (U32, 0),
    "llama.block_count -2": (I32, -2),
    "llama.block_count text": (STRING, "two"),
    "llama.block_count huge": (U64, 2**63),
    "llama.block_count missing": None,
    "llama.attention.head_count": (ARRAY, (U32, [2, 2])),
    "llama.attention.head_count -2": (I32, -2),
    "llama.attention.head_count 0": (U32, 0),
    "llama.attention.head_count 3": (U32, 3),
    "llama.attention.head_count text": (STRING, "many"),
    "llama.attention.head_count_kv": (I32, -1),
    "llama.attention.head_count_kv 0": (U32, 0),
    "llama.embedding_length": (U32, 0),
    "llama.embedding_length huge": (U32, 2**31),
    "llama.embedding_length text": (STRING, "8"),
    "llama.feed_forward_length": (U32, 2**31),
    "llama.vocab_size": (U64, 2**40),
    "llama.context_length": (I32, -1),
    "llama.attention.layer_norm_rms_epsilon": (STRING, "small"),
    "llama.rope.freq_base": (BOOL, True),
    "llama.rope.freq_base NaN": (F32, float("nan")),
    "tokenizer.ggml.model": (STRING, "nobody's"),
    "tokenizer.ggml.model number": (U32, 1),
    "tokenizer.ggml.tokens": (U32, 3),
    "tokenizer.ggml.tokens few": (ARRAY, (STRING, ["a"])),
    "tokenizer.ggml.tokens bytes": (ARRAY, (STRING, [b"\xff"] * 32)),
    "tokenizer.ggml.merges": (ARRAY, (STRING, ["no such"])),
    "tokenizer.ggml.merges one part": (ARRAY, (STRING, ["!"])),
    "tokenizer.ggml.bos_token_id": (STRING, "one"),
}
_TINY = gguf()
_STRANGE_TYPE = text("strange") + struct.pack("<I", 77)
_LONG_STRING = text("long") + struct.pack("<IQ", STRING, 2**62) + b"x"
_LONG_ARRAY = text("array") + struct.pack("<IIQ", ARRAY, U32, 2**60)
_NESTED_ARRAY = text("nested") + struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 20_000

GGUF: dict[str, Case] = {f"gguf {name}": gguf_file(gguf({name.split(" ")[0]: entry})) for name, entry in _GGUF_VALUES.items()} | {
    f"gguf {name}": gguf_file(content)
    for name, content in {
        "magic": gguf(magic=b"GGML"), "other end first": gguf(magic=b"FUGG"), "empty": b"", "magic alone": b"GGUF",
        "version 0": gguf(version=0), "version 99": gguf(version=99), "version 2^31": gguf(version=2**31),
        "tensors 2^60": gguf(counts=(2**60, 16)), "entries 2^60": gguf(counts=(20, 2**60)),
        "tensors 2^64": gguf(counts=(2**64 - 1, 16)), "one entry more": gguf(counts=(20, 17)),
        "type 77": gguf(counts=(20, 17), extra=_STRANGE_TYPE), "long string": gguf(counts=(20, 17), extra=_LONG_STRING),
        "long array": gguf(counts=(20, 17), extra=_LONG_ARRAY), "nested arrays": gguf(counts=(20, 17), extra=_NESTED_ARRAY),
        "name of 2^62": gguf(counts=(20, 17), extra=struct.pack("<Q", 2**62)),
        "garbage": b"GGUF" + bytes(range(256)) * 40, "zeros": b"GGUF" + bytes(4000), "ones": b"GGUF" + b"\xff" * 4000,
        "header cut": _TINY[:300], "tensor table cut": _TINY[:1400], "data cut": _TINY[:-200],
        "a side of 2^40": gguf(shapes=tensors() | {"token_embd.weight": (2**40, 2**20)}),
        "a side of 0": gguf(shapes=tensors() | {"token_embd.weight": (0, 32)}),
        "nine sides": gguf(shapes=tensors() | {"token_embd.weight": (1,) * 9}),
        "a million sides": gguf(counts=(20, 16), extra=text("t") + struct.pack("<I", 10**6)),
        "offset": gguf(start=2**62), "offset odd": gguf(start=7), "tensor type 99": gguf(kind=99),
        "other names": gguf(shapes={f"x{n}": shape for n, shape in enumerate(tensors().values())}),
        "NaN": gguf(fill=float("nan")), "inf": gguf(fill=float("inf")),
    }.items()
}  # fmt: skip


def _entry(name: str, make_entry: Callable[[Path], Any]) -> Case:
    def make(folder: Path) -> list[str]:
        make_entry(folder / name)
        return ["diagnose", str(folder / name)]

    return make


PLACES: dict[str, Case] = (
    {f"gguf as {name}": _entry("m.gguf", make) for name, make in _ENTRIES.items()}
    | {f"model {name}": _entry("m", make) for name, make in _ENTRIES.items()}
    | {
        f"model {spec[:30]!r}": called("diagnose", spec)
        for spec in (
            "", " ", ".", "..", "/", "~nosuchuser", "~nosuchuser/model.gguf", "a\0b", "a\0b.gguf", "random:a\0b", "\x1b[2J",
            "x" * 5000, "a/" * 3000, "/dev/zero", "/dev/null", "/dev/zero.gguf", "random:", "random:gpt2:", "random:gpt2:-1",
            "random:gpt2:1e3", "random:gpt2:" + "9" * 4400, "random:gpt2:0:0", "random:~nosuchuser", "random:/dev/zero",
            "random:\udcff", "\udcff/model", "org/\x1b[2J", "https://example.org/x", "file:///etc/passwd", "\u202egpj.fugg",
            "smollm2\n", "random:" + "x" * 10_000,
        )
    }
)  # fmt: skip

_MODEL = ("diagnose", "MODEL", "--prompt", "a b")
OPTIONS: dict[str, Case] = {
    f"{option} {value[:20]!r}": called(*_MODEL, option, value)
    for option, values in {
        "--device": ("meta", "", "toaster", "cuda:99", "cpu:-1", "cpu:99999999999", "xla", "\x1b[2J", "x" * 3000, "cpu\0", "mps:7", "privateuseone"),
        "--threads": ("0", "-1", str(10**9), str(2**64), "9" * 5000, "two", "1.5", "", "1e3", "\x1b", "nan"),
        "--layers": ("", "0", "3", "-1", "2-1", "1-", ",", "9" * 5000, "1-" + "9" * 5000, "a\x1b[2J", "1" + ",1" * 3000 + ",x", "²"),
        "--dtype": ("float8", "int8", "", "\x1b"),
        "--value": ("Q", ""),
        "--singular": ("maybe",),
        "--format": ("csv",),
        "--prompt": ("", "   ", "a " * 100, "\udcff", "\n"),
        "--text-file": ("/dev/zero", "/dev/null", ".", "nowhere", "a\0b", "~nosuchuser/x", "x" * 5000, "\x1b[2J", "/proc/self/mem"),
        "--prompts": ("/dev/zero", "/dev/null", ".", "", "nowhere", "a\0b", "~nosuchuser/x", "x" * 5000, "\x1b[2J", "/proc/self/mem"),
        "--sinks": ("", "all", "-1", "99", "0,1,2,3", "0,,1", "1.5", "9" * 5000, "1" + ",1" * 3000 + ",x", "²", "\x1b[2J", "True"),
        "--sink-ratio": ("", "1", "0", "-4", "nan", "inf", "1e999", "four", "9" * 5000, "\x1b[2J"),
        "--adapter": ("", "/dev/null", "/dev/zero", "nowhere", "/", "a\0b", "x" * 5000, "\x1b[2J", "\udcff"),
        "--device-map": ("", "cuda", "=", "a=", "=cpu", "a=cpu,a=cpu", "nothing=cpu", "=" * 5000, "wte=99", "wte=disk", "wte=toaster", "\x1b[2J=\x1b[2J"),
        "--out": ("/dev/null", "/dev/null/x", "/proc/x", "a\0b", "x" * 5000),
        "--no-such-option": ("\x1b[2J",),
    }.items()
    for value in values
}  # fmt: skip


def _text_file(content: bytes, option: str = "--text-file", name: str = "text.txt") -> Case:
    def make(folder: Path) -> list[str]:
        (folder / name).write_bytes(content)
        return [*stored()(folder)[:2], option, str(folder / name)]

    return make


TEXTS: dict[str, Case] = {
    f"text {name}": _text_file(content)
    for name, content in {
        "empty": b"", "blank": b" \n\t\r", "zeros": bytes(100), "utf-16": "a b".encode("utf-16"), "binary": bytes(range(256)),
        "too long": b"a " * 5000, "20 MB": b"a" * (20 << 20), "lone surrogate": b"\xed\xa0\x80", "one line of 2 MB": b"b " * (1 << 20),
    }.items()
}  # fmt: skip

LINES: dict[str, Case] = {
    f"lines {name}": _text_file(content, "--prompts", "lines.jsonl" if "jsonl" in name else "lines.txt")
    for name, content in {
        "empty": b"", "blank": b"\xef\xbb\xbf \n\t\r\n", "utf-16": "a b".encode("utf-16"), "binary": bytes(range(256)),
        "20 MB": b"a\n" * (10 << 20), "one too long for the context": b"a b\n" + b"a " * 5000,
        "lone surrogate": b"a\n\xed\xa0\x80", "surrogate in JSON": b'"a \\ud800"', "surrogate in a name": b'{"text": "a", "name": "\\ud800"}',
        "deep jsonl": DEEP.encode(), "deep after JSON": b'"a"\n' + DEEP.encode(), "digits jsonl": b"9" * 5000, "digits in an object": b'"a"\n{"text": ' + b"9" * 5000 + b"}",
        "broken jsonl": b'{"text": "a"', "mixed": b'"a"\nb', "no text": b"{}", "text a number": b'{"text": 5}', "text a list": b'{"text": ["a"]}',
        "empty text": b'{"text": " "}', "name a list": b'{"text": "a", "name": ["b"]}', "name empty": b'{"text": "a", "name": ""}',
        "one name twice": b'{"text": "a", "name": "b"}\n{"text": "c", "name": "b"}', "a NaN jsonl": b"NaN", "what a terminal obeys": b'"a"\n\x1b[2J',
    }.items()
}  # fmt: skip

CASES: dict[str, Case] = CONFIGURATIONS | JSON_FILES | WEIGHTS | GGUF | PLACES | OPTIONS | TEXTS | LINES
