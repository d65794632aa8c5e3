"""Which files of a folder an earlier run wrote, by the manifest it left there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tokendynamics.provenance.reading import read_json

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Written:
    """What a manifest says of the folder it lies in.

    Attributes:
        by: The command that wrote the folder.
        files: SHA-256 of every file by its name relative to the folder, such as "audit.zarr/.zgroup"; the manifest
            itself is not among them.
    """

    by: str
    files: Mapping[str, str]

    @property
    def entries(self) -> set[str]:
        """Names directly in the folder, the manifest's among them."""
        return {PurePosixPath(name).parts[0] for name in self.files} | {MANIFEST}


def written_in(folder: Path) -> Written | None:
    """Return what the manifest in `folder` says; None without one, or another program's."""
    try:
        record = read_json(folder / MANIFEST, "folder")
        by, files = record["written_by"], record["files"]
        proper = isinstance(by, str) and all(_inside(name) and isinstance(files[name], str) for name in files)
    except (ValueError, KeyError, TypeError):
        return None
    return Written(by, files) if proper else None


def in_the_way(folder: Path, entries: Collection[str]) -> list[str]:
    """Return the files under some entries of `folder` that no earlier run wrote, or that were changed since.

    Args:
        folder: May be missing.
        entries: Names directly in the folder.

    Returns:
        Names relative to the folder, in order; a foreign folder without files counts by its own name.
    """
    written = written_in(folder)
    known_digests: Mapping[str, str] = {} if written is None else written.files
    known = set() if written is None else written.entries
    in_way: list[str] = []
    for entry in sorted(entries):
        if entry == MANIFEST and written is not None:
            continue
        names = list(files_below(folder, entry))
        if not names and entry not in known and os.path.lexists(folder / entry):
            in_way.append(entry)
        in_way += [name for name in names if name not in known_digests or digest(folder / name) != known_digests[name]]
    return in_way


_DATA = (".zarr", ".nc", ".json", ".npz")


def changed_data(folder: Path) -> list[str]:
    """Return the data files of a folder that are not as its manifest says: changed, missing or further ones in a store.

    Args:
        folder: Of results; one without a manifest has nothing to compare with.

    Returns:
        Names relative to the folder, in order. A whole entry that is missing is not among them: what reads it says so.
    """
    written = written_in(folder)
    if written is None:
        return []
    entries = [entry for entry in sorted(written.entries - {MANIFEST}) if entry.endswith(_DATA)]
    present = {name for entry in entries for name in files_below(folder, entry)}
    noted = {name for name in written.files if os.path.lexists(folder / PurePosixPath(name).parts[0])}
    noted = {name for name in noted if PurePosixPath(name).parts[0] in entries}
    changed = {name for name in present & noted if digest(folder / name) != written.files[name]}
    return sorted(changed | (present ^ noted))


def files_below(folder: Path, entry: str) -> Iterator[str]:
    """Name the files in an entry of `folder`, relative to it; links are not followed and count as files."""
    path = folder / entry
    if path.is_symlink() or not path.is_dir():
        if os.path.lexists(path):
            yield entry
        return
    for name in entries_in(path):
        yield from files_below(folder, f"{entry}/{name}")


def entries_in(folder: Path) -> list[str]:
    """Return the names directly in a folder, in order."""
    return sorted(path.name for path in folder.iterdir())


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below `folder`, by name."""
    names = (name for entry in entries_in(folder) for name in files_below(folder, entry))
    return {name: digest(folder / name) for name in names if name != MANIFEST}


def digest(path: Path) -> str:
    """Return the SHA-256 of a file; of a link, which is never ours, an empty text."""
    if path.is_symlink() or not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _inside(name: object) -> bool:
    # A name that leads out of the folder would have files removed that nobody meant.
    return isinstance(name, str) and bool(name) and not name.startswith("/") and ".." not in PurePosixPath(name).parts
