"""Folders without a model type, of sentence-transformers, and with tokenizers of before tokenizer.json."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tokendynamics as td
from pretrained.families import FAMILIES, network_of
from tokendynamics.diagnosis._diagnose import conventions_of
from tokendynamics.diagnosis.network import notes_of
from tokendynamics.numerics import CheckpointError, extras
from tokendynamics.pretrained.encoding import load_tokenizer
from tokendynamics.pretrained.loading import untrained_twin
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


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize("family", _PREFIXES)
def test_the_tensors_decide_the_model_type_where_they_fit_one(family: str, tmp_path: Path) -> None:
    ckpt = td.load(_old(family, tmp_path / "m", _PREFIXES[family]))
    assert ckpt.architecture.model_type == family
    assert notes_of(ckpt)["files"].startswith(f"config.json states no model_type: it is read as {family}, ")
    assert torch.equal(ckpt.states(IDS).feed_forward, td.load(network_of(family)[0]).states(IDS).feed_forward)


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.few(2)
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


@pytest.mark.long
@pytest.mark.few(1)
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


def test_vocab_txt_is_read_by_the_type_that_the_network_is_read_as(tmp_path: Path) -> None:
    folder = _old("bert", tmp_path / "m", "bert.")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s"]))
    encoding = td.load(folder).encode("The cats")
    assert encoding.ids.tolist() == [[2, 5, 6, 7, 3]]
    assert encoding.tokens == ["[CLS]", "the", "cat", "##s", "[SEP]"]


def _folder(path: Path, family: str, files: Mapping[str, bytes]) -> Path:
    """Write the configuration of a model type, and files of a tokenizer beside it."""
    from transformers import AutoConfig

    with silenced():
        AutoConfig.for_model(family).save_pretrained(path)
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path


_MARIAN = {"source.spm": b"\n\x0e", "target.spm": b"\n\x0e", "vocab.json": b"{}"}


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize(
    "name", ["spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "spm.model", "source.spm"]
)
def test_without_sentencepiece_texts_are_refused_with_what_to_install_and_token_ids_are_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, _ = network_of("llama")
    with silenced():
        network.save_pretrained(tmp_path / "m")
    for file, content in (_MARIAN if name in _MARIAN else {name: b"\n\x0e"}).items():
        (tmp_path / "m" / file).write_bytes(content)
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    ckpt = td.load(tmp_path / "m")
    came = (
        rf'the packages for the tokenizer in {name}, got no sentencepiece; pip install "tokendynamics\[sentencepiece\]"'
    )
    for use in (ckpt.encode, lambda text: td.trace(ckpt, [text]), untrained_twin(ckpt).encode):
        with pytest.raises(
            CheckpointError, match=came + r", or pass tokenizer= to td.load, or token ids as the prompt$"
        ):
            use("the cat")
    with pytest.raises(CheckpointError, match=came):  # no bytes in the place of tokens
        td.load(f"random:{tmp_path / 'm'}").encode("the cat")
    with pytest.raises(CheckpointError, match=came):
        td.trace(ckpt, td.Texts([[{"role": "user", "content": "the cat"}]], chat=True))
    with pytest.raises(CheckpointError, match=came):  # a copy without its tokenizer would be another checkpoint
        ckpt.save(tmp_path / "copy")
    prompts = [IDS[0].tolist(), IDS[0].tolist()[::-1]]
    trace, live = td.trace(ckpt, prompts), td.trace(td.load(network), prompts)
    assert trace.consensus_relative.notnull().any()
    assert trace.consensus_relative.equals(live.consensus_relative)


@pytest.mark.parametrize(
    ("files", "came"),
    [
        ({name: _MARIAN[name] for name in ("source.spm", "vocab.json")}, "got no target.spm; pass tokenizer="),
        ({"source.spm": b"\n\x0e"}, "got no target.spm and no vocab.json; pass tokenizer="),
        (
            {"spiece.model": b"version https://git-lfs"},
            "spiece.model: expected a file of sentencepiece, got another one",
        ),
        ({"tokenizer.model": b""}, "tokenizer.model: expected a file of sentencepiece, got another one; copy it again"),
        ({"tokenizer.model": b"dGhl 0\n"}, "expected a tokenizer, got one that transformers does not read .*tiktoken"),
    ],
)
def test_a_tokenizer_that_no_library_would_help_is_refused_with_what_is_wrong(
    files: dict[str, bytes], came: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=came):
        load_tokenizer(_folder(tmp_path, "llama", files))


def test_files_that_are_enough_ask_for_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    vocabulary = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the"]).encode()
    tokenizer = load_tokenizer(_folder(tmp_path, "bert", {"vocab.txt": vocabulary, "spiece.model": b"\n\x0e"}))
    assert tokenizer is not None
    assert tokenizer("the")["input_ids"] == [2, 5, 3]


def _trained(algorithm: str, **options: Any) -> bytes:
    """Return a file of sentencepiece whose vocabulary is that of one sentence."""
    sentencepiece = pytest.importorskip("sentencepiece")
    out = io.BytesIO()
    sentences = ["the cat sat on the mat", "the dog ate the old bone", "near a red house it rained"] * 20
    options |= {"vocab_size": 50, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=out, model_type=algorithm, **options
    )
    return out.getvalue()


_T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
_CLASS_OF_LLAMA = {"tokenizer_config.json": b'{"tokenizer_class": "LlamaTokenizer", "add_bos_token": true}'}


@pytest.mark.parametrize(
    ("family", "name", "algorithm", "options", "further", "around"),
    [
        ("t5", "spiece.model", "unigram", _T5, {}, ([], ["</s>"])),
        ("llama", "tokenizer.model", "bpe", {}, _CLASS_OF_LLAMA, (["<s>"], [])),
        ("xlm-roberta", "sentencepiece.bpe.model", "unigram", {}, {}, (["<s>"], ["</s>"])),
        ("marian", "source.spm", "unigram", {}, {}, ([], ["</s>"])),
    ],
)
def test_files_of_sentencepiece_are_read_as_sentencepiece_reads_them(
    family: str, name: str, algorithm: str, options: dict, further: dict, around: tuple[list, list], tmp_path: Path
) -> None:
    file = _trained(algorithm, **options)
    processor = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_proto=file)
    if family == "marian":
        ids = {processor.id_to_piece(number): 7 + number for number in range(len(processor))} | {"<pad>": 0}
        further = {"target.spm": file, "vocab.json": json.dumps(ids).encode()}
    tokenizer = load_tokenizer(_folder(tmp_path, family, {name: file, **further}))
    assert tokenizer is not None
    text = "the dog sat near a red mat"
    encoded = tokenizer(text)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(encoded) == [*around[0], *processor.encode(text, out_type=str), *around[1]]
    offset = {"xlm-roberta": 1, "marian": 7}.get(family, 0)
    inner = encoded[len(around[0]) : len(encoded) - len(around[1])]
    assert inner == [offset + number for number in processor.encode(text, out_type=int)]


@pytest.mark.parametrize(("family", "name"), [("llama", "tokenizer.model"), ("gpt2", "tokenizer.model")])
def test_a_file_of_sentencepiece_that_transformers_reads_otherwise_is_refused(
    family: str, name: str, tmp_path: Path
) -> None:
    folder = _folder(tmp_path, family, {name: _trained("bpe")})  # no file says of which class it is
    with pytest.raises(
        CheckpointError, match=rf"cuts words as {name} does, got \w+ of transformers, with \d+ of \d+ words"
    ):
        load_tokenizer(folder)
    (folder / "tokenizer_config.json").write_bytes(_CLASS_OF_LLAMA["tokenizer_config.json"])
    assert load_tokenizer(folder) is not None


def test_a_damaged_file_of_sentencepiece_is_named(tmp_path: Path) -> None:
    folder = _folder(tmp_path, "t5", {"spiece.model": _trained("unigram", **_T5)[:-40]})
    with pytest.raises(
        CheckpointError, match=r"spiece\.model: expected a file of sentencepiece, got an unreadable one"
    ):
        load_tokenizer(folder)
