"""Every key of a GGUF file acts as it does in transformers' own network of the same tensors, or is refused by name."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tokendynamics as td
from pretrained.gguf_files import write_network
from tokendynamics.numerics import CheckpointError
from tokendynamics.pretrained.other_libraries import silenced
from tokendynamics.pretrained.sources._gguf_settings import FAMILIES, configured

pytestmark = pytest.mark.skipif(find_spec("gguf") is None, reason="needs the extra gguf")

_SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_GROUPED = _SIZES | {"num_key_value_heads": 2}
_FOURFOLD = {name: value for name, value in _SIZES.items() if name != "intermediate_size"}
_HEAD = 8
_THETA = {"rope_type": "default", "rope_theta": 500.0}
_RMS, _LAYER = {"attention.layer_norm_rms_epsilon": 1e-3}, {"attention.layer_norm_epsilon": 1e-3}
_BASE = {"rope.freq_base": 500.0}


def _network(model_type: str, **settings: Any) -> Any:
    """A network with its head, nothing at a default, and weights that make positions and caps matter."""
    from transformers import AutoConfig, AutoModelForCausalLM

    generator = torch.Generator().manual_seed(4)
    with silenced():
        config = AutoConfig.for_model(model_type, **settings)
        network: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in network.parameters():
        parameter.data += 0.15 * torch.randn(parameter.shape, generator=generator)
    return network


def _states(network: Any, ids: torch.Tensor, blocks: str) -> list[torch.Tensor]:
    kept: list[torch.Tensor] = []

    def keep(module: Any, given: Any, output: Any) -> None:
        kept.append((output if isinstance(output, torch.Tensor) else output[0])[0])

    handles = [block.register_forward_hook(keep) for block in network.get_submodule(blocks)]
    with torch.no_grad():
        network(ids)
    for handle in handles:
        handle.remove()
    return kept


_IDS = torch.randint(2, 59, (1, 50), generator=torch.Generator().manual_seed(6))


def _check(network: Any, path: Path, blocks: str = "model.layers") -> None:
    """States and predictions of the file are those of the network."""
    checkpoint = td.load(path, cache=path.parent / "cache")
    wanted = _states(network, _IDS, blocks)
    computed = checkpoint.states(_IDS).feed_forward[1:]
    for actual, reference in zip(computed, wanted, strict=True):
        assert float((actual - reference).abs().max()) < 2e-5 * float(reference.abs().max())
    with torch.no_grad():
        logits = network(_IDS).logits[0].double()
    entropy = torch.distributions.Categorical(logits=logits).entropy()
    lens = td.logit_lens(checkpoint, _IDS[0])
    np.testing.assert_allclose(lens.prediction_entropy.values[-1], entropy, rtol=0, atol=1e-4)


def _rope(**settings: Any) -> dict[str, Any]:
    return {"rope_parameters": _THETA | settings}


def _llama3_factors() -> np.ndarray:
    """What a converter writes for Llama 3.1: the formula of transformers, written anew."""
    frequencies = 500.0 ** -(np.arange(0, _HEAD, 2) / _HEAD)
    waves = 2 * math.pi / frequencies
    smooth = (16 / waves - 1.0) / (4.0 - 1.0)
    between = 1 / ((1 - smooth) / 8.0 + smooth)
    return np.where(waves < 16 / 4.0, 1.0, np.where(waves > 16 / 1.0, 8.0, between)).astype(np.float32)


_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3 |= {"original_max_position_embeddings": 16}
_LONG = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0], "attention_factor": 1.2}
_EPS = {"rms_norm_eps": 1e-3}

CASES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", _GROUPED | _EPS | _rope(), "llama", _RMS | _BASE, {}),
    "llama, biases": (
        "llama",
        _GROUPED | _EPS | _rope() | {"attention_bias": True, "mlp_bias": True},
        "llama",
        _RMS | _BASE,
        {},
    ),
    "llama, wide heads": (
        "llama",
        _GROUPED | _EPS | _rope() | {"head_dim": 12},
        "llama",
        _RMS | _BASE | {"rope.dimension_count": 12},
        {},
    ),
    "llama, linear": (
        "llama",
        _GROUPED | _EPS | _rope(rope_type="linear", factor=4.0),
        "llama",
        _RMS | _BASE | {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        {},
    ),
    "llama, linear by its old name": (
        "llama",
        _GROUPED | _EPS | _rope(rope_type="linear", factor=4.0),
        "llama",
        _RMS | _BASE | {"rope.scale_linear": 4.0},
        {},
    ),
    "llama, factors": (
        "llama",
        _GROUPED | _EPS | _rope(**_LLAMA3),
        "llama",
        _RMS | _BASE,
        {"rope_freqs.weight": _llama3_factors()},
    ),
    "qwen2, yarn": (
        "qwen2",
        _GROUPED | _EPS | _rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
        "qwen2",
        _RMS
        | _BASE
        | {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.attn_factor": 1.0,
        },
        {},
    ),
    "qwen2, yarn with bounds": (
        "qwen2",
        _GROUPED
        | _EPS
        | _rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=2.0, beta_slow=0.2),
        "qwen2",
        _RMS
        | _BASE
        | {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_beta_fast": 2.0,
            "rope.scaling.yarn_beta_slow": 0.2,
        },
        {},
    ),
    "qwen3": ("qwen3", _GROUPED | _EPS | _rope() | {"head_dim": 12}, "qwen3", _RMS | _BASE, {}),
    "phi3": (
        "phi3",
        _GROUPED | _EPS | _rope(partial_rotary_factor=0.5) | {"sliding_window": 9},
        "phi3",
        _RMS | _BASE | {"attention.sliding_window": 9, "rope.dimension_count": 4},
        {},
    ),
    "phi3, factors for two lengths": (
        "phi3",
        _GROUPED
        | _EPS
        | _rope(rope_type="longrope", original_max_position_embeddings=16, partial_rotary_factor=0.5, **_LONG)
        | {"original_max_position_embeddings": 16},
        "phi3",
        _RMS
        | _BASE
        | {
            "rope.dimension_count": 4,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.attn_factor": 1.2,
        },
        {"rope_factors_short.weight": np.array([1.0, 1.5]), "rope_factors_long.weight": np.array([2.0, 3.0])},
    ),
    "gemma2": (
        "gemma2",
        _GROUPED
        | _EPS
        | _rope()
        | {
            "head_dim": 16,
            "query_pre_attn_scalar": 4,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 1.5,
            "sliding_window": 9,
        },
        "gemma2",
        _RMS
        | _BASE
        | {
            "attention.scale": 0.5,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 1.5,
            "attention.sliding_window": 9,
        },
        {},
    ),
    "gemma3": (
        "gemma3_text",
        _GROUPED
        | _EPS
        | {
            "head_dim": 16,
            "query_pre_attn_scalar": 4,
            "final_logit_softcapping": 1.5,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": _THETA | {"rope_type": "linear", "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 70.0},
            },
        },
        "gemma3",
        _RMS
        | _BASE
        | {
            "attention.scale": 0.5,
            "final_logit_softcapping": 1.5,
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": 2,
            "rope.freq_base_swa": 70.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
        {},
    ),
    "starcoder2": (
        "starcoder2",
        _GROUPED | _rope() | {"norm_epsilon": 1e-3, "sliding_window": 9},
        "starcoder2",
        _LAYER | _BASE | {"attention.sliding_window": 9},
        {},
    ),
    "stablelm": (
        "stablelm",
        _GROUPED | _rope(partial_rotary_factor=0.5) | {"layer_norm_eps": 1e-3, "use_qkv_bias": True},
        "stablelm",
        _LAYER | _BASE | {"rope.dimension_count": 4, "use_parallel_residual": False},
        {},
    ),
    "nemotron": (
        "nemotron",
        _GROUPED | _rope(partial_rotary_factor=0.5) | {"norm_eps": 1e-3, "head_dim": 8},
        "nemotron",
        _LAYER | _BASE | {"rope.dimension_count": 4},
        {},
    ),
    "falcon": (
        "falcon",
        _FOURFOLD | _rope() | {"layer_norm_epsilon": 1e-3, "new_decoder_architecture": False},
        "falcon",
        _LAYER | _BASE,
        {},
    ),
    "bloom": ("bloom", _FOURFOLD | {"layer_norm_epsilon": 1e-3}, "bloom", _LAYER, {}),
    "gpt2": (
        "gpt2",
        {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "layer_norm_epsilon": 1e-3},
        "gpt2",
        _LAYER,
        {},
    ),
}
"""Name → model type, settings of the network, GGUF's architecture, metadata, tensors beside the network's."""

_BLOCKS = {"falcon": "transformer.h", "bloom": "transformer.h", "gpt2": "transformer.h"}


_FEW = ("llama, factors", "qwen2, yarn", "phi3", "gemma2", "gemma3", "nemotron")
"""Cases with all forms of rotations, windows and caps between them; the others run with the slow tests."""


@pytest.mark.few(2)
@pytest.mark.parametrize("case", [pytest.param(case, marks=() if case in _FEW else pytest.mark.slow) for case in CASES])
def test_states_and_predictions_are_those_of_the_network(case: str, tmp_path: Path) -> None:
    model_type, settings, architecture, metadata, extra = CASES[case]
    network = _network(model_type, **settings)
    path = write_network(tmp_path / "a.gguf", network, architecture, metadata, extra)
    _check(network, path, _BLOCKS.get(model_type, "model.layers"))


def _written(tmp_path: Path, case: str, extra: dict[str, Any] | None = None, **metadata: Any) -> Path:
    model_type, settings, architecture, known, tensors = CASES[case]
    keys = known | {key.replace("__", "."): value for key, value in metadata.items()}
    return write_network(
        tmp_path / "a.gguf", _network(model_type, **settings), architecture, keys, tensors | (extra or {})
    )


@pytest.mark.parametrize(
    ("case", "metadata", "words"),
    [
        ("llama", {"hidden_act": "gelu"}, r"llama\.hidden_act not to be there, since .* not known, got 'gelu'"),
        ("llama", {"attention__scale": 0.1}, r"llama\.attention\.scale of 0\.0, got 0\.1"),
        ("llama", {"final_logit_softcapping": 30.0}, r"llama\.final_logit_softcapping of 0\.0, got 30\.0"),
        ("llama", {"attention__sliding_window": 9}, r"llama\.attention\.sliding_window not to be there"),
        ("llama", {"rope__scaling__type": "ntk"}, r"llama\.rope\.scaling\.type as none, linear, yarn or longrope"),
        ("llama", {"rope__scaling__type": "yarn"}, r"llama\.rope\.scaling\.factor above 0 for yarn scaling, got none"),
        ("llama", {"rope__dimension_count": 4}, r"llama\.rope\.dimension_count of 8, the width of a head, got 4"),
        ("llama", {"rope__freq_base": 0.0}, r"llama\.rope\.freq_base as a positive number, got 0\.0"),
        (
            "phi3, factors for two lengths",
            {"rope__scaling__attn_factor": 0.0},
            r"phi3\.rope\.scaling\.attn_factor as a",
        ),
        ("phi3, factors for two lengths", {"rope__scaling__attn_factor": True}, r"positive number, got True"),
        ("gemma3", {"rope__freq_base_swa": -1.0}, r"gemma3\.rope\.freq_base_swa as a positive number, got -1\.0"),
        ("qwen2, yarn", {"rope__scaling__yarn_beta_fast": 0.0}, r"qwen2\.rope\.scaling\.yarn_beta_fast as a positive"),
        ("qwen2, yarn", {"rope__scaling__yarn_attn_factor": 0.5}, r"qwen2\.rope\.scaling\.yarn_attn_factor not to be"),
        ("stablelm", {"use_parallel_residual": True}, r"stablelm\.use_parallel_residual not to be there"),
        ("falcon", {"attention__head_count_kv": 2}, r"falcon\.attention\.head_count_kv of 1, one key-value head"),
        ("gemma2", {"attention__scale": 0.0}, r"gemma2\.attention\.scale for a network whose heads are 16 wide"),
        ("gemma3", {"attention__sliding_window_pattern": 0}, r"sliding_window_pattern as a whole number from 1 on"),
    ],
)
def test_a_key_that_cannot_be_applied_is_refused_by_its_name(
    case: str, metadata: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = _written(tmp_path, case, **metadata)
    with pytest.raises(CheckpointError, match=words):
        td.load(path, cache=tmp_path / "cache")
    assert not list(tmp_path.rglob("*.safetensors"))


def test_values_that_change_nothing_are_read(tmp_path: Path) -> None:
    path = _written(
        tmp_path,
        "llama",
        attention__causal=True,
        expert_count=0,
        logit_scale=1.0,
        tensor_data_layout="Meta AI original pth",
        attention__sliding_window=64,
        rope__scaling__type="none",
        rope__scaling__finetuned=False,
    )
    assert td.load(path, cache=tmp_path / "cache").architecture.layers == 2


@pytest.mark.parametrize("name", ["blk.0.attn_q.scale", "blk.1.attn_q_norm.weight", "rope_freqs.bias"])
def test_a_tensor_that_the_architecture_has_no_place_for_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    path = _written(tmp_path, "llama", {name: np.ones(8)})
    with pytest.raises(CheckpointError, match=f"tensors that the architecture has a place for, got {name}, the first"):
        td.load(path, cache=tmp_path / "cache")


def test_factors_of_another_number_of_pairs_are_refused(tmp_path: Path) -> None:
    path = _written(tmp_path, "llama", {"rope_freqs.weight": np.ones(3)})
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight as a tensor of 4 factors, .* got 3"):
        td.load(path, cache=tmp_path / "cache")


def test_an_output_matrix_of_its_own_is_kept_where_the_architecture_usually_ties_it(tmp_path: Path) -> None:
    model_type, settings, architecture, metadata, _ = CASES["falcon"]
    network = _network(model_type, **settings, tie_word_embeddings=False)
    assert not torch.equal(network.lm_head.weight, network.transformer.word_embeddings.weight)
    _check(network, write_network(tmp_path / "a.gguf", network, architecture, metadata), "transformer.h")


@pytest.mark.parametrize(("architecture", "layers", "scalar"), [("gemma2", 46, 144), ("gemma3", 62, 168)])
def test_the_scale_of_the_queries_of_the_largest_gemma_is_that_of_its_size(
    architecture: str, layers: int, scalar: int, tmp_path: Path
) -> None:
    from transformers import AutoConfig

    model_type = {"gemma2": "gemma2", "gemma3": "gemma3_text"}[architecture]
    keys = {"block_count": layers, "embedding_length": 32 * scalar, "attention.head_count": 32}
    keys |= {"attention.key_length": 128, "attention.value_length": 128, "context_length": 64}
    keys |= {"attention.head_count_kv": 16, "feed_forward_length": 64, "attention.layer_norm_rms_epsilon": 1e-6}
    metadata = {"general.architecture": architecture} | {f"{architecture}.{key}": keys[key] for key in keys}
    config = configured(AutoConfig.for_model(model_type), tmp_path, metadata, (), {})
    assert config.query_pre_attn_scalar == scalar
    metadata[f"{architecture}.block_count"] = 26
    metadata |= {f"{architecture}.attention.{side}_length": 256 for side in ("key", "value")}
    assert configured(AutoConfig.for_model(model_type), tmp_path, metadata, (), {}).query_pre_attn_scalar == 256


@pytest.mark.parametrize("architecture", FAMILIES)
def test_no_key_of_the_format_is_dropped(architecture: str, tmp_path: Path) -> None:
    from gguf.constants import Keys
    from transformers import AutoConfig

    case = next(entry for entry in CASES.values() if entry[2] == architecture)
    model_type, _, _, known, _ = case
    sizes = {"block_count": 26, "embedding_length": 1024, "attention.head_count": 4, "context_length": 64}
    sizes |= {"feed_forward_length": 4096, "attention.head_count_kv": 4, "vocab_size": 60}
    if architecture == "falcon":
        sizes["attention.head_count_kv"] = 1
    epsilon = {key: value for key, value in known.items() if key.endswith("epsilon")}
    plain = {f"{architecture}.{key}": value for key, value in (sizes | epsilon).items()}
    plain["general.architecture"] = architecture

    def read(**changes: Any) -> dict[str, Any]:
        config = AutoConfig.for_model(model_type)
        return configured(config, tmp_path, plain | changes, (), {}).to_dict()

    groups = (Keys.LLM, Keys.Attention, Keys.Rope, Keys.SSM)
    keys = [
        key for group in groups for key in vars(group).values() if isinstance(key, str) and key.startswith("{arch}")
    ]
    harmless = {"tensor_data_layout", "pooling_type", "rope.scaling.finetuned", *epsilon}
    harmless |= {"attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"}
    # Without a kind of scaling these say nothing.
    alone = ("rope.scaling.original_context_length", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow")
    for key in keys:
        name = key.replace("{arch}.", "")
        if name in (*harmless, *sizes) or "{" in name:
            continue
        refused = False
        changed: dict[str, Any] = {}
        try:
            changed = read(**{f"{architecture}.{name}": 4.0 if name.endswith("softcapping") else 4})
        except CheckpointError as error:
            refused = f"expected {architecture}." in str(error)
        assert refused or changed not in ({}, read()) or name in alone, name
