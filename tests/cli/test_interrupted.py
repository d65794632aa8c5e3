"""Ctrl-C in any command says what is on the disk, at whatever place it comes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from command_line import FREE_FLOW, LEARN_LITTLE, TINY_GPT2, call
from tokendynamics.cli import main
from tokendynamics.cli._interrupted import NO_RESULTS, NOTHING, ending_signals, interruptible

PROMPTS = ("--prompt", "a cat sat", "--prompt", "xy")
COMMANDS: dict[str, tuple[str, ...]] = {
    "diagnose": (
        "diagnose", "random:./tiny", *PROMPTS, "--no-levers", "--no-baseline", "--no-directions", "--out", "out",
    ),
    "compare": ("compare", "random:./tiny:0", "random:./tiny:1", *PROMPTS, "--no-weights", "--out", "out"),
    "simulate": ("simulate", "flow.toml", "--out", "out"),
    "circuits build": ("circuits", "build", "solution-2", "-N", "2", "--out", "out"),
    "circuits evidence": (
        "circuits", "evidence", "solution-2", "-N", "2", "-M", "3", "--samples", "50", "--resamples", "20",
        "--out", "out",
    ),
    "circuits landscape": ("circuits", "landscape", "3.1", "-N", "2", "-M", "3", "--starts", "2", "--out", "out"),
    "circuits learn": (
        "circuits", "learn", "solution-1", *LEARN_LITTLE, "--steps", "2", "--seeds", "1", "--out", "out",
    ),
}  # fmt: skip
"""Those that write a folder of results with a page."""

DATA = {
    "diagnose": "diagnosis.json", "compare": "comparison.json", "simulate": "trajectory.zarr",
    "circuits build": "circuits.json", "circuits evidence": "evidence.json", "circuits landscape": "landscape.json",
}  # fmt: skip

WORK = {
    "diagnose": "tokendynamics.diagnosis._diagnose.judge",
    "compare": "tokendynamics.diagnosis.comparing._compare.judge",
    "simulate": "tokendynamics.specification._simulation.simulate",
    "circuits build": "tokendynamics.circuits.constructions.compare",
    "circuits evidence": "tokendynamics.circuits.evidence.evidence",
    "circuits landscape": "tokendynamics.circuits.landscape.survey",
    "circuits learn": "tokendynamics.circuits.learning.learn",
}
"""What each does before it writes anything."""


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKENDYNAMICS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(TINY_GPT2))
    (tmp_path / "flow.toml").write_text(FREE_FLOW)
    return tmp_path


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_before_anything_is_written_nothing_is(
    command: str, inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(inside.rglob("*"))
    monkeypatch.setattr(WORK[command], interrupt)
    assert call(COMMANDS[command]) == 130
    assert last_line(capsys) == f"interrupted: {NOTHING}"
    assert sorted(inside.rglob("*")) == before


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize("command", DATA)
def test_before_the_page_the_data_are_named_and_the_same_command_completes_them(
    command: str, inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for place in ("tokendynamics.report.write", "tokendynamics.report.page", "tokendynamics.results.result.pages"):
            patch.setattr(place, interrupt)
        patch.setattr("tokendynamics.results.result.pages", interrupt)
        assert call(COMMANDS[command]) == 130
    line = last_line(capsys)
    entries = sorted(path.name for path in (inside / "out").iterdir())
    assert DATA[command] in entries
    assert "report.html" not in entries
    assert all(name in line for name in entries)
    assert line.startswith("interrupted: out holds ")
    assert line.endswith(", but not report.html; the same command replaces them")
    assert call(COMMANDS[command]) == 0
    assert (inside / "out" / "report.html").exists()
    # A repeated run that is interrupted early leaves these, and writes nothing.
    capsys.readouterr()
    monkeypatch.setattr(WORK[command], interrupt)
    assert call(COMMANDS[command]) == 130
    assert last_line(capsys) == f"interrupted: {NOTHING}"


PRINTED = {
    "diagnose": "tokendynamics.cli._diagnose.show",
    "compare": "tokendynamics.cli._compare._show",
    "simulate": "tokendynamics.cli._simulate._print_tables",
    "circuits build": "tokendynamics.cli.circuits._build._print",
    "circuits landscape": "tokendynamics.cli.circuits._landscape._print",
    "circuits evidence": "tokendynamics.cli.circuits._evidence.echo",
}


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize("command", PRINTED)
def test_after_the_page_the_results_are_complete(
    command: str, inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PRINTED[command], interrupt)
    assert call(COMMANDS[command]) == 130
    assert last_line(capsys) == "interrupted: the results in out are complete"
    assert (inside / "out" / "report.html").exists()


def test_models_that_were_learned_are_kept(
    inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokendynamics.report.write", interrupt)
    assert call(COMMANDS["circuits learn"]) == 130
    assert last_line(capsys) == "interrupted: out keeps seed-0 (finished); the same command continues from there"
    assert (inside / "out" / "learning.json").exists()


LOADING: dict[str, tuple[tuple[str, ...], str]] = {
    "inspect": (("inspect", "network.gguf", "--verify"), "tokendynamics.pretrained.Checkpoint.iter_attention"),
    "diagnose": (("diagnose", "network.gguf", *PROMPTS, "--out", "out"), "tokendynamics.diagnosis.diagnose"),
    "compare": (
        ("compare", "network.gguf", "--baseline", "untrained", *PROMPTS, "--out", "out"),
        "tokendynamics.diagnosis.compare",
    ),
}
"""Commands that convert a GGUF file, and what they do after that."""


@pytest.mark.parametrize("command", LOADING)
def test_a_converted_file_that_is_kept_is_named(
    command: str, inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gguf")
    from pretrained.gguf_files import write_gguf

    write_gguf(inside / "network.gguf")
    arguments, work = LOADING[command]
    monkeypatch.setattr(work, interrupt)
    assert call(arguments) == 130
    (entry,) = (inside / "cache" / "gguf").iterdir()
    assert last_line(capsys) == f"interrupted: {NO_RESULTS}; {entry} keeps the converted weights"
    assert call(arguments) == 130
    assert last_line(capsys) == f"interrupted: {NOTHING}"  # read from the cache this time


def test_files_that_were_downloaded_are_named(
    inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = pytest.importorskip("huggingface_hub").constants
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(inside / "hub"))

    def partly(*_: Any, **__: Any) -> None:
        (inside / "hub" / "models--org--name" / "blobs").mkdir(parents=True)
        (inside / "hub" / "models--org--name" / "blobs" / "0123").write_text("a file")
        raise KeyboardInterrupt

    monkeypatch.setattr("huggingface_hub.snapshot_download", partly)
    assert call(["inspect", "org/name"]) == 130
    kept = inside / "hub" / "models--org--name"
    assert last_line(capsys) == f"interrupted: {NO_RESULTS}; {kept} keeps the downloaded files"


def test_check_writes_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokendynamics.specification.check", interrupt)
    assert call(["check", "flow.toml"]) == 130
    assert last_line(capsys) == f"interrupted: {NOTHING}"


def test_what_was_written_before_the_browser_opened_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webbrowser.open", interrupt)
    assert call(["explore", "flow.toml", "--out", "page.html", "--open"]) == 130
    assert Path("page.html").is_file()
    assert last_line(capsys) == "interrupted: page.html is complete"


def test_a_second_interruption_changes_no_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """While it is found out what is kept: the command would end with "nothing was written"."""

    def kept() -> str:
        signal.raise_signal(signal.SIGINT)
        return "out holds the states"

    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(click.exceptions.Exit), interruptible(kept):
            raise KeyboardInterrupt
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, former)
    assert last_line(capsys) == "interrupted: out holds the states"


def test_a_program_that_is_done_cannot_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes seconds to clear away the libraries: a traceback of theirs would follow the last line."""
    monkeypatch.setattr("sys.argv", ["tokendynamics", "--version"])
    former = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit):
            main()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, former)


