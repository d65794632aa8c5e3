"""A network whose parts are on several devices computes what it computes on one; no GPU is needed to see it."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tokendynamics as td
from pretrained.families import network_of
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics import extras as extras
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.pretrained import _dispatch as dispatch
from tokendynamics.pretrained._stored_tensors import Weights
from tokendynamics.pretrained.edits import _pass, states

pytestmark = pytest.mark.skipif(bool(extras.missing("devices")), reason="the extra `devices` is not installed")

IDS = torch.tensor([[5, 9, 33, 21, 7, 50]])
PROMPTS = [[5, 9, 33, 21, 7, 50], [12, 3]]
MAPS: dict[str, dict[str, Any]] = {
    "llama": {"embed_tokens": "cpu", "layers": torch.device("cpu"), "norm": "cpu", "rotary_emb": "cpu"},
    "gpt2": {"wte": "cpu", "wpe": "cpu", "h.0": "cpu", "h.1": "cpu", "h.2": "cpu", "ln_f": "cpu"},
    "bert": {"": "cpu"},
    "albert": {"embeddings": "cpu", "encoder": "cpu"},
    "t5": {"embed_tokens": "cpu", "block": "cpu", "final_layer_norm": "cpu", "dropout": "cpu"},
    "bloom": {"word_embeddings": "cpu", "word_embeddings_layernorm": "cpu", "h": "cpu", "ln_f": "cpu"},
}


def saved(family: str, folder: Path) -> dict[str, Any]:
    network, half = network_of(family)
    network.save_pretrained(folder)
    return {"half": half}


def same(one: Checkpoint, other: Checkpoint) -> bool:
    actual, reference = one.states(IDS), other.states(IDS)
    final = (actual.final_norm is None) == (reference.final_norm is None)
    final = final and (actual.final_norm is None or torch.equal(actual.final_norm, reference.final_norm))
    attention = torch.equal(actual.attention[1:], reference.attention[1:])
    return attention and torch.equal(actual.feed_forward, reference.feed_forward) and final


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("family", MAPS)
@pytest.mark.parametrize("auto", [True, False])
def test_the_states_are_bit_for_bit_those_of_one_device(family: str, auto: bool, tmp_path: Path) -> None:
    options = saved(family, tmp_path)
    mapped = load(tmp_path, device_map="auto" if auto else MAPS[family], **options)
    assert same(mapped, load(tmp_path, **options))
    assert hasattr(mapped.model, "_hf_hook")
    assert all(not entry.is_meta for entry in (*mapped.model.parameters(), *mapped.model.buffers()))


@pytest.mark.long
def test_trace_audit_and_attention_are_those_of_one_device(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    mapped, plain = load(tmp_path, device_map=MAPS["llama"]), load(tmp_path)
    assert td.trace(mapped, PROMPTS).drop_attrs().identical(td.trace(plain, PROMPTS).drop_attrs())
    assert td.attention_seen(mapped, PROMPTS).drop_attrs().identical(td.attention_seen(plain, PROMPTS).drop_attrs())
    assert td.audit(mapped, value="VO").drop_attrs().identical(td.audit(plain, value="VO").drop_attrs())


def test_every_weight_is_read_once_straight_to_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two names of one device stand for two devices: where a tensor goes is asked by its name before it is read."""
    saved("gpt2", tmp_path)
    mapped = load(tmp_path, device_map=MAPS["gpt2"], dtype="bfloat16")
    read, placed = Counter[str](), Counter[str]()
    original, where = Weights.read, dispatch.Placement.of
    monkeypatch.setattr(Weights, "read", lambda self, name: read.update([name]) or original(self, name))
    monkeypatch.setattr(dispatch.Placement, "of", lambda self, name: placed.update([name]) or where(self, name))
    names = {name for name, _ in mapped.model.named_parameters()}
    assert set(read) >= names
    assert max(read.values()) == 1
    assert set(placed) >= names
    assert {parameter.dtype for parameter in mapped.model.parameters()} == {torch.bfloat16}


def test_a_tensor_goes_where_the_module_that_holds_it_goes() -> None:
    cpu, other = torch.device("cpu"), torch.device("cuda:1")
    placement = dispatch.Placement({"h.1": other, "h.10": cpu, "wte": cpu})
    assert placement.of("h.1.mlp.weight") == other
    assert placement.of("h.10.mlp.weight") == cpu
    assert dispatch.Placement({"": other}).of("h.1") == other


