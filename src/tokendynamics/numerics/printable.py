"""Foreign text (tokens, file and folder names, titles) made safe to print: it acts on no terminal and no page."""

from __future__ import annotations

import io
import os
import sys
import unicodedata
from pathlib import Path

_JOINERS = "\u200c\u200d"  # needed inside Persian words and emoji: they are text, not control


def printable(text: str, *, keep: str = "") -> str:
    r"""Replace what would act on a terminal or a page, or not show at all, by a visible sign.

    C0 control characters become their control pictures; other control, format (bidirectional overrides among
    them), private and surrogate characters become their code point in angle quotes; those in `keep` stay. Escaping for
    HTML comes later.

    >>> printable("a\x00b\u202ec\x1b[31m")
    'a␀b‹U+202E›c␛[31m'
    >>> printable("one\ntwo", keep="\n") == "one\ntwo"
    True
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char in keep else _sign(char) for char in text)


def token_label(text: str) -> str:
    r"""Return a token as a short label: nothing invisible, no spaces around it, never empty.

    >>> token_label(" museum"), token_label("\n"), token_label("  ")
    ('museum', '␊', '␣␣')
    """
    shown = printable(text)
    return shown.strip(" ") or "␣" * len(shown) or "(empty)"


def shortened(text: str, longest: int) -> str:
    """Leave out the middle of a text that is too long: its beginning says what it is, its end what to do.

    Args:
        text: Anything.
        longest: Number of characters that may be left, at least 3.

    >>> shortened("abcdefghij", 7), shortened("short", 7)
    ('ab … ij', 'short')
    """
    if len(text) <= longest:
        return text
    end = (longest - 3) // 2
    return f"{text[: longest - 3 - end]} … {text[len(text) - end :]}"


def shortened_clauses(text: str, longest: int) -> str:
    """Leave out the last clauses of a text that is too long, and say how many; the middle of a single one.

    Clauses stand apart by a semicolon, all of them possibly in round brackets at the end.

    Args:
        text: Anything.
        longest: Number of characters that may be left, at least 40.

    >>> shortened_clauses("none (its heads have norms; it has a soft cap; it varies)", 50)
    'none (its heads have norms; and 2 more)'
    """
    if len(text) <= longest:
        return text
    before, _, inner = text.partition(" (")
    if text.endswith(")") and "; " in inner and "; " not in before and len(before) <= longest - 43:
        return f"{before} ({shortened_clauses(inner[:-1], longest - len(before) - 3)})"
    clauses = text.split("; ")
    kept = _between_words(clauses[0], longest if len(clauses) == 1 else longest - 20)
    for further in range(len(clauses) - 1, 0, -1):
        shorter = "; ".join([*clauses[:-further], f"and {further:,} more"])
        if len(shorter) > longest:
            return f"{kept}; and {further:,} more" if further == len(clauses) - 1 else kept
        kept = shorter
    return kept


def _between_words(text: str, longest: int) -> str:
    """Leave out the middle of a text that is too long, between words where it has some."""
    short = shortened(text, longest)
    if short == text:
        return text
    begin, _, end = short.partition(" … ")
    return f"{_without(begin[::-1])[::-1]} … {_without(end)}"


def _without(text: str) -> str:
    """Return a text without the rest of a word by which it begins."""
    word, space, further = text.partition(" ")
    return further if space and further and len(word) < 20 else text


def prepare_streams() -> None:
    r"""Have standard output and error escape what their encoding lacks, and let a closed or full stream end nothing.

    For the beginning of a program: an ASCII or Windows code page would otherwise end it with an error. Messages that
    cannot be written to standard error are dropped; where standard output cannot be written, the error names it. A
    closed descriptor is opened on the null device, since the next file, perhaps of results, would take its number.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
        elif name != "stdin" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
            if stream is getattr(sys, f"__{name}__"):
                setattr(sys, name, _Stream(name, stream))


class _Stream(io.TextIOWrapper):
    """Standard output or error, whose first failure is its last: what follows goes to the null device."""

    def __init__(self, name: str, stream: io.TextIOWrapper) -> None:
        super().__init__(
            stream.buffer, encoding=stream.encoding, errors=stream.errors, line_buffering=stream.line_buffering
        )
        self._name = name

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._fail(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        if self._name == "stdout":
            raise OSError(error.errno, f"standard output cannot be written: {error.strerror}") from error


def _sign(char: str) -> str:
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    kind = unicodedata.category(char)
    hidden = kind in {"Cc", "Cs", "Co", "Cn", "Zl", "Zp"} or (kind == "Cf" and char not in _JOINERS)
    return f"‹U+{code:04X}›" if hidden else char
