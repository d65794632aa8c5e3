"""Folders whose configuration states no model type, and folders of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tokendynamics as td
from pretrained.families import FAMILIES, network_of
from tokendynamics.diagnosis._diagnose import conventions_of
from tokendynamics.diagnosis.network import notes_of
from tokendynamics.numerics import CheckpointError
from tokendynamics.pretrained.other_libraries import silenced

IDS = torch.arange(3, 14)[None]
_PREFIXES = {"bert": "bert.", "roberta": "roberta.", "distilbert": "distilbert.", "albert": "albert.", "gpt2": ""}


def _old(family: str, folder: Path, prefix: str = "", **changes: Any) -> Path:
    """Save a network as before 2020: without a model type, its tensors under the prefix of a network with a head."""
    network, _ = network_of(family)
    with silenced():
        network.save_pretrained(folder)
    facts = json.loads((folder / "config.json").read_text())
    facts = {name: value for name, value in facts.items() if name not in ("model_type", "architectures")}
    (folder / "config.json").write_text(json.dumps(facts | changes))
    stored = load_file(folder / "model.safetensors")
    save_file({prefix + name: value for name, value in stored.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("family", _PREFIXES)
def test_the_tensors_decide_the_model_type_where_they_fit_one(family: str, tmp_path: Path) -> None:
    ckpt = td.load(_old(family, tmp_path / "m", _PREFIXES[family]))
    assert ckpt.architecture.model_type == family
    assert notes_of(ckpt)["files"].startswith(f"config.json states no model_type: it is read as {family}, ")
    assert torch.equal(ckpt.states(IDS).feed_forward, td.load(network_of(family)[0]).states(IDS).feed_forward)


def test_a_class_in_architectures_decides_before_the_tensors(tmp_path: Path) -> None:
    # Without a prefix the tensors of RoBERTa are those of BERT too, whose positions begin elsewhere.
    folder = _old("roberta", tmp_path / "m", architectures=["Removed", "RobertaForMaskedLM"])
    ckpt = td.load(folder)
    (note,) = ckpt.notes
    assert note == (
        "config.json states no model_type: it is read as roberta, the type of RobertaForMaskedLM in architectures"
    )
    assert torch.equal(ckpt.states(IDS).feed_forward, td.load(network_of("roberta")[0]).states(IDS).feed_forward)
    assert td.load(f"random:{folder}").architecture.model_type == "roberta"


def test_tensors_that_fit_several_networks_or_none_are_refused_with_the_line_to_add(tmp_path: Path) -> None:
    several = _old("roberta", tmp_path / "m")
    fitting = "roberta, camembert, xlm-roberta, bert"
    with pytest.raises(CheckpointError, match=rf'fit each of {fitting}; add the line "model_type": "…" to it'):
        td.load(several)
    with pytest.raises(CheckpointError, match='add the line "model_type": "roberta" to it'):
        td.load(several.rename(tmp_path / "my-roberta"))
    facts = json.loads((tmp_path / "my-roberta" / "config.json").read_text())
    (tmp_path / "my-roberta" / "config.json").write_text(json.dumps(facts | {"model_type": "roberta"}))
    assert td.load(tmp_path / "my-roberta").notes == ()
    for family in ("llama", "electra"):  # of later years
        with pytest.raises(CheckpointError, match=r'got none .*; add the line "model_type": "…"'):
            td.load(_old(family, tmp_path / family[0]))
    with pytest.raises(CheckpointError, match='add the line "model_type": "…"'):  # nothing stored decides
        td.load(f"random:{_old('gpt2', tmp_path / 'g')}")


@pytest.mark.parametrize("change", ["missing", "further", "shape"])
def test_one_tensor_too_few_or_too_many_decides_against_a_model_type(change: str, tmp_path: Path) -> None:
    folder = _old("gpt2", tmp_path / "m")
    stored = load_file(folder / "model.safetensors")
    name = "h.1.mlp.c_fc.bias"
    value = stored.pop(name)
    if change == "shape":
        stored[name] = value[:-1].clone()
    elif change == "further":
        stored |= {name: value, "h.1.attn.rotary.weight": value.clone()}
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match='add the line "model_type"'):
        td.load(folder)


def test_networks_that_are_read_under_one_name_are_the_same() -> None:
    """Of the tensors and the settings of one, each of the three gives the same states."""
    from transformers import AutoConfig, AutoModel

    settings = FAMILIES["roberta"][1]
    states, facts = [], []
    with silenced():
        weights = AutoModel.from_config(AutoConfig.for_model("roberta", **settings)).state_dict()
        for name in ("roberta", "camembert", "xlm-roberta"):
            # The tensors say how large the vocabulary is.
            facts.append(AutoConfig.for_model(name).to_dict() | {"model_type": "", "vocab_size": 0})
            network = AutoModel.from_config(AutoConfig.for_model(name, **settings)).eval()
            network.load_state_dict(weights)
            with torch.inference_mode():
                states.append(network(IDS).last_hidden_state)
    assert all(torch.equal(other, states[0]) for other in states)
    assert all(other == facts[0] for other in facts)


def _sentence_encoder(folder: Path, inner: str, *kinds: str) -> Path:
    with silenced():
        network_of("bert")[0].save_pretrained(folder / inner)
    modules = [
        {"idx": place, "name": str(place), "path": f"{place}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for place, kind in enumerate(kinds)
    ]
    modules[0]["path"] = inner
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / inner / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12}))
    return folder


@pytest.mark.parametrize("inner", ["", "0_Transformer"])
def test_the_transformer_of_a_sentence_encoder_is_read_without_what_follows_it(inner: str, tmp_path: Path) -> None:
    folder = _sentence_encoder(tmp_path / "encoder", inner, "Transformer", "Pooling", "Dense", "Normalize")
    ckpt = td.load(folder)
    assert ckpt.name == "encoder"
    assert ckpt.notes == (
        "the modules after the transformer (Pooling, Dense, Normalize) are no layers and are not read",
        "sentence-transformers cuts texts after 12 tokens, which is not done here",
    )
    assert torch.equal(ckpt.states(IDS).feed_forward, td.load(network_of("bert")[0]).states(IDS).feed_forward)
    assert td.load(f"random:{folder}").architecture.layers == 3
    trace = td.trace(ckpt, [IDS[0].tolist()])
    assert trace.attrs["files"] == "; ".join(ckpt.notes)
    (files,) = [one for one in conventions_of(None, trace) if one.name == "Files"]
    assert files.choice == trace.attrs["files"]
    assert "notes" not in trace.attrs


def test_a_list_of_modules_without_one_transformer_in_the_folder_is_refused(tmp_path: Path) -> None:
    folder = _sentence_encoder(tmp_path / "a", "0_WordEmbeddings", "WordEmbeddings", "Pooling")
    with pytest.raises(CheckpointError, match="expected one Transformer, got WordEmbeddings, Pooling; pass the folder"):
        td.load(folder)
    folder = _sentence_encoder(tmp_path / "b", "0_Transformer", "Transformer")
    assert td.load(folder).notes[0].startswith("sentence-transformers cuts")
    for path in ("../a/0_WordEmbeddings", 5, ".."):
        modules = [{"type": "sentence_transformers.models.Transformer", "path": path}]
        (folder / "modules.json").write_text(json.dumps(modules))
        with pytest.raises(CheckpointError, match="expected the name of a folder as a path"):
            td.load(folder)
    (folder / "modules.json").write_text("{}")
    with pytest.raises(CheckpointError, match="a list of modules with a path and a type"):
        td.load(folder)
