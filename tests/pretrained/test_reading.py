"""Folders: prefixes, shards, older names, laziness, pickles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tokendynamics.numerics.errors import CheckpointError
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.pretrained.sources._tensor_files import SafetensorsFiles


def _rewrite(folder: Path, change: Any) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file(change(tensors), path)


def _same_weights(first: Checkpoint, second: Checkpoint) -> bool:
    theirs = dict(second.model.named_parameters())
    return all(torch.equal(p, theirs[name]) for name, p in first.model.named_parameters())


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "bert"])
def test_a_checkpoint_with_an_output_head_reads_like_its_base(architecture: str, tiny: Any) -> None:
    folder = tiny.folder(architecture, headless=False)
    checkpoint = load(folder)
    stored = load_file(folder / "model.safetensors")
    prefix = {"gpt2": "transformer.", "llama": "model.", "bert": "bert."}[architecture]
    for name, parameter in checkpoint.model.named_parameters():
        assert torch.equal(parameter, stored[prefix + name])
    assert checkpoint.attention(3).output.shape[0] == checkpoint.architecture.heads


def test_the_number_of_parameters_is_that_of_the_base_model(tiny: Any) -> None:
    folder = tiny.folder("gpt2", headless=False)
    expected = sum(p.numel() for p in tiny.network("gpt2").parameters())
    assert load(folder).architecture.parameters == expected


@pytest.mark.parametrize("architecture", ["gpt2", "qwen2"])
def test_shards_read_like_one_file(architecture: str, tiny: Any) -> None:
    whole = load(tiny.folder(architecture))
    folder = tiny.folder(architecture, max_shard_size="8KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert _same_weights(load(folder), whole)
    for ours, theirs in zip(load(folder).iter_attention(), whole.iter_attention([1, 2, 3]), strict=True):
        assert torch.equal(ours.query, theirs.query)


def test_older_names_of_layer_norm_weights_are_understood(tiny: Any) -> None:
    whole, folder = load(tiny.folder("bert")), tiny.folder("bert", headless=False)

    def age(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        older = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        renamed = {}
        for name, tensor in tensors.items():
            for ours, theirs in older.items():
                name = name.replace(ours, theirs)
            renamed[name] = tensor
        return renamed

    expected = load(folder)
    _ = expected.model
    _rewrite(folder, age)
    assert _same_weights(load(folder), expected)
    assert whole.architecture == expected.architecture


def test_one_layer_reads_only_its_own_attention_tensors(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = load(tiny.folder("llama"))
    read, original = [], SafetensorsFiles.read
    monkeypatch.setattr(SafetensorsFiles, "read", lambda self, name: read.append(name) or original(self, name))
    checkpoint.attention(2)
    parts = [f"layers.1.self_attn.{part}_proj.weight" for part in "qkvo"]
    assert sorted(read) == sorted([*parts, "layers.1.input_layernorm.weight"])
    assert "model" not in vars(checkpoint)


def test_a_damaged_layer_is_named_and_the_others_still_read(tiny: Any) -> None:
    folder = tiny.folder("llama")
    name = "layers.2.self_attn.k_proj.weight"

    def damage(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tensors[name][3, 4] = torch.nan
        return tensors

    _rewrite(folder, damage)
    checkpoint = load(folder)
    checkpoint.attention(1)
    message = rf"layer 3: tensor {name}: expected finite numbers, got nan at index \(3, 4\) \(1 such entries\)"
    with pytest.raises(CheckpointError, match=message):
        checkpoint.attention(3)
    with pytest.raises(CheckpointError, match=message):
        _ = checkpoint.model


def test_an_infinity_outside_of_attention_is_named_by_the_model(tiny: Any) -> None:
    folder = tiny.folder("gpt2")

    def damage(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tensors["h.1.mlp.c_fc.bias"][5] = -torch.inf
        return tensors

    _rewrite(folder, damage)
    with pytest.raises(CheckpointError, match=r"layer 2: tensor h\.1\.mlp\.c_fc\.bias: .* -inf at index \(5,\)"):
        _ = load(folder).model


def _pickle(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def test_pickled_weights_need_the_flag_and_then_read_the_same(tiny: Any) -> None:
    folder = tiny.folder("gpt2")
    whole = load(folder)
    _ = whole.model
    _pickle(folder)
    with pytest.raises(CheckpointError, match=r"allow_pickle=True \(--allow-pickle\)"):
        load(folder)
    assert _same_weights(load(folder, allow_pickle=True), whole)


def test_the_flag_never_prefers_pickles(tiny: Any) -> None:
    folder = tiny.folder("gpt2")
    (folder / "pytorch_model.bin").write_bytes(b"not even a pickle")
    assert load(folder, allow_pickle=True).attention(1).query.shape == (3, 24, 8)


class _Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("was-here"),))


def test_a_pickle_that_would_run_code_is_refused_in_spite_of_the_flag(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tiny.folder("gpt2")
    (folder / "model.safetensors").unlink()
    torch.save({"wte.weight": _Hostile()}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="cannot be read safely"):
        load(folder, allow_pickle=True)
    assert not (tmp_path / "was-here").exists()


def test_an_index_cannot_point_outside_of_its_folder(tiny: Any) -> None:
    folder = tiny.folder("gpt2", max_shard_size="8KB")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"wte.weight": "../elsewhere.safetensors"}}))
    with pytest.raises(CheckpointError, match="plain file names as shards"):
        load(folder)
