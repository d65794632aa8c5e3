"""The cache of converted GGUF files: found by content, verified, written whole."""

from __future__ import annotations

import json
import os
import time
from hashlib import sha256
from pathlib import Path

import platformdirs

from tokendynamics.numerics.errors import CheckpointError, TokenDynamicsError, expected
from tokendynamics.provenance.owned import digest, entries_in, files_below, written_in
from tokendynamics.provenance.swap import recover
from tokendynamics.provenance.whole_file import whole_file

WRITER = "tokendynamics conversion of GGUF"
# Part of the key: raise it when what is written changes.
_LAYOUT = "2"
# A file that was changed within the clock's last ticks can change again without a new time.
_SETTLED_SECONDS = 2.0


def cache_root(cache: Path | str | None) -> Path:
    """Return the folder of the caller's choice, of TOKENDYNAMICS_CACHE, or else the user's cache folder."""
    return Path(cache or os.environ.get("TOKENDYNAMICS_CACHE") or platformdirs.user_cache_dir("tokendynamics"))


def entry_of(path: Path, root: Path) -> Path:
    """Return the folder of the conversion of `path`, by the whole content of the file: it survives a reinstallation.

    Raises:
        CheckpointError: Not a GGUF file.
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            came = "one that does not begin with GGUF"
            raise CheckpointError(expected(str(path), "a GGUF file", came, "download it again"))
    key = sha256(f"{_LAYOUT}|{remembered_digest(path, root)}".encode()).hexdigest()[:16]
    return root / "gguf" / f"{path.stem}-{key}"


def intact(entry: Path, root: Path) -> bool:
    """Tell whether a conversion is there with every file as it was written."""
    written = written_in(entry)
    if written is None or written.by != WRITER or "config.json" not in written.files:
        return False
    there = {name for top in entries_in(entry) for name in files_below(entry, top)}
    return set(written.files) <= there and all(
        remembered_digest(entry / name, root) == wanted for name, wanted in written.files.items()
    )


def remembered_digest(path: Path, root: Path) -> str:
    """Return the SHA-256 of a file, read again only where its size, times or place on the disk have changed."""
    stamp = _stamp(path)
    note = root / "digests" / f"{sha256(os.fsencode(path.resolve())).hexdigest()[:32]}.json"
    recover(note)
    try:
        former = json.loads(note.read_text(encoding="utf-8"))
        if former["stamp"] == stamp and isinstance(former["sha256"], str):
            return former["sha256"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass  # nothing known of this file, or a damaged note
    found = digest(path)
    if time.time() - max(stamp[1:3]) / 1e9 > _SETTLED_SECONDS and _stamp(path) == stamp:
        _remember(note, {"stamp": stamp, "sha256": found})
    return found


def _stamp(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev]


def _remember(note: Path, values: dict[str, object]) -> None:
    try:
        with whole_file(note) as made:
            made.write_text(json.dumps(values), encoding="utf-8")
    except (OSError, TokenDynamicsError):
        pass  # a cache that cannot be written to costs time and nothing else
