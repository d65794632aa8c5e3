"""How foreign text and symbols are written on a page."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from tokendynamics.numerics.printable import printable


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


def subscripts(text: str) -> Markup:
    """Return escaped text in which W_Q, d_head and the like have real subscripts.

    >>> subscripts("W_Q W_Kᵀ < 1")
    Markup('W<sub>Q</sub> W<sub>K</sub>ᵀ &lt; 1')
    """
    shown = str(escape(visible(text)))
    return Markup(re.sub(r"\b([A-Za-z])_([A-Za-z]{1,4})(?![A-Za-z_])", r"\1<sub>\2</sub>", shown))  # noqa: S704  # escaped above
