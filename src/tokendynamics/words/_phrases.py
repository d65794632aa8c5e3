"""What a result says: findings and conventions, and the phrases of its sentences and of its manifest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

from tokendynamics.words._numbers import UNDEFINED, count, number


@dataclass(frozen=True)
class Finding:
    """One sentence about a result.

    Attributes:
        text: The sentence; each claim has its number.
        figure: Name of the figure that shows it.
        values: The numbers in it by name, unrounded.

    >>> Finding("No theorem applies.", "weights", {"layers": 0}).text
    'No theorem applies.'
    """

    text: str
    figure: str
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Convention:
    """One choice that changes the numbers.

    Attributes:
        name: The quantity or step that the choice is about.
        choice: What was done.
        otherwise: What would change with another choice.

    >>> Convention("Precision", "float64", "float32 hides small differences").choice
    'float64'
    """

    name: str
    choice: str
    otherwise: str


def plural(number: int, singular: str, several: str = "") -> str:
    """Write a count with its noun.

    Args:
        number: How many.
        singular: The noun for one.
        several: The noun for any other number; by default `singular` with an s.

    >>> plural(1, "prompt"), plural(1500, "prompt"), plural(2, "matrix", "matrices")
    ('1 prompt', '1,500 prompts', '2 matrices')
    """
    return f"{count(number)} {singular if number == 1 else several or f'{singular}s'}"


def indefinite(noun: str) -> str:
    """Write a noun with its article.

    >>> indefinite("text"), indefinite("image")
    ('a text', 'an image')
    """
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def listing(items: Sequence[str], last: str = "and", most: int | None = None) -> str:
    """Join items into a list.

    Args:
        items: Words or phrases.
        last: The word before the last item.
        most: How many are named before the rest is counted.

    >>> listing(["a"]), listing(["a", "b"]), listing(["a", "b", "c"], "or")
    ('a', 'a and b', 'a, b or c')
    >>> listing(["a", "b", "c", "d"], most=2)
    'a, b and 2 more'
    """
    if most is not None and len(items) > most + 1:
        items = [*items[:most], f"{count(len(items) - most)} more"]
    return " ".join([", ".join(items[:-1]), last, items[-1]]) if len(items) > 1 else "".join(items)


def ranges(numbers: Sequence[int] | np.ndarray) -> str:
    """Write increasing integers, consecutive ones as a range.

    >>> ranges([3, 4, 5, 9])
    '3–5, 9'
    """
    runs = np.split(np.asarray(numbers), np.flatnonzero(np.diff(numbers) > 1) + 1)
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def in_layers(layers: Sequence[int] | np.ndarray) -> str:
    """Write layer indices with their noun.

    >>> in_layers([3]), in_layers([3, 4, 5, 9])
    ('layer 3', 'layers 3–5, 9')
    """
    return f"layer{'s' if len(layers) > 1 else ''} {ranges(layers)}"


def sentence(text: str, *, capital: bool = True) -> str:
    """Return text as a sentence: a capital letter first unless it begins with a symbol, and a full stop.

    >>> sentence("neutral within a band"), sentence("qk_eigenvalues are scaled")
    ('Neutral within a band.', 'qk_eigenvalues are scaled.')
    """
    whole = text.strip().rstrip(".") + "."
    word = re.match(r"[a-z]+(?=[ ,;:.])", whole)
    return whole[0].upper() + whole[1:] if capital and word else whole


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
