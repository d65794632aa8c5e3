"""Folders: prefixes, shards, older names, laziness, pickles."""

from __future__ import annotations

import argparse
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
    reference = dict(second.model.named_parameters())
    return all(torch.equal(p, reference[name]) for name, p in first.model.named_parameters())


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


@pytest.mark.long
@pytest.mark.parametrize("architecture", ["gpt2", "qwen2"])
def test_shards_read_like_one_file(architecture: str, tiny: Any) -> None:
    whole = load(tiny.folder(architecture))
    folder = tiny.folder(architecture, max_shard_size="8KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert _same_weights(load(folder), whole)
    for actual, reference in zip(load(folder).iter_attention(), whole.iter_attention([1, 2, 3]), strict=True):
        assert torch.equal(actual.query, reference.query)


@pytest.mark.long
def test_older_names_of_layer_norm_weights_are_understood(tiny: Any) -> None:
    whole, folder = load(tiny.folder("bert")), tiny.folder("bert", headless=False)

    def age(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        older = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        renamed = {}
        for name, tensor in tensors.items():
            for actual, reference in older.items():
                name = name.replace(actual, reference)
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


def _aged(folder: Path, content: Any, name: str = "pytorch_model.bin", **saving: Any) -> Path:
    (folder / "model.safetensors").unlink(missing_ok=True)
    torch.save(content, folder / name, **saving)
    return folder


_OPTIMIZER = {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 1e-3}]}
_STATES = {
    "a legacy file": (lambda stored: stored, {"_use_new_zipfile_serialization": False}),
    "DataParallel": (lambda stored: {f"module.{name}": value for name, value in stored.items()}, {}),
    "torch.compile": (lambda stored: {f"_orig_mod.module.{name}": value for name, value in stored.items()}, {}),
    "nanoGPT": (
        lambda stored: {"model": stored, "optimizer": _OPTIMIZER, "iter_num": 3, "rng_state": torch.zeros(5)},
        {},
    ),
    "state_dict": (
        lambda stored: {"state_dict": stored, "optimizer": _OPTIMIZER, "criterion": {"weight": torch.ones(2)}},
        {},
    ),
    "Lightning": (
        lambda stored: {
            "state_dict": {f"net.{name}": value for name, value in stored.items()},
            "epoch": 3,
            "loops": {},
        },
        {},
    ),
}


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("case", _STATES)
def test_states_of_trainings_read_as_the_weights_in_them(case: str, tiny: Any) -> None:
    folder = tiny.folder("gpt2", headless=False)
    stored = load_file(folder / "model.safetensors")
    whole = load(folder)
    _ = whole.model
    change, saving = _STATES[case]
    checkpoint = load(_aged(folder, change(stored), **saving), allow_pickle=True)
    assert _same_weights(checkpoint, whole)
    assert torch.equal(checkpoint.attention(2).query, load(folder, allow_pickle=True).attention(2).query)


def test_a_wrapper_around_all_names_of_safetensors_is_taken_off_and_another_network_is_named_as_stored(
    tiny: Any, prompt_ids: torch.Tensor
) -> None:
    folder = tiny.folder("llama", headless=False)
    states = load(folder).states(prompt_ids).feed_forward
    _rewrite(folder, lambda stored: {f"module.{name}": value for name, value in stored.items()})
    assert torch.equal(load(folder).states(prompt_ids).feed_forward, states)
    # Rows of the table of tokens are read by name as well.
    assert torch.equal(load(folder, stream=True).states(prompt_ids).feed_forward, states)
    other = tiny.folder("gpt2", headless=False)
    _rewrite(other, lambda stored: {f"module.{name}": value for name, value in stored.items()})
    (other / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight: expected shape .* got no such tensor"):
        load(other)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda stored: {"optimizer": _OPTIMIZER, "epoch": 3}, r"got none \(epoch, optimizer\)"),
        (lambda stored: {"model": stored, "ema": stored}, "expected one dictionary of tensors by name, got model, ema"),
        (lambda stored: torch.zeros(3), "a dictionary of tensors by name, got none"),
        (
            lambda stored: {"model": stored, "args": argparse.Namespace(lr=1)},
            r"it stores argparse\.Namespace, which is no tensor\); save the model's state_dict\(\) alone",
        ),
    ],
)
def test_states_without_one_dictionary_of_weights_are_refused_in_one_line(content: Any, words: str, tiny: Any) -> None:
    folder = tiny.folder("gpt2")
    stored = load_file(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=words) as refusal:
        load(_aged(folder, content(stored)), allow_pickle=True)
    assert "\n" not in str(refusal.value)


