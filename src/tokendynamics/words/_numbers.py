"""Numbers in text, with their intervals, and shares: significant digits, a real minus sign, powers of ten."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

UNDEFINED = "undefined"
"""What stands where a value does not exist; no text shows a NaN."""

_ROUNDING = 1e-9
"""Distance from 1 below which a share is all."""

_LOG_OF_FLOATS = 500.0
"""Logarithms up to which a number is written by its float; beyond 709 it would overflow."""

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None, digits: int = 3) -> str:
    """Write a number with `digits` significant digits, and as a power of ten outside 10⁻⁴ … 10⁷.

    >>> [number(value) for value in (0.08213, -1.5, 22613.0, 3.1e-7, float("nan"), float("inf"))]
    ['0.0821', '−1.5', '22,600', '3.1 × 10⁻⁷', 'undefined', '∞']
    """
    if value is None or not math.isfinite(value) or value == 0:
        return _special(value)
    # As text: 10^exponent is no float for the smallest numbers.
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    if -4 <= int(exponent) < 7:
        decimals = max(digits - 1 - int(exponent), 0)
        text = f"{float(mantissa + 'e' + exponent):,.{decimals}f}"
        return _minus(text.rstrip("0").rstrip(".") if decimals else text)
    return f"{number(float(mantissa), digits)} × {power_of_ten(int(exponent))}"


def signed(value: float | None, digits: int = 3) -> str:
    """Write a number as `number` does, with a plus sign where it is positive.

    >>> signed(0.5), signed(-0.5), signed(0.0)
    ('+0.5', '−0.5', '0')
    """
    return f"+{number(value, digits)}" if value is not None and value > 0 else number(value, digits)


def fixed(value: float | None, places: int = 2, *, sign: bool = False) -> str:
    """Write a number with a fixed number of decimal places; zero has no sign.

    Args:
        value: Any number.
        places: Decimal places.
        sign: Whether a positive number gets a plus sign.

    >>> fixed(0.5), fixed(-0.001), fixed(0.5, sign=True), fixed(-0.5, 3, sign=True), fixed(-0.001, sign=True)
    ('0.50', '0.00', '+0.50', '−0.500', '0.00')
    """
    if value is None or not math.isfinite(value):
        return _special(value)
    rounded = round(value, places) + 0.0  # −0.0 becomes 0.0
    return _minus(f"{rounded:{'+' if sign and rounded > 0 else ''},.{places}f}")


def column(values: Sequence[float | None], digits: int = 4) -> list[str]:
    """Write the numbers of one column of a table, all with the same number of decimal places.

    The largest number gets `digits` significant digits, and places in which every number has a zero are cut. Written
    by itself, with `digits` significant digits, is a number that would show zeros only. So is one outside 10⁻⁴ … 10⁷,
    as a power of ten; these have one number of places among themselves. An exact zero is `0`.

    Args:
        values: The numbers; None or NaN where one does not exist.
        digits: Significant digits of the largest.

    >>> column([0.5, 12.3456, -3.0, 0.0, None]), column([1.0, 20.0]), column([0.25, 0.5])
    (['0.50', '12.35', '−3.00', '0', 'undefined'], ['1', '20'], ['0.25', '0.50'])
    >>> column([0.7312, 0.0046812, 2.34e-9, 3e-9]), column([22613.4, 74.36, 0.056])
    (['0.7312', '0.0047', '2.34 × 10⁻⁹', '3.00 × 10⁻⁹'], ['22,613', '74', '0.056'])
    """
    exponents = [_exponent(value, digits) for value in values]
    plain = {exponent for exponent in exponents if exponent is not None and -4 <= exponent < 7}
    places = max(digits - 1 - max(plain, default=0), 0)
    texts = [number(value, digits) for value in values]
    shown, powers = [], []
    for at, (value, exponent) in enumerate(zip(values, exponents, strict=True)):
        if value is not None and exponent in plain and exponent >= -places:
            texts[at] = fixed(value, places)
            shown.append(at)
        elif value is not None and exponent is not None and exponent not in plain:
            texts[at] = fixed(float(f"{value:.{digits - 1}e}".partition("e")[0]), digits - 1)
            powers.append(at)
    for group in (shown, powers):
        _cut_zeros(texts, group)
    for at in powers:
        texts[at] = f"{texts[at]} × {power_of_ten(exponents[at] or 0)}"
    return texts


def _cut_zeros(texts: list[str], group: Sequence[int]) -> None:
    """Cut the zeros in which the decimal places of all numbers of a group end."""
    ends = [texts[at].partition(".")[2] for at in group]
    kept, places = max((len(end.rstrip("0")) for end in ends), default=0), max(map(len, ends), default=0)
    for at in group:
        texts[at] = texts[at][: len(texts[at]) - (places - kept)].removesuffix(".")


def _exponent(value: float | None, digits: int) -> int | None:
    """Return the power of ten of a number once rounded; None of zero and of what is not finite."""
    if value is None or not math.isfinite(value) or value == 0:
        return None
    return int(f"{value:.{digits - 1}e}".partition("e")[2])


def count(value: int) -> str:
    """Write an integer with separators.

    >>> count(134515008)
    '134,515,008'
    """
    return _minus(f"{value:,}")


def percent(share: float | None, digits: int = 2) -> str:
    """Write a share as a percentage; a share below 1 by more than rounding never reads 100 %.

    >>> percent(0.123), percent(1.0), percent(0.0004), percent(0.99998), percent(1 - 1e-10), percent(None)
    ('12 %', '100 %', '0.04 %', '99.998 %', '100 %', 'undefined')
    """
    if share is None or math.isnan(share):
        return UNDEFINED
    if abs(1 - share) < _ROUNDING:
        share = 1.0
    if 0.99 < share < 1.0:
        digits += math.ceil(-math.log10(1 - share) - 1e-9)
    return f"{number(100 * share, digits if share < 1 else max(digits, 3))} %"


def factor(value: float | None) -> str:
    """Write how many times as large one number is as another.

    >>> factor(160.0), factor(2.94), factor(0.05)
    ('160×', '2.9×', '0.05×')
    """
    return f"{number(value, 2)}×" if value is not None and not math.isnan(value) else UNDEFINED


def exponential(rate: float, digits: int = 6) -> str:
    """Write e to the power of a rate times t; a rate of 1 is not written.

    >>> exponential(-0.5), exponential(-1.0), exponential(1.0 + 1e-9), exponential(0.70711, 3)
    ('exp(−0.5 t)', 'exp(−t)', 'exp(t)', 'exp(0.707 t)')
    >>> exponential(-1e-9), exponential(1e-9)
    ('exp(−1 × 10⁻⁹ t)', 'exp(1 × 10⁻⁹ t)')
    """
    written = number(rate, digits)
    return f"exp({written.removesuffix('1')}t)" if written in ("1", "−1") else f"exp({written} t)"


def multiple(value: float, of: str, digits: int = 4) -> str:
    """Write a number times what stands behind it; a number of 1 is not written.

    >>> multiple(0.70711, "exp(t)"), multiple(1.0, "exp(t)"), multiple(-1.0, "exp(t)")
    ('0.7071 exp(t)', 'exp(t)', '−exp(t)')
    """
    written = number(value, digits)
    return f"{written.removesuffix('1')}{of}" if written in ("1", "−1") else f"{written} {of}"


def power_of_ten(exponent: int) -> str:
    """Write a power of ten.

    >>> power_of_ten(-7), power_of_ten(12)
    ('10⁻⁷', '10¹²')
    """
    return f"10{str(exponent).translate(_SUPERSCRIPTS)}"


def number_of_log(log: float) -> str:
    """Write the number that has this natural logarithm, however large or small it is.

    >>> number_of_log(1.0), number_of_log(1000.0), number_of_log(-1000.0), number_of_log(1151.2925)
    ('2.72', '1.97 × 10⁴³⁴', '5.08 × 10⁻⁴³⁵', '1 × 10⁵⁰⁰')
    """
    if abs(log) < _LOG_OF_FLOATS:
        return number(math.exp(log))
    tens = log / math.log(10)
    mantissa, _, carried = f"{10 ** (tens - math.floor(tens)):.2e}".partition("e")
    return f"{number(float(mantissa))} × {power_of_ten(math.floor(tens) + int(carried))}"


def _special(value: float | None) -> str:
    if value is None or math.isnan(value):
        return UNDEFINED
    if value == 0:
        return "0"
    return "∞" if value > 0 else "−∞"


def _minus(text: str) -> str:
    return text.replace("-", "−")


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
    >>> interval([0.003, 0.02], 0.9), interval([-0.003, 0.02], 0.9)
    ('90 % CI 0.003–0.020', '90 % CI 0.00–0.02')
    """
    low, high = np.asarray(ends, dtype=float)
    if np.isnan(low) or np.isnan(high) or low > at_most or high < at_least:
        return ""
    # A quantity that cannot be negative has no sign that its interval shows.
    places = places if at_least >= 0 else places_beyond_zero(ends, places)
    first, last = fixed(max(low, at_least), places), fixed(min(high, at_most), places)
    dash = " to " if first.startswith("−") else "–"
    return f"{percent(confidence)} CI {first}{dash}{last}"


