"""``tokendynamics circuits`` as a user meets it: answers, exit codes, one-line errors, files whole or absent."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from report.reading import plain_spaces
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits.constructions import solution_2
from tokendynamics.circuits.constructions.solutions import HAND_BUILT
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.circuits.learning import LearningRecord
from tokendynamics.cli import main
from tokendynamics.cli.circuits._options import SOLUTIONS

Q = [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
TINY = ("-N", "2", "-M", "3", "--batch", "20", "--steps", "4", "--inner", "5", "--seeds", "2", "--samples", "60")


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str) -> int:
    """Exit code of the command line, run in this process."""
    words = ["circuits", *arguments]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["tokendynamics", *words])
        with pytest.raises(SystemExit) as done:
            main(words)
    return int(done.value.code or 0)


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """The JSON that a command prints."""

    def run(*arguments: str) -> Any:
        assert call(*arguments, "--json") == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_every_name_of_the_catalogue_is_offered() -> None:
    assert set(SOLUTIONS) == set(HAND_BUILT)


@pytest.mark.parametrize("name", [name for name in SOLUTIONS if "printed" not in name and name != "softmax-2"])
def test_every_solution_is_exact_on_every_pair(name: str, run_command: Callable[..., Any]) -> None:
    result = run_command("build", name)
    assert result["exact"] is True
    assert result["largest_error"] < 1e-12 * max(1.0, np.abs(result["q_true"]).max())
    assert result["wrong_pairs"] == []


@pytest.mark.long
def test_softmax_solution_2_says_how_far_off_it_is(inside: Path, run_command: Callable[..., Any]) -> None:
    result = run_command("build", "softmax-2", "-M", "50", "--q-true", "positive:3", "--law", "zipf", "--out", "out")
    assert result["exact"] is False
    assert 0.08 < result["relative_error"] < 0.25
    page = plain_spaces((inside / "out" / "report.html").read_text(encoding="utf-8"))
    assert "Correct up to 0.1" in page
    assert "This construction is never exact" in page
    assert (np.array(result["law"]) @ np.array(result["q_true"])).tolist() == pytest.approx([1.0] * 4)


def test_a_functional_that_softmax_cannot_weigh_by_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("build", "softmax-2", "--q-true", "random:0") == 2
    assert "--q-true: expected positive numbers, whose logarithm is the logit, got -" in capsys.readouterr().err
    assert call("build", "softmax-2", "--q-true", "digits") == 2
    assert "--q-true: expected columns of one mean under the law, got means from" in capsys.readouterr().err
    # Of another law than the columns were scaled for.
    assert call("build", "solution-2", "--q-true", "positive:one") == 2
    assert "--q-true: expected random:SEED, positive:SEED" in capsys.readouterr().err


def test_the_printed_solution_1_gives_the_known_wrong_numbers(inside: Path, run_command: Callable[..., Any]) -> None:
    (inside / "q.json").write_text(json.dumps(Q))
    result = run_command("build", "solution-1-printed", "--q-true", "q.json", "--x", "1,2,3,3")
    targets, outputs = (result["sequences"][0][name] for name in ("targets", "outputs"))
    # After 2e_p + e_c unit (p, c) says 1 and unit (p, p) says 2; after 3e_p unit (p, b) says 2 and unit (p, p) says 5.
    assert targets == [0.0, 1.0, 5.0, 8.0]
    assert outputs == [0.0, 1 + 2 * 0, 5 + 2 * 4, 2 * (6 + 7) + 5 * 8]
    wrong = {(pair["previous"], pair["current"]) for pair in result["wrong_pairs"]}
    assert (3, 3) in wrong


def test_a_failure_is_told_and_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("build", "solution-2-printed", "--q-true", "random:3") == 0
    message = " ".join(capsys.readouterr().out.split())
    wrong = int((random_functional(4, 3) < 0).sum())
    assert f"It fails for {wrong} of 16 pairs of categories" in message


def test_matrices_and_page_are_written(inside: Path, run_command: Callable[..., Any]) -> None:
    result = run_command("build", "solution-2", "-N", "3", "-M", "5", "--out", "out", "--x", "1,3,2", "--x", "2")
    assert result["files"] == ["circuits.npz", "circuits.json", "manifest.json", "report.html"]
    assert sorted(path.name for path in (inside / "out").iterdir()) == sorted(result["files"])
    model = solution_2(PairTask(random_functional(3, 0), 5))
    with np.load(inside / "out" / "circuits.npz") as arrays:
        for name in ("qk", "ov", "B", "bias", "C"):
            assert np.array_equal(arrays[name], getattr(model, name).numpy())
        assert float(arrays["offset"]) == model.offset
    assert [one["x"] for one in result["sequences"]] == [[1, 3, 2], [2]]
    manifest = json.loads((inside / "out" / "manifest.json").read_text())
    assert manifest["parameters"]["solution"] == "solution-2"
    assert "solution 2" in (inside / "out" / "report.html").read_text()


def test_what_is_replaced_is_said(capsys: pytest.CaptureFixture[str], inside: Path) -> None:
    assert call("build", "linear", "--out", "out") == 0
    assert "replaced" not in capsys.readouterr().err
    (inside / "out" / "mine.txt").write_text("kept")
    assert call("build", "linear", "--out", "out") == 0
    printed = capsys.readouterr().err
    assert "replaced in out: circuits.npz, circuits.json, manifest.json, report.html" in printed
    assert (inside / "out" / "mine.txt").read_text() == "kept"


@pytest.mark.parametrize("kind", ["json", "csv", "npy"])
def test_q_true_is_read_from_files(kind: str, inside: Path, run_command: Callable[..., Any]) -> None:
    path = inside / f"q.{kind}"
    if kind == "npy":
        np.save(path, np.array(Q))
    else:
        path.write_text(json.dumps(Q) if kind == "json" else "\n".join(",".join(map(str, row)) for row in Q))
    assert run_command("build", "solution-3", "--q-true", str(path), "--x", "3,1")["sequences"][0]["outputs"][1] == 6.0


WRONG_BUILDS = {
    "a category beyond N": (["solution-2", "--x", "1,9"], "--x: expected categories from 1 to 4"),
    "a category of zero": (["solution-2", "--x", "0,1"], "numbered from 1"),
    "a sequence longer than M": (["solution-2", "-M", "3", "--x", "1,2,3,4"], "1 to 3 tokens"),
    "a sequence of letters": (["solution-2", "--x", "a,b"], "--x"),
    "no square": (["solution-2", "--q-true", "flat.csv"], "--q-true flat.csv: expected an N × N"),
    "another size": (["solution-2", "--q-true", "square.json", "-N", "3"], "3 × 3"),
    "not finite": (["solution-2", "--q-true", "nan.csv"], "--q-true nan.csv: expected finite numbers"),
    "words": (["solution-2", "--q-true", "words.csv"], "words.csv"),
    "a pickle": (["solution-2", "--q-true", "pickle.npy"], "pickle.npy"),
    "no such file": (["solution-2", "--q-true", "none.csv"], "exists"),
    "a table of 3 GB": (
        ["solution-2", "--q-true", "large.csv"],
        "a file of at most 67,108,864 bytes, got 3,221,225,472",
    ),
    "no such kind of file": (["solution-2", "--q-true", "q.xlsx"], ".json, .csv or .npy"),
    "K too small": (["solution-2", "--q-true", "square.json", "-K", "3"], "at least 4.0"),
    "a sharpness that overflows": (["softmax-1", "--sharpness", "800"], "709.78"),
    "an option of two other solutions": (
        ["solution-2", "--sharpness", "3"],
        "--sharpness: is an option of softmax-1 and",
    ),
    "an option of one other solution": (["solution-2", "--base", "3"], "an option of linear only, not of solution-2"),
    "an unknown form": (["solution-1", "--form", "odd"], "'uniform'"),
    "an unknown solution": (["solution-9"], "solution-1-uniform"),
    "a law of another size": (["solution-2", "--law", "0.5,0.5"], "--law: expected 4 probabilities"),
    "an unknown law": (["solution-2", "--law", "zip"], "--law: expected 'uniform'"),
    "a share above one": (["mixture", "--share", "2"], "--share: expected a number from 0 to 1"),
    "an empty name of a file": (["solution-2", "--q-true", ""], "--q-true: expected random:SEED"),
    "a base of letters": (["linear", "--q-true", "digits:ten"], "digits:BASE"),
    "a law of words": (["solution-2", "--law", "much,little"], "--law"),
    "no category": (["solution-2", "-N", "0"], "at least 1"),
    "another functional for the linear case": (["linear", "--q-true", "random:1"], "--q-true: expected pair_numbers(4"),
}


@pytest.mark.parametrize(("arguments", "wanted_words"), WRONG_BUILDS.values(), ids=WRONG_BUILDS.keys())
@pytest.mark.usefixtures("unchecked")
def test_wrong_input_is_one_line_and_writes_nothing(
    arguments: list[str], wanted_words: str, inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (inside / "flat.csv").write_text("1,2,3\n4,5,6\n")
    (inside / "nan.csv").write_text("1,nan\n2,3\n")
    (inside / "words.csv").write_text("a,b\nc,d\n")
    (inside / "square.json").write_text("[[1, 2], [3, 4]]")
    np.save(inside / "pickle.npy", np.array([{"a": 1}]), allow_pickle=True)
    if "large.csv" in arguments:
        (inside / "large.csv").touch()
        os.truncate(inside / "large.csv", 3 * 2**30)
    before = set(inside.iterdir())
    assert call("build", *arguments, "--out", "out") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.err.startswith("error: ")
    assert wanted_words in captured.err
    assert set(inside.iterdir()) == before


def test_a_base_is_that_of_the_numbers_asked_for(run_command: Callable[..., Any]) -> None:
    result = run_command("build", "linear", "--base", "2", "-N", "3", "--x", "3,2")
    assert result["exact"] is True
    assert result["q_true"] == [[3.0, 4.0, 5.0], [5.0, 6.0, 7.0], [7.0, 8.0, 9.0]]
    assert run_command("build", "linear", *result["manifest"]["command"].split()[4:8])["q_true"] == result["q_true"]


def test_what_is_no_number_is_not_exact(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (inside / "huge.json").write_text("[[1e308, -1e308], [1e308, 3]]")
    arguments = ("build", "solution-1-printed", "--q-true", "huge.json", "--x", "1,2", "--out", "out")
    assert call(*arguments) == 0
    message = " ".join(capsys.readouterr().out.split())
    assert "for 0 of" not in message
    assert "An error is not finite" in message
    summary = json.loads((inside / "out" / "circuits.json").read_text())
    assert summary["exact"] is False
    assert summary["largest_error"] is None
    assert [pair["target"] for pair in summary["wrong_pairs"]]


@pytest.mark.parametrize("name", ["solution-1", "solution-1-uniform", "softmax-1"])
def test_a_functional_whose_rows_overflow_is_refused(
    name: str, inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (inside / "huge.json").write_text("[[1e308, -1e308], [1e308, 3]]")
    assert call("build", name, "--q-true", "huge.json") == 2
    printed = capsys.readouterr().err
    assert "--q-true: expected values whose sums over a row are finite, got values up to 1e+308" in printed


def test_a_scale_beyond_rounding_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("build", "solution-2", "-K", "1e300") == 0
    message = " ".join(capsys.readouterr().out.split())
    assert "K in solutions 2 and 3) is 1 × 10³⁰⁰" in message
    assert "take a smaller K" in message
    assert call("build", "solution-2-printed") == 0
    assert "take a smaller K" not in " ".join(capsys.readouterr().out.split())


def test_a_single_position_has_nothing_to_check(
    capsys: pytest.CaptureFixture[str], run_command: Callable[..., Any]
) -> None:
    assert call("build", "solution-2", "-M", "1", "--out", "out") == 0
    message = " ".join(capsys.readouterr().out.split())
    assert "There is no pair to check" in message
    assert "exact" not in message
    assert run_command("build", "solution-2", "-M", "1")["exact"] is None


def test_files_may_begin_with_a_byte_order_mark(inside: Path, run_command: Callable[..., Any]) -> None:
    for name, text in (("q.csv", "1,2\n3,4\n"), ("q.json", "[[1, 2], [3, 4]]")):
        (inside / name).write_text(text, encoding="utf-8-sig")
        assert run_command("build", "solution-2", "--q-true", name)["q_true"] == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("arguments", [["-N", "1" + "0" * 7], ["-M", "1" + "0" * 7], ["-N", "1" + "0" * 12]])
def test_what_does_not_fit_into_memory_is_no_defect(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("build", "solution-2", *arguments) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert "of memory of this machine, got" in lines[0]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder in which nothing can be made")
def test_a_folder_that_cannot_be_made_is_refused_before_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("learn", "solution-1", *TINY, "--out", "/proc/tokendynamics") == 2
    printed = capsys.readouterr().err
    assert "/proc is not a folder that can be written to" in printed
    assert "seed 0" not in printed


def test_an_empty_folder_name_is_refused(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("build", "solution-1", "--out", "") == 2
    assert "error: --out: expected the name of a folder" in capsys.readouterr().err
    assert list(inside.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "verdict"), [("solution-1", "feed-forward"), ("solution-2", "attention"), ("mixture", "both")]
)
def test_the_evidence_names_the_part(name: str, verdict: str, run_command: Callable[..., Any]) -> None:
    result = run_command("evidence", name, "-N", "3", "-M", "4", "--samples", "200", "--resamples", "40")
    assert result["verdict"] == verdict
    assert len(result["instruments"]) == 5


def test_evidence_leaves_a_page(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("-N", "3", "-M", "4", "--samples", "100", "--resamples", "20", "--out", "out")
    assert call("evidence", "solution-3", *arguments) == 0
    assert "solution 3: feed-forward" in capsys.readouterr().out
    names = sorted(path.name for path in (inside / "out").iterdir())
    assert names == ["evidence.json", "manifest.json", "report.html"]
    assert json.loads((inside / "out" / "evidence.json").read_text())["verdict"] == "feed-forward"


@pytest.mark.parametrize(
    ("arguments", "wanted_words"),
    [
        (["nowhere"], "the folder of a learned model"),
        (["."], "record.json"),
        (["solution-2", "--samples", "50", "--law", "zip"], "--law"),
        (["solution-2", "-M", "1"], "--positions: expected at least 2"),
        ([".", "--share", "0.5"], "--share: expected no options"),
        ([".", "--law", "zipf"], "--law: expected no options"),
    ],
)
def test_evidence_of_nothing_is_refused(
    arguments: list[str], wanted_words: str, inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("evidence", *arguments, "--out", "out") == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert wanted_words in lines[0]
    assert list(inside.iterdir()) == []


@pytest.mark.slow
def test_learning_writes_records_and_page_and_is_not_done_twice(
    inside: Path, capsys: pytest.CaptureFixture[str], run_command: Callable[..., Any]
) -> None:
    result = run_command("learn", "solution-1", *TINY, "--out", "out")
    records = [LearningRecord.open(inside / "out" / f"seed-{seed}") for seed in range(2)]
    assert [run["final_loss"] for run in result["runs"]] == [record.final_loss for record in records]
    assert result["median_final_loss"] == pytest.approx(np.median([record.final_loss for record in records]))
    assert {"seed-0", "seed-1", "learning.json", "manifest.json", "report.html"} == {
        path.name for path in (inside / "out").iterdir()
    }
    assert call("learn", "solution-1", *TINY, "--out", "out", "--json") == 0
    again = capsys.readouterr()
    assert "seed 1: finished before" in again.err
    assert json.loads(again.out)["runs"] == result["runs"]
    assert call("evidence", "out", "--samples", "60") == 0
    assert "has the median loss" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text elsewhere")
def test_the_evidence_of_a_folder_whose_name_is_no_utf_8_is_kept(
    inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learned, out = os.fsdecode(b"l\xff"), os.fsdecode(b"e\xff")
    task = ("-N", "2", "-M", "3", "--batch", "20", "--steps", "1", "--inner", "2", "--seeds", "1", "--samples", "60")
    assert call("learn", "solution-2", *task, "--out", learned) == 0
    assert call("evidence", learned, "--samples", "60", "--out", out) == 0, capsys.readouterr().err
    assert json.loads((inside / out / "evidence.json").read_text())["model"] == learned


@pytest.mark.long
def test_another_task_in_the_same_folder_is_refused(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("learn", "solution-1", *TINY, "--out", "out") == 0
    before = {path: path.read_bytes() for path in (inside / "out").rglob("*") if path.is_file()}
    capsys.readouterr()
    assert call("learn", "solution-1", *TINY, "-M", "4", "--out", "out") == 2
    printed = capsys.readouterr().err
    assert "positions = 4" in printed
    assert "finished before" not in printed
    assert {path: path.read_bytes() for path in (inside / "out").rglob("*") if path.is_file()} == before


@pytest.mark.long
def test_an_interrupted_run_goes_on_and_ends_the_same(
    inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("learn", "solution-1", *TINY, "--out", "whole") == 0
    from tokendynamics.circuits.learning import _run as run

    step, taken = run._outer_step, []

    def interrupted(*arguments: Any) -> Any:
        taken.append(1)
        if len(taken) == 3:
            raise KeyboardInterrupt
        return step(*arguments)

    monkeypatch.setattr(run, "_outer_step", interrupted)
    assert call("learn", "solution-1", *TINY, "--out", "parts") == 130
    assert "the same command continues" in capsys.readouterr().err
    assert not (inside / "parts" / "report.html").exists()
    assert call("learn", "solution-1", *TINY, "--out", "parts") == 0
    assert "seed 0: continues where it was interrupted" in capsys.readouterr().err
    for seed in range(2):
        whole, parts = (LearningRecord.open(inside / name / f"seed-{seed}") for name in ("whole", "parts"))
        assert whole.losses == parts.losses
        assert all(torch.equal(value, parts.parameters[name]) for name, value in whole.parameters.items())


def test_a_loss_that_is_not_finite_keeps_the_state_and_fails(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (inside / "huge.json").write_text("[[1e200, 2e200], [-3e200, 4e200]]")
    arguments = ("-M", "3", "--batch", "20", "--steps", "3", "--seeds", "1", "--samples", "60")
    assert call("learn", "solution-2", "--q-true", "huge.json", *arguments, "--out", "out") == 1
    captured = capsys.readouterr()
    assert "error: seed 0: not finite" in captured.err
    assert "outer step 1 of 3" in captured.err
    record = LearningRecord.open(inside / "out" / "seed-0")
    assert all(bool(value.isfinite().all()) for value in record.parameters.values())
    assert (inside / "out" / "report.html").exists()


def test_a_run_without_an_end_is_not_measured_and_still_shown(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (inside / "huge.json").write_text("[[1e200, -1e200], [1e200, 3]]")
    arguments = ("--q-true", "huge.json", "-M", "4", "--batch", "20", "--steps", "3", "--seeds", "2", "--samples", "50")
    assert call("learn", "solution-3", *arguments, "--out", "out") == 1
    printed = capsys.readouterr().err
    assert all(f"error: seed {seed}: not finite" in printed for seed in range(2))
    summary = json.loads((inside / "out" / "learning.json").read_text())
    assert [run["evidence"] for run in summary["runs"]] == [None, None]
    assert "not measured" in (inside / "out" / "report.html").read_text()


def test_an_interrupted_measurement_says_what_is_kept(
    inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokendynamics.circuits import evidence

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(evidence, "evidence", interrupted)
    assert call("learn", "solution-1", *TINY, "--out", "out") == 130
    message = capsys.readouterr().err.splitlines()[-1]
    assert message == "interrupted: out keeps seed-0, seed-1 (finished); the same command continues from there"
    assert LearningRecord.open(inside / "out" / "seed-1").status == "finished"


@pytest.mark.parametrize("samples", ["0", "20"])
def test_too_few_samples_are_refused_before_the_training(
    samples: str, inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("learn", "solution-1", *TINY, "--samples", samples, "--out", "out") == 2
    assert "--samples" in capsys.readouterr().err
    assert call("evidence", "solution-1", "--samples", samples) == 2
    assert "Measuring" not in capsys.readouterr().err
    assert list(inside.iterdir()) == []


def test_results_of_another_command_are_not_replaced(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("learn", "solution-1", *TINY, "--seeds", "1", "--out", "out") == 0
    before = (inside / "out" / "manifest.json").read_bytes()
    capsys.readouterr()
    assert call("evidence", "out/seed-0", "--samples", "60", "--out", "out") == 2
    assert "with results of tokendynamics circuits learn" in capsys.readouterr().err
    assert (inside / "out" / "manifest.json").read_bytes() == before
    assert call("evidence", "out/seed-0", "--samples", "60", "--out", "out/seed-0") == 0
    # As an interrupted call leaves it.
    (inside / "out" / "manifest.json").unlink()
    assert call("evidence", "out/seed-0", "--samples", "60", "--out", "out") == 2
    assert call("build", "solution-1", "--out", "out/seed-0") == 2
    assert "those of tokendynamics circuits evidence" in capsys.readouterr().err


def test_the_evidence_records_what_was_measured(run_command: Callable[..., Any]) -> None:
    task = ("-N", "3", "-M", "4", "--q-true", "random:2", "--law", "zipf")
    size = ("--samples", "60", "--resamples", "20")
    result = run_command("evidence", "solution-2", *task, "--causal", "-K", "9", *size)
    wanted = {"model": "solution-2", "categories": 3, "positions": 4, "causal": True, "K": 9.0}
    described = result["manifest"]["parameters"]
    assert described == wanted | {
        "q_true": "random:2", "law": "zipf", "samples": 60, "resamples": 20, "confidence": 0.95
    }  # fmt: skip
    assert {name: result[name] for name in wanted} == wanted
    assert np.array_equal(result["q_true"], random_functional(3, 2))
    assert result["law"] == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    mixed = run_command("evidence", "mixture", "--share", "0.3", "-M", "4", *size)
    assert mixed["manifest"]["parameters"]["attention_share"] == 0.3


@pytest.mark.parametrize(
    ("arguments", "wanted_words"),
    [(["--batch", "0"], "batch"), (["--flavour", "towards-1"], "flavour"), (["-M", "1"], "2 positions")],
)
def test_a_wrong_recipe_writes_nothing(
    arguments: list[str], wanted_words: str, inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("learn", "solution-2", *arguments, "--out", "out") == 2
    assert wanted_words in capsys.readouterr().err.strip().splitlines()[-1]
    assert list(inside.iterdir()) == []


@pytest.mark.long
def test_the_landscape_of_positions_has_its_families(inside: Path, run_command: Callable[..., Any]) -> None:
    result = run_command("landscape", "3.1", "-N", "3", "-M", "3", "--starts", "4", "--out", "out")
    kinds = {point["family"]: point["classification"]["kind"] for point in result["points"]}
    assert kinds == {
        "A": "global minimum", "B": "strict saddle", "C": "strict saddle", "D": "strict saddle",
        "D'": "strict saddle", "D''": "strict saddle", "∞": "at infinity",
    }  # fmt: skip
    losses = {point["family"]: point["loss_per_token"] for point in result["points"]}
    T, M = 2 / 3, 3
    assert losses["B"] == pytest.approx(1 - (1 - 1 / M) * T)
    assert losses["C"] == pytest.approx(T)
    assert losses["D"] == pytest.approx(1.0)
    assert sum(share["count"] for share in result["basins"]["shares"]) == 4
    assert "does not hold" in result["claims"][0]
    page = plain_spaces((inside / "out" / "report.html").read_text())
    assert "Where do random starts end?" in page


@pytest.mark.slow
def test_the_softmax_landscape_waits_ever_longer(run_command: Callable[..., Any]) -> None:
    result = run_command("landscape", "3.2", "-N", "2", "-M", "3", "--starts", "1")
    times = [stall["time"] for stall in result["stalls"]]
    assert math.log(times[2] / times[1]) / 2 == pytest.approx(2.0, abs=0.1)
    assert result["points"] == []


def test_the_landscape_of_categories_has_points_that_the_paper_misses(
    capsys: pytest.CaptureFixture[str], inside: Path
) -> None:
    arguments = ("-N", "3", "-M", "3", "--starts", "2", "--out", "out")
    assert call("landscape", "3.3", *arguments) == 0
    printed = capsys.readouterr().out
    assert "is not complete" in printed
    summary = json.loads((inside / "out" / "landscape.json").read_text())
    missed = [point for point in summary["points"] if point["family"] == "B"]
    assert missed
    for point in missed:
        assert np.abs(np.array(point["v"])[1:].sum(axis=1)).max() < 1e-9
        assert point["classification"]["relative_gradient"] < 1e-9


@pytest.mark.parametrize(
    ("arguments", "wanted_words"),
    [
        (["3.1", "--q-true", "random:1"], "3.3"),
        (["3.1", "-M", "1"], "positions"),
        (["3.1", "--starts", "0"], "starts"),
        (["3.2", "--law", "0.5,0.6"], "sum to 1"),
        (["3.3", "-N", "0"], "at least 1"),
    ],
)
def test_a_wrong_landscape_is_refused(
    arguments: list[str], wanted_words: str, inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("landscape", *arguments, "--out", "out") == 2
    assert wanted_words in capsys.readouterr().err.strip().splitlines()[-1]
    assert list(inside.iterdir()) == []


def test_help_needs_no_heavy_library() -> None:
    program = (
        "import sys\nfrom tokendynamics.cli import main\ntry:\n    main(['circuits', 'build', '--help'])\n"
        "except SystemExit:\n    print([name for name in ('torch', 'scipy', 'altair') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_names_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--help") == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("build", "landscape", "learn", "evidence"))
