"""Files that are whole or not there: written under a temporary name beside the target and then renamed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tokendynamics.numerics.errors import ArgumentValueError, expected


def known_suffix(path: str | Path, known: Sequence[str]) -> str:
    """The suffix of `path` in lower case, without its dot.

    Raises:
        ArgumentValueError: It is none of `known`, or `path` is a folder.
    """
    target = Path(path)
    suffix = target.suffix.lower().removeprefix(".")
    if suffix not in known:
        wanted = "a file name that ends in " + ", ".join(f".{kind}" for kind in known)
        raise ArgumentValueError(expected("path", wanted, repr(target.name)))
    if target.is_dir():
        raise ArgumentValueError(expected("path", "a file name", f"the folder {target}"))
    return suffix


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Give a temporary name beside `path`, rename it when the block is done, and remove it when it fails."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