_MOST_PLACES = 6
"""Decimal places, or significant digits, at most where numbers are written so that a reader can distinguish them."""


def places_beyond_zero(ends: Ends, places: int = 2) -> int:
    """Return the decimal places at which an interval that excludes 0 does not seem to reach it.

    Args:
        ends: Lower and upper end.
        places: The fewest, and the result where the interval holds 0 or six do not suffice.

    >>> places_beyond_zero([0.003, 0.02]), places_beyond_zero([-0.02, -0.01]), places_beyond_zero([-0.003, 0.02])
    (3, 2, 2)
    """
    low, high = np.asarray(ends, dtype=float)
    nearest = max(low, -high)
    if not nearest > 0:
        return places
    enough = range(places, max(places, _MOST_PLACES) + 1)
    return next((more for more in enough if round(nearest, more) > 0), places)


def digits_apart(one: float, other: float, digits: int = 2, write: Callable[[float, int], str] = fixed) -> int:
    """Return how many digits it takes to write two numbers that differ differently.

    Args:
        one: A number.
        other: Another one, such as a threshold that it is said not to reach.
        digits: The fewest, and the result where six do not suffice.
        write: `fixed`, for decimal places, or `number`, for significant digits.

    >>> digits_apart(0.0612, 0.0587), digits_apart(0.3, 0.2), digits_apart(0.3, 0.3), digits_apart(9.97, 10, 2, number)
    (3, 2, 2, 3)
    """
    enough = range(digits, _MOST_PLACES + 1)
    return next((more for more in enough if write(one, more) != write(other, more)), digits)


def places_that_add(one: float, other: float) -> int:
    """Return the decimal places, 2 or more, at which a difference as written is that of the two numbers as written.

    Args:
        one: A number.
        other: What is subtracted from it.

    Returns:
        2 also where six do not suffice.

    >>> places_that_add(0.5, 0.25), places_that_add(0.0049, 0.4788)  # 0.00 less 0.48 is not −0.47
    (2, 3)
    """

    def adds(places: int) -> bool:
        difference = round(one, places) - round(other, places)
        return math.isclose(difference, round(one - other, places), abs_tol=0.1**places / 2)

    return next((places for places in range(2, _MOST_PLACES + 1) if adds(places)), 2)


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
    >>> estimate(0.25, [float("nan")] * 2, 0.9), estimate(0.004, [0.001, 0.008], 0.9, sign=True)
    ('0.25', '+0.004 (90 % CI 0.001–0.008)')
    """
    places = places if at_least >= 0 else places_beyond_zero(ends, places)
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
