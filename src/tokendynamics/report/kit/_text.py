"""How numbers, foreign text and the record of a run are written on a page."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from markupsafe import Markup, escape

from tokendynamics.numerics._printable import printable

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
    return f"{mantissa} × {power_of_ten(exponent)}"


def power_of_ten(exponent: int) -> str:
    """Write a power of ten.

    >>> power_of_ten(-7), power_of_ten(12)
    ('10⁻⁷', '10¹²')
    """
    return f"10{str(exponent).translate(_SUPERSCRIPTS)}"


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


def moment(started: Any) -> str:
    """Return an ISO time as people write it; anything else as it is.

    >>> moment("2026-11-21T23:35:52+00:00")
    '21 November 2026, 23:35 UTC'
    """
    try:
        when = datetime.fromisoformat(str(started))
    except ValueError:
        return str(started)
    return f"{when.day} {when:%B %Y, %H:%M %Z}".strip()


def duration(seconds: Any) -> str:
    """Write seconds as people do."""
    return f"{number(float(seconds))} s" if isinstance(seconds, int | float) else f"{UNDEFINED} time"


def manifest_entries(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and text of what a manifest holds, but for the command, which stands apart."""
    entries = [(str(name), _listed(value)) for name, value in manifest.items() if name != "command"]
    return [(name, text) for name, text in entries if text]


def _listed(value: Any) -> str:
    if not isinstance(value, Mapping):
        return written(value)
    return "; ".join(f"{key}: {written(entry)}" for key, entry in value.items() if entry is not None)


def written(value: Any) -> str:
    """Return a manifest entry in words; mappings and lists are joined, reals rounded."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {written(entry)}" for key, entry in value.items() if entry is not None)
    if isinstance(value, range | list | tuple) and _consecutive(value):
        return f"{value[0]}–{value[-1]}"
    if isinstance(value, list | tuple):
        return ", ".join(written(entry) for entry in value)
    return number(value, 4) if isinstance(value, float) else str(value)


def _consecutive(values: Sequence[Any]) -> bool:
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    return len(values) > 2 and whole and list(values) == list(range(values[0], values[0] + len(values)))