LLAMA = MAPS["llama"]
REFUSED: dict[str, tuple[Any, str]] = {
    "another word": ("balanced", "device_map: expected 'auto' or a mapping of modules to devices, got 'balanced'"),
    "the disk": (LLAMA | {"norm": "disk"}, "got the disk for norm; stream=True reads each weight once"),
    "meta": (LLAMA | {"norm": "meta"}, "device_map of 'norm': expected a device of this machine .*'meta'"),
    "no such device": (LLAMA | {"norm": "nowhere"}, "device_map of 'norm': expected a device of this machine"),
    "no such accelerator": (LLAMA | {"norm": 7000}, "device_map of 'norm': expected a device of this machine"),
    "nothing": ({}, "a device for every module, got none for embed_tokens.weight; give embed_tokens a device"),
    "no layers": ({k: v for k, v in LLAMA.items() if k != "layers"}, "for every module, got none for layers.0"),
    "no rotations": ({k: v for k, v in LLAMA.items() if k != "rotary_emb"}, "none for rotary_emb.inv_freq"),
    "a head": (LLAMA | {"lm_head": "cpu"}, "modules of the LlamaModel, which has embed_tokens, layers.* got lm_head"),
    "one in another": (LLAMA | {"layers.1": "cpu"}, "none holds another, got 'layers.1' in 'layers'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_map_that_leads_nowhere_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    saved("llama", tmp_path)
    given, words = REFUSED[name]
    with pytest.raises(ArgumentValueError, match=words) as raised:
        load(tmp_path, device_map=given)
    assert "\n" not in str(raised.value)


def test_a_map_of_another_type_is_refused(tmp_path: Path) -> None:
    saved("gpt2", tmp_path)
    for given in ({"h": None}, {"h": True}):
        with pytest.raises(ArgumentTypeError, match="device_map"):
            load(tmp_path, device_map=given)


def test_what_has_no_place_for_a_map_refuses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved("gpt2", tmp_path)
    with pytest.raises(ArgumentValueError, match="device_map: expected None beside stream="):
        load(tmp_path, device_map="auto", stream=True)
    with pytest.raises(ArgumentValueError, match="device_map: expected None beside adapter="):
        load(tmp_path, device_map="auto", adapter="lora")
    with pytest.raises(
        ArgumentValueError, match=r"device_map: expected None for a live network.*dispatch it with accelerate"
    ):
        load(network_of("gpt2")[0], device_map="auto")
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(ArgumentValueError, match=r"tokendynamics\[devices\]"):
        load(tmp_path, device_map="auto")


def test_what_fits_nowhere_is_pointed_to_streaming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import accelerate

    saved("gpt2", tmp_path)
    monkeypatch.setattr(accelerate, "infer_auto_device_map", lambda *_, **__: {"h.0": "cpu", "h.1": "disk"})
    with pytest.raises(ArgumentValueError, match="devices with room for the network, got too little; stream=True"):
        load(tmp_path, device_map="auto")


def test_a_mapped_network_is_never_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokendynamics.pretrained import _filling

    saved("gpt2", tmp_path)
    monkeypatch.setattr(_filling, "free_memory", lambda: 100_000)
    assert not load(tmp_path, device_map={"": "cpu"}).streamed


def dispatched(network: nn.Module) -> nn.Module:
    """A copy as its owner would dispatch it."""
    from accelerate import dispatch_model

    return dispatch_model(copy.deepcopy(network), {"": "cpu"}, force_hooks=True)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_live_network_that_its_owner_dispatched_is_read_as_it_is(dtype: torch.dtype) -> None:
    network = network_of("llama")[0].to(dtype)
    live, plain = load(dispatched(network)), load(network)
    assert same(live, plain)
    assert torch.equal(live.attention(2).query, plain.attention(2).query)


def test_a_copy_is_looked_at_without_the_hooks_of_the_original() -> None:
    """Hooks that send every state to a device without numbers: what is found on a copy must not pass through them."""
    network = dispatched(network_of("llama")[0].to(torch.bfloat16))
    for module in network.modules():
        if hasattr(module, "_hf_hook"):
            module._hf_hook.execution_device = "meta"  # type: ignore[union-attr]
    live = load(network)
    assert live.attention(2).query.shape == (4, 48, 12)
    assert all(layer.attention is not None for layer in live.layout.layers)


def test_inputs_and_states_follow_the_parameters() -> None:
    meta = torch.empty(1, dtype=torch.bfloat16, device="meta")
    assert _pass.on_device_of(torch.ones(2), meta).device.type == "meta"
    assert _pass.on_device_of(torch.ones(2), meta).dtype == torch.bfloat16
    assert _pass.on_device_of(torch.ones(2, dtype=torch.long), meta).device.type == "meta"
    assert _pass.on_device_of(torch.ones(2, dtype=torch.long), meta).dtype == torch.long
    assert _pass.on_device_of("eager", meta) == "eager"
    assert states._joined([torch.ones(3, device="meta"), torch.ones(3)]).device.type == "meta"
