"""Adapters of PEFT in folders: each kind gives the states of PEFT's own forward pass, or is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import tokendynamics as td
from pretrained.families import network_of
from tokendynamics.numerics import ArgumentValueError, AttentionFactorsError, CheckpointError
from tokendynamics.pretrained.other_libraries import silenced

peft = pytest.importorskip("peft")

IDS = torch.arange(3, 14)[None]
_QV = {"target_modules": ["q_proj", "v_proj"]}
_MIXED = {"target_modules": ["q_proj", "down_proj"]}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "LoRA": ("LoraConfig", _QV | {"r": 4, "use_rslora": True, "bias": "all", "modules_to_save": ["lm_head"]}),
    "DoRA": ("LoraConfig", _QV | {"r": 4, "use_dora": True}),
    "AdaLoRA": ("AdaLoraConfig", _QV | {"init_r": 4, "target_r": 2, "total_step": 10}),
    "IA3": ("IA3Config", _MIXED | {"feedforward_modules": ["down_proj"]}),
    "LoHa": ("LoHaConfig", _QV | {"r": 4}),
    "LoKr": ("LoKrConfig", _QV | {"r": 4}),
    "OFT": ("OFTConfig", _QV | {"r": 0, "oft_block_size": 4}),
    "BOFT": ("BOFTConfig", _QV | {"boft_block_size": 4}),
    "VeRA": ("VeraConfig", {"target_modules": ["q_proj", "o_proj"], "r": 4}),
    "HRA": ("HRAConfig", _QV | {"r": 4}),
    "FourierFT": ("FourierFTConfig", _QV | {"n_frequency": 20}),
    "LN tuning": ("LNTuningConfig", {"target_modules": ["input_layernorm", "norm"]}),
    "VB-LoRA": ("VBLoRAConfig", _QV | {"r": 4, "num_vectors": 8, "vector_length": 8, "topk": 2}),
    "trainable tokens": ("TrainableTokensConfig", {"target_modules": ["embed_tokens"], "token_indices": [3, 5]}),
    "LLaMA-Adapter": ("AdaptionPromptConfig", {"adapter_len": 4, "adapter_layers": 2}),
}
_QUICK = ("LoRA", "DoRA", "IA3", "VeRA", "trainable tokens")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("adapters") / "base"
    with silenced(), torch.random.fork_rng():
        torch.manual_seed(6)
        network = AutoModelForCausalLM.from_config(network_of("llama")[0].config)
        network.get_decoder().load_state_dict(network_of("llama")[0].state_dict())
        network.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def plain(base: Path) -> Tensor:
    """The states of the base model alone."""
    return td.load(base).states(IDS).feed_forward[1:]


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Callable[..., tuple[Any, Path]]:
    """Makes an adapter with weights that are not the initial ones; returns PEFT's network and the folder."""
    from transformers import AutoModelForCausalLM

    def make(config: str, **settings: Any) -> tuple[Any, Path]:
        with silenced(), torch.random.fork_rng():
            torch.manual_seed(7)
            network = AutoModelForCausalLM.from_pretrained(base)
            adapted = peft.get_peft_model(network, getattr(peft, config)(task_type="CAUSAL_LM", **settings)).eval()
            for parameter in adapted.parameters():
                if parameter.requires_grad:
                    parameter.data += 0.1 * torch.randn(parameter.shape)
            adapted.save_pretrained(tmp_path / "adapter")
        return adapted, tmp_path / "adapter"

    return make


def _peft_states(network: Any) -> tuple[Tensor, Tensor]:
    """Return the states after each block, and the logits, of PEFT's own forward pass."""
    states: list[Tensor] = []

    def keep(module: Any, arguments: Any, output: Any) -> None:
        states.append((output[0] if isinstance(output, tuple) else output).reshape(IDS.shape[1], -1))

    blocks = [module for name, module in network.named_modules() if name.split(".")[-2:-1] == ["layers"]]
    hooks = [block.register_forward_hook(keep) for block in blocks]
    with torch.inference_mode():
        logits = network(input_ids=IDS).logits
    for hook in hooks:
        hook.remove()
    return torch.stack(states), logits


@pytest.mark.parametrize(
    "method", [pytest.param(method, marks=() if method in _QUICK else pytest.mark.slow) for method in KINDS]
)
def test_the_states_are_those_of_the_forward_pass_of_peft(
    method: str, adapter: Callable[..., tuple[Any, Path]], base: Path, plain: Tensor
) -> None:
    config, settings = KINDS[method]
    network, folder = adapter(config, **settings)
    states, logits = _peft_states(network)
    ckpt = td.load(base, adapter=folder)
    assert torch.equal(ckpt.states(IDS).feed_forward[1:], states)
    assert not torch.equal(plain, states)
    head = ckpt.with_head
    assert head is not None
    with torch.inference_mode():
        assert torch.equal(head(input_ids=IDS).logits, logits)


