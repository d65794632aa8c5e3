"""Estimates with their confidence intervals, and shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tokendynamics.words._numbers import fixed, number, percent


@runtime_checkable
class _Array(Protocol):
    """An array of numpy, or an object that becomes one, such as a DataArray: xarray takes a second to import."""

    def __array__(self, dtype: Any = None) -> np.ndarray: ...


Ends = Sequence[float] | np.ndarray | _Array
"""Lower and upper end of an interval."""


def interval(
    ends: Ends, confidence: float, *, places: int = 2, at_least: float = -np.inf, at_most: float = np.inf
) -> str:
    """Write a confidence interval; empty where an end is NaN.

    Args:
        ends: Lower and upper end.
        confidence: Such as 0.9.
        places: Decimal places.
        at_least: Smallest possible value of the quantity, 0 for a share; the interval is cut there.
        at_most: Largest possible value, 1 for a share.

    >>> interval([0.1, 0.25], 0.9), interval([-0.2, 0.3], 0.95), interval([float("nan"), 1.0], 0.9)
    ('90 % CI 0.10–0.25', '95 % CI −0.20 to 0.30', '')
    >>> interval([-0.1, 2.01], 0.9, at_least=0.0, at_most=1.0), interval([1.1, 1.3], 0.9, at_most=1.0)
    ('90 % CI 0.00–1.00', '')
    """
    low, high = np.asarray(ends, dtype=float)
    if np.isnan(low) or np.isnan(high) or low > at_most or high < at_least:
        return ""
    first, last = fixed(max(low, at_least), places), fixed(min(high, at_most), places)
    dash = " to " if first.startswith("−") else "–"
    return f"{percent(confidence)} CI {first}{dash}{last}"


def estimate(
    value: float,
    ends: Ends,
    confidence: float,
    *,
    places: int = 2,
    sign: bool = False,
    at_least: float = -np.inf,
    at_most: float = np.inf,
) -> str:
    """Write a value with its confidence interval in brackets, or alone where an end is NaN.

    Args:
        value: The estimate.
        ends: Lower and upper end of its interval.
        confidence: Such as 0.9.
        places: Decimal places.
        sign: Whether a positive value gets a plus sign.
        at_least: Smallest possible value of the quantity; the interval is cut there.
        at_most: Largest possible value.

    >>> estimate(0.25, [0.2, 0.3], 0.9), estimate(0.04, [-0.01, 0.08], 0.9, sign=True)
    ('0.25 (90 % CI 0.20–0.30)', '+0.04 (90 % CI −0.01 to 0.08)')
    >>> estimate(0.25, [float("nan")] * 2, 0.9)
    '0.25'
    """
    brackets = interval(ends, confidence, places=places, at_least=at_least, at_most=at_most)
    return f"{fixed(value, places, sign=sign)} ({brackets})" if brackets else fixed(value, places, sign=sign)


def percent_estimate(value: float, ends: Ends, confidence: float) -> str:
    """Write a share as a percentage with its confidence interval.

    >>> percent_estimate(0.67, [0.5, 0.803], 0.95)
    '67 % (95 % CI 50–80 %)'
    """
    low, high = (number(100 * end, 2) for end in np.asarray(ends, dtype=float).tolist())
    return f"{percent(value)} ({percent(confidence)} CI {low}–{high} %)"


def places_for(ends: Ends) -> int:
    """Return the decimal places that show two significant digits of an interval's width.

    Args:
        ends: Lower and upper end; equal ends get three significant digits of themselves.

    >>> places_for([0.1, 0.25]), places_for([0.0103, 0.0137]), places_for([10.0, 300.0]), places_for([0.02, 0.02])
    (2, 4, 0, 4)
    """
    low, high = np.asarray(ends, dtype=float)
    size, digits = (high - low, 2) if high > low else (abs(low), 3)
    if not np.isfinite(size) or size == 0:
        return 2
    return int(min(max(digits - 1 - np.floor(np.log10(size)), 0), 12))


def share(value: float, ends: Ends, confidence: float) -> str:
    """Write a share with its confidence interval, both within 0 … 1.

    >>> share(1.0000001, [0.95, 1.02], 0.9), share(-0.0004, [float("nan")] * 2, 0.9)
    ('1.00 (90 % CI 0.95–1.00)', '0.00')
    """
    return estimate(min(max(value, 0.0), 1.0), ends, confidence, at_least=0.0, at_most=1.0)


def is_share(values: Ends) -> bool:
    """Return whether estimates can be printed as shares: all lie within 0 … 1 at two decimal places.

    >>> is_share([-0.004, 1.004]), is_share([-0.09, 1.09])
    (True, False)
    """
    rounded = np.round(np.asarray(values, dtype=float), 2)
    return bool(((rounded >= 0) & (rounded <= 1)).all())
