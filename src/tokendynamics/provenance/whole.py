"""Files and folders that are complete or absent: made beside their place and then put there; nothing foreign goes."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokendynamics.numerics import ArgumentValueError, StorageError
from tokendynamics.provenance.owned import MANIFEST, changed_data, digests, entries_in, in_the_way, written_in
from tokendynamics.provenance.reading import SPECIAL, kind_of
from tokendynamics.provenance.swap import NEW, locked, put_in_place, recover, settle, staging


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Give a name to write to, rename it to `path` when the block is done, and remove it when it fails.

    The remains of a run that was killed meanwhile are cleared by the next.

    Raises:
        StorageError: The disk is full or cannot be written, or there is a pipe or a device, which a file would replace;
            what was there is as it was.
    """
    target = Path(os.path.realpath(path))
    if (kind := kind_of(target)) in SPECIAL:
        raise StorageError(str(path), "the path of a file", kind, "choose another path")
    recover(target)
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with staging(target) as root:
            made = root / target.name
            yield made
            made.replace(target)


_FULL = {getattr(errno, name, errno.ENOSPC) for name in ("ENOSPC", "EDQUOT", "EFBIG")}
_MOST_ATTEMPTS = 100


def check_free(
    target: str | Path,
    entries: Collection[str],
    written_by: str,
    *,
    overwrite: bool = False,
    keep: bool = False,
    argument: str = "folder",
) -> None:
    """Refuse a folder where new results would replace what no earlier run of the same command wrote.

    Meant to be called before anything is computed. A swap that a kill interrupted is completed first.

    Args:
        target: The folder, which need not exist.
        entries: Names of files and folders that will be written directly in it.
        written_by: The command, as in the manifest.
        overwrite: Allow everything but a file where the folder should be.
        keep: Whether files of earlier runs stay beside the new ones; otherwise they go.
        argument: What the folder is called in the message.

    Raises:
        ArgumentValueError: A foreign file is in the way (it is named), or another command's results are, or the
            target is a file.
    """
    place = _settled(target, argument)
    recover(place)
    if overwrite or not place.is_dir():
        return
    _check(place, _affected(place, entries, keep), written_by, argument)


def settle_results(path: str | Path, argument: str = "folder") -> None:
    """Complete the results at `path` if a run was killed while it replaced older ones, before they are read.

    Args:
        path: A folder or file of results, which need not exist.
        argument: What it is called in the message.

    Raises:
        ArgumentValueError: They cannot be completed, for example on a disk that is read-only.
    """
    try:
        place = Path(os.path.realpath(path))
    except ValueError:  # a null byte: the reader says so
        return
    if not settle(place):
        came = f"{path}, whose files are partly those of a run that was killed while it replaced older ones"
        advice = "make the folder writable and open it again, or repeat the run with another folder"
        raise ArgumentValueError(argument, "the results of one run", came, advice)


def check_unchanged(folder: Path) -> None:
    """Refuse results whose data are not those that were written, by the SHA-256 of each file in their manifest.

    A damaged store may be readable, with other numbers in it.

    Args:
        folder: Of results; one without a manifest has nothing to compare with.

    Raises:
        ArgumentValueError: The first file is named.
    """
    if changed := changed_data(folder):
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        wanted = f"the data files that were written, by their SHA-256 in {MANIFEST}"
        advice = f"copy the folder again or repeat the run; if you edited the data, remove {MANIFEST}"
        raise ArgumentValueError("folder", wanted, f"another {folder / changed[0]}{more}", advice)


@contextmanager
def whole_folder(
    target: str | Path,
    record: Mapping[str, Any],
    written_by: str,
    *,
    overwrite: bool = False,
    keep: bool = False,
    shared: bool = False,
    argument: str = "folder",
) -> Iterator[Path]:
    """Give an empty folder; at the end of the block what is in it becomes the content of `target`, whole.

    A manifest.json is added: `record`, `written_by`, and `files`, the SHA-256 of each file by name. By it the next
    run knows what it may replace. Files of others stay. If the block fails or the run is killed, the older results
    are as they were; the next run clears what is left. Of two runs that end at the same time the later one's results
    stay, whole.

    Args beyond those of `check_free`:
        record: From `manifest`; plain JSON values.
        shared: Whether others work in the folder meanwhile, so that entries are replaced one by one.

    Raises:
        ArgumentValueError: As in `check_free`.
        StorageError: The disk is full or cannot be written; nothing was replaced.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     with whole_folder(f"{parent}/out", {"seed": 0}, "an example") as made:
    ...         _ = (made / "numbers.txt").write_text("1 2 3")
    ...     sorted(path.name for path in Path(parent, "out").iterdir())
    ['manifest.json', 'numbers.txt']
    """
    place = _settled(target, argument)
    recover(place)
    with storage_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        with staging(place) as root:
            new = root / NEW
            new.mkdir()
            yield new
            _put(root, place, record, written_by, overwrite, keep, shared, argument)


