"""The values of a TOML file within bounds that are checked before anything costs time or memory, and where they stand.

`tomllib` gives the line of a syntax error only; a key that is valid TOML but wrong for us must be found again. The
scanner below relies on the text having been parsed by `tomllib` already, so it checks nothing.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from pathlib import Path
from typing import Any

from tokendynamics.numerics.printable import printable
from tokendynamics.specification.section import SpecificationError, SpecificationFileError

KeyPath = tuple[str | int, ...]
"""Keys and array indices from the root of the file, such as ``("attention", "qk", 0, "frequency")``."""

_BLANK = re.compile(r"[ \t]*")
_BLANK_LINES = re.compile(r"(?:\s|#[^\n]*)*")
_SEPARATORS = re.compile(r"(?:[\s,]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(r'"""(?:\\.|[^\\])*?"{3,5}' r"|'''.*?'{3,5}" r'|"(?:\\.|[^"\\])*"' r"|'[^']*'", re.DOTALL)
_OTHER_VALUE = re.compile(r"[^,\]}#\n]+")

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
    """Return the text of a specification file.

    Raises:
        SpecificationError: No regular file (a device or pipe may never end), too large, or not UTF-8.
        SpecificationFileError: The file is not there or cannot be read.
    """
    if path.exists() and not path.is_file():
        raise SpecificationError(f"{path.name}: expected a regular file, got a folder, pipe or device")
    try:
        size = path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from error
    if size > _LONGEST_FILE:
        raise SpecificationError(
            f"{path.name}: expected a file of at most {_LONGEST_FILE // 2**20} MiB, got {size / 2**20:.0f} MiB; "
            "pass many tokens from Python, with tokendynamics.simulate"
        )
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise _unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise SpecificationError(f"{path.name}: not UTF-8 text ({error.reason} at byte {error.start})") from error


def _unreadable(path: Path, error: OSError) -> SpecificationFileError:
    came = printable(error.strerror or type(error).__name__).lower()
    return SpecificationFileError(f"{printable(path.name)}: expected a file that can be read, got {came}")


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Return the values of a TOML document.

    Raises:
        SpecificationError: Not TOML; a key of more than 32 parts (the parser's time grows with their square), arrays
            or tables nested more than 64 deep, or an integer beyond the 64 bits that TOML has.
    """
    if match := _LONG_KEY.search(text):
        _refuse(text, name, match.start(), f"a key has more than {_MOST_PARTS} parts")
    if match := _LONG_INTEGER.search(text):
        _refuse(text, name, match.start(), "an integer is beyond 64 bits")
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
    """Check depth and integers, level by level: no recursion that a file could exhaust."""
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
    """Return the parser's message with the line in front.

    >>> _syntax("Expected '=' after a key in a key/value pair (at line 2, column 5)")
    "line 2, column 5: expected '=' after a key in a key/value pair"
    """
    match = re.fullmatch(r"(.*) \(at (.*)\)", message)
    return f"{match[2]}: {match[1][0].lower()}{match[1][1:]}" if match else message


def key_lines(text: str) -> dict[KeyPath, int]:
    r"""Return the line numbers, from 1, of every key, table and array entry of a valid TOML document.

    >>> key_lines('title = "a"\n[time]\nend = 3')
    {('title',): 1, ('time',): 2, ('time', 'end'): 3}
    """
    return _Scanner(text).scan()


def nearest_line(lines: dict[KeyPath, int], path: KeyPath) -> int:
    """Return the line of `path`, or of the innermost key above it that is in the file (1 for the file itself).

    Parts of `path` that the file does not have are skipped, wherever they stand.

    >>> nearest_line({("time",): 2, ("time", "end"): 3}, ("time", "not in the file", "end"))
    3
    """
    return lines.get(present_part(lines, path), 1)


def present_part(lines: dict[KeyPath, int], path: KeyPath) -> KeyPath:
    """Return `path` without the parts that the file does not have.

    >>> present_part({("time",): 2, ("time", "end"): 3}, ("time", "points"))
    ('time',)
    """
    present: KeyPath = ()
    for part in path:
        if (*present, part) in lines:
            present = (*present, part)
    return present


class _Scanner:
    """Walks once through the text; `self._at` is the offset of the next character."""

    def __init__(self, text: str) -> None:
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._starts = [0, *(match.end() for match in re.finditer("\n", self._text))]
        self._lines: dict[KeyPath, int] = {}
        self._last_table: dict[KeyPath, int] = {}

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        self._skip(_BLANK_LINES)
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BLANK_LINES)
        return self._lines

    def _header(self) -> KeyPath:
        """Read ``[a.b]`` or ``[[a.b]]``, where a may itself be an array of tables: its last one is meant."""
        line = self._line()
        brackets = 2 if self._text.startswith("[[", self._at) else 1
        self._at += brackets
        keys = self._keys()
        self._at += brackets
        path: KeyPath = ()
        for number, key in enumerate(keys, start=1):
            path = (*path, key)
            self._lines.setdefault(path, line)
            if number == len(keys) and brackets == 2:
                self._last_table[path] = self._last_table.get(path, -1) + 1
            if path in self._last_table:
                path = (*path, self._last_table[path])
                self._lines.setdefault(path, line)
        return path

    def _pair(self, table: KeyPath) -> None:
        line = self._line()
        path = table
        for key in self._keys():
            path = (*path, key)
            self._lines.setdefault(path, line)
        self._at += 1  # the equals sign
        self._skip(_BLANK)
        self._value(path)

    def _keys(self) -> list[str]:
        """Return a key such as ``a."b c".d``, up to what follows it."""
        keys: list[str] = []
        while True:
            self._skip(_BLANK)
            if self._text[self._at] in "\"'":
                keys.append(tomllib.loads(f"key = {self._take(_STRING)}")["key"])
            else:
                keys.append(self._take(_BARE_KEY))
            self._skip(_BLANK)
            if self._text[self._at] != ".":
                return keys
            self._at += 1

    def _value(self, path: KeyPath) -> None:
        first = self._text[self._at]
        if first in "\"'":
            self._skip(_STRING)
        elif first in "[{":
            self._container(path, closing="]" if first == "[" else "}")
        else:
            self._skip(_OTHER_VALUE)

    def _container(self, path: KeyPath, closing: str) -> None:
        self._at += 1
        self._skip(_SEPARATORS)
        index = 0
        while self._text[self._at] != closing:
            if closing == "}":
                self._pair(path)
            else:
                self._lines[(*path, index)] = self._line()
                self._value((*path, index))
                index += 1
            self._skip(_SEPARATORS)
        self._at += 1

    def _line(self) -> int:
        return bisect_right(self._starts, self._at)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        self._take(pattern)

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        taken = match.group() if match else ""
        self._at += len(taken)
        return taken
