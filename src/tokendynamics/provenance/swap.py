"""Puts a complete new folder in the place of an older one, so that a kill at any moment loses neither."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tokendynamics.provenance.staging import JOURNAL, held, remains

NEW, _OLD = "new", "old"
_HERE = -100
_EXCHANGE = 2
_CANNOT = {
    number
    for name in ("ENOSYS", "EINVAL", "ENOTSUP", "EOPNOTSUPP", "EPERM", "EACCES", "EMLINK", "EXDEV", "EBUSY")
    if (number := getattr(errno, name, None)) is not None
}
"""What is raised where hard links or the exchange are not to be had."""


def exchange(one: Path, other: Path) -> None:
    """Give two paths of one file system each other's names, in one step.

    Raises:
        OSError: The system or the file system cannot.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(one), os.fsencode(other)
    if sys.platform.startswith("linux") and hasattr(libc, "renameat2"):
        failed = libc.renameat2(_HERE, first, _HERE, second, ctypes.c_uint(_EXCHANGE))
    elif sys.platform == "darwin":
        failed = libc.renamex_np(first, second, ctypes.c_uint(_EXCHANGE))
    else:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one), None, str(other))


def put(root: Path, target: Path) -> None:
    """Put the file or folder "new" in `root` in the place of `target`, which goes with all it holds.

    Args:
        root: A staging folder of `target`.
        target: A file, a folder, or a name that is free.
    """
    new = root / NEW
    if not (new.is_dir() and target.is_dir()):
        try:
            new.replace(target)
            return
        except OSError:  # a folder there, or another run was faster
            if not os.path.lexists(target):
                raise
    if new.is_dir() and target.is_dir():
        with held(target):
            put_in_place(root, target, [path.name for path in target.iterdir()], entry_by_entry=False)
    else:
        # A file for a folder or the other way: nothing of ours was there.
        target.rename(root / _OLD)
        new.rename(target)


def put_in_place(root: Path, target: Path, replaced: Collection[str], *, entry_by_entry: bool) -> None:
    """Replace entries of `target` by those of the folder "new" in `root`; the caller holds `target`.

    The whole folders are exchanged in one step where that is possible: other files of `target` are then in both of
    them (as hard links) at that moment. Where other folders lie in `target`, or the system cannot exchange, a
    journal is written first and the entries are renamed one by one; `recover` completes what a kill interrupts.

    Args:
        root: A staging folder of `target`.
        target: An existing folder.
        replaced: Names in `target` that go, whether or not there are new ones for them.
        entry_by_entry: Whether to leave the folder itself, because others work in it.
    """
    beside = root.parent == target.parent
    if entry_by_entry or not beside or _is_current(target) or not _exchanged(root / NEW, target, replaced):
        _journalled(root, target, replaced)


def recover(target: Path) -> None:
    """Complete the swaps of `target` that a kill interrupted, and clear what dead runs left."""
    with remains(target) as dead:
        for root in dead:
            if (root / JOURNAL).is_file() and target.is_dir():
                with held(target):
                    _complete(root, target)
            shutil.rmtree(root, ignore_errors=True)


def _exchanged(new: Path, target: Path, replaced: Collection[str]) -> bool:
    kept = [entry for entry in os.scandir(target) if entry.name not in replaced]
    if any(entry.is_dir(follow_symlinks=False) for entry in kept):
        return False
    try:
        for entry in kept:
            os.link(entry.path, new / entry.name, follow_symlinks=False)
        shutil.copymode(target, new)
        exchange(new, target)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        for entry in kept:
            (new / entry.name).unlink(missing_ok=True)
        return False
    _return_late(new, target, replaced)
    return True


def _return_late(former: Path, target: Path, replaced: Collection[str]) -> None:
    """Bring to `target` what somebody wrote into the older folder between the links and the exchange."""
    for entry in list(os.scandir(former)):
        place = target / entry.name
        if entry.name not in replaced and _identity(place) != _identity(Path(entry.path)):
            with contextlib.suppress(OSError):
                Path(entry.path).replace(place)


def _journalled(root: Path, target: Path, replaced: Collection[str]) -> None:
    names = {*replaced, *(path.name for path in (root / NEW).iterdir())}
    partial = root / f"{JOURNAL}.partial"
    with partial.open("w", encoding="utf-8") as file:
        json.dump({name: _identity(target / name) for name in sorted(names)}, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(root / JOURNAL)
    try:
        _complete(root, target)
    except BaseException:
        # Interrupted half way: what was begun is ended before anybody looks.
        _complete(root, target)
        raise


def _complete(root: Path, target: Path) -> None:
    """Do what the journal says and was not done yet; what changed in `target` since it was written is left alone."""
    if not (root / JOURNAL).is_file():
        return
    journal: dict[str, Any] = json.loads((root / JOURNAL).read_text(encoding="utf-8"))
    (root / _OLD).mkdir(exist_ok=True)
    for name, former in journal.items():
        new, place = root / NEW / name, target / name
        found, there = _identity(place), os.path.lexists(new)
        if found is not None and found == former:
            if there and not new.is_dir() and (place.is_symlink() or not place.is_dir()):
                new.replace(place)
                continue
            place.rename(root / _OLD / name)
            found = None
        if there and found is None:
            new.rename(place)
    (root / JOURNAL).unlink()


def _identity(path: Path) -> list[int] | None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return [found.st_dev, found.st_ino, found.st_mtime_ns]


def _is_current(target: Path) -> bool:
    # A shell in this folder would be left in one that is no longer there.
    try:
        return Path.cwd().resolve().is_relative_to(target)
    except FileNotFoundError:
        return False
