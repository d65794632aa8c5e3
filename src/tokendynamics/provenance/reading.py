"""Reads back JSON that anyone may have written: bounded, with typed errors, without importing heavy libraries."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected, shown

_LONGEST_JSON = 256 * 2**20


def read_json(path: Path, argument: str) -> Any:
    """Read the values of a JSON file; NaN and Infinity, which JSON does not have, are refused.

    Raises:
        ArgumentValueError: No regular file, too large, not UTF-8, or not JSON.
    """
    return parse_json(path, argument, "JSON", _refuse_constant)


def parse_json(path: Path, argument: str, wanted: str, constant: Callable[[str], Any]) -> Any:
    """Read a JSON file; `constant` says what NaN and Infinity are, and `wanted` what the file should hold.

    Raises:
        ArgumentValueError: No regular file, too large, not UTF-8, or not JSON.
    """
    check_regular(path, argument, described=True)
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"), parse_constant=constant)
    except RecursionError as error:
        raise unreadable(path, argument, wanted, "lists or objects nested too deep") from error
    except (OSError, ValueError) as error:
        raise unreadable(path, argument, wanted, error) from error


def check_regular(path: Path, argument: str, *, described: bool = False) -> int:
    """Return the size of a regular file: a device or pipe may never end.

    Args:
        path: The file, or a link to it.
        argument: What an error calls it.
        described: Whether it is JSON, whose size is limited.

    Raises:
        ArgumentValueError: Nothing there, something else than a file, or JSON that is too large.
    """
    longest = _LONGEST_JSON if described else None
    try:
        regular, size = path.is_file(), path.stat().st_size
    except (OSError, ValueError) as error:
        raise unreadable(path, argument, "a file", error) from error
    if not regular:
        raise ArgumentValueError(expected(argument, "a regular file", f"{path}, which is not one"))
    if longest is not None and size > longest:
        raise ArgumentValueError(expected(argument, f"a file of at most {longest} bytes", f"{size} in {path}"))
    return size


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def unreadable(path: Path, argument: str, wanted: str, reason: object) -> ArgumentValueError:
    """Return the error for a file that does not hold what is wanted, with the reason."""
    name = "an unreadable file" if argument == str(path) else path
    return ArgumentValueError(expected(argument, wanted, f"{name} ({shown(str(reason))[1:-1]})"))
