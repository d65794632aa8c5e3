"""How numbers and foreign text are written on the page."""

from __future__ import annotations

import math
import re

from markupsafe import Markup, escape

from tokendynamics.numerics.printable import printable

UNDEFINED = "undefined"
"""What stands where a value does not exist; the page never prints a NaN."""

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def visible(text: str) -> str:
    r"""Return `printable` text of several lines, as it stands on a page.

    >>> visible("a\x00b\u202ec")
    'a␀b‹U+202E›c'
    """
    return printable(text, keep="\n\t")


def token_label(text: str) -> str:
    r"""Return a token as a short label: nothing invisible, no spaces around it, never empty.

    >>> token_label(" museum"), token_label("\n"), token_label("  ")
    ('museum', '␊', '␣␣')
    """
    shown = printable(text)
    return shown.strip(" ") or "␣" * len(shown) or "(empty)"


def number(value: float | int | None, digits: int = 3) -> str:
    """Write `value` with `digits` significant digits, a real minus sign, and powers of ten where they help.

    >>> [number(v) for v in (0.08213, -1.5, 22613.0, 3.1e-7, float("nan"), float("inf"))]
    ['0.0821', '−1.5', '22,600', '3.1 × 10⁻⁷', 'undefined', '∞']
    """
    if value is None or math.isnan(value):
        return UNDEFINED
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    exponent = math.floor(math.log10(abs(rounded)))
    if -4 <= exponent < 7:
        decimals = max(digits - 1 - exponent, 0)
        written = f"{rounded:,.{decimals}f}"
        return (written.rstrip("0").rstrip(".") if decimals else written).replace("-", "−")
    mantissa = number(rounded / 10.0**exponent, digits)
    return f"{mantissa} × 10{str(exponent).translate(_SUPERSCRIPTS)}"


def count(value: int) -> str:
    """Write an integer with separators.

    >>> count(134515008)
    '134,515,008'
    """
    return f"{value:,}".replace("-", "−")


def signed(value: float | int | None, digits: int = 3) -> str:
    """Write as `number` does, with a plus sign for positive values.

    >>> signed(0.5), signed(-0.5), signed(0.0)
    ('+0.5', '−0.5', '0')
    """
    written = number(value, digits)
    return f"+{written}" if value is not None and value > 0 else written


def plural(many: int, noun: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "prompt"), plural(5, "prompt")
    ('1 prompt', '5 prompts')
    """
    return f"{count(many)} {noun}" + ("" if many == 1 else "s")


def sentence(text: str, *, capital: bool = True) -> str:
    """Return the text as a sentence: a capital letter first unless it opens with a symbol, and a full stop.

    >>> sentence("neutral within a band"), sentence("qk_eigenvalues are scaled")
    ('Neutral within a band.', 'qk_eigenvalues are scaled.')
    """
    whole = text.strip().rstrip(".") + "."
    first = re.match(r"[a-z]+(?=[ ,;:.])", whole)
    return whole[0].upper() + whole[1:] if capital and first else whole


def subscripts(text: str) -> Markup:
    """Return escaped text in which W_Q, d_head and the like have real subscripts.

    >>> subscripts("W_Q W_Kᵀ < 1")
    Markup('W<sub>Q</sub> W<sub>K</sub>ᵀ &lt; 1')
    """
    shown = str(escape(visible(text)))
    return Markup(re.sub(r"\b([A-Za-z])_([A-Za-z]{1,4})(?![A-Za-z_])", r"\1<sub>\2</sub>", shown))  # noqa: S704  # escaped above
