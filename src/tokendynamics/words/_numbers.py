"""Numbers in text: significant digits, a real minus sign, separators, powers of ten."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    """Write how many times larger one number is than another.

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


def number_of_log(log: float, digits: int = 3) -> str:
    """Write the number that has this natural logarithm, however large or small it is.

    >>> number_of_log(1.0), number_of_log(1000.0), number_of_log(-1000.0), number_of_log(1151.2925)
    ('2.72', '1.97 × 10⁴³⁴', '5.08 × 10⁻⁴³⁵', '1 × 10⁵⁰⁰')
    """
    if abs(log) < _LOG_OF_FLOATS:
        return number(math.exp(log), digits)
    tens = log / math.log(10)
    mantissa, _, carried = f"{10 ** (tens - math.floor(tens)):.{digits - 1}e}".partition("e")
    return f"{number(float(mantissa), digits)} × {power_of_ten(math.floor(tens) + int(carried))}"


def _special(value: float | None) -> str:
    if value is None or math.isnan(value):
        return UNDEFINED
    if value == 0:
        return "0"
    return "∞" if value > 0 else "−∞"


def _minus(text: str) -> str:
    return text.replace("-", "−")
