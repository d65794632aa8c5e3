"""What a result says: findings with their numbers, and conventions behind the numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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
