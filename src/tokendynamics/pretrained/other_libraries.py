"""Keeps the bars and warnings of the model libraries out of a command's output, and their errors to a few words."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tokendynamics.numerics import TokenDynamicsError

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


@contextmanager
def silenced() -> Iterator[None]:
    """Silence transformers (and the hub client it steers) inside the block; every setting is put back after."""
    from transformers.utils import logging as switches

    with ExitStack() as restore, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Each change of a level clears what some thousand loggers remember: inside another block none is made.
        if switches.get_verbosity() != logging.CRITICAL:
            restore.callback(switches.set_verbosity, switches.get_verbosity())
            switches.set_verbosity(logging.CRITICAL)
        if switches.is_progress_bar_enabled():
            restore.callback(switches.enable_progress_bar)
            switches.disable_progress_bar()
        yield


@contextmanager
def without_panics() -> Iterator[None]:
    """Drop what libraries written in Rust print past Python when they panic; the panic itself is raised.

    For short pieces of work only: the process's standard error is closed to every thread meanwhile.
    """
    sys.stderr.flush()
    try:
        former = os.dup(2)
    except OSError:  # there is no standard error
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(former, 2)
        os.close(former)
        os.close(nowhere)
