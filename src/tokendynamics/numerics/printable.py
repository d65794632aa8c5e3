"""Foreign text (tokens, file and folder names, titles) made safe to print: it acts on no terminal and no page."""

from __future__ import annotations

import io
import sys
import unicodedata

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


def tolerate_encodings() -> None:
    r"""Have standard output and error write what their encoding lacks as an escape such as ``\u03ba``.

    For the beginning of a program: an ASCII or Windows code page would otherwise end it with an error.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _sign(char: str) -> str:
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    kind = unicodedata.category(char)
    hidden = kind in {"Cc", "Cs", "Co", "Cn", "Zl", "Zp"} or (kind == "Cf" and char not in _JOINERS)
    return f"‹U+{code:04X}›" if hidden else char