@pytest.mark.long
@pytest.mark.parametrize(("index", "pickled"), [(True, True), (False, True), (False, False)])
def test_shards_are_read_whole_or_the_missing_one_is_named(index: bool, pickled: bool, tiny: Any) -> None:
    folder = tiny.folder("gpt2")
    whole, stored = load(folder), load_file(folder / "model.safetensors")
    _ = whole.model
    (folder / "model.safetensors").unlink()
    single = "pytorch_model.bin" if pickled else "model.safetensors"
    stem, ending = single.split(".")
    files = {name: f"{stem}-0000{1 + (place > 7)}-of-00002.{ending}" for place, name in enumerate(stored)}
    for file in set(files.values()):
        part = {name: value for name, value in stored.items() if files[name] == file}
        (torch.save if pickled else save_file)(part, folder / file)
    if index:
        (folder / f"{single}.index.json").write_text(json.dumps({"weight_map": files}))
    shard = folder / f"{stem}-00001-of-00002.{ending}"
    for place in (folder, shard):  # a shard stands for all
        assert _same_weights(load(place, allow_pickle=pickled), whole)
    shard.unlink()
    with pytest.raises(CheckpointError, match=rf"expected the shard {shard.name} that .*, got no such file"):
        load(folder, allow_pickle=pickled)


@pytest.mark.long
def test_several_files_that_nothing_connects_are_refused_and_one_of_them_is_read_by_its_path(tiny: Any) -> None:
    folder = tiny.folder("gpt2")
    stored = load_file(folder / "model.safetensors")
    whole = load(folder)
    _ = whole.model
    changed = {name: value + 1 for name, value in stored.items()}
    torch.save(stored, folder / "best.pt")
    torch.save(changed, _aged(folder, stored, "first.pt") / "last.pt")
    (folder / "first.pt").unlink()
    with pytest.raises(CheckpointError, match=r"one file of pickled weights or an index, got best\.pt, last\.pt"):
        load(folder, allow_pickle=True)
    chosen = load(folder / "best.pt", allow_pickle=True)
    assert chosen.name == f"{folder.name}/best.pt"
    assert _same_weights(chosen, whole)
    assert torch.equal(
        load(folder / "last.pt", allow_pickle=True).model.get_parameter("wte.weight"), changed["wte.weight"]
    )
    with pytest.raises(CheckpointError, match=r"best\.pt: .* allow_pickle=True"):
        load(folder / "best.pt")
    save_file(stored, folder / "model.safetensors")
    # The file that is asked for, not the one that the folder stands for.
    assert torch.equal(
        load(folder / "last.pt", allow_pickle=True).model.get_parameter("wte.weight"), changed["wte.weight"]
    )
    assert _same_weights(load(folder / "model.safetensors"), whole)


@pytest.mark.long
def test_one_file_counts_before_an_index_as_in_transformers(tiny: Any) -> None:
    from transformers import AutoModel

    folder = tiny.folder("gpt2", max_shard_size="8KB")
    changed = {name: value + 1 for name, value in load(folder).model.state_dict().items()}
    save_file(changed, folder / "model.safetensors")
    assert torch.equal(load(folder).model.get_parameter("wte.weight"), changed["wte.weight"])
    assert torch.equal(AutoModel.from_pretrained(folder).get_parameter("wte.weight"), changed["wte.weight"])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1", "a pointer of Git LFS; .*git lfs pull"),
        ("pytorch_model.bin", b"version https://git-lfs.github.com/spec/v1", "a pointer of Git LFS; .*git lfs pull"),
        ("tf_model.h5", b"", r"only those of another framework \(tf_model\.h5\)"),
        ("optimizer.pt", b"", "expected safetensors weights, got none; random: before its name"),
    ],
)
def test_what_stands_in_the_place_of_weights_is_named(name: str, content: bytes, words: str, tiny: Any) -> None:
    folder = tiny.folder("gpt2")
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=words):
        load(folder, allow_pickle=True)
