"""Lines for the terminal: text in them cannot control it, and a failure is one line."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Collection, Iterable
from typing import Any, Literal

import rich.console
from rich.box import SIMPLE_HEAD
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tokendynamics.numerics.printable import printable, shortened

LONGEST_LINE = 500
"""Characters of a line that reports a failure."""

_NARROWEST = 80
"""Least width of results: a narrower terminal breaks their lines itself."""

# Characters that JSON does not escape and a terminal obeys, hides or cannot encode.
_RAW = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def command_line() -> str:
    """Return what was typed, to be recorded with the results."""
    return shlex.join(["tokendynamics", *sys.argv[1:]])


def table(*columns: str, left: Collection[str] = (), unbroken: Collection[str] = (), title: str = "") -> Table:
    """Return an empty table for the terminal.

    Args:
        columns: Their heads, of numbers and aligned right but for those in `left`.
        left: Columns of words.
        unbroken: Columns whose cells stay on one line.
        title: Printed above.
    """
    made = Table(box=SIMPLE_HEAD, title=Text(title) if title else None, title_justify="left")
    for column in columns:
        side: Literal["left", "right"] = "left" if column in left else "right"
        made.add_column(column, justify=side, no_wrap=column in unbroken, overflow="fold")
    return made


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print lines of text, on standard error if `err`, with control characters as visible signs.

    The stream is not changed: click would write UTF-8 to an ASCII stream.
    """
    print(printable(text, keep="\n"), end="\n" if nl else "", file=sys.stderr if err else sys.stdout, flush=True)


def echo_json(value: Any) -> None:
    """Print one line of JSON on standard output, with escapes for characters that the encoding of the stream lacks."""
    line = json_line(value)
    try:
        line.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        line = json.dumps(value, allow_nan=False)
    print(line, flush=True)


def fail(message: object) -> None:
    """Print an error as one line on standard error, at most `LONGEST_LINE` characters long."""
    line(f"error: {message}")


def line(text: str) -> None:
    """Print one line on standard error, at most `LONGEST_LINE` characters long."""
    echo(shortened(printable(" ".join(text.split())), LONGEST_LINE), err=True)


def json_line(value: Any) -> str:
    r"""Return JSON on one line without characters that a terminal obeys.

    Args:
        value: Plain values, every number finite.

    >>> json_line({"name": "ä\x9b"})
    '{"name": "ä\\u009b"}'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _RAW.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


class Console(rich.console.Console):
    r"""A console on which tokens, names and titles are only text: no escape sequence passes.

    Colours by Rich are styles, which are kept.

    >>> import io
    >>> file = io.StringIO()
    >>> Console(file=file).print("a\x1b[2Jb")
    >>> file.getvalue()
    'a␛[2Jb\n'
    """

    @property
    def size(self) -> rich.console.ConsoleDimensions:
        """Width and height; results are at least `_NARROWEST` wide, so that no cell is cut."""
        size = super().size
        return size if self.stderr else size._replace(width=max(size.width, _NARROWEST))

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size

    def render(self, renderable: Any, options: rich.console.ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return Rich's segments with printable text."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text, keep="\n"), style)
