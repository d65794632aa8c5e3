"""From a file to the values of its TOML, within bounds that are checked before anything costs time or memory."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from tokendynamics.numerics.arguments import as_path
from tokendynamics.specification.errors import SpecificationError

_LONGEST_FILE = 16 * 2**20
_MOST_PARTS = 32
_MOST_NESTED = 64
_DIGITS = 4300
"""Beyond this Python refuses to read an integer, and TOML promises 64 bits only."""

_LONG_KEY = re.compile(
    r"(?<![\w-])(?:(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')[ \t]*+\.[ \t]*+){%d}" % _MOST_PARTS  # noqa: UP031
)
_LONG_INTEGER = re.compile(r"(?<!\w)[-+]?\d[\d_]{%d}" % (_DIGITS - 1))  # noqa: UP031


def read_text(path: Path) -> str:
    """The text of a specification file.

    Raises:
        SpecificationError: No regular file (a device or pipe may never end), too large, or not UTF-8.
        OSError: The file cannot be read.
    """
    as_path(path, "SPEC")
    if path.exists() and not path.is_file():
        raise SpecificationError(f"{path.name}: expected a regular file, got a folder, pipe or device")
    size = path.stat().st_size
    if size > _LONGEST_FILE:
        raise SpecificationError(
            f"{path.name}: expected a file of at most {_LONGEST_FILE // 2**20} MiB, got {size / 2**20:.0f} MiB; "
            "pass many tokens from Python, with tokendynamics.simulate"
        )
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecificationError(f"{path.name}: not UTF-8 text ({error.reason} at byte {error.start})") from error


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """The values of a TOML document.

    Raises:
        SpecificationError: Not TOML; a key of more than 32 parts (the parser's time grows with their square), arrays
            or tables nested more than 64 deep, or an integer beyond the 64 bits that TOML has.
    """
    if found := _LONG_KEY.search(text):
        _refuse(text, name, found.start(), f"a key has more than {_MOST_PARTS} parts")
    if found := _LONG_INTEGER.search(text):
        _refuse(text, name, found.start(), "an integer is beyond 64 bits")
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecificationError(f"{name}: {_syntax(str(error))}") from error
    except RecursionError as error:
        raise SpecificationError(f"{name}: arrays or tables are nested more than {_MOST_NESTED} deep") from error
    _check_values(values, name)
    return values


def _refuse(text: str, name: str, at: int, message: str) -> None:
    raise SpecificationError(f"{name} line {text.count(chr(10), 0, at) + 1}: {message}")


def _check_values(values: dict[str, Any], name: str) -> None:
    """Depth and integers, level by level: no recursion that a file could exhaust."""
    level: list[tuple[Any, Any]] = list(values.items())
    for _ in range(_MOST_NESTED):
        for key, value in level:
            if isinstance(value, int) and value.bit_length() > 63:
                raise SpecificationError(f"{name}: {key}: an integer is beyond 64 bits")
        level = [
            (inner if isinstance(value, dict) else key, entry)
            for key, value in level
            if isinstance(value, dict | list)
            for inner, entry in (value.items() if isinstance(value, dict) else enumerate(value))
        ]
        if not level:
            return
    raise SpecificationError(f"{name}: arrays or tables are nested more than {_MOST_NESTED} deep")


def _syntax(message: str) -> str:
    """The parser's message with the line in front.

    >>> _syntax("Expected '=' after a key in a key/value pair (at line 2, column 5)")
    "line 2, column 5: expected '=' after a key in a key/value pair"
    """
    found = re.fullmatch(r"(.*) \(at (.*)\)", message)
    return f"{found[2]}: {found[1][0].lower()}{found[1][1:]}" if found else message
