"""The language head of stored, live and adapted networks is the one that `from_pretrained` gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import tokendynamics as td
from tokendynamics.numerics import CheckpointError
from tokendynamics.pretrained.other_libraries import silenced

_IDS = torch.randint(3, 100, (15,), generator=torch.Generator().manual_seed(5))


def _entropy(network: Any) -> np.ndarray:
    with torch.no_grad():
        logits = network(input_ids=_IDS[None]).logits[0].double()
    return torch.distributions.Categorical(logits=logits).entropy().numpy()


def _check(checkpoint: Any, network: Any) -> None:
    """The last reading of the lens is what the network itself predicts."""
    lens = td.logit_lens(checkpoint, _IDS)
    np.testing.assert_allclose(lens.prediction_entropy.values[-1], _entropy(network), rtol=0, atol=1e-4)


def _read(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    with silenced():
        return AutoModelForCausalLM.from_pretrained(folder).eval()


def _stated(network: Any, folder: Path, *, tied: bool, tensors: dict[str, torch.Tensor], shard: bool = False) -> Path:
    """A folder whose configuration states something of its own about the tie."""
    network.config.tie_word_embeddings = tied
    network.config.save_pretrained(folder)
    if not shard:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    import json

    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, some in parts.items():
        save_file({name: tensors[name] for name in some}, folder / file, metadata={"format": "pt"})
    places = {name: file for file, some in parts.items() for name in some}
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def _untied(tiny: Any, kind: str) -> tuple[Any, dict[str, torch.Tensor]]:
    from transformers import AutoModelForCausalLM

    with silenced():
        network = AutoModelForCausalLM.from_config(tiny.config(kind, tie_word_embeddings=False)).eval()
    for parameter in network.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return network, {name: value.clone() for name, value in network.state_dict().items()}


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize("head", ["llama", "gpt2"])
def test_two_stored_matrices_stay_two_where_the_configuration_ties_them(
    head: str, shard: bool, tiny: Any, tmp_path: Path
) -> None:
    network, tensors = _untied(tiny, head)
    folder = _stated(network, tmp_path, tied=True, tensors=tensors, shard=shard)
    checkpoint = td.load(folder)
    _check(checkpoint, _read(folder))
    _check(checkpoint, network)
    saved = checkpoint.save(tmp_path / "saved")
    _check(td.load(saved), network)
    _check(_load_live(_read(saved)), network)


def _load_live(network: Any) -> Any:
    return td.load(network)


def test_a_file_that_holds_only_the_head_of_a_tied_pair_is_read(tiny: Any, tmp_path: Path) -> None:
    network = tiny.network("llama", headless=False)
    network.config.tie_word_embeddings = True
    network.tie_weights()
    tensors = {name: value.clone() for name, value in network.state_dict().items()}
    del tensors["model.embed_tokens.weight"]
    folder = _stated(network, tmp_path, tied=True, tensors=tensors)
    checkpoint = td.load(folder)
    assert torch.equal(checkpoint.model.get_parameter("embed_tokens.weight"), network.lm_head.weight)
    _check(checkpoint, _read(folder))


@pytest.mark.long
def test_a_file_without_the_head_of_an_untied_pair_has_no_head(tiny: Any, tmp_path: Path) -> None:
    network, tensors = _untied(tiny, "llama")
    del tensors["lm_head.weight"]
    folder = _stated(network, tmp_path, tied=False, tensors=tensors)
    with pytest.raises(CheckpointError, match="a network with a language head"):
        td.logit_lens(td.load(folder), _IDS)
    # from_pretrained reads its states all the same.
    states, wanted = td.load(folder).states(_IDS).feed_forward[-1], _read(folder).model
    with torch.no_grad():
        kept = wanted(input_ids=_IDS[None]).last_hidden_state[0]
        torch.testing.assert_close(wanted.norm(states), kept, rtol=0, atol=1e-5)


@pytest.mark.long
def test_two_embeddings_of_an_encoder_decoder_stay_two(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    sizes = {"vocab_size": 61, "d_model": 48, "d_kv": 12, "num_heads": 4, "num_layers": 2, "d_ff": 40}
    with silenced():
        network: Any = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("t5", **sizes)).eval()
    tensors = {name: value.clone() for name, value in network.state_dict().items()}
    tensors["encoder.embed_tokens.weight"] = torch.randn(61, 48, generator=torch.Generator().manual_seed(2))
    folder = _stated(network, tmp_path, tied=True, tensors=tensors)
    with silenced():
        read: Any = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert torch.equal(read.encoder.embed_tokens.weight, tensors["encoder.embed_tokens.weight"])
    halves: dict[str, Any] = {half: td.load(folder, half=half).model for half in ("encoder", "decoder")}
    assert torch.equal(halves["encoder"].embed_tokens.weight, read.encoder.embed_tokens.weight)
    assert torch.equal(halves["decoder"].embed_tokens.weight, read.shared.weight)


def test_tensors_that_the_configuration_has_no_place_for_are_refused_by_name(tiny: Any, tmp_path: Path) -> None:
    network = tiny.network("qwen2", headless=False)
    network.save_pretrained(tmp_path)
    config = tiny.config("llama", architectures=["LlamaForCausalLM"])
    config.save_pretrained(tmp_path)
    words = r"a place for, got model\.layers\.0\.self_attn\.k_proj\.bias, the first of 9 without one"
    with pytest.raises(CheckpointError, match=words):
        td.load(tmp_path)


@pytest.mark.parametrize(
    ("saved", "others"),
    [
        ("bert", {"cls.seq_relationship.weight": (2, 24), "bert.embeddings.position_ids": (1, 64)}),
        ("bert", {"bert.pooler.dense.weight": (24, 24), "bert.pooler.dense.bias": (24,), "classifier.weight": (2, 24)}),
        ("gpt2", {"transformer.h.0.attn.bias": (1, 1, 64, 64), "transformer.h.0.attn.masked_bias": ()}),
        ("gpt2", {"score.weight": (2, 24), "v_head.summary.weight": (1, 24)}),
        ("llama", {"model.layers.0.self_attn.rotary_emb.inv_freq": (3,), "score.weight": (2, 24)}),
    ],
)
def test_tables_and_heads_of_other_tasks_are_left_out(
    saved: str, others: dict[str, tuple[int, ...]], tiny: Any, tmp_path: Path
) -> None:
    network = tiny.network(saved, headless=False)
    network.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {name: torch.ones(shape) for name, shape in others.items()}, tmp_path / "model.safetensors")
    base = network.base_model
    for name, parameter in td.load(tmp_path).model.named_parameters():
        assert torch.equal(parameter, base.get_parameter(name)), name


def test_a_pooler_that_the_base_model_is_built_without_is_left_out(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    sizes = {"vocab_size": 101, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
    with silenced():
        config = AutoConfig.for_model("nomic_bert", num_attention_heads=4, pad_token_id=0, **sizes)
        network: Any = AutoModelForSequenceClassification.from_config(config)
        network.save_pretrained(tmp_path)
    assert any("pooler" in name for name in load_file(tmp_path / "model.safetensors"))
    assert td.load(tmp_path).architecture.layers == 2


@pytest.mark.long
def test_the_head_of_a_masked_language_model_is_read(tiny: Any, tmp_path: Path) -> None:
    network = tiny.network("bert", headless=False)
    network.save_pretrained(tmp_path)
    _check(td.load(tmp_path), network)
    with pytest.raises(CheckpointError, match="predicts the next token, got one whose tokens see later ones"):
        td.decode(td.load(tmp_path), _IDS)


_SMALL = {"vocab_size": 101, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
_GPT = _SMALL | {"n_embd": 24, "n_layer": 2, "n_head": 4}
_WIDE = _SMALL | {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
_WIDE |= {"num_attention_heads": 4, "num_key_value_heads": 2}
WITHOUT_INTERFACE: dict[str, dict[str, Any]] = {
    "gptj": _GPT | {"rotary_dim": 4},
    "bloom": _SMALL | {"hidden_size": 24, "n_layer": 2, "n_head": 4},
    "mpt": _SMALL | {"d_model": 24, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    "gpt_neo": _WIDE | {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    "bitnet": _WIDE,
    "mamba": _SMALL | {"hidden_size": 24, "num_hidden_layers": 2, "state_size": 4},
    "llama4_text": _WIDE | {"num_local_experts": 2, "head_dim": 6, "intermediate_size_mlp": 40},
}


@pytest.mark.long
@pytest.mark.few(4)
@pytest.mark.parametrize("model_type", WITHOUT_INTERFACE)
def test_the_head_is_read_where_the_attention_is_not(model_type: str, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    with silenced():
        config = AutoConfig.for_model(model_type, **WITHOUT_INTERFACE[model_type])
        network: Any = AutoModelForCausalLM.from_config(config).eval()
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    live = td.load(network)
    _check(live, network)
    assert live.causal
    network.save_pretrained(tmp_path)
    _check(td.load(tmp_path), network)


def test_causality_is_measured_where_the_attention_is_not_read() -> None:
    from pretrained.families import network_of

    network, _ = network_of("mpnet")
    assert not td.load(network).causal


def _adapter(tiny: Any, folder: Path, **settings: Any) -> Any:
    """An adapter with numbers away from zero, and the network as PEFT itself loads it."""
    peft = pytest.importorskip("peft")
    with silenced():
        adapted = peft.get_peft_model(tiny.network("llama", headless=False), peft.LoraConfig(r=4, **settings)).eval()
        generator = torch.Generator().manual_seed(9)
        for name, parameter in adapted.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator)
        adapted.save_pretrained(folder)
        return peft.PeftModel.from_pretrained(tiny.network("llama", headless=False), folder).eval()


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": ["q_proj"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
        {"target_modules": ["lm_head", "q_proj"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"], "task_type": "CAUSAL_LM"},
    ],
)
def test_adapters_that_train_or_save_the_head_are_read_with_it(
    settings: dict[str, Any], tiny: Any, tmp_path: Path
) -> None:
    base = tiny.folder("llama", headless=False)
    wanted = _adapter(tiny, tmp_path / "adapter", **settings)
    _check(td.load(base, adapter=tmp_path / "adapter"), wanted)
    _check(td.load(tiny.network("llama", headless=False), adapter=tmp_path / "adapter"), wanted)
    # Of a live base model the states below the head are the same.
    below = td.load(tiny.network("llama", headless=False).model, adapter=tmp_path / "adapter")
    with torch.no_grad():
        states = wanted.base_model.model.model(input_ids=_IDS[None], output_hidden_states=True).hidden_states
    torch.testing.assert_close(below.states(_IDS).feed_forward[1], states[1][0], rtol=0, atol=1e-5)


def test_a_merged_adapter_that_saved_the_head_keeps_it(tiny: Any, tmp_path: Path) -> None:
    adapted = _adapter(tiny, tmp_path / "adapter", target_modules=["q_proj"], modules_to_save=["lm_head"])
    merged = adapted.merge_and_unload()
    merged.config.tie_word_embeddings = True  # as the base of many such merges says
    tensors = {name: value.clone() for name, value in merged.state_dict().items()}
    folder = _stated(merged, tmp_path / "adapter", tied=True, tensors=tensors)
    _check(td.load(folder), merged)
