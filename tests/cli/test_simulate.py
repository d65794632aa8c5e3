"""`tokendynamics simulate` as a user meets it: folders whole or absent, one-line errors, an interrupted run kept."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from command_line import call
from report.reading import plain_spaces
from tokendynamics.cli._output import Output
from tokendynamics.dynamics import Trajectory
from tokendynamics.provenance.progress import Progress
from tokendynamics.specification.examples import example_names, example_text
from tokendynamics.words import number

SPEC = """\
title = "two systems of the free flow"

[attention]
qk = { identity = 0.0 }
ov = { identity = -1.0 }

[space]
kind = "free"

[start]
tokens = [[[3.0, 4.0], [1.0, 0.0]], [[1.0, 2.0], [5.0, 2.0]]]

[time]
times = [0.0, 0.5, 1.0]

[output]
figures = ["tokens", "phase_plane", "norms", "distances", "consensus", "potential", "circuits"]
formats = ["svg"]
system = 1
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    return path


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.long
def test_a_run_leaves_trajectory_figures_certificates_and_manifest(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["simulate", "spec.toml", "--threads", "1"]) == 0
    folder = tmp_path / "simulation-spec"
    figures = ["circuits", "consensus", "distances", "norms", "phase_plane", "potential", "tokens"]
    assert files_in(folder) == sorted(
        [*(f"{name}.svg" for name in figures), "certificates.json", "manifest.json", "report.html",
         "specification.toml", "trajectory.zarr"]
    )  # fmt: skip
    start = np.array([[[3.0, 4.0], [1.0, 0.0]], [[1.0, 2.0], [5.0, 2.0]]])
    mean = start.mean(axis=1, keepdims=True)
    opened = Trajectory.open(folder / "trajectory.zarr")
    for index, time in enumerate([0.0, 0.5, 1.0]):
        # Without logits every token moves with the mean: x + mean (e^(-t) - 1).
        assert np.allclose(opened.states[:, index], start + mean * np.expm1(-time), atol=1e-7)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["status"] == {"reached the horizon": 2}
    assert manifest["hardware"]["threads"] == 1
    assert (folder / "specification.toml").read_text() == SPEC
    record = json.loads((folder / "certificates.json").read_text())
    assert {check["statement"] for check in record["checks"] if check["applies"]} >= {
        entry["statement"] for entry in record["certificates"]
    }
    printed = capsys.readouterr()
    assert "report.html" in printed.out
    page = plain_spaces((folder / "report.html").read_text(encoding="utf-8"))
    assert '<bdi class="model">two systems of the free flow</bdi>' in page
    assert "Both systems reached the end of the time interval at t = 1." in page
    assert "System 1. " in page  # the one that the file names
    assert all(f'href="./{name}"' in page for name in ("trajectory.zarr", "tokens.svg", "specification.toml"))
    assert "reached the horizon" in printed.out
    assert "warning" not in printed.err


