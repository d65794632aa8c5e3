"""The command line as a user meets it: exit codes, one-line errors, files whole or absent."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import xarray as xr

import tokendynamics as td
from command_line import call
from tokendynamics.cli import main
from tokendynamics.diagnosis.texts import default_texts
from tokendynamics.numerics import ArgumentValueError

TINY = {
    "model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 256, "vocab_size": 300,
}  # fmt: skip

FEW = ("--no-levers", "--no-heads", "--no-directions", "--no-baseline")
"""Options of a diagnosis that measures what it traces, and no more."""


def run(*arguments: str, cwd: Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tokendynamics", *arguments],
        capture_output=True, text=True, cwd=cwd, input=stdin, check=False,
    )  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    return f"random:{folder}"


@pytest.mark.long
def test_a_diagnosis_leaves_report_data_and_summary(model: str, tmp_path: Path) -> None:
    done = run("diagnose", model, "--prompt", "a cat sat", "--out", "out", "--threads", "1", *FEW, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "mean pair cosine" in done.stdout
    assert str(Path("out") / "report.html") in done.stdout
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        "audit.zarr", "diagnosis.json", "manifest.json", "paths.zarr", "report.html", "trace.zarr",
    ]  # fmt: skip
    summary = json.loads((out / "diagnosis.json").read_text())
    assert summary["manifest"]["command"].startswith("tokendynamics diagnose random:")
    assert summary["prompts"] == {"prompt 1": "a cat sat"}
    assert xr.open_zarr(out / "trace.zarr").sizes["layer"] == 3


@pytest.mark.long
def test_the_table_of_layers_has_the_numbers_of_the_trace(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [argument for text in ("a cat sat", "two red birds fly", "it rains") for argument in ("--prompt", text)]
    assert call(["diagnose", model, *texts, "--out", "out", *FEW]) == 0
    shown = capsys.readouterr().out
    trace = td.Diagnosis.open("out").trace.sel(site="feed_forward")
    rows = re.findall(r"^ +(\d) +(\S+) +(\S+) +(\S+) +(\S+) +(\S+) +(\S+)", shown, re.MULTILINE)
    assert [int(row[0]) for row in rows] == trace.layer.values.tolist()
    kept, left_out = (trace.sel(sinks=sinks).mean("prompt") for sinks in ("kept", "removed"))
    columns = (
        (trace.consensus_relative, 5e-4),
        (left_out.mean_pair_cosine, 5e-4),
        (kept.consensus_first, 5e-4),
        (left_out.effective_rank_unit_rows, 5e-3),
    )
    for place, (values, digits) in enumerate(columns, start=1):
        numbers = [float(row[place].replace("−", "-")) for row in rows]
        assert numbers == pytest.approx(values.values.tolist(), abs=digits * 1.001)
    assert "E is 1 − mean |cosine|" in " ".join(shown.split())


@pytest.mark.long
def test_json_goes_to_standard_output_alone(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["--json", "--out", "out", "--format", "netcdf", "--layers", "2", *FEW]
    assert call(["diagnose", model, *arguments]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert list(summary["prompts"]) == list(default_texts())
    assert len(summary["audit"]["regime"]) == 1
    assert xr.open_dataset(tmp_path / "out" / "audit.nc", engine="h5netcdf").layer.values.tolist() == [2]


@pytest.mark.long
def test_markdown_goes_to_standard_output_alone(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(["diagnose", model, "--markdown", "--out", "out", *FEW]) == 0
    assert capsys.readouterr().out == td.Diagnosis.open("out").markdown() + "\n"
    assert call(["diagnose", model, "--markdown", "--json", "--out", "other"]) == 2
    assert "either --json or --markdown" in capsys.readouterr().err


@pytest.mark.long
def test_prompts_come_from_files_and_standard_input(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("from a file")
    Path("stdin").write_text("from a pipe")
    with Path("stdin").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert (
            call(["diagnose", model, "--text-file", "text.txt", "--text-file", "-", "--json", "--out", "out", *FEW])
            == 0
        )
    prompts = json.loads(capsys.readouterr().out)["prompts"]
    assert prompts == {"text.txt": "from a file", "standard input": "from a pipe"}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["diagnose"], 2, "Missing argument 'MODEL'"),
        (["diagnose", "MODEL", "--value", "Q"], 2, "'Q' is not one of 'V', 'VO'"),
        (
            ["diagnose", "MODEL", "--layers", "5-x"],
            2,
            "expected numbers up to 10000 and ranges, the lower first, such as 1-10,30, got '5-x'",
        ),
        (["diagnose", "MODEL", "--layers", "1-1000000000000"], 2, "expected numbers up to 10000 and ranges"),
        (["diagnose", "MODEL", "--layers", "1-999999999"], 2, "expected layers up to 10000, got 999999999"),
        (["diagnose", "MODEL", "--layers", "3"], 2, "layers: expected a layer from 1 to 2, got 3"),
        (["diagnose", "MODEL", "--sinks", "first"], 2, "expected 'detect', 'none', or positions from 0 on such as 0,1"),
        (["diagnose", "MODEL", "--prompt", "abc", "--sinks", "7"], 2, "sinks: expected positions from 0 to 2, got [7]"),
        (["diagnose", "MODEL", "--sink-ratio", "1"], 2, "1 is not a number above 1"),
        (["diagnose", "MODEL", "--sink-ratio", "nan"], 2, "nan is not a number above 1"),
        (["diagnose", "MODEL", "--passes", "0"], 2, "0 is not in the range"),
        (["diagnose", "MODEL", "--passes", "-2"], 2, "-2 is not in the range"),
        (["diagnose", "MODEL", "--passes", "100000000000000"], 1, "passes: expected what fits into"),
        (
            ["diagnose", "MODEL", "--passes", "2", "--weights", "new"],
            2,
            "'new' is not one of 'fixed', 'resample', 'law'",
        ),
        (
            ["diagnose", "MODEL", "--passes", "2", "--variants", "full,no-attention"],
            2,
            "expected names among full, no-ffn, no-norm, attention-only, separated by commas, got 'no-attention'",
        ),
        (["diagnose", "MODEL", "--passes", "2", "--variants", ""], 2, "expected names among full"),
        (["diagnose", "MODEL", "--passes", "2", "--variants", "full,full"], 2, "expected each name once"),
        (["diagnose", "MODEL", "--weights", "law"], 2, "--weights needs repeated passes: add --passes N"),
        (
            ["diagnose", "MODEL", "--variants", "full"],
            2,
            "--variants needs repeated passes: add --passes N",
        ),
        (["diagnose", "MODEL", "--adapter", "nowhere"], 2, "nowhere"),
        (["diagnose", "MODEL", "--adapter", "empty-folder", "--device-map", "auto"], 2, "device_map"),
        (["diagnose", "MODEL", "--device-map", "wte"], 2, "expected 'auto', or modules and devices such as"),
        (["diagnose", "MODEL", "--prompts", "missing.txt"], 2, "missing.txt"),
        (["diagnose", "MODEL", "--threads", "0"], 2, "0 is not in the range"),
        (["diagnose", "MODEL", "--prompt", ""], 2, "prompt"),
        (["diagnose", "MODEL", "--prompt", "x" * 257], 2, "256"),
        (["diagnose", "MODEL", "--text-file", "missing.txt"], 2, "missing.txt"),
        (["diagnose", "MODEL", "--device", "nowhere"], 2, "device"),
        (["diagnose", "no/such/folder"], 2, "no/such/folder"),
        (["diagnose", "empty-folder"], 2, "config.json"),
        (["diagnose", "random:nothing"], 2, "nothing"),
        (["unknown"], 2, "No such command 'unknown'"),
    ],
)
def test_failures_are_one_line_with_their_code(
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty-folder").mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())
    assert call([model if word == "MODEL" else word for word in arguments]) == code
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    assert words in printed.err
    assert len([line for line in printed.err.splitlines() if line.lower().startswith("error")]) == 1
    assert printed.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.slow
def test_passes_are_told_written_and_on_the_page(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["diagnose", model, "--prompt", "a cat sat", "--prompt", "it rains", "--out", "out", "--no-levers"]
    assert call(arguments) == 0
    assert "Deeper:" not in capsys.readouterr().out
    assert "made deeper" not in (tmp_path / "out" / "report.html").read_text()
    asked = ["--passes", "4", "--weights", "law", "--variants", "full, attention-only"]
    assert call([*arguments, *asked]) == 0
    printed = capsys.readouterr()
    message = " ".join(printed.out.split())
    assert (
        "Deeper: The blocks ran 4 times on their own output, with weights drawn anew for each pass, from their"
        in message
    )
    assert "• full: E " in message
    assert "• attention-only: E " in message
    assert "no-ffn" not in message
    assert "passing: full (4)" in printed.err
    table = xr.open_zarr(tmp_path / "out" / "deeper.zarr")
    assert table.variant.values.tolist() == ["full", "attention-only"]
    assert (table.attrs["weights"], table.sizes["pass"]) == ("law", 5)
    assert '<section id="deeper"' in (tmp_path / "out" / "report.html").read_text()
    summary = json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    assert summary["deeper"]["sentences"][0].startswith("The blocks ran 4 times")
    assert summary["manifest"]["parameters"]["variants"] == ["full", "attention-only"]


@pytest.mark.long
def test_passes_that_are_interrupted_leave_nothing(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tokendynamics.diagnosis.deepening._deeper.passes", stopped)
    assert call(["diagnose", model, "--prompt", "a cat sat", *FEW, "--passes", "4"]) == 130
    assert "interrupted: nothing was written" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.long
def test_a_failed_run_leaves_an_earlier_report_as_it_was(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(["diagnose", model, "--prompt", "a cat", "--out", "out", *FEW]) == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert call(["diagnose", model, "--prompt", "", "--out", "out"]) == 2
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


@pytest.mark.parametrize("arguments", [["--help"], ["diagnose", "--help"]])
def test_help_shows_examples_one_to_a_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index("  Examples:") + 1].startswith("    tokendynamics diagnose smollm2")


@pytest.mark.long
def test_a_defect_is_one_line_and_shows_its_traceback_on_request(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tokendynamics.report.write", lambda result, path, max_bytes=None: 1 / 0)
    assert call(["diagnose", model, "--prompt", "a cat"]) == 1
    assert "error: unexpected ZeroDivisionError" in capsys.readouterr().err
    assert not (tmp_path / "diagnosis-random-tiny").exists()
    with pytest.raises(ZeroDivisionError):
        main(["--traceback", "diagnose", model, "--prompt", "a cat"])


def test_the_target_must_be_a_folder(model: str, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    assert call(["diagnose", model, "--out", ""]) == 2
    assert call(["diagnose", model, "--out", str(tmp_path / "taken")]) == 2
    assert call(["diagnose", model, "--out", str(tmp_path / "taken" / "inside")]) == 2
    assert (tmp_path / "taken").read_text() == "a file"


@pytest.mark.long
def test_a_vision_network_reads_a_folder_of_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import numpy as np
    from PIL import Image

    from tokendynamics.modules.vision import VisionConfig, VisionModel
    from tokendynamics.training.tasks._images import Digits

    monkeypatch.chdir(tmp_path)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    VisionModel(VisionConfig(image_size=8, patch_size=2, num_labels=10, **sizes)).save_pretrained("model")
    Digits.of("digits", {}, 0, 1).save_inputs(Path("model"))
    Path("pictures").mkdir()
    for number, pixels in enumerate(np.random.default_rng(0).integers(0, 255, (3, 8, 8, 3), dtype=np.uint8)):
        Image.fromarray(pixels).save(f"pictures/{number}.png")
    arguments = ["diagnose", "model", "--images", "pictures"]
    assert call([*arguments, "--no-levers", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompts"]
    assert call([*arguments, "--prompt", "The sky is"]) == 2
    assert "expected either texts or --images, got both" in capsys.readouterr().err


@pytest.mark.long
def test_a_text_that_netcdf_cannot_hold_is_refused_before_it_is_read(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts.jsonl").write_text('{"text": "a \\u0000 cat"}\n{"text": "two birds"}\n{"text": "it rains"}\n')
    refused = "format: expected 'zarr' for texts with the character NUL, which NetCDF cannot hold, got 'netcdf'"
    for command in (("diagnose", model), ("compare", model, model)):
        assert call([*command, "--prompts", "texts.jsonl", "--format", "netcdf", "--out", "out"]) == 2
        assert capsys.readouterr().err == f"error: {refused}\n"
        assert not Path("out").exists()
    diagnosis = td.diagnose(model, {"a\0b": "one \0 two"}, heads=False, directions=False, levers=False, baseline=None)
    with pytest.raises(ArgumentValueError, match="character NUL"):
        diagnosis.save("out", format="netcdf")
    assert not Path("out").exists()
    diagnosis.save("out")
    assert td.Diagnosis.open("out").trace.prompt.values.tolist() == ["a\0b"]


@pytest.mark.long
def test_names_of_files_that_are_no_utf8_are_written_with_escapes(tmp_path: Path) -> None:
    model, text, out = (tmp_path / os.fsdecode(name) for name in (b"m\xff", b"p\xff.txt", b"o\xff"))
    try:
        model.mkdir()
    except OSError:
        pytest.skip("this file system holds names in UTF-8 alone")
    (model / "config.json").write_text(json.dumps(TINY))
    text.write_text("a cat sat")
    assert call(["diagnose", f"random:{model}", "--text-file", str(text), "--out", str(out), *FEW]) == 0
    summary = json.loads((out / "diagnosis.json").read_text(encoding="utf-8"))
    assert summary["prompts"] == {r"p\udcff.txt": "a cat sat"}
    assert str(model) in json.dumps(summary, ensure_ascii=False)  # the stored escapes are the name itself
    assert td.Diagnosis.open(out).summary()
    assert "m‹U+DCFF›" in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.long
def test_prompts_whose_names_are_no_utf8_are_stored_with_escapes(tmp_path: Path) -> None:
    names = (r"a\udcff", "b", "c")
    texts = dict(zip(("a\udcff", *names[1:]), ("a cat sat", "one dog", "it rains"), strict=True))
    diagnosis = td.diagnose("random:gpt2-tiny", texts, levers=False, heads=False, directions=False, baseline=None)
    diagnosis.save(tmp_path / "stored")
    assert td.Diagnosis.open(tmp_path / "stored").trace.prompt.values.tolist() == list(names)


def test_the_command_line_runs_without_docstrings(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-OO", "-c", "from tokendynamics.cli import main; main(['diagnose', '--help'])"],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
