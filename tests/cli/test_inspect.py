"""`tokendynamics inspect`: each sentence about a layout has a network for which it says the opposite."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from transformers import AutoConfig, AutoModelForCausalLM

import tokendynamics as td
from pretrained.families import network_of
from pretrained.test_texts_with_options import tokenizer_of
from tokendynamics.cli import commands
from tokendynamics.pretrained.other_libraries import silenced


def _said(family: str, folder: Path, *options: str) -> str:
    network, half = network_of(family)
    with silenced():
        network.save_pretrained(folder)
    halves = () if half is None else ("--half", half)
    result = CliRunner().invoke(commands, ["inspect", str(folder), *halves, *options], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("family", "message"),
    [
        (
            "llama",
            [
                "layers 1–3",
                "logits are a bilinear form",
                "12 of 12 features, pairs of features 6 apart",
                "one after the other",
                "final norm   norm, RMS norm with the gain weight, epsilon 1e-06",
            ],
        ),
        ("qwen3", ["query and key are normalized after their projection"]),
        ("deepseek_v3", ["query, key and value are normalized", "pairs of features 4 apart"]),
        ("gpt_neox", ["both read the same state", "0:12,36:48,72:84,108:120"]),
        ("gpt2", ["self and earlier", "attn.c_attn [0:48]", "attn.c_attn [48:96]", "a table added to the embeddings"]),
        (
            "bert",
            [
                "every token sees every token",
                "attention.output.LayerNorm(state + attention.output.dense)",
                "final norm   none",
            ],
        ),
        (
            "gemma2",
            [
                "soft cap",
                "50.0",
                "layers 1, 3",
                "layer 2",
                "the gain 1 + weight",
                "in a window of 4096",
                "reads, softly capped",
            ],
        ),
        ("gpt_oss", ["sinks", "self_attn.sinks"]),
        ("t5", ["a bias of the logits by position", "reads, plus a bias by position"]),
        ("albert", ["1 of them different"]),
        ("granite", ["0.22 · self_attn"]),
        ("whisper", ["× 0.288675"]),
        ("dinov3", ["by place in the image"]),
        ("cohere", ["pairs of neighbours"]),
        ("bloom", ["a bias of the logits by position"]),
        ("deberta-v2", ["terms of tokens and positions", "further terms"]),
        ("fnet", ["not found", "no softmax of products of queries and keys was seen in it"]),
    ],
)
def test_what_was_found_is_said(family: str, message: list[str], tmp_path: Path) -> None:
    output = " ".join(_said(family, tmp_path).split())
    for words in message:
        assert " ".join(words.split()) in output.replace("itself and earlier", "self and earlier"), words


def test_the_record_is_printed_as_json_and_weights_are_verified_on_request(tmp_path: Path) -> None:
    record = json.loads(_said("phi3", tmp_path, "--verify", "--json"))
    assert record["verified"] is True
    assert record["notes"] == []
    (kind,) = record["layout"]["kinds"]
    assert kind["attention"]["query"][0]["rows"] == "0:48"
    assert kind["attention"]["value"][0]["rows"] == "72:96"
    assert record["layout"]["layers"] == [0, 0, 0]


def test_how_a_folder_was_read_is_printed_where_it_does_not_say_so_itself(tmp_path: Path) -> None:
    words = "it is read as phi, the type of PhiModel in architectures"
    assert words not in _said("phi", tmp_path)
    facts = json.loads((tmp_path / "config.json").read_text())
    del facts["model_type"]
    (tmp_path / "config.json").write_text(json.dumps(facts))
    result = CliRunner().invoke(commands, ["inspect", str(tmp_path)], env={"COLUMNS": "200"})
    assert words in result.output


@pytest.mark.long
def test_few_parameters_are_counted_and_many_are_given_in_millions(tmp_path: Path) -> None:
    parameters = sum(parameter.numel() for parameter in network_of("phi")[0].parameters())
    assert f": phi, {parameters:,} parameters, width" in _said("phi", tmp_path)
    result = CliRunner().invoke(commands, ["inspect", "random:distilgpt2"], env={"COLUMNS": "200"})
    assert ": gpt2, 81.9 million parameters, width 768" in result.output


@pytest.mark.long
def test_verification_says_so_only_when_it_was_done(tmp_path: Path) -> None:
    assert "The factors of every layer reproduce its attention" in _said("phi", tmp_path, "--verify")
    assert "The factors of every layer reproduce its attention" not in _said("phi", tmp_path / "b")


def test_a_layer_is_held_against_the_statements_of_the_theory_where_a_prompt_is_given(tmp_path: Path) -> None:
    network = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("gpt2", vocab_size=96, n_embd=8, n_head=2, n_layer=3, n_positions=32)
    )
    with silenced():
        network.save_pretrained(tmp_path)
        tokenizer_of().save_pretrained(tmp_path)
    options = ["inspect", str(tmp_path), "--prompt", "w1 w2 w3 w4", "--layer", "3"]
    printed = CliRunner().invoke(commands, options, env={"COLUMNS": "200"})
    assert printed.exit_code == 0, printed.output
    output = " ".join(printed.output.split())
    assert "The theory and layer 3, the nearest statement first" in output
    assert (
        "Left out of the network in every row: all layers but this one, which is repeated, feed-forward parts" in output
    )
    near = json.loads(CliRunner().invoke(commands, [*options, "--json"]).output)["nearest_statements"]
    wanted = td.nearest_statements(td.load(tmp_path), "w1 w2 w3 w4", 3)
    assert [(one["statement"], one["head"], len(one["violated"])) for one in near] == [
        (one.statement, one.head, len(one.violated)) for one in wanted
    ]
    for one in wanted:
        assert one.statement in output
        assert all(missed.name in output for missed in one.violated)


def test_a_layer_without_a_prompt_is_refused_and_without_both_nothing_is_said_of_the_theory(tmp_path: Path) -> None:
    refused = CliRunner().invoke(commands, ["inspect", "random:distilgpt2", "--layer", "2"])
    assert refused.exit_code != 0
    assert "layer: expected --layer together with --prompt, got --layer 2 alone" in str(refused.exception)
    assert "The theory" not in _said("phi", tmp_path)
