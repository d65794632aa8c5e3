"""Every hostile model, text and option ends in one short line, exit code 1 or 2, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cli.hostile_models import CASES, stored
from tokendynamics.cli import main
from tokendynamics.numerics import resources as memory

_SECONDS = 30


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty folder to work in, a limit on the time, and one on the memory that is promised to the code."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("TOKENDYNAMICS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(memory, "installed_memory", lambda: 2**31)
    threads = torch.get_num_threads()
    former = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    yield work
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)
    assert torch.get_num_threads() == threads


def check_refused(code: object, out: str, err: str) -> None:
    """One line about the failure, at the end, short and plain."""
    *before, last = err.rstrip("\n").split("\n")
    assert code in (1, 2), (code, last)
    assert last.startswith("error: "), err
    assert not any("error" in line.lower() or "Traceback" in line for line in before), err
    assert len(last) <= 500
    assert "this is a defect" not in last
    assert all(char.isprintable() for char in (out + err).replace("\n", ""))
    assert out == ""


SLOW = ("text one line of 2 MB",)


@pytest.mark.few(120)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in CASES])
def test_a_hostile_model_ends_in_one_line(
    name: str, limited: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = CASES[name](tmp_path)
    with pytest.raises(SystemExit) as done:
        main(arguments)
    check_refused(done.value.code, *capsys.readouterr())
    assert not list(limited.iterdir())
    assert not list((tmp_path / "cache").rglob(".writing-*"))


def test_the_corpus_is_large_and_its_model_is_whole_without_the_damage(
    limited: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(CASES) >= 300
    with pytest.raises(SystemExit) as done:
        main([*stored()(tmp_path), "--out", "out"])
    assert done.value.code == 0, capsys.readouterr().err
    assert (limited / "out" / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["config.json deep list", pytest.param("gguf tokenizer.ggml.merges", marks=pytest.mark.slow), "--device 'meta'"],
)
def test_a_process_of_its_own_says_the_same(name: str, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tokendynamics", *CASES[name](tmp_path)],
        capture_output=True, text=True, cwd=tmp_path / "work", check=False, timeout=120,
        env=os.environ | {"TOKENDYNAMICS_CACHE": str(tmp_path / "cache")},
    )  # fmt: skip
    check_refused(done.returncode, done.stdout, done.stderr)
    assert not list((tmp_path / "work").iterdir())