@pytest.mark.long
def test_json_goes_to_standard_output_alone(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec.write_text(SPEC.split("[output]")[0])
    assert call(["simulate", "spec.toml", "--json", "--out", "here"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["folder"] == "here"
    assert "tokens.png" in summary["files"]
    assert summary["manifest"]["engine"] == "batched"


@pytest.mark.slow
def test_a_second_run_leaves_nothing_of_the_first(spec: Path, tmp_path: Path) -> None:
    assert call(["simulate", "spec.toml", "--out", "out"]) == 0
    (tmp_path / "out" / "notes.txt").write_text("mine")
    spec.write_text(SPEC.split("figures")[0] + 'figures = ["norms"]\n')
    assert call(["simulate", "spec.toml", "--out", "out"]) == 0
    assert files_in(tmp_path / "out") == [
        "certificates.json", "manifest.json", "norms.png", "notes.txt", "report.html", "specification.toml",
        "trajectory.zarr",
    ]  # fmt: skip


@pytest.mark.long
def test_a_page_of_yours_is_in_the_way_before_anything_runs(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec.write_text(SPEC.split("[output]")[0] + "[output]\nfigures = []\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.html").write_text("mine")
    assert call(["simulate", "spec.toml", "--out", "out"]) == 2
    assert "report.html" in capsys.readouterr().err
    assert files_in(tmp_path / "out") == ["report.html"]
    assert (tmp_path / "out" / "report.html").read_text() == "mine"
    assert call(["simulate", "spec.toml", "--out", "out", "--overwrite"]) == 0
    assert "where do the tokens go?" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    # Our own page, from an earlier run, is replaced without a word.
    assert call(["simulate", "spec.toml", "--out", "out"]) == 0


@pytest.mark.long
def test_states_near_atol_are_a_warning_and_others_are_not(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = SPEC.split("[output]")[0] + "[output]\nfigures = []\n"
    for text, warned in ((bare, False), (bare.replace("[1.0, 0.0]", "[1e-11, 0.0]"), True)):
        spec.write_text(text)
        assert call(["simulate", "spec.toml", "--out", "out"]) == 0
        assert ("warning: 1 of 2 systems have tokens of a norm down to 1e-11" in capsys.readouterr().err) is warned


@pytest.mark.slow
def test_a_horizon_that_is_not_reached_is_a_warning_and_the_part_is_kept(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec.write_text(SPEC.replace("[output]", "[solver]\nmax_steps = 2\nrtol = 1e-12\natol = 1e-12\n[output]"))
    assert call(["simulate", "spec.toml", "--out", "out"]) == 0
    printed = capsys.readouterr()
    assert "warning: not every system reached the horizon t = 1: 2 step budget spent" in printed.err
    opened = Trajectory.open(tmp_path / "out" / "trajectory.zarr")
    assert set(opened.status.tolist()) == {"step budget spent"}
    assert np.isfinite(opened.states).all()
    assert not opened.reached[:, -1].any()


def test_an_interrupted_run_is_saved_and_says_how_far_it_came(
    spec: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    # A shell has its background jobs ignore the signal, and Python leaves that so.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, former))

    @contextmanager
    def interrupting(output: Output) -> Iterator[Progress]:
        output.say("Simulating")
        yield lambda done, total, what: signal.raise_signal(signal.SIGINT) if 0.3 < done / total < 1 else None

    monkeypatch.setattr(Output, "progress", interrupting)
    times = ", ".join(str(index / 50) for index in range(51))
    spec.write_text(SPEC.replace("0.0, 0.5, 1.0", times).replace("[output]", "[solver]\nstep = 0.01\n[output]"))
    assert call(["simulate", "spec.toml", "--out", "out"]) == 130
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == 2
    assert re.match(
        r"interrupted: 2 systems, 2 interrupted, the first at t = 0\.\d+ of 1; ", printed.err.splitlines()[1]
    )
    assert files_in(tmp_path / "out") == [
        "certificates.json", "manifest.json", "specification.toml", "trajectory.zarr",
    ]  # fmt: skip
    opened = Trajectory.open(tmp_path / "out" / "trajectory.zarr")
    assert set(opened.status.tolist()) == {"interrupted"}
    reached = opened.reached.all(axis=0)
    assert 0 < reached.sum() < len(reached)
    start = np.array([[[3.0, 4.0], [1.0, 0.0]], [[1.0, 2.0], [5.0, 2.0]]])
    decay = np.expm1(-opened.times[reached])[:, None, None]
    assert np.allclose(opened.states[:, reached], start[:, None] + start.mean(axis=1)[:, None, None] * decay, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "change", "code", "words"),
    [
        (["simulate"], ("", ""), 2, "--example list names the examples"),
        (["simulate", "spec.toml", "--example", "fig3"], ("", ""), 2, "expected either SPEC or --example"),
        (["simulate", "--example", "fig33"], ("", ""), 2, "unknown name 'fig33'; did you mean 'fig3'?"),
        (["simulate", "missing.toml"], ("", ""), 2, "missing.toml"),
        (["simulate", "spec.toml"], ("qk =", "kq ="), 2, "spec.toml line 4: attention.kq: unknown key"),
        (["simulate", "spec.toml"], ("{ identity = 0.0 }", "[[1.0]]"), 2, "line 4: attention.qk: expected shape (2, 2"),
        (["simulate", "spec.toml"], ("system = 1", "system = 2"), 2, "line 19: output.system: expected a system fr"),
        (["simulate", "spec.toml"], ("[5.0, 2.0]]]", "[-1.0, -2.0]]]"), 2, "line 17: output.figures[0]: 'hemisphere'"),
        (["simulate", "spec.toml"], ("[output]", '[solver]\ndevice = "nowhere"\n[output]'), 2, "line 17: solver.dev"),
        (["simulate", "spec.toml"], ("[output]", '[solver]\nengine = "fixed"\n[output]'), 2, "line 16: solver"),
        (["simulate", "spec.toml"], ("1.0]\n\n[output]", "1.0\n\n[output]"), 2, "spec.toml: line"),
        (["simulate", "spec.toml", "--out", "spec.toml"], ("", ""), 2, "--out"),
        (["simulate", "spec.toml", "--out", ""], ("", ""), 2, "expected the name of a folder, got an empty one"),
    ],
)  # fmt: skip
def test_failures_are_one_line_with_their_code_and_leave_nothing(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    arguments: list[str], change: tuple[str, str], code: int, words: str,
) -> None:  # fmt: skip
    text = SPEC.replace('["tokens",', '["hemisphere",') if "hemisphere" in words else SPEC
    spec.write_text(text.replace(*change) if change[0] else text)
    assert call(arguments) == code
    printed = capsys.readouterr()
    assert words in printed.err
    assert "Traceback" not in printed.err
    assert len([line for line in printed.err.splitlines() if line.lower().startswith("error")]) == 1
    assert printed.out == ""
    assert files_in(tmp_path) == ["spec.toml"]


def test_the_table_lists_every_condition_and_how_much_of_the_horizon_was_seen(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    spec.write_text(
        '[attention]\nqk = "identity"\n[space]\nkind = "sphere"\n'
        "[start]\nangles = [0.0, 0.5, 1.0]\n[time]\nend = 50.0\n[events]\nconsensus = { below = 0.1 }\n"
        "[output]\nfigures = []\n"
    )
    assert call(["simulate", "spec.toml"]) == 0
    rows = capsys.readouterr().out.splitlines()
    at = next(index for index, row in enumerate(rows) if row.strip().startswith("asymptotic-4.1 "))
    end = float(Trajectory.open(tmp_path / "simulation-spec" / "trajectory.zarr").end_times)
    assert end < 50
    assert f"over [0, {number(end, 6)}] of 50" in rows[at]
    conditions = {" ".join(row.split()[2:]): row.split()[1] for row in rows[at + 1 : at + 4]}
    assert sorted(conditions.values()) == ["holds", "holds", "undecided"]
    for words, outcome in (
        ("relative rise of max_i (1 − v·y_i)", "holds"),
        ("rate", "holds"),
        ("tends to 0", "undecided"),
    ):
        assert [conditions[text] for text in conditions if words in text] == [outcome], words


def test_the_manifest_names_only_what_was_imported(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gguf", raising=False)
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    spec.write_text(SPEC.split("[output]")[0] + "[output]\nfigures = []\n")
    assert call(["simulate", "spec.toml", "--out", "out"]) == 0
    versions = json.loads((tmp_path / "out" / "manifest.json").read_text())["versions"]
    assert {"tokendynamics", "python", "torch", "numpy"} <= set(versions)
    assert {"transformers", "gguf"}.isdisjoint(versions)


@pytest.mark.parametrize("command", ["simulate", "check"])
def test_the_help_fits_80_columns(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert call([command, "--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_an_example_is_printed_as_it_is_and_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["simulate", "--example", "fig3"]) == 0
    assert capsys.readouterr().out == example_text("fig3")
    assert call(["simulate", "--example", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == example_names()


@pytest.mark.long
def test_an_animation_is_written_on_request(spec: Path, tmp_path: Path) -> None:
    spec.write_text(SPEC.split("[output]")[0] + '[output]\nfigures = []\nanimation = "gif"\n')
    assert call(["simulate", "spec.toml", "--out", "out"]) == 0
    assert (tmp_path / "out" / "animation.gif").read_bytes()[:3] == b"GIF"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in example_names() if name != "fig5"])
def test_every_example_runs_to_its_horizon_and_no_certificate_fails(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"{name}.toml").write_text(example_text(name))
    assert call(["simulate", f"{name}.toml", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert set(summary["manifest"]["status"]) == {"reached the horizon"}
    assert all(entry["outcome"] != "fails" for entry in summary["certificates"])
