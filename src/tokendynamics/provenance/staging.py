"""Folders in which a result is made beside its place, and what becomes of them when a run is killed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks; remains of killed runs are then left where they are
    fcntl = None

JOURNAL = "journal.json"
"""In a staging folder: a swap has begun and must be completed."""

_LONGEST_NAME = 200


@contextmanager
def staging(target: Path) -> Iterator[Path]:
    """Give a folder of this run's own beside `target`, or in it where nothing can be made beside it.

    It is removed at the end, unless a swap was broken off: the next run completes it. A lock on the folder tells
    the others that its run is alive.
    """
    root, lock = _made(target)
    try:
        yield root
    finally:
        try:
            if not (root / JOURNAL).exists():
                shutil.rmtree(root, ignore_errors=True)
        finally:
            if lock is not None:
                os.close(lock)


@contextmanager
def remains(target: Path) -> Iterator[list[Path]]:
    """Return the staging folders that dead runs left for `target`, held so that nobody else clears them."""
    with contextlib.ExitStack() as stack:
        dead: list[Path] = []
        for parent, prefix in _places(target):
            pattern = re.compile(re.escape(prefix) + "[0-9a-f]{12}")
            for path in _folders(parent):
                lock = _lock(path, wait=False) if pattern.fullmatch(path.name) else None
                if lock is not None:
                    stack.callback(os.close, lock)
                    dead.append(path)
        yield dead


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Wait until no other run changes what is in `folder`, and keep the others waiting.

    Raises:
        FileNotFoundError: There is no such folder.
    """
    while True:
        lock = _lock(folder, wait=True)
        try:
            # The folder may have been exchanged for another one while we waited.
            if lock is None or os.path.samestat(os.fstat(lock), folder.stat()):
                yield
                return
        finally:
            if lock is not None:
                os.close(lock)


def _made(target: Path) -> tuple[Path, int | None]:
    places = _places(target)
    beside = not os.path.ismount(target)
    for parent, prefix in places if beside else places[1:]:
        root = parent / (prefix + uuid.uuid4().hex[:12])
        try:
            root.mkdir()
        except OSError:
            if parent == target or not target.is_dir():
                raise
            continue
        # Until it is locked, another run may take the new folder for a dead one's and clear it.
        with contextlib.suppress(FileNotFoundError):
            lock = _lock(root, wait=True)
            if root.is_dir():
                return root, lock
            if lock is not None:
                os.close(lock)
        return _made(target)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target))


def _places(target: Path) -> list[tuple[Path, str]]:
    """Tell where staging folders of `target` may be and how their names begin."""
    name = target.name
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    return [(target.parent, f".{name}.partial-"), (target, ".partial-")]


def _folders(parent: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(parent) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _lock(folder: Path, *, wait: bool) -> int | None:
    """Lock a folder until the number returned is closed; None if somebody else has it or nobody can."""
    if fcntl is None:
        return None
    try:
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        if wait:
            raise
        return None
    except OSError:
        return None
    try:
        fcntl.flock(number, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(number)
        return None
    return number
