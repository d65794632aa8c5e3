"""A choice that numbers hang on, recorded beside them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Convention:
    """One choice that the numbers hang on.

    Attributes:
        name: What is chosen.
        choice: What was done.
        otherwise: What would change if it were otherwise.
    """

    name: str
    choice: str
    otherwise: str
