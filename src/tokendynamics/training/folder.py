"""What the folder of a run holds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

EXPERIMENT, RECORD = "experiment.json", "record.json"
CHECKPOINTS, LOGS, SAMPLES, MODEL, AVERAGED = "checkpoints", "logs", "samples", "model", "model-averaged"


def put_folder(made: Path, place: Path) -> None:
    """Give a complete folder its name; what had it before goes."""
    if place.exists():
        shutil.rmtree(place)
    made.rename(place)


@contextmanager
def held(place: Path) -> Iterator[None]:
    """Keep the folder of a run from other processes until the block is done, or this process is no more.

    Raises:
        ArgumentValueError: Another process is at it: two would write into each other's checkpoints.
    """
    if fcntl is None:
        yield
        return
    lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # not every file system has locks
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                wanted, advice = "a run that no other process is writing", "wait until it has ended"
                raise ArgumentValueError(expected("folder", wanted, str(place), advice)) from error
        yield
    finally:
        os.close(lock)
