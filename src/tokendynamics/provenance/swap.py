"""Puts a complete new folder or file in the place of an older one, so that a kill at any moment loses neither.

The result is made in a folder beside its place; what a killed run left there is cleared by the next.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import sys
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
                _remove(root)
        finally:
            if lock is not None:
                os.close(lock)


def _remove(root: Path) -> None:
    """Remove a folder, also where no more files can be open than one."""
    shutil.rmtree(root, ignore_errors=True)  # it keeps the folders of all levels open
    for place, _, names in os.walk(root, topdown=False):
        for name in names:
            with contextlib.suppress(OSError):
                Path(place, name).unlink()
        with contextlib.suppress(OSError):
            Path(place).rmdir()


@contextmanager
def remains(target: Path) -> Iterator[list[Path]]:
    """Return the staging folders that dead runs left for `target`, held so that nobody else clears them."""
    with contextlib.ExitStack() as stack:
        dead: list[Path] = []
        for parent, prefix in _places(target):
            for path in _staged(parent, prefix):
                lock = _lock(path, wait=False)
                if lock is not None:
                    stack.callback(os.close, lock)
                    dead.append(path)
        yield dead


@contextmanager
def locked(folder: Path) -> Iterator[None]:
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


def _staged(parent: Path, prefix: str) -> list[Path]:
    """Return the staging folders in a folder."""
    pattern = re.compile(re.escape(prefix) + "[0-9a-f]{12}")
    try:
        folders = [Path(entry.path) for entry in os.scandir(parent) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [path for path in folders if pattern.fullmatch(path.name)]


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
    # The C library cannot be asked for by None on Windows, and an old one lacks the call.
    libc: Any = ctypes.CDLL(None, use_errno=True) if _exchanges() else None
    first, second = os.fsencode(one), os.fsencode(other)
    if hasattr(libc, "renameat2"):
        failed = libc.renameat2(_HERE, first, _HERE, second, ctypes.c_uint(_EXCHANGE))
    elif hasattr(libc, "renamex_np"):
        failed = libc.renamex_np(first, second, ctypes.c_uint(_EXCHANGE))
    else:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one), None, str(other))


def _exchanges() -> bool:
    return sys.platform in ("linux", "darwin")


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
        with locked(target):
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
    """
    beside = root.parent == target.parent
    if entry_by_entry or not beside or _is_current(target) or not _exchanged(root / NEW, target, replaced):
        _journalled(root, target, replaced)


def recover(target: Path) -> None:
    """Complete the swaps of `target` that a kill interrupted, and clear what dead runs left."""
    with remains(target) as dead:
        for root in dead:
            _finish(root, target)
            shutil.rmtree(root, ignore_errors=True)


def settle(target: Path) -> bool:
    """Complete the swaps of `target` that a kill interrupted, before it is read; wait for one that is under way.

    Returns:
        Whether the results are those of one run: False if a swap cannot be completed here.
    """
    for root in [folder for parent, prefix in _places(target) for folder in _staged(parent, prefix)]:
        if not _pending(root, target):
            continue
        try:
            lock = _lock(root, wait=True)
        except FileNotFoundError:  # completed meanwhile
            continue
        try:
            if lock is not None:
                with contextlib.suppress(OSError):
                    _finish(root, target)
            if _pending(root, target):
                return False
            if lock is not None:
                shutil.rmtree(root, ignore_errors=True)
        finally:
            if lock is not None:
                os.close(lock)
    return True


def _finish(root: Path, target: Path) -> None:
    if (root / JOURNAL).is_file() and target.is_dir():
        with locked(target):
            _complete(root, target)
    elif _between_kinds(root, target):
        (root / NEW).rename(target)


def _pending(root: Path, target: Path) -> bool:
    """Whether a swap began and an entry is not replaced yet."""
    try:
        journal: dict[str, Any] = json.loads((root / JOURNAL).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return _between_kinds(root, target)
    if not target.is_dir():
        return False
    entries = [
        (former, _identity(target / name), os.path.lexists(root / NEW / name)) for name, former in journal.items()
    ]
    return any(staged if present is None else present == former for former, present, staged in entries)


def _between_kinds(root: Path, target: Path) -> bool:
    """Whether a kill came while a file was replaced by a folder or the other way: both are here, neither there."""
    if os.path.lexists(target):
        return False
    new, old = root / NEW, root / _OLD
    return os.path.lexists(new) and os.path.lexists(old) and new.is_dir() != old.is_dir()


def _exchanged(new: Path, target: Path, replaced: Collection[str]) -> bool:
    if not _exchanges():
        return False
    kept = [entry for entry in os.scandir(target) if entry.name not in replaced]
    if any(entry.is_dir(follow_symlinks=False) for entry in kept):
        return False
    try:
        for entry in kept:
            os.link(entry.path, new / entry.name, follow_symlinks=False)
        shutil.copymode(target, new)
        exchange(new, target)
    except (OSError, NotImplementedError) as error:  # the latter for links to links
        if isinstance(error, OSError) and error.errno not in _CANNOT:
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
        identity, there = _identity(place), os.path.lexists(new)
        if identity is not None and identity == former:
            if there and not new.is_dir() and (place.is_symlink() or not place.is_dir()):
                new.replace(place)
                continue
            place.rename(root / _OLD / name)
            identity = None
        if there and identity is None:
            new.rename(place)
    (root / JOURNAL).unlink()


def _identity(path: Path) -> list[int] | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return [status.st_dev, status.st_ino, status.st_mtime_ns]


def _is_current(target: Path) -> bool:
    # A shell in this folder would be left in one that is no longer there.
    try:
        return Path.cwd().resolve().is_relative_to(target)
    except FileNotFoundError:
        return False


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
        to_disk(folder)


def to_disk(path: Path) -> None:
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
