"""The texts of ``--prompt`` and ``--text-file``, each under a name of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

import click

from tokendynamics.numerics.printable import printable

_MOST_BYTES = 16 << 20
"""More text than any model's context holds; a device such as /dev/zero never ends."""

_STDIN = Path("-")


def named_prompts(prompts: tuple[str, ...], files: tuple[Path, ...]) -> dict[str, str] | None:
    """Return the prompts in order; None if there are none.

    A file is called by its name, or by its path where two have one name.

    Raises:
        click.BadParameter: A file that is given twice, cannot be read as text, or is too long.
    """
    twice = next((path for path in files if files.count(path) > 1), None)
    if twice is not None:
        raise _refused(f"{'standard input' if twice == _STDIN else twice} is given twice")
    named = {f"prompt {number}": text for number, text in enumerate(prompts, start=1)}
    names = [path.name for path in files]
    for path in files:
        taken = path.name in named or names.count(path.name) > 1
        name = "standard input" if path == _STDIN else str(path) if taken else path.name
        if name in named:
            raise _refused(f"{path} has the name of another prompt, {name!r}; rename the file")
        named[name] = _text(path)
    return named or None


def _text(path: Path) -> str:
    data = _bytes(path)
    if len(data) > _MOST_BYTES:
        raise _refused(f"{path} is longer than {_MOST_BYTES:,} bytes, more than any model reads at once")
    try:
        # Line ends as Python's text files give them.
        text = data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise _refused(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    if not text.strip():
        raise _refused(f"{path} is empty")
    return text


def _bytes(path: Path) -> bytes:
    """Return the beginning of a file, one byte more than is allowed at most."""
    if path == _STDIN:
        return _beginning(sys.stdin.buffer)
    if not path.is_file():
        raise _refused(f"{path} is not a regular file; pass what it gives through standard input: --text-file - < FILE")
    try:
        with path.open("rb") as file:
            return _beginning(file)
    except OSError as error:
        raise _refused(f"{path} cannot be read ({error.strerror})") from error


def _beginning(file: BinaryIO) -> bytes:
    return file.read(_MOST_BYTES + 1)


def _refused(message: str) -> click.BadParameter:
    return click.BadParameter(printable(message), param_hint="--text-file")
