"""One sentence of a verdict, and how its numbers are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import xarray as xr

FigureName = Literal[
    "shares", "agreement", "norms", "updates", "attention", "components", "levers", "deeper", "weights", "paths",
    "halved",
]  # fmt: skip


PART_NAMES = {"attention": "attention", "feed_forward": "feed-forward part"}
"""What the two parts of a layer are called in sentences, by their label in the data."""


@dataclass(frozen=True)
class Finding:
    """One plain sentence of the verdict.

    Attributes:
        text: The sentence, each claim with its number.
        figure: The figure that shows it.
        values: The numbers in it by name, unrounded.
    """

    text: str
    figure: FigureName
    values: dict[str, Any] = field(default_factory=dict)


def signed(number: float) -> str:
    """Write two decimals with a real minus sign.

    >>> signed(-0.5)
    '−0.50'
    """
    return f"{number:+.2f}".replace("-", "−")


def plain(number: float) -> str:
    """Write two decimals, with a real minus sign where there is one; no zero is negative.

    >>> plain(-0.001), plain(-0.5)
    ('0.00', '−0.50')
    """
    return f"{round(number, 2) + 0.0:.2f}".replace("-", "−")


def between(interval: Sequence[float] | np.ndarray | xr.DataArray) -> str:
    """Write an interval; nothing where there is none.

    >>> between([0.1, 0.25]), between([float("nan"), 1.0])
    (' (0.10 to 0.25)', '')
    """
    low, high = np.asarray(interval, dtype=float)
    return "" if np.isnan(low) or np.isnan(high) else f" ({plain(low)} to {plain(high)})"


def ranges(layers: Sequence[int] | np.ndarray) -> str:
    """Write layers in order, runs of them as one.

    >>> ranges([3, 4, 5, 9])
    '3–5, 9'
    """
    runs = np.split(np.asarray(layers), np.flatnonzero(np.diff(layers) > 1) + 1)
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def several(count: int, noun: str) -> str:
    """Write a count with its noun.

    >>> several(1, "text"), several(3, "text")
    ('1 text', '3 texts')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"
