"""Messages of a command: progress on standard error, results on standard output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from rich.text import Text

from tokendynamics.cli._interrupted import PAGE
from tokendynamics.cli._options import Results
from tokendynamics.cli._terminal import Console, echo, echo_json
from tokendynamics.numerics.errors import PageError
from tokendynamics.provenance.owned import written_in
from tokendynamics.provenance.progress import Progress, bar
from tokendynamics.provenance.whole import whole_folder
from tokendynamics.results.result import StoredResult

_Written = TypeVar("_Written", bound=StoredResult)

_MOST_NOTES = 5
"""Most repeated prompts that are named."""


UNDRAWN = "not drawn"
"""Shown instead of the path of a page that could not be drawn."""


def attempted(write: Callable[[], object]) -> PageError | None:
    """Write a page, and return the error if it could not be drawn, to be raised after the results are printed."""
    try:
        write()
    except PageError as error:
        return error
    return None


def saved(result: _Written, folder: Path, results: Results) -> tuple[_Written, PageError | None]:
    """Write data and page, each completely or not at all, since the data are complete without the page.

    Returns:
        The results with the names of the data files; and the error if there is no page, to be raised after the results
        are printed.
    """
    result = replace(cast("Any", result), files=result.file_names(results.data_format))
    put = partial(whole_folder, folder, result.manifest, result.WRITER, overwrite=results.overwrite, argument="--out")
    with put() as made:
        result.write_data(made, results.data_format)

    def draw() -> None:
        with put(keep=True) as made:
            result.report(made / PAGE)

    return result, attempted(draw)


def saved_in(folder: Path) -> tuple[Path, ...]:
    """Return the paths of the files in a folder's manifest, in order."""
    written = written_in(folder)
    return tuple(folder / name for name in sorted(written.entries)) if written else ()


class Output:
    """Progress and results in the terminal; with `as_json` or `markdown`, standard output holds only that.

    Args:
        as_json: Whether the results are printed as JSON instead of a table.
        markdown: Whether they are printed as Markdown.
        quiet: Whether only JSON or Markdown is printed.
    """

    def __init__(self, as_json: bool, quiet: bool = False, markdown: bool = False) -> None:
        self.as_json, self.markdown, self.quiet = as_json, markdown, quiet
        self._messages = Console(stderr=True, highlight=False)

    def say(self, message: str) -> None:
        """Write one line to standard error without delay."""
        if self.quiet:
            return
        self._messages.print(Text(message), soft_wrap=True)

    def note_repeated(self, texts: Mapping[str, str]) -> None:
        """Name the first prompts that repeat each other, since copies are not separate observations."""
        from tokendynamics.diagnosis import repeated_texts

        for repeated in repeated_texts(texts)[:_MOST_NOTES]:
            self.say(f"note: {repeated.text}")

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Show a bar for each step of the work, or one line each where standard error is not a terminal."""
        if self._messages.is_terminal and not self.quiet:
            with bar(self._messages) as report:
                yield report
            return
        begun: set[str] = set()

        def announce(done: float, total: float, what: str) -> None:
            if what not in begun:
                begun.add(what)
                self.say(what if isinstance(total, float) else f"{what} ({total})")

        yield announce

    def in_a_form(self, result: StoredResult, record: Mapping[str, Any], report: Path | None) -> bool:
        """Print a result in the form that was asked for; return whether nothing else is to be printed."""
        if self.as_json:
            echo_json({**record, "report": report and str(report)})
        elif self.markdown:
            echo(result.markdown())
        return self.as_json or self.markdown or self.quiet
