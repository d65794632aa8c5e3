"""What the folder of a run holds, and its checkpoints, which are complete or absent, whatever kills a run."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError, TokenDynamicsError
from tokendynamics.provenance.manifest import write_json
from tokendynamics.provenance.owned import MANIFEST, digest, digests
from tokendynamics.provenance.reading import read_json
from tokendynamics.provenance.swap import to_disk
from tokendynamics.provenance.whole import storage_errors
from tokendynamics.training.experiment import Experiment

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

EXPERIMENT, RECORD = "experiment.json", "record.json"
CHECKPOINTS, LOGS, SAMPLES, MODEL, AVERAGED = "checkpoints", "logs", "samples", "model", "model-averaged"


def read_experiment(folder: Path) -> Experiment:
    """Return what the folder of a run says is run there.

    Raises:
        ArgumentValueError: There is no such file, or it cannot be read.
    """
    place = folder / EXPERIMENT
    values = read_json(place, "folder")
    try:
        return Experiment.from_json(values)
    except (ArgumentTypeError, ArgumentValueError) as error:
        raise ArgumentValueError("folder", f"a readable {EXPERIMENT}", f"{place} ({error})") from error


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
                raise ArgumentValueError("folder", wanted, str(place), advice) from error
        yield
    finally:
        os.close(lock)


_NAME = re.compile(r"checkpoint-([0-9]+)")
_PARTIAL = ".partial"
_ROOM = 2**20
"""Bytes for which there is room on any disk that is not full."""


def partial_place(folder: Path, step: int) -> Path:
    """Return where the checkpoint of a step is written before it has its name: the same for every process of a run."""
    return folder / f".checkpoint-{step}{_PARTIAL}"


def put_checkpoint(made: Path, folder: Path, *, keep: int, processes: int) -> Path:
    """Bring a complete checkpoint to the disk, give it its name, and remove all but the last `keep`.

    Args:
        made: The folder ``checkpoint-N`` in its `partial_place`.
        folder: Of the checkpoints.
        keep: How many stay.
        processes: Of the run; they are noted, with the SHA-256 of every file, for `last_checkpoint`.

    Returns:
        Its place.
    """
    write_json(made / MANIFEST, {"processes": processes, "files": digests(made)})
    for path in (*made.rglob("*"), made):
        to_disk(path)
    place = folder / made.name
    if place.exists():  # of a run that was resumed from an earlier one
        _remove(place)
    made.rename(place)
    made.parent.rmdir()
    to_disk(folder)
    remove_older(folder, keep)
    return place


def remove_older(folder: Path, keep: int) -> None:
    """Remove all checkpoints but the last `keep`."""
    for older in checkpoints(folder)[:-keep]:
        _remove(older)


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the last one last."""
    folders = [path for path in folder.glob("checkpoint-*") if path.is_dir() and _NAME.fullmatch(path.name)]
    return sorted(folders, key=lambda path: int(path.name.rpartition("-")[2]))


def last_checkpoint(folder: Path, processes: int) -> Path | None:
    """Return the checkpoint that a run continues from, whose files are those that were written; None where none is.

    Raises:
        CheckpointError: It is damaged: the message says what is wrong and what to do.
        ArgumentValueError: The run was begun with another number of processes.
    """
    every = checkpoints(folder)
    if not every:
        return None
    wrong, began = _damage(every[-1])
    if wrong:
        start = f"continues from {every[-2].name}" if len(every) > 1 else "starts anew"
        advice = f"remove this checkpoint and resume: the run {start}, with the same numbers"
        raise CheckpointError(str(every[-1]), "the files that the run wrote", wrong, advice)
    if began != processes:
        wanted = f"{began}, with which the run was started: others would use other data"
        raise ArgumentValueError("processes", wanted, processes)
    return every[-1]


def clear_partial(folder: Path) -> None:
    """Remove what killed runs left of checkpoints that they did not complete, or did not remove whole."""
    for path in folder.glob(f".*{_PARTIAL}"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def into_room(folder: Path) -> Iterator[None]:
    """Say of a full disk or of a limit that it is one, whatever PyTorch and safetensors raise there.

    Raises:
        StorageError: The disk of the folder is full, or a limit or a permission keeps files from being written.
    """
    with storage_errors(folder):
        try:
            yield
        except TokenDynamicsError:
            raise
        except Exception as error:
            code = errno.ENOSPC if os.strerror(errno.ENOSPC) in str(error) else _refusal(folder)
            if code:
                raise OSError(code, os.strerror(code), str(folder)) from error
            raise


def _refusal(folder: Path) -> int:
    """Return the system's error number where a small file cannot be written, else 0: a quota shows in nothing else."""
    probe = folder / f".room{_PARTIAL}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(bytes(_ROOM))
        to_disk(probe)
    except OSError as error:
        return error.errno or errno.ENOSPC
    finally:
        probe.unlink(missing_ok=True)
    return 0


def _damage(checkpoint: Path) -> tuple[str, int]:
    """Return what is wrong with a checkpoint, in words or none, and the number of processes that wrote it."""
    try:
        noted: Any = read_json(checkpoint / MANIFEST, str(checkpoint))
        files, processes = dict(noted["files"]), int(noted["processes"])
    except (ArgumentValueError, KeyError, TypeError, ValueError):
        return f"{MANIFEST} missing or damaged", 0
    for name, written in files.items():
        if digest(checkpoint / name) != written:
            return f"{name} {'changed' if (checkpoint / name).is_file() else 'missing'}", processes
    return "", processes


def _remove(checkpoint: Path) -> None:
    """Take the name away first: half a checkpoint must never look like one."""
    doomed = checkpoint.with_name(f".{checkpoint.name}.removed{_PARTIAL}")
    checkpoint.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)
