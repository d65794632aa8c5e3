"""A run's manifest as text: times, durations, versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from tokendynamics.words._numbers import UNDEFINED, number


def moment(started: Any) -> str:
    """Write an ISO time as a date and a time of day; anything else as it is.

    >>> moment("2026-11-21T23:35:52+00:00")
    '21 November 2026, 23:35 UTC'
    """
    try:
        when = datetime.fromisoformat(str(started))
    except ValueError:
        return str(started)
    return f"{when.day} {when:%B %Y, %H:%M %Z}".strip()


def duration(seconds: Any) -> str:
    """Write a duration in seconds.

    >>> duration(12.34), duration(None)
    ('12.3 s', 'undefined time')
    """
    return f"{number(float(seconds))} s" if isinstance(seconds, int | float) else f"{UNDEFINED} time"


def manifest_entries(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return name and text of every entry of a manifest but the command.

    >>> manifest_entries({"command": "x", "seed": 3, "versions": {"numpy": "2.4", "torch": None}})
    [('seed', '3'), ('versions', 'numpy: 2.4')]
    """
    entries = [(str(name), _listed(value)) for name, value in manifest.items() if name != "command"]
    return [(name, text) for name, text in entries if text]


def written(value: Any) -> str:
    """Write an entry of a manifest: mappings and lists joined, reals rounded, consecutive integers as a range.

    >>> written({"layers": [1, 2, 3], "rtol": 1e-8}), written(None)
    ('layers 1–3, rtol 1 × 10⁻⁸', '')
    """
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {written(entry)}" for key, entry in value.items() if entry is not None)
    if isinstance(value, range | list | tuple) and _consecutive(value):
        return f"{value[0]}–{value[-1]}"
    if isinstance(value, list | tuple):
        return ", ".join(written(entry) for entry in value)
    return number(value, 4) if isinstance(value, float) else str(value)


def _listed(value: Any) -> str:
    if not isinstance(value, Mapping):
        return written(value)
    return "; ".join(f"{key}: {written(entry)}" for key, entry in value.items() if entry is not None)


def _consecutive(values: Sequence[Any]) -> bool:
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    return len(values) > 2 and whole and list(values) == list(range(values[0], values[0] + len(values)))
