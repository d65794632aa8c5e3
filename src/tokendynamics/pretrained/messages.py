"""Turns what another library raises into a few words that fit in a one-line message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tokendynamics.numerics.errors import TokenDynamicsError

_LONGEST = 200


def in_short(error: BaseException) -> str:
    """Return the first non-empty line of the error's text, shortened; its class name if it has no text.

    A line that ends with a colon brings the next one with it.

    >>> in_short(ValueError("header too small" + chr(10) + "see the documentation"))
    'header too small'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    text = " ".join(lines[: 2 if lines[0].endswith(":") else 1])
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


@contextmanager
def refusing(refusal: Callable[[str], TokenDynamicsError]) -> Iterator[None]:
    """Turn whatever another library raises inside into a refusal.

    Readers of foreign files raise whatever their parsing led to, and those written in Rust a panic that is no
    `Exception`. Our own errors, an interruption and a full memory pass as they are.

    Args:
        refusal: Makes the error to raise from the other one in short.
    """
    try:
        yield
    except (TokenDynamicsError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise refusal(in_short(error)) from error
