"""Files that outlast a power cut: on the disk, with the folders that name them, before the next is written."""

from __future__ import annotations

import os
from pathlib import Path


def put_durably(data: bytes, made: Path, target: Path) -> None:
    """Write a file under another name, rename it, and return when a power cut can no longer undo either.

    Args:
        data: What is to be in it.
        made: A name on the same disk for what is not whole yet.
        target: Its place; folders above that are not there are made.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     put_durably(b"whole", Path(place, "new"), Path(place, "a", "b", "file"))
    ...     [str(path.relative_to(place)) for path in sorted(Path(place).rglob("*"))]
    ['a', 'a/b', 'a/b/file']
    """
    with made.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    above = [target.parent, *(parent.parent for parent in (target.parent, *target.parents) if not parent.exists())]
    target.parent.mkdir(parents=True, exist_ok=True)
    made.replace(target)
    for folder in dict.fromkeys(above):
        settle(folder)


def settle(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk.

    Windows opens no folder, and takes only files that are open for writing.
    """
    posix = hasattr(os, "O_DIRECTORY")
    if path.is_dir() and not posix:
        return
    opened = os.open(path, os.O_RDONLY if posix else os.O_RDWR)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
