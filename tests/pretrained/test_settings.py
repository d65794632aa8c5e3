"""Settings that make every state NaN are refused by their names; those that only look odd are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tokendynamics as td
from tokendynamics.numerics import CheckpointError

NAN, INF = float("nan"), float("inf")


def _edited(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    facts = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in facts.items() if value is not ...}))
    return folder


@pytest.mark.parametrize(
    ("saved", "changes", "words"),
    [
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 0.0}}, r"rope_theta above 0, got 0\.0"),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": NAN}}, "rope_theta as a finite number"),
        ("llama", {"rope_theta": -1.0}, r"rope_theta above 0, got -1\.0"),
        ("llama", {"rms_norm_eps": NAN}, "rms_norm_eps as a finite number, got nan"),
        ("llama", {"rms_norm_eps": INF}, "rms_norm_eps as a finite number, got inf"),
        ("llama", {"rms_norm_eps": 1e39}, "rms_norm_eps of at most"),
        ("gpt2", {"layer_norm_epsilon": -1.0}, r"layer_norm_epsilon of 0 or more, got -1\.0"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 0.0}},
            r"rope_parameters\.factor above 0, got 0\.0",
        ),
        (
            "llama3-rope",
            {"rope_scaling": {"rope_type": "llama3", "low_freq_factor": 4.0, "high_freq_factor": 4.0}},
            "high_freq_factor above low_freq_factor",
        ),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "rope_theta": 1, "factor": 2.0}}, "rope_theta other than 1"),
    ],
)
def test_a_setting_that_makes_states_nan_is_refused_by_its_name(
    saved: str, changes: dict[str, Any], words: str, tiny: Any
) -> None:
    folder = _edited(tiny.folder(saved), **changes)
    for spec in (folder, f"random:{folder}"):
        with pytest.raises(CheckpointError, match=words):
            td.load(spec)


def test_what_transformers_writes_for_a_number_that_json_has_not_is_refused(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama", rms_norm_eps=NAN)
    folder = tiny.folder("llama")
    config.save_pretrained(folder)
    assert "__float__" in (folder / "config.json").read_text()
    with pytest.raises(CheckpointError, match="rms_norm_eps as a finite number, got nan"):
        td.load(folder)


def test_a_live_adapter_with_such_a_setting_is_refused(tiny: Any) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["q_proj"], lora_alpha=NAN)
    with pytest.raises(CheckpointError, match="peft_config 'default': expected lora_alpha as a finite number"):
        td.load(peft.get_peft_model(tiny.network("llama"), config))


def test_a_live_network_with_such_a_setting_is_refused(tiny: Any) -> None:
    network = tiny.network("llama")
    network.config.rms_norm_eps = NAN
    with pytest.raises(CheckpointError, match="LlamaModel: config: expected rms_norm_eps as a finite number"):
        td.load(network)


@pytest.mark.parametrize("setting", ["lora_alpha", "lora_dropout"])
def test_an_adapter_with_such_a_setting_is_refused(setting: str, tiny: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(tiny.network("llama", headless=False), peft.LoraConfig(target_modules=["q_proj"]))
    adapted.save_pretrained(tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {setting: NAN}))
    with pytest.raises(CheckpointError, match=f"adapter_config.json: expected {setting} as a finite number, got nan"):
        td.load(tiny.network("llama", headless=False), adapter=tmp_path)


def test_settings_without_effect_on_states_are_read(tiny: Any) -> None:
    folder = _edited(tiny.folder("gpt2"), time_step_limit=[0.0, INF], layer_norm_epsilon=0.0, summary=[-5, None])
    assert td.load(folder).architecture.layers == 3
