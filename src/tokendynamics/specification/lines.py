"""The line on which each key and array entry of a TOML file stands.

`tomllib` gives the line of a syntax error only; a key that is valid TOML but wrong for us must be found again. The
scanner below relies on the text having been parsed by `tomllib` already, so it checks nothing.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right

KeyPath = tuple[str | int, ...]
"""Keys and array indices from the root of the file, such as ``("attention", "qk", 0, "frequency")``."""

_BLANK = re.compile(r"[ \t]*")
_BLANK_LINES = re.compile(r"(?:\s|#[^\n]*)*")
_SEPARATORS = re.compile(r"(?:[\s,]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}' r"|'''.*?'{3,5}" r'|"(?:\\.|[^"\\])*"' r"|'[^']*'",
    re.DOTALL,
)
_OTHER_VALUE = re.compile(r"[^,\]}#\n]+")


def key_lines(text: str) -> dict[KeyPath, int]:
    r"""Line numbers, from 1, of every key, table and array entry of a valid TOML document.

    >>> key_lines('title = "a"\n[time]\nend = 3')
    {('title',): 1, ('time',): 2, ('time', 'end'): 3}
    """
    return _Scanner(text).scan()


def nearest_line(lines: dict[KeyPath, int], path: KeyPath) -> int:
    """The line of `path`, or of the innermost key above it that is in the file (1 for the file itself).

    Parts of `path` that the file does not have are skipped, wherever they stand.

    >>> nearest_line({("time",): 2, ("time", "end"): 3}, ("time", "not in the file", "end"))
    3
    """
    return lines.get(present_part(lines, path), 1)


def present_part(lines: dict[KeyPath, int], path: KeyPath) -> KeyPath:
    """`path` without the parts that the file does not have.

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
        """``[a.b]`` or ``[[a.b]]``, where a may itself be an array of tables: its last one is meant."""
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
        """A key such as ``a."b c".d``, up to what follows it."""
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
        found = pattern.match(self._text, self._at)
        taken = found.group() if found else ""
        self._at += len(taken)
        return taken
