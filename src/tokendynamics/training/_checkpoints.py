"""Checkpoints that are whole or not there, whatever kills a run while it writes one."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

_NAME = re.compile(r"checkpoint-([0-9]+)")
_PARTIAL = ".partial"


def partial_place(folder: Path, step: int) -> Path:
    """Return where the checkpoint of a step is written before it has its name: the same for every process of a run."""
    return folder / f".checkpoint-{step}{_PARTIAL}"


def put_checkpoint(made: Path, folder: Path, keep: int) -> Path:
    """Bring a complete checkpoint to the disk, give it its name, and remove all but the last `keep`.

    Args:
        made: The folder ``checkpoint-N`` in its `partial_place`.
        folder: Of the checkpoints.
        keep: How many stay.

    Returns:
        Its place.
    """
    for path in (*made.rglob("*"), made):
        _settle(path)
    place = folder / made.name
    if place.exists():  # of a run that was resumed from an earlier one
        shutil.rmtree(place)
    made.rename(place)
    made.parent.rmdir()
    _settle(folder)
    for older in checkpoints(folder)[:-keep]:
        _remove(older)
    return place


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the last one last."""
    found = [path for path in folder.glob("checkpoint-*") if path.is_dir() and _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def clear_partial(folder: Path) -> None:
    """Remove what killed runs left of checkpoints that they did not complete, or did not remove whole."""
    for path in folder.glob(f".*{_PARTIAL}"):
        shutil.rmtree(path, ignore_errors=True)


def _remove(checkpoint: Path) -> None:
    """Take the name away first: half a checkpoint must never look like one."""
    doomed = checkpoint.with_name(f".{checkpoint.name}.removed{_PARTIAL}")
    checkpoint.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _settle(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
