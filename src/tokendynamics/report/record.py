"""How the record of a run is written on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from tokendynamics.report.text import UNDEFINED, number


def moment(started: Any) -> str:
    """Return an ISO time as people write it; anything else as it is.

    >>> moment("2026-11-21T23:35:52+00:00")
    '21 November 2026, 23:35 UTC'
    """
    try:
        when = datetime.fromisoformat(str(started))
    except ValueError:
        return str(started)
    return f"{when.day} {when:%B %Y, %H:%M %Z}".strip()


def duration(seconds: Any) -> str:
    """Write seconds as people do."""
    return f"{number(float(seconds))} s" if isinstance(seconds, int | float) else f"{UNDEFINED} time"


def manifest_entries(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and text of what a manifest holds, but for the command, which stands apart."""
    entries = [(str(name), _listed(value)) for name, value in manifest.items() if name != "command"]
    return [(name, text) for name, text in entries if text]


def _listed(value: Any) -> str:
    if not isinstance(value, Mapping):
        return written(value)
    return "; ".join(f"{key}: {written(entry)}" for key, entry in value.items() if entry is not None)


def written(value: Any) -> str:
    """Return a manifest entry in words; mappings and lists are joined, reals rounded."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {written(entry)}" for key, entry in value.items() if entry is not None)
    if isinstance(value, range | list | tuple) and _consecutive(value):
        return f"{value[0]}–{value[-1]}"
    if isinstance(value, list | tuple):
        return ", ".join(written(entry) for entry in value)
    return number(value, 4) if isinstance(value, float) else str(value)


def _consecutive(values: Sequence[Any]) -> bool:
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    return len(values) > 2 and whole and list(values) == list(range(values[0], values[0] + len(values)))
