"""Checksums inside records: a damaged file may be readable, with other numbers in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected

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
    return ArgumentValueError(expected(argument, f"the content of its {CHECKSUM}", "another one", advice))


def _digest(values: Mapping[str, Any]) -> str:
    content = {name: value for name, value in values.items() if name != CHECKSUM}
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
