"""``tokendynamics compare`` as a user meets it: report, data, JSON, one-line errors."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

import tokendynamics as td
from command_line import call
from report.reading import plain_spaces
from tokendynamics.cli._compare import _to_load

TINY = {
    "model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 64, "vocab_size": 300,
}  # fmt: skip
TEXTS = ["--prompt", "a cat sat on a mat", "--prompt", "0123456789", "--prompt", "dogs <run> over hills"]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    monkeypatch.chdir(tmp_path)
    return f"random:{folder}"


@pytest.mark.long
def test_a_comparison_leaves_report_data_and_summary(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [f"{model}:0", f"{model}:1", f"{model}:2"]
    assert (
        call(
            ["compare", *models, *TEXTS, "--out", "out", "--threads", "1", "--name", "a", "--name", "b<", "--name", "c"]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "b< vs a: " in printed
    assert "embedding" in printed
    out = tmp_path / "out"
    summary = json.loads((out / "comparison.json").read_text())
    assert summary["models"] == ["a", "b<", "c"]
    assert summary["manifest"]["parameters"]["models"] == [f"{model}:{seed}" for seed in range(3)]
    page = plain_spaces((out / "report.html").read_text())
    assert {"comparison.json", "report.html", "table.zarr", "difference.zarr", "weights.zarr"} <= {
        path.name for path in out.iterdir()
    }
    listed = [html.unescape(entry) for entry in re.findall(r"<li>([^<]*)</li>", page)]
    assert listed == [sentence["text"] for sentence in summary["sentences"]]
    assert "b&lt;" in page
    assert "<run>" not in page
    text = re.sub(r"(?s)<script.*?</script>|<style.*?</style>|<[^>]*>", " ", page)
    assert not re.search(r"\b(nan|inf|null|None)\b", text)
    idents = re.findall(r'\bid="([^"]+)"', page)
    assert len(idents) == len(set(idents))


@pytest.mark.slow
def test_json_goes_to_standard_output_alone(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["compare", model, "--baseline", "untrained", "--seed", "4", *TEXTS, "--json", "--out", "out"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["models"][1].endswith("untrained")
    assert summary["manifest"]["seed"] == 4


@pytest.mark.long
def test_one_model_in_two_formats(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", model, "--dtypes", "float32,bfloat16", *TEXTS, "--no-weights", "--no-heads", "--json"]
    assert call([*arguments, "--out", "out"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [name.rpartition(" ")[2] for name in summary["models"]] == ["(float32)", "(bfloat16)"]
    assert summary["weights"] is summary["tensors"] is summary["heads"] is None


@pytest.mark.slow
def test_prompts_of_a_file_sinks_and_parts_at_a_half(model: str, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a cat sat on a mat\n\n0123456789\n  \nA cat sat on\ta mat\n")
    arguments = ["--prompts", "texts.txt", "--sinks", "0", "--sink-ratio", "8", "--halved", "--out", "out"]
    assert call(["compare", f"{model}:0", f"{model}:1", *arguments]) == 0
    opened = td.Comparison.open(tmp_path / "out")
    assert opened.traces[0].prompt.values.tolist() == ["texts.txt:1", "texts.txt:3", "texts.txt:5"]
    assert opened.traces[0].attrs["sinks"] == "positions [0] left out at every layer"
    assert (opened.traces[0].token_count.diff("sinks") == -1).all()
    assert opened.halved is not None
    assert any("halving" in sentence.text.lower() for sentence in opened.sentences)


def test_texts_that_repeat_each_other_are_noted(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    twice = ["--prompt", "a cat sat on a mat", "--prompt", "A cat sat on a mat", "--no-weights", "--out", "out"]
    assert call(["compare", f"{model}:0", f"{model}:1", *twice]) == 0
    assert "note: texts “prompt 1” and “prompt 2” are the same" in capsys.readouterr().err


def test_an_adapter_goes_on_all_models_but_the_first() -> None:
    lora = Path("lora")
    alone = _to_load(("a",), ["float64"], lora, None)
    assert [(entry.name, entry.dtype, entry.adapter) for entry in alone] == [
        ("a", "float64", None),
        ("a", "float64", lora),
    ]
    three = _to_load(("a", "b", "c"), ["float32"], lora, None)
    assert [entry.adapter for entry in three] == [None, lora, lora]
    formats = _to_load(("a",), ["float32", "bfloat16"], None, "untrained")
    assert [(entry.dtype, entry.adapter) for entry in formats] == [("float32", None), ("bfloat16", None)]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["compare"], 2, "Missing argument 'MODELS...'"),
        (["compare", "MODEL"], 2, "expected a second model, --baseline untrained, --adapter FOLDER"),
        (["compare", "MODEL", "MODEL", "--dtypes", "int4"], 2, "expected formats among float32"),
        (["compare", "MODEL", "MODEL", "--dtypes", "float32,float32,float32"], 2, "one for each of 2 models"),
        (["compare", "MODEL", "MODEL", "--baseline", "trained"], 2, "'trained' is not"),
        (["compare", "MODEL", "MODEL", "--name", "a"], 2, "names: expected 2 different names"),
        (["compare", "MODEL", "MODEL", "--prompt", ""], 2, "prompt"),
        (["compare", "MODEL", "MODEL", "--prompts", "no.txt"], 2, "'no.txt' does not exist"),
        (["compare", "MODEL", "MODEL", "--prompts", "blank.txt"], 2, "blank.txt has no line with a prompt"),
        (["compare", "MODEL", "MODEL", "--prompts", "half.jsonl"], 2, "line 2 of half.jsonl"),
        (["compare", "MODEL", "MODEL", "--prompts", "blank.txt", "--prompts", "blank.txt"], 2, "is given twice"),
        (["compare", "MODEL", "MODEL", "--sinks", "first"], 2, "expected 'detect', 'none', or positions"),
        (["compare", "MODEL", "MODEL", "--sinks", "99", "--prompt", "a cat"], 2, "sinks: expected positions"),
        (["compare", "MODEL", "MODEL", "--sink-ratio", "1"], 2, "not a number above 1"),
        (["compare", "MODEL", "--adapter", "no/lora"], 2, "no/lora"),
        (["compare", "MODEL", "--adapter", "tiny", "--dtypes", "float32,float64"], 2, "one format with --adapter"),
        (["compare", "MODEL", "MODEL", "--half", "encoder"], 2, "half: expected None"),
        (["compare", "MODEL", "MODEL", "--device-map", "a="], 2, "expected 'auto', or modules and devices"),
        (["compare", "MODEL", "no/such/folder"], 2, "no/such/folder"),
        (["compare", "MODEL", "MODEL", "--out", "tiny"], 2, ""),
    ],
)  # fmt: skip
def test_failures_are_one_line_with_their_code(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    (tmp_path / "tiny" / "report.html").write_text("mine")
    (tmp_path / "blank.txt").write_text("\n  \n\n")
    (tmp_path / "half.jsonl").write_text('"a cat"\na dog\n')
    before = sorted(path.name for path in tmp_path.iterdir())
    assert call([model if word == "MODEL" else word for word in arguments]) == code
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    assert words in printed.err
    assert len([line for line in printed.err.splitlines() if line.lower().startswith("error")]) == 1
    assert printed.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == before
