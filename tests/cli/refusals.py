"""What every refusal of the command line must be: one short line, a failing exit code, and nothing else."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from tokendynamics.cli import main

_SECONDS = 60
"""Of a call that is refused: far more than any takes, on any machine, and far less than one that never ends."""


def assert_refused(arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the command line in `folder`, which is the current one, and return the line it prints.

    The exit code is 1 or 2, standard error has one line of at most 500 printable characters that does not call itself
    a defect, standard output is empty, and the folder is what it was.
    """
    before = _contents(folder)
    with _in_time(), pytest.raises(SystemExit) as done:
        main(arguments)
    text = capsys.readouterr()
    shown = f"{arguments}: {text.err[:600]!r}"
    assert done.value.code in (1, 2), shown
    assert text.out == "", shown
    assert len(text.err.splitlines()) == 1, shown
    assert len(text.err) <= 501, shown
    assert text.err.rstrip("\n").isprintable(), shown
    assert "defect" not in text.err, shown
    assert "Traceback" not in text.err, shown
    assert _contents(folder) == before, shown
    return text.err


def _contents(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.lstat().st_size for path in folder.rglob("*")}


@contextmanager
def _in_time() -> Iterator[None]:
    def end(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"no answer within {_SECONDS} seconds")

    former = signal.signal(signal.SIGALRM, end)
    signal.alarm(_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
