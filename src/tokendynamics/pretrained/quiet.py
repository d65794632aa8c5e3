"""Keeps the progress bars and warnings of the model libraries out of a command's output, for a while."""

from __future__ import annotations

import logging
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
