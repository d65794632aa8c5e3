"""A network whose blocks are read while they run: the same states bit for bit, each weight once, little memory."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tokendynamics as td
from pretrained.families import FAMILIES, half_of_network, inputs_of, network_of
from tokendynamics.numerics import ArgumentValueError, CheckpointError
from tokendynamics.numerics import resources as memory
from tokendynamics.pretrained import load
from tokendynamics.pretrained._stored_tensors import Weights
from tokendynamics.pretrained.other_libraries import silenced
from tokendynamics.pretrained.sources._tensor_files import SafetensorsFiles

PROMPTS = [[5, 9, 33, 21, 7, 50], [12, 3], [44, 21, 9, 9, 30, 7, 8, 15]]


def saved(family: str, folder: Path) -> tuple[Any, Any]:
    whole, half = network_of(family)
    with silenced():
        whole.save_pretrained(folder)
    return half_of_network(whole, half), half


def same(one: Any, other: Any) -> bool:
    ends = one.final_norm is None or torch.equal(one.final_norm, other.final_norm)
    return (
        ends
        and torch.equal(one.feed_forward, other.feed_forward)
        and torch.equal(one.attention[1:], other.attention[1:])
    )


QUICK = ("gpt2", "gpt_neox", "mixtral", "gemma3", "deepseek_v3", "albert", "t5", "vit", "clip-text")


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize(
    "family", [pytest.param(family, marks=() if family in QUICK else pytest.mark.slow) for family in FAMILIES]
)
def test_states_are_bit_equal_to_those_in_memory(family: str, tmp_path: Path) -> None:
    network, half = saved(family, tmp_path)
    inputs = inputs_of(network)
    streamed, plain = load(tmp_path, half=half, stream=True), load(tmp_path, half=half, stream=False)
    assert streamed.streamed
    assert not plain.streamed
    assert same(streamed.states(inputs), plain.states(inputs))
    # And once more: what was freed is read again.
    assert same(streamed.states(inputs), plain.states(inputs))


@pytest.mark.long
def test_several_prompts_pass_in_step_and_each_as_if_alone(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    streamed, plain = load(tmp_path, stream=True), load(tmp_path)
    together = list(streamed.states_in_packs([torch.tensor(ids) for ids in PROMPTS]))
    assert [states.places for states in together] == [(place,) for place in range(len(PROMPTS))]
    for ids, states in zip(PROMPTS, together, strict=True):
        assert same(states.of(0), plain.states(torch.tensor(ids)))


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["llama", "albert", "mixtral", "t5"])
def test_every_weight_is_read_once_for_a_whole_trace_and_only_the_rows_that_occur(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, half = saved(family, tmp_path)
    streamed = load(tmp_path, half=half, stream=True)
    read: Counter[str] = Counter()
    rows: list[int] = []
    original, original_rows = Weights.read, SafetensorsFiles.read_rows
    monkeypatch.setattr(Weights, "read", lambda self, name: read.update([name]) or original(self, name))
    monkeypatch.setattr(
        SafetensorsFiles, "read_rows", lambda self, name, rows_: rows.extend(rows_) or original_rows(self, name, rows_)
    )
    td.trace(streamed, PROMPTS)
    names = {name for name, _ in streamed._network.stored[0].named_parameters()}
    table = next(name for name in names if name.endswith(("embed_tokens.weight", "word_embeddings.weight")))
    assert set(read) >= names - {table}
    assert table not in read
    assert max(read.values()) == 1
    assert sorted(rows) == sorted(row for ids in PROMPTS for row in set(ids))


def test_nothing_of_a_block_is_left_after_the_pass(tmp_path: Path) -> None:
    saved("gpt2", tmp_path)
    streamed = load(tmp_path, stream=True)
    streamed.states(torch.tensor(PROMPTS[0]))
    network = streamed._streaming.network
    assert all(parameter.is_meta for name, parameter in network.named_parameters() if name.startswith("h."))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


@pytest.mark.long
def test_trace_and_attention_of_a_streamed_network_are_those_in_memory(tmp_path: Path) -> None:
    saved("qwen3", tmp_path)
    streamed, plain = load(tmp_path, stream=True), load(tmp_path)
    assert td.trace(streamed, PROMPTS).identical(td.trace(plain, PROMPTS, packed=False))
    assert td.attention_seen(streamed, PROMPTS).drop_attrs().identical(td.attention_seen(plain, PROMPTS).drop_attrs())
    assert td.audit(streamed, value="VO").drop_attrs().identical(td.audit(plain, value="VO").drop_attrs())


@pytest.mark.long
def test_what_does_not_fit_into_the_free_memory_is_streamed_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokendynamics.pretrained import _filling

    saved("gpt2", tmp_path)
    assert not load(tmp_path).streamed
    monkeypatch.setattr(_filling, "free_memory", lambda: 100_000)
    assert load(tmp_path).streamed
    assert not load(tmp_path, stream=False).streamed
    assert memory.free_memory() <= memory.installed_memory()


def test_a_live_network_is_not_streamed() -> None:
    with pytest.raises(ArgumentValueError, match="stream: expected None or False for a live network"):
        load(network_of("gpt2")[0], stream=True)


@pytest.mark.long
@pytest.mark.parametrize("prompts", [1, 3])
def test_a_tensor_that_cannot_be_read_ends_all_passes(
    prompts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved("gpt2", tmp_path)
    streamed = load(tmp_path, stream=True)
    original = Weights.read

    def read(self: Weights, name: str) -> torch.Tensor:
        if name == "h.1.mlp.c_fc.weight":
            raise CheckpointError("layer 2: tensor h.1.mlp.c_fc.weight: damaged")
        return original(self, name)

    monkeypatch.setattr(Weights, "read", read)
    with pytest.raises(CheckpointError, match=r"layer 2: tensor h\.1\.mlp\.c_fc\.weight: damaged"):
        list(streamed.states_in_packs([torch.tensor(ids) for ids in PROMPTS[:prompts]]))
    monkeypatch.setattr(Weights, "read", original)
    assert same(streamed.states(torch.tensor(PROMPTS[0])), load(tmp_path).states(torch.tensor(PROMPTS[0])))


def test_a_pass_that_fails_does_not_leave_the_others_waiting(tmp_path: Path) -> None:
    saved("gpt2", tmp_path)
    streaming = load(tmp_path, stream=True)._streaming

    def fails(network: nn.Module) -> None:
        del network
        raise RuntimeError("on purpose")

    def works(network: nn.Module) -> None:
        with torch.inference_mode():
            network(torch.tensor([PROMPTS[0]]))

    with pytest.raises(RuntimeError, match="on purpose"):
        streaming.run([works, fails, works])


_MEASURE = """
import re, sys
from pathlib import Path
import torch, transformers, xarray, zarr
import tokendynamics as td
from tokendynamics.pretrained import load
torch.set_num_threads(1)
warm = load("random:distilgpt2", stream=True)
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
before = peak()
checkpoint = load(Path(sys.argv[1]), stream=True)
td.trace(checkpoint, [[5, 9, 33, 21, 7, 50], [12, 3]])
print(before, peak())
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell a process's peak memory")
def test_a_checkpoint_of_a_gigabyte_and_a_half_is_traced_in_200_megabytes(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModel

    settings = {"vocab_size": 30_000, "hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 4096}
    config = AutoConfig.for_model("llama", **settings, num_attention_heads=16, num_key_value_heads=16)
    with silenced():
        AutoModel.from_config(config).save_pretrained(tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.glob("*.safetensors")) > 1.4e9
    command = [sys.executable, "-c", _MEASURE, str(tmp_path)]
    before, after = map(float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert after - before < 200, f"{before:.0f} MB before, {after:.0f} MB at most"
