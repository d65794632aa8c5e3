"""Where text comes from: what ships with every Python, a folder of files, one large file; always in three splits."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tokendynamics.numerics._errors import ArgumentValueError, expected

LAYOUT = (
    "a file of text such as enwik8 (split 90, 5 and 5 % in its own order), a folder of text files (each whole in one "
    "split), 'pydoc' (pages of help that every CPython has) or 'python-doc' (its manual, Debian's package python3-doc)"
)
_SOURCES = ("python3.*/html/_sources", "python3/html/_sources")
_SPLIT_SEED = 20_261_124
"""Of which documents are held out: the same for every run, so that no run trains on what another is tested on."""


class Splits(NamedTuple):
    """Bytes of each split, (byte,) uint8."""

    training: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def text_splits(data: str, held_out: float) -> Splits:
    """Return the bytes of a text in three splits.

    Args:
        data: ``"pydoc"``, ``"python-doc"``, or the path of a file or folder. Links to other files are not followed:
            they would bring a text twice, and what is trained on into the test.
        held_out: Share of each of the validation and the test split, between 0 and 0.5.

    Raises:
        ArgumentValueError: Nothing there, nothing in it, or a share out of range.
    """
    if not 0 < held_out < 0.5:
        raise ArgumentValueError(expected("held_out", "a share between 0 and 0.5", held_out))
    if data == "pydoc":
        return _of_documents(_pydoc(), held_out)
    place = _python_doc() if data == "python-doc" else Path(data).expanduser()
    if place.is_dir():
        return _of_documents(_files(place), held_out)
    if place.is_file():
        return _of_file(place, held_out)
    came = f"nothing at {place}" if not os.path.lexists(place) else f"{place}, which is neither"
    raise ArgumentValueError(expected("data", LAYOUT, came))


def _of_file(place: Path, held_out: float) -> Splits:
    size = place.stat().st_size
    if size == 0:
        raise ArgumentValueError(expected("data", LAYOUT, f"the empty file {place}"))
    mapped = np.memmap(place, dtype=np.uint8, mode="r")
    held = round(size * held_out)
    return Splits(mapped[: size - 2 * held], mapped[size - 2 * held : size - held], mapped[size - held :])


def _of_documents(documents: Iterable[bytes], held_out: float) -> Splits:
    """Give whole documents to the splits, in an order of chance, until test and validation have their shares."""
    every = list(documents)
    total, parts = sum(map(len, every)), {"test": [], "validation": [], "training": []}
    filled = dict.fromkeys(parts, 0)
    for number in np.random.default_rng(_SPLIT_SEED).permutation(len(every)):
        held = (name for name in ("test", "validation") if filled[name] < held_out * total)
        name = next(held, "training")
        parts[name].append(every[number])
        filled[name] += len(every[number])
    joined = {name: np.frombuffer(b"\n".join(part), dtype=np.uint8) for name, part in parts.items()}
    return Splits(joined["training"], joined["validation"], joined["test"])


def _pydoc() -> list[bytes]:
    from pydoc_data.topics import topics

    return [topics[name].encode() for name in sorted(topics)]


def _files(folder: Path) -> list[bytes]:
    """Read the files of a folder and of those in it, by name; hidden ones and links are passed over."""
    found = []
    for root, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (Path(root, name) for name in sorted(names) if not name.startswith("."))
        found += [path.read_bytes() for path in paths if path.is_file() and not path.is_symlink()]
    if not any(found):
        raise ArgumentValueError(expected("data", LAYOUT, f"the folder {folder} without a file that has text"))
    return found


def _python_doc() -> Path:
    shared = Path("/usr/share/doc")
    found = next(
        (place for pattern in _SOURCES for place in sorted(shared.glob(pattern)) if not place.is_symlink()), None
    )
    if found is None:
        advice = "apt install python3-doc, or name a folder of text files"
        raise ArgumentValueError(
            expected("data", "the sources of Python's manual", "none under /usr/share/doc", advice)
        )
    return found
