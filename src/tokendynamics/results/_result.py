"""What a result says of itself: a headline and findings, from which the terminal, a notebook and a page take theirs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from tokendynamics.numerics._printable import printable
from tokendynamics.numerics._signatures import typed_arguments
from tokendynamics.results._door import pages
from tokendynamics.words import Finding, plural

LINES = 15
"""The most lines that `print(result)` writes."""


class Readable:
    """What has a headline and findings, and shows them: `summary`, `repr`, `print` and notebooks.

    A subclass gives both properties.
    """

    @property
    def headline(self) -> str:
        """What this is, and its answer, in one line."""
        raise NotImplementedError

    @property
    def findings(self) -> Sequence[Finding | str]:
        """One sentence each, the most important first."""
        raise NotImplementedError

    def summary(self) -> str:
        """Return the headline and the findings, one a line, at most 15 lines; control characters are made visible."""
        headline, *rest = self._texts()
        lines = [headline, *(f"- {text}" for text in rest)]
        left = len(lines) - LINES + 1
        return "\n".join(lines if left < 2 else [*lines[: LINES - 1], f"… and {plural(left, 'more finding')}"])

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._texts()[0]}>"

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the headline and all findings, escaped."""
        headline, *rest = map(escape, self._texts())
        return f"<p><strong>{headline}</strong></p><ul>{''.join(f'<li>{text}</li>' for text in rest)}</ul>"

    def _texts(self) -> list[str]:
        found = (each.text if isinstance(each, Finding) else each for each in self.findings)
        return [printable(text) for text in (self.headline, *found)]


class Result(Readable):
    """What has a page of its own, too."""

    @typed_arguments
    def report(self, path: str | Path, *, max_bytes: int | None = None) -> Path:
        """Write the page of this result as one HTML file, whole or not at all.

        Args:
            path: The file to write; its folder is made if need be.
            max_bytes: Refuse to write a page larger than this; None for no limit.

        Returns:
            The path written.

        Raises:
            ArgumentValueError: `path` is a folder, or the page would be larger than `max_bytes`.
        """
        return pages().write(self, path, max_bytes=max_bytes)