def test_a_folder_of_an_adapter_is_loaded_on_the_base_that_it_names(
    adapter: Callable[..., tuple[Any, Path]], base: Path, tmp_path: Path
) -> None:
    network, folder = adapter("LoraConfig", **_QV)
    ckpt = td.load(folder)
    assert (ckpt.name, ckpt.source) == ("base with adapter", folder)
    assert torch.equal(ckpt.states(IDS).feed_forward[1:], _peft_states(network)[0])
    # A configuration beside the adapter, as some training scripts leave, is no model without weights.
    (folder / "config.json").write_text((base / "config.json").read_text())
    assert td.load(folder).name == "base with adapter"
    with pytest.raises(ArgumentValueError, match=r"adapter: expected None for .*, which is one itself"):
        td.load(folder, adapter=folder)
    with pytest.raises(ArgumentValueError, match="None beside adapter="):
        td.load(folder, device_map="auto")
    path = folder / "adapter_config.json"
    facts = json.loads(path.read_text())
    for named, words in [
        ("org/model", r"a folder as base_model_name_or_path, got 'org/model'; .*td\.load\(…, adapter='adapter'\)"),
        (None, "a folder as base_model_name_or_path, got None"),
        (str(folder), "got another adapter's"),
    ]:
        path.write_text(json.dumps(facts | {"base_model_name_or_path": named}))
        with pytest.raises(CheckpointError, match=words):
            td.load(folder)


def test_pickled_weights_of_an_adapter_need_the_flag(adapter: Callable[..., tuple[Any, Path]], base: Path) -> None:
    network, folder = adapter("LoraConfig", **_QV)
    stored = load_file(folder / "adapter_model.safetensors")
    (folder / "adapter_model.safetensors").unlink()
    torch.save(stored, folder / "adapter_model.bin")
    with pytest.raises(CheckpointError, match=r"adapter_model\.bin: .*allow_pickle=True"):
        td.load(base, adapter=folder)
    ckpt = td.load(base, adapter=folder, allow_pickle=True)
    assert torch.equal(ckpt.states(IDS).feed_forward[1:], _peft_states(network)[0])
    (folder / "adapter_model.bin").unlink()
    with pytest.raises(CheckpointError, match=r"a folder with adapter_model\.safetensors, got none in"):
        td.load(base, adapter=folder)


@pytest.mark.parametrize(
    ("config", "settings", "words"),
    [
        ("PromptTuningConfig", {"num_virtual_tokens": 4}, r"one of 4 virtual tokens \(PROMPT_TUNING\); leave it out"),
        (
            "PromptEncoderConfig",
            {"num_virtual_tokens": 4, "encoder_hidden_size": 16},
            r"one of 4 virtual tokens \(P_TUNING\); leave it out",
        ),
        (
            "PrefixTuningConfig",
            {"num_virtual_tokens": 4},
            r"\(PREFIX_TUNING\); pass the network that PeftModel\.from_pretrained makes",
        ),
        ("PolyConfig", _QV | {"r": 4, "n_skills": 2}, r"one that mixes several by the task \(POLY\)"),
    ],
)
def test_adapters_that_are_no_change_of_the_weights_are_refused(
    config: str, settings: dict[str, Any], words: str, adapter: Callable[..., tuple[Any, Path]], base: Path
) -> None:
    _, folder = adapter(config, **settings)
    with pytest.raises(CheckpointError, match=words) as refusal:
        td.load(base, adapter=folder)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("method", ["LoHa", "VB-LoRA"])
def test_a_tensor_that_is_missing_is_named_for_every_kind(
    method: str, adapter: Callable[..., tuple[Any, Path]], base: Path
) -> None:
    config, settings = KINDS[method]
    _, folder = adapter(config, **settings)
    path = folder / "adapter_model.safetensors"
    save_file({name: value for name, value in load_file(path).items() if "layers.1." not in name}, path)
    with pytest.raises(CheckpointError, match=r"nothing for .*layers\.1\."):
        td.load(base, adapter=folder)


def test_biases_of_parts_that_are_not_read_are_left_out(tmp_path: Path) -> None:
    with silenced():
        network_of("bert")[0].save_pretrained(tmp_path / "base")
        from transformers import BertModel

        network = BertModel.from_pretrained(tmp_path / "base")  # with a pooler
        config = peft.LoraConfig(target_modules=["query"], bias="all")
        adapted = peft.get_peft_model(network, config).eval()
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.data += 0.1
        adapted.save_pretrained(tmp_path / "adapter")
    with torch.inference_mode():
        last = adapted(input_ids=IDS).last_hidden_state[0]
    assert torch.equal(td.load(tmp_path / "base", adapter=tmp_path / "adapter").states(IDS).feed_forward[-1], last)


@pytest.mark.slow
def test_an_adapter_that_runs_in_its_own_precision_is_traced_and_its_audit_refused(
    adapter: Callable[..., tuple[Any, Path]], base: Path
) -> None:
    network, folder = adapter("AdamssConfig", **_QV)
    ckpt = td.load(base, adapter=folder)
    assert torch.equal(ckpt.states(IDS).feed_forward[1:], _peft_states(network)[0])
    with pytest.raises(AttentionFactorsError, match="an attention that runs in float64"):
        td.audit(ckpt)
