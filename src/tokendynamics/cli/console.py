"""Rich's console, with whatever is printed on it made safe to print."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rich.console
from rich.segment import Segment

from tokendynamics.numerics.printable import printable


class Console(rich.console.Console):
    r"""A console on which tokens, names and titles are text and nothing else: no escape sequence passes.

    Rich's own colours are styles beside the text and are not touched.

    >>> import io
    >>> file = io.StringIO()
    >>> Console(file=file).print("a\x1b[2Jb")
    >>> file.getvalue()
    'a␛[2Jb\n'
    """

    def render(self, renderable: Any, options: rich.console.ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return Rich's segments with printable text."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text, keep="\n"), style)