def test_while_its_modules_are_read_a_program_ends_without_a_traceback(tmp_path: Path) -> None:
    """The first second of a command is spent on importing what it needs."""
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n", encoding="utf-8")
    command = [sys.executable, "-m", "tokendynamics", "--version"]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr == "interrupted: nothing was written\n"


def test_what_was_written_just_before_the_signal_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came after the file was in its place: "nothing was written" was false."""
    from tokendynamics.diagnosis import Diagnosis, yardstick

    row = yardstick.measured_networks()[0]

    def added(*_: Any) -> None:
        yardstick.write_table(Path("own.json"), [row])
        raise KeyboardInterrupt

    monkeypatch.setattr(Diagnosis, "open", lambda _: None)
    monkeypatch.setattr(yardstick, "measured_network", lambda *_: row)
    monkeypatch.setattr(yardstick, "add_network", added)
    assert call(["reference", "add", ".", "--table", "own.json"]) == 130
    assert last_line(capsys) == "interrupted: own.json has the new row"
    monkeypatch.setattr(yardstick, "add_network", interrupt)
    assert call(["reference", "add", ".", "--table", "own.json"]) == 130
    assert last_line(capsys) == f"interrupted: {NOTHING}"

    def explored(out: Path, *_: Any, **__: Any) -> None:
        out.write_text("a page")
        raise KeyboardInterrupt

    monkeypatch.setattr("tokendynamics.report.explore", explored)
    assert call(["explore", "--out", "page.html"]) == 130
    assert last_line(capsys) == "interrupted: page.html is complete"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_signals_that_end_a_program_are_taken_as_ctrl_c_and_ignored_ones_stay_ignored(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    number = getattr(signal, name)
    monkeypatch.setattr("sys.argv", ["tokendynamics", "check", "flow.toml"])
    monkeypatch.setattr("tokendynamics.cli._interrupted._received", [])
    monkeypatch.setattr("tokendynamics.specification.check", lambda *_, **__: signal.raise_signal(number))
    former, of_ctrl_c = signal.signal(number, signal.SIG_DFL), signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 128 + number
        assert last_line(capsys) == f"interrupted: {NOTHING}"
        assert signal.getsignal(number) is signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN)  # nohup
        with ending_signals():
            assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, former)
        signal.signal(signal.SIGINT, of_ctrl_c)
