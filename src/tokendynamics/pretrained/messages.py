"""Turns an exception of another library into a few words that fit in a one-line message."""

from __future__ import annotations

_LONGEST = 200


def in_short(error: BaseException) -> str:
    """Return the first non-empty line of the error's text, shortened; its class name if it has no text.

    >>> in_short(ValueError("header too small" + chr(10) + "see the documentation"))
    'header too small'
    """
    lines = (line.strip() for line in str(error).splitlines())
    text = next((line for line in lines if line), type(error).__name__)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
