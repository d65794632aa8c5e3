"""Keeps the progress bars and warnings of the model libraries out of a command's output, for a while."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers (and the hub client it steers) inside the block; every setting is put back after."""
    from transformers.utils import logging as switches

    with ExitStack() as restore, warnings.catch_warnings():
        warnings.simplefilter("ignore")
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
