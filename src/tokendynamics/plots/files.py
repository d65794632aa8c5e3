"""Names of files and what they say of the format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokendynamics.numerics.errors import ArgumentValueError, expected


def known_suffix(path: str | Path, known: Sequence[str]) -> str:
    """Return the suffix of `path` in lower case, without its dot.

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
