"""A path that does not exist, or is no file of its kind, is wrong input in every command: exit code 2."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from cli.refusals import assert_refused
from command_line import call
from tokendynamics.cli import commands, main
from tokendynamics.specification.examples import example_text

MISSING = "/no/such"
MODEL = "random:distilgpt2"

CALLS: dict[str, list[list[str]]] = {
    "check spec": [["check", MISSING]],
    "simulate spec": [["simulate", MISSING]],
    "study spec": [["study", MISSING]],
    "sweep spec": [["sweep", MISSING]],
    "train preset": [["train", MISSING]],
    "diagnose model": [["diagnose", name] for name in (MISSING, "./no", "no/such", "no.gguf", f"random:{MISSING}")],
    "diagnose text_files": [["diagnose", MODEL, "--text-file", MISSING]],
    "diagnose prompt_files": [["diagnose", MODEL, "--prompts", MISSING]],
    "diagnose images": [["diagnose", MODEL, "--images", MISSING]],
    "diagnose adapter": [["diagnose", MODEL, "--adapter", MISSING]],
    "inspect model": [["inspect", name] for name in (MISSING, "./no", "no.gguf", f"random:{MISSING}", "gpt2", "")],
    "explore subject": [["explore", name] for name in (MISSING, "./no", "no.toml", "no.zarr", "no.gguf", "")],
    "compare models": [["compare", MISSING, MODEL], ["compare", MISSING, "--baseline", "untrained"]],
    "compare text_files": [["compare", MODEL, MODEL, "--text-file", MISSING]],
    "compare prompt_files": [["compare", MODEL, MODEL, "--prompts", MISSING]],
    "compare adapter": [["compare", MODEL, "--adapter", MISSING]],
    "reference add folder": [["reference", "add", MISSING]],
    "circuits build solution": [["circuits", "build", MISSING]],
    "circuits build q_true": [["circuits", "build", "solution-1", "--q-true", MISSING]],
    "circuits evidence model": [["circuits", "evidence", MISSING]],
    "circuits evidence q_true": [["circuits", "evidence", "solution-1", "--q-true", MISSING]],
    "circuits learn q_true": [["circuits", "learn", "solution-1", "--q-true", MISSING]],
}
"""By command and parameter: every parameter that names what is read."""

WRITTEN = {"out", "cache", "table"}
"""Parameters that name what is written: a folder or file that need not exist."""


def path_parameters() -> set[str]:
    """Every parameter of a command that takes a path, and every positional one that may be a path."""
    names: set[str] = set()

    def collect(command: click.Command, place: list[str]) -> None:
        if isinstance(command, click.Group):
            for name, inner in command.commands.items():
                collect(inner, [*place, name])
            return
        for parameter in command.params:
            positional = parameter.param_type_name == "argument" and not isinstance(parameter.type, click.Choice)
            if positional or isinstance(parameter.type, click.Path):
                names.add(" ".join([*place, str(parameter.name)]))

    collect(commands, [])
    return names


def test_every_path_has_a_call() -> None:
    read = {name for name in path_parameters() if name.rpartition(" ")[2] not in WRITTEN}
    assert read <= CALLS.keys()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def code_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> int | str | None:
    with pytest.raises(SystemExit) as done:
        main(arguments)
    assert "defect" not in capsys.readouterr().err
    return done.value.code


@pytest.mark.long
@pytest.mark.few(10)
@pytest.mark.parametrize("name", CALLS)
def test_a_missing_path_is_wrong_input(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in CALLS[name]:
        assert code_of(arguments, capsys) == 2, arguments
    assert not list(folder.iterdir())


@pytest.mark.parametrize("command", ["inspect", "diagnose", "explore"])
def test_what_is_no_model_is_wrong_input(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty folder, a text, a damaged configuration, an unreadable weight file."""
    (folder / "empty").mkdir()
    (folder / "notes.txt").write_text("no model")
    (folder / "damaged").mkdir()
    (folder / "damaged" / "config.json").write_text("{")
    (folder / "weights.safetensors").write_bytes(b"\0" * 20)
    for name in ("empty", "notes.txt", "damaged", "weights.safetensors"):
        assert code_of([command, name], capsys) == 2, name


def test_an_empty_name_is_not_the_current_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "got ''" in assert_refused(["inspect", ""], folder, capsys)


@pytest.mark.parametrize("name", ["itself", "x" * 300], ids=["a link to itself", "a long name"])
def test_a_folder_that_cannot_have_its_name_is_refused_before_the_run(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("itself").symlink_to("itself")
    Path("flow.toml").write_text(example_text("minimal"))
    assert call(["simulate", "flow.toml", "--out", name]) == 2
    captured = capsys.readouterr()
    assert "is a link to itself" in captured.err or "is longer than a name of a file can be" in captured.err
    assert "Simulating" not in captured.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["flow.toml", "itself"]
