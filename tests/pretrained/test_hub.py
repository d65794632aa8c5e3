"""Hub ids, with a cache made here and no network."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch

from tokendynamics.numerics.errors import CheckpointError
from tokendynamics.pretrained import load


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "hub"
    cache.mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return cache


def _cached(cache: Path, organisation: str, name: str, folder: Path) -> None:
    repository = cache / f"models--{organisation}--{name}"
    commit = "0" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    shutil.copytree(folder, repository / "snapshots" / commit)


def test_a_hub_id_that_is_not_cached_is_one_line_while_offline(hub_cache: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"openai-community/gpt2: .* while offline; unset HF_HUB_OFFLINE"
    ) as refused:
        load("openai-community/gpt2")
    assert "\n" not in str(refused.value)


def test_a_cached_repository_reads_like_its_folder(hub_cache: Path, tiny: Any) -> None:
    folder = tiny.folder("llama")
    _cached(hub_cache, "someone", "tiny", folder)
    checkpoint = load("someone/tiny")
    assert checkpoint.name == "someone/tiny"
    assert torch.equal(checkpoint.attention(2).value, load(folder).attention(2).value)


def test_a_cached_configuration_is_enough_for_an_untrained_network(hub_cache: Path, tiny: Any) -> None:
    folder = tiny.folder("llama")
    (folder / "model.safetensors").unlink()
    _cached(hub_cache, "someone", "tiny", folder)
    checkpoint = load("random:someone/tiny:4")
    assert (checkpoint.name, checkpoint.random_seed) == ("random:someone/tiny:4", 4)
    assert torch.equal(checkpoint.attention(3).key, load(f"random:{folder}:4").attention(3).key)
    with pytest.raises(CheckpointError, match="expected safetensors weights, got none; random: before its name"):
        load("someone/tiny")


def test_an_existing_folder_is_never_taken_for_a_hub_id(
    hub_cache: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _cached(hub_cache, "someone", "tiny", tiny.folder("llama"))
    monkeypatch.chdir(tiny.root)
    Path("someone").mkdir()
    tiny.folder("gpt2").rename("someone/tiny")
    assert load("someone/tiny").architecture.model_type == "gpt2"