@contextmanager
def storage_errors(place: Path) -> Iterator[None]:
    """Turn what is raised where results cannot be written into one error that says why.

    Args:
        place: The file or folder that is written.

    Raises:
        StorageError: The disk is full, is read-only, or a folder above cannot be used.
    """
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        # HDF5, PyTorch and safetensors raise errors of their own, with the system's words in them.
        if full := [code for code in sorted(_FULL) if code == number or os.strerror(code) in str(error)]:
            code = full[0]
            wanted, came = "room for the results", os.strerror(code).lower()
            remedy = "raise the limit of a file's size (ulimit -f)" if code == errno.EFBIG else "free space"
            advice = f"{remedy} or choose another disk; the earlier files are unchanged"
        elif number not in (None, errno.ENOTEMPTY) and _is_around(place, getattr(error, "filename", None)):
            limited = number in (errno.EMFILE, errno.ENFILE)  # whatever the place
            wanted = "files that can be opened" if limited else "a place that can be written to"
            came = os.strerror(number).lower()
            advice = "raise the limit of open files (ulimit -n)" if limited else "choose another folder"
        else:
            raise
        raise StorageError(str(place), wanted, came, advice) from error


def _is_around(place: Path, name: object) -> bool:
    """Return whether a path that the system names is where a file or folder is made, or above it."""
    path = Path(os.path.realpath(name)) if isinstance(name, str | os.PathLike) else None
    return path is not None and (path.is_relative_to(place.parent) or place.is_relative_to(path))


def _put(
    root: Path,
    place: Path,
    record: Mapping[str, Any],
    written_by: str,
    overwrite: bool,
    keep: bool,
    shared: bool,
    argument: str,
) -> None:
    from tokendynamics.provenance.manifest import write_json

    new = root / NEW
    files, entries = digests(new), entries_in(new)
    manifest = {**record, "written_by": written_by}
    write_json(new / MANIFEST, {**manifest, "files": files})
    for _ in range(_MOST_ATTEMPTS):
        if not place.exists():
            try:
                new.rename(place)
                return
            except OSError:  # another run was faster
                if not place.exists():
                    raise
        # Somebody may remove the folder just now: then it is made again.
        with contextlib.suppress(FileNotFoundError), locked(place):
            affected = _affected(place, entries, keep)
            if not overwrite:
                _check(place, affected, written_by, argument)
            if keep:
                write_json(new / MANIFEST, {**manifest, "files": _kept(place, affected) | files})
            put_in_place(root, place, affected, entry_by_entry=shared)
            return
    raise StorageError(str(place), "a folder that stays", "one that is removed again and again")


def _affected(place: Path, entries: Collection[str], keep: bool) -> set[str]:
    """Names in the folder that go or are replaced."""
    written = written_in(place)
    former = set() if keep or written is None else written.entries
    return {*entries, MANIFEST, *former}


def _kept(place: Path, affected: Collection[str]) -> dict[str, str]:
    """Return what the older manifest says of files that stay."""
    written = written_in(place)
    files = {} if written is None else written.files
    return {name: value for name, value in files.items() if name.split("/")[0] not in affected}


def _check(place: Path, affected: Collection[str], written_by: str, argument: str) -> None:
    advice = "choose another folder, or allow it with --overwrite (overwrite=True)"
    written = written_in(place)
    if written is not None and written.by != written_by:
        wanted = f"a folder without results of other commands than {written_by}"
        raise ArgumentValueError(argument, wanted, f"{place} with those of {written.by}", advice)
    foreign = in_the_way(place, affected)
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        wanted = "no file in the way that an earlier run did not write or that was changed since"
        raise ArgumentValueError(argument, wanted, f"{place / foreign[0]}{more}", advice)


def _settled(target: str | Path, argument: str) -> Path:
    """Return the folder itself where `target` is a link to one."""
    place = Path(os.path.realpath(target))
    if place.exists() and not place.is_dir():
        raise ArgumentValueError(argument, "a folder or a new name", f"the file {target}")
    return place
