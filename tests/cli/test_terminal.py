"""What reaches the terminal: one line for a failure, no escape sequence, nothing lost of what was asked."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from pathlib import Path

import click
import pytest

from command_line import FREE_FLOW, call
from tokendynamics import cli as entry
from tokendynamics.cli._diagnose import named_prompts
from tokendynamics.cli._terminal import LONGEST_LINE, Console, json_line


@pytest.mark.parametrize(
    "arguments",
    [
        ["diagnose", "no\x1b[2J\x07such/folder"],
        ["diagnose", "\x9b31m"],
        ["diagnose", "x" * 5000],
        ["diagnose", "x", "--layers", "9" * 5000 + "\x1b"],
        ["diagnose", "x", "--threads", "9" * 5000],
        ["diagnose", "x", "--text-file", "\x1b]0;title\x07"],
        ["diagnose", "\u202egpj.exe/x", "--prompt", "a"],
        ["simulate", "\x1b[2J.toml"],
        ["\x1b[2J"],
        ["diagnose", "--\x1b[2J"],
    ],
)
def test_a_failure_is_one_short_line_without_control_characters(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(arguments) in (1, 2)
    printed = capsys.readouterr()
    *before, last = printed.err.rstrip("\n").split("\n")
    assert last.startswith("error: ")
    assert not [line for line in before if line.lower().startswith("error")]
    assert len(last) <= LONGEST_LINE
    assert "defect" not in last
    assert all(char.isprintable() for char in (printed.err + printed.out).replace("\n", ""))


def test_a_file_that_ends_too_early_is_no_interruption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command("ends")
    def ends() -> None:
        raise EOFError("no data left in file")

    monkeypatch.setitem(entry.commands.commands, "ends", ends)
    assert call(["ends"]) == 1
    assert "error: a file ends before its content does (no data left in file)" in capsys.readouterr().err


def test_rich_prints_no_escape_sequence_of_others() -> None:
    file = io.StringIO()
    Console(file=file, force_terminal=True, color_system=None).print("[bold]a[/bold]\x1b[2J\x1b]0;b")
    assert file.getvalue() == "a␛[2J␛]0;b\n"


def test_json_holds_the_same_value_and_no_control_character() -> None:
    value = {"name": "ä\x1b\x7f\x9b\u202e\u2028\udcff"}
    line = json_line(value)
    assert json.loads(line) == value
    assert all(char.isprintable() for char in line)


def test_prompts_of_files_with_one_name_are_all_kept(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "x.txt", tmp_path / "b" / "x.txt", tmp_path / "y.txt", tmp_path / "prompt 1"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text(str(path))
    named = named_prompts(("first",), tuple(paths))
    assert named == {
        "prompt 1": "first",
        str(paths[0]): str(paths[0]),
        str(paths[1]): str(paths[1]),
        "y.txt": str(paths[2]),
        str(paths[3]): str(paths[3]),
    }


def _fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def _with(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_a_text_file_that_is_no_text_is_refused_and_never_read_for_ever(tmp_path: Path) -> None:
    hostile = {
        "not a regular file": [Path("/dev/zero"), Path("/dev/null"), _fifo(tmp_path / "fifo"), tmp_path],
        "is empty": [_with(tmp_path / "empty", b""), _with(tmp_path / "blank", b" \n\t")],
        "is not UTF-8 text": [_with(tmp_path / "utf16", "text".encode("utf-16")), _with(tmp_path / "png", b"\x89PNG")],
        "longer than": [_with(tmp_path / "long", b"a" * (17 << 20))],
    }
    for words, paths in hostile.items():
        for path in paths:
            with pytest.raises(click.BadParameter, match=words):
                named_prompts((), (path,))
    with pytest.raises(click.BadParameter, match="given twice"):
        named_prompts((), (Path("-"), Path("-")))


def test_standard_input_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/zero").open(encoding="latin-1") as endless:
        monkeypatch.setattr("sys.stdin", endless)
        with pytest.raises(click.BadParameter, match="longer than"):
            named_prompts((), (Path("-"),))


@pytest.mark.parametrize("width", ["20", "40", "80"])
def test_a_narrow_terminal_loses_no_sign_of_a_table(
    width: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "flow.toml").write_text(FREE_FLOW)
    signs = []
    for columns in ("1000", width):
        monkeypatch.setenv("COLUMNS", columns)
        assert call(["check", str(tmp_path / "flow.toml")]) == 0
        signs.append(Counter("".join(capsys.readouterr().out.split()).replace("─", "")))
    assert signs[0] == signs[1]
