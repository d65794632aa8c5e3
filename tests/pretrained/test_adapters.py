"""Adapters of PEFT in folders: each kind gives the states of PEFT's own forward pass, or is refused in one line."""

from __future__ import annotations

import copy
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
from tokendynamics.numerics import ArgumentValueError, CheckpointError
from tokendynamics.pretrained.discovery._maps import Probed
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


@pytest.mark.long
@pytest.mark.few(1)
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


def _live(kind: str = "llama", names: tuple[str, ...] = ("first",), **settings: Any) -> Any:
    """Return a network with LoRA on it that PEFT made, not a folder."""
    with silenced(), torch.random.fork_rng():
        torch.manual_seed(8)
        network = network_of(kind)[0].__class__(network_of(kind)[0].config).eval()
        network.load_state_dict(network_of(kind)[0].state_dict())
        chosen = {"target_modules": ["q_proj", "v_proj", "o_proj"]} | settings
        adapted = peft.get_peft_model(network, peft.LoraConfig(r=4, **chosen), names[0])
        for name in names[1:]:
            adapted.add_adapter(name, peft.LoraConfig(r=2, **chosen))
        for name, parameter in adapted.named_parameters():
            if "lora" in name:
                parameter.data = 0.2 * torch.randn(parameter.shape)
    return adapted.eval()


def _weights(network: Any, kind: str) -> Tensor:
    """Return the stored weights (in, out) of queries, keys and values of the second block, side by side."""
    if kind == "gpt2":
        return network.h[1].attn.c_attn.weight.detach()
    attention = network.layers[1].self_attn
    return torch.cat([getattr(attention, f"{name}_proj").weight.detach().mT for name in "qkv"], dim=1)


def _factors(live: Any) -> Tensor:
    """Return the same as they are read."""
    attention = live.attention(2)
    return torch.cat([part.transpose(0, 1).flatten(1) for part in (attention.query, attention.key, attention.value)], 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {}),
        ("llama", {"use_dora": True, "lora_dropout": 0.5}),
        ("gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True}),
    ],
)
def test_a_live_adapter_is_read_as_what_runs(family: str, settings: dict[str, Any]) -> None:
    adapted = _live(family, **settings)
    live = td.load(adapted)
    attention = live.layout.layers[0].attention
    assert attention is not None
    assert attention.query[0].does == Probed(48, "peft.tuners.lora.layer.Linear")
    plain = _weights(copy.deepcopy(adapted).unload(), family)
    merged = _weights(copy.deepcopy(adapted).merge_and_unload(), family)
    assert not torch.allclose(merged, plain, atol=0.01)
    torch.testing.assert_close(_factors(live), merged, rtol=1e-5, atol=1e-5)
    with adapted.disable_adapter():
        torch.testing.assert_close(_factors(live), plain, rtol=1e-5, atol=1e-5)
    states = live.states(IDS).feed_forward
    adapted.merge_adapter()
    torch.testing.assert_close(_factors(live), merged, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(live.states(IDS).feed_forward, states, rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_of_several_adapters_the_active_ones_count() -> None:
    adapted = _live(names=("first", "second"))
    live, factors = td.load(adapted), dict[str, Tensor]()
    plain = _weights(copy.deepcopy(adapted).unload(), "llama")
    for active in ("first", "second", ["first", "second"]):
        adapted.base_model.set_adapter(active)
        factors["".join(active)] = _factors(live) - plain
    assert float(factors["second"].abs().max()) > 0.1
    total = factors["first"] + factors["second"]
    torch.testing.assert_close(factors["firstsecond"], total, rtol=1e-5, atol=1e-5)
    # Where none is active, nothing is added.
    with adapted.disable_adapter():
        torch.testing.assert_close(_factors(live), plain, rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_an_adapter_on_half_precision_is_added_before_it_is_rounded() -> None:
    adapted = _live()
    adapted.base_model.model.bfloat16()
    layer = adapted.base_model.model.layers[1].self_attn.q_proj
    factors = (layer.lora_B.first.weight.float(), layer.lora_A.first.weight.float())
    whole = layer.base_layer.weight.float() + layer.scaling["first"] * (factors[0] @ factors[1])
    torch.testing.assert_close(_factors(td.load(adapted))[:, :48], whole.mT, rtol=1e-6, atol=1e-6)


def test_an_adapter_on_an_attention_of_pytorch_is_refused_by_name() -> None:
    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = torch.nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
            self.words, self.encoder = torch.nn.Embedding(20, 16), torch.nn.TransformerEncoder(layer, 3)

        def forward(self, ids: Tensor) -> Tensor:
            return self.encoder(self.words(ids))

    config = peft.LoraConfig(r=2, target_modules=r"encoder\.layers\.1\.self_attn")
    with silenced(), torch.random.fork_rng():
        adapted = peft.get_peft_model(Network(), config).eval()
    ids = torch.arange(12).reshape(2, 6)
    live = td.load(adapted.base_model.model, inputs=ids)
    words = "PyTorch reads the weight of its output projection (peft.tuners.lora.layer.Linear) and does not call it"
    problems = [layer.problem for layer in live.layout.layers]
    assert problems[0] == problems[2] == ""
    assert words in problems[1]
    assert live.layout.attending == [1, 2, 3]


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


@pytest.mark.long
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


@pytest.mark.few(1)
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


@pytest.mark.long
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
def test_the_factors_of_an_adapter_that_runs_in_single_precision_are_what_its_projections_do(
    adapter: Callable[..., tuple[Any, Path]], base: Path
) -> None:
    network, folder = adapter("AdamssConfig", **_QV)
    ckpt = td.load(base, adapter=folder)
    assert torch.equal(ckpt.states(IDS).feed_forward[1:], _peft_states(network)[0])
    weights = ckpt.attention(2)
    (attention,) = (module for name, module in network.named_modules() if name.endswith("layers.1.self_attn"))
    with torch.inference_mode():
        basis = torch.eye(weights.query.shape[1])
        query = (attention.q_proj(basis) - attention.q_proj(0 * basis)).unflatten(1, (len(weights.query), -1))
    torch.testing.assert_close(weights.query, query.transpose(0, 1), rtol=1e-4, atol=1e-5)
