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


def between(
    interval: Sequence[float] | np.ndarray | xr.DataArray, at_least: float = -np.inf, at_most: float = np.inf
) -> str:
    """Write an interval, cut to the values that the quantity can have; nothing where there is none.

    Args:
        interval: Its lower and its upper end.
        at_least: The smallest possible value, 0 for a share.
        at_most: The largest possible value, 1 for a share.

    >>> between([0.1, 0.25]), between([float("nan"), 1.0])
    (' (0.10 to 0.25)', '')
    >>> between([0.16, 2.01], 0.0, 1.0), between([1.1, 1.3], 0.0, 1.0)
    (' (0.16 to 1.00)', '')
    """
    low, high = np.asarray(interval, dtype=float)
    if np.isnan(low) or np.isnan(high) or low > at_most or high < at_least:
        return ""
    return f" ({plain(max(low, at_least))} to {plain(min(high, at_most))})"


def share_of(value: float, interval: Sequence[float] | np.ndarray | xr.DataArray) -> str:
    """Write a share with its interval, both within 0 … 1.

    >>> share_of(1.0000001, [0.95, 1.02]), share_of(-0.0004, [float("nan")] * 2)
    ('1.00 (0.95 to 1.00)', '0.00')
    """
    return f"{plain(min(max(value, 0.0), 1.0))}{between(interval, 0.0, 1.0)}"


def are_shares(values: Sequence[float] | np.ndarray | xr.DataArray) -> bool:
    """Tell whether estimates can be printed as shares: all lie within 0 … 1 as they would be written.

    >>> are_shares([-0.004, 1.004]), are_shares([-0.09, 1.09])
    (True, False)
    """
    written = np.round(np.asarray(values, dtype=float), 2)
    return bool(((written >= 0) & (written <= 1)).all())


def ranges(layers: Sequence[int] | np.ndarray) -> str:
    """Write layers in order, runs of them as one.

    >>> ranges([3, 4, 5, 9])
    '3–5, 9'
    """
    runs = np.split(np.asarray(layers), np.flatnonzero(np.diff(layers) > 1) + 1)
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def in_layers(layers: Sequence[int]) -> str:
    """Write layers with their noun.

    >>> in_layers([3]), in_layers([3, 4, 5, 9])
    ('layer 3', 'layers 3–5, 9')
    """
    return f"layer{'s' if len(layers) > 1 else ''} {ranges(layers)}"


def several(count: int, noun: str) -> str:
    """Write a count with its noun.

    >>> several(1, "text"), several(3, "text")
    ('1 text', '3 texts')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"
