"""``tokendynamics compare`` as a user meets it: report, data, JSON, one-line errors."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from command_line import call

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
    assert "b< against a: the end state" in printed
    assert "embedding" in printed
    out = tmp_path / "out"
    summary = json.loads((out / "comparison.json").read_text())
    assert summary["models"] == ["a", "b<", "c"]
    assert summary["manifest"]["parameters"]["models"] == [f"{model}:{seed}" for seed in range(3)]
    page = (out / "report.html").read_text()
    assert {"comparison.json", "report.html", "table.zarr", "differences.zarr", "weights.zarr"} <= {
        path.name for path in out.iterdir()
    }
    listed = [html.unescape(each) for each in re.findall(r"<li>([^<]*)</li>", page)]
    assert listed == [sentence["text"] for sentence in summary["sentences"]]
    assert "b&lt;" in page
    assert "<run>" not in page
    text = re.sub(r"(?s)<script.*?</script>|<style.*?</style>|<[^>]*>", " ", page)
    assert not re.search(r"\b(nan|inf|null|None)\b", text)
    idents = re.findall(r'\bid="([^"]+)"', page)
    assert len(idents) == len(set(idents))


def test_json_goes_to_standard_output_alone(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["compare", model, "--baseline", "untrained", "--seed", "4", *TEXTS, "--json", "--out", "out"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["models"][1].endswith("untrained")
    assert summary["manifest"]["seed"] == 4


def test_one_model_in_two_formats(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", model, "--dtypes", "float32,bfloat16", *TEXTS, "--no-weights", "--json", "--out", "out"]
    assert call(arguments) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [name.rpartition(" ")[2] for name in summary["models"]] == ["(float32)", "(bfloat16)"]
    assert summary["weights"] is None


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["compare"], 2, "Missing argument 'MODELS...'"),
        (["compare", "MODEL"], 2, "expected a second model, --baseline untrained, or several --dtypes"),
        (["compare", "MODEL", "MODEL", "--dtypes", "int4"], 2, "expected formats among float32"),
        (["compare", "MODEL", "MODEL", "--dtypes", "float32,float32,float32"], 2, "one for each of 2 models"),
        (["compare", "MODEL", "MODEL", "--baseline", "trained"], 2, "'trained' is not"),
        (["compare", "MODEL", "MODEL", "--name", "a"], 2, "names: expected 2 different names"),
        (["compare", "MODEL", "MODEL", "--prompt", ""], 2, "prompt"),
        (["compare", "MODEL", "no/such/folder"], 1, "no/such/folder"),
        (["compare", "MODEL", "MODEL", "--out", "tiny"], 2, ""),
    ],
)  # fmt: skip
def test_failures_are_one_line_with_their_code(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    (tmp_path / "tiny" / "report.html").write_text("mine")
    before = sorted(path.name for path in tmp_path.iterdir())
    assert call([model if word == "MODEL" else word for word in arguments]) == code
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    assert words in printed.err
    assert len([line for line in printed.err.splitlines() if line.lower().startswith("error")]) == 1
    assert printed.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == before
