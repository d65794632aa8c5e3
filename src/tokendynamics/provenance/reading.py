"""Reads back JSON that anyone may have written: bounded, with typed errors and checksums, without heavy imports."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import shown

_LONGEST_JSON = 256 * 2**20


def read_json(path: Path, argument: str) -> Any:
    """Read the values of a JSON file; NaN and Infinity, which JSON does not have, are refused.

    Raises:
        ArgumentValueError: No regular file, too large, not UTF-8, or not JSON.
    """
    return parse_json(path, argument, "JSON", _refuse_constant)


def parse_json(path: Path, argument: str, wanted: str, constant: Callable[[str], Any]) -> Any:
    """Read a JSON file; `constant` says what NaN and Infinity are, and `wanted` what the file should hold.

    Raises:
        ArgumentValueError: No regular file, too large, not UTF-8, or not JSON.
    """
    check_regular(path, argument, described=True)
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"), parse_constant=constant)
    except RecursionError as error:
        raise unreadable(path, argument, wanted, "lists or objects nested too deep") from error
    except (OSError, ValueError) as error:
        raise unreadable(path, argument, wanted, error) from error


def check_regular(path: Path, argument: str, *, described: bool = False) -> int:
    """Return the size of a regular file: a device or pipe may never end.

    Args:
        path: The file, or a link to it.
        argument: What an error calls it.
        described: Whether it is JSON, whose size is limited.

    Raises:
        ArgumentValueError: Nothing there, something else than a file, or JSON that is too large.
    """
    try:
        state = path.stat()
    except (OSError, ValueError) as error:
        raise unreadable(path, argument, "a file", error) from error
    if not stat.S_ISREG(state.st_mode):
        came = kind_of(path) if argument == str(path) else f"{kind_of(path)} ({path})"
        raise ArgumentValueError(argument, "a regular file", came)
    if described and state.st_size > _LONGEST_JSON:
        raise ArgumentValueError(argument, f"a file of at most {_LONGEST_JSON} bytes", f"{state.st_size} in {path}")
    return state.st_size


def kind_of(path: Path) -> str:
    """Return in words what is at a path, without opening it.

    >>> kind_of(Path("/")), kind_of(Path("/dev/null")), kind_of(Path("/nowhere"))
    ('a folder', 'a device', 'no such file')
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "a link to a file that is not there" if path.is_symlink() else "no such file"
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error).lower()
    return _KINDS.get(stat.S_IFMT(mode), "a device")


SPECIAL = ("a named pipe", "a socket", "a device")
"""What `kind_of` calls that which is neither a file nor a folder; it is neither read nor replaced."""

_KINDS = {stat.S_IFREG: "a file", stat.S_IFDIR: "a folder", stat.S_IFIFO: SPECIAL[0], stat.S_IFSOCK: SPECIAL[1]}


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def unreadable(path: Path, argument: str, wanted: str, reason: object) -> ArgumentValueError:
    """Return the error for a file that does not hold what is wanted, with the reason."""
    name = "an unreadable file" if argument == str(path) else path
    return ArgumentValueError(argument, wanted, f"{name} ({shown(str(reason))[1:-1]})")


CHECKSUM = "content_sha256"
"""The entry, or the attribute, that holds the SHA-256 of all others."""


def with_checksum(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain JSON values with their checksum; the order of keys and the layout of the file do not count.

    >>> check_checksum(with_checksum({"a": 1.5}), "folder")
    """
    return {**values, CHECKSUM: _digest(values)}


def check_checksum(values: Any, argument: str) -> None:
    """Refuse values that are not those that were written; without a checksum there is nothing to compare with.

    Args:
        values: As they were read.
        argument: What an error calls them.

    Raises:
        ArgumentValueError: They are others.
    """
    if isinstance(values, Mapping) and CHECKSUM in values and values[CHECKSUM] != _digest(values):
        raise changed_content(argument)


def changed_content(argument: str) -> ArgumentValueError:
    """Return the error for content that changed since it was written."""
    advice = f"copy it again or repeat the run; if you edited it, remove {CHECKSUM}"
    return ArgumentValueError(argument, f"the content of its {CHECKSUM}", "another one", advice)


def _digest(values: Mapping[str, Any]) -> str:
    content = {name: value for name, value in values.items() if name != CHECKSUM}
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
