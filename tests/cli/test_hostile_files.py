"""Specification files that cannot be used end in one line, soon, and leave nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli.hostile_specifications import SPECIFICATIONS, written
from cli.refusals import assert_refused
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.specification.build import build
from tokendynamics.specification.file import parse


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.long
@pytest.mark.few(80)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_a_file_that_cannot_be_used_is_one_line(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "spec.toml").write_bytes(SPECIFICATIONS[name])
    text = assert_refused(["check", "spec.toml"], folder, capsys)
    assert assert_refused(["simulate", "spec.toml", "--out", "o"], folder, capsys) == text


def test_the_valid_file_behind_the_corpus_is_valid(folder: Path) -> None:
    assert build(parse(written(), "spec.toml")).start.shape == (3, 2)


def test_what_is_no_regular_file_is_refused_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    for path in ("pipe", "folder", "loop", "/dev/zero", "/dev/full", "nothing", "x" * 5000, "x/" * 3000, ""):
        for command in ("check", "simulate"):
            assert_refused([command, path], folder, capsys)


_TOKENS = st.sampled_from(
    [
        "[",
        "]",
        "{",
        "}",
        "=",
        ".",
        '"',
        "'''",
        "\n",
        "#",
        "nan",
        "-inf",
        "9" * 30,
        "1e999",
        "\\",
        "\0",
        "é",
        "\x1b",
        "a.b",
        "true",
    ]
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, len(written())), st.integers(0, 12), _TOKENS)
def test_a_damaged_file_builds_or_is_refused_by_name(at: int, removed: int, inserted: str) -> None:
    text = written()[:at] + inserted + written()[at + removed :]
    message = "spec.toml builds"
    try:
        build(parse(text, "spec.toml"))
    except ArgumentValueError as error:
        message = str(error)
    assert message.startswith("spec.toml")
    assert len(message) <= 500
