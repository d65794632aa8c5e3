"""Messages of a command: progress on standard error, results on standard output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import xarray as xr
from rich.table import Table
from rich.text import Text

from tokendynamics.cli._interrupted import PAGE
from tokendynamics.cli._options import Results
from tokendynamics.cli._terminal import Console, echo, echo_json, table
from tokendynamics.diagnosis import Comparison, Diagnosis, repeated_texts
from tokendynamics.diagnosis.result import deeper_in_words, further_in_words, summary
from tokendynamics.diagnosis.verdict import mean_over_prompts
from tokendynamics.numerics.errors import PageError
from tokendynamics.provenance.owned import written_in
from tokendynamics.provenance.progress import Progress, bar
from tokendynamics.provenance.whole import whole_folder
from tokendynamics.words import count, fixed, number, plural

_Written = TypeVar("_Written", Diagnosis, Comparison)
_MOST_ROWS = 12

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


def saved(result: _Written, folder: Path, results: Results, writer: str) -> tuple[_Written, PageError | None]:
    """Write data and page, each completely or not at all, since the data are complete without the page.

    Returns:
        The results with the names of the data files; and the error if there is no page, to be raised after the results
        are printed.
    """
    result = replace(result, files=result.file_names(results.data_format))
    put = partial(whole_folder, folder, result.manifest, writer, overwrite=results.overwrite, argument="--out")
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


_COLUMNS = (
    "κ′ is the within-{noun} similarity, on which most states rest; cosine the mean over pairs of tokens; E is 1 − "
    "mean |cosine| with the first token; rank the effective rank of tokens scaled to length 1; norm the median; "
    "massive how many tokens are left out."
)


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
        self._results = Console(highlight=False)

    def say(self, message: str) -> None:
        """Write one line to standard error without delay."""
        if self.quiet:
            return
        self._messages.print(Text(message), soft_wrap=True)

    def note_repeated(self, texts: Mapping[str, str]) -> None:
        """Name the first prompts that repeat each other, since copies are not separate observations."""
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

    def in_a_form(self, result: Diagnosis | Comparison, record: Mapping[str, Any], report: Path | None) -> bool:
        """Print a result in the form that was asked for; return whether nothing else is to be printed."""
        if self.as_json:
            echo_json({**record, "report": report and str(report)})
        elif self.markdown:
            echo(result.markdown())
        return self.as_json or self.markdown or self.quiet

    def show(self, diagnosis: Diagnosis, report: Path | None) -> None:
        """Print the verdict, a table of layers, and the path of the report."""
        if self.in_a_form(diagnosis, summary(diagnosis), report):
            return
        model = diagnosis.model
        heads = f"{plural(model['heads'], 'head')} × " if model["heads"] else ""  # 0 where no attention can be read
        heading = f"{model['name']}: {plural(model['layers'], 'layer')} × {heads}dim {model['dim']}"
        self._results.print(Text(f"\n{heading}, {count(model['parameters'])} parameters\n", style="bold"))
        for name, text in diagnosis.verdict.lines:
            self._results.print(Text(f"{name}: ", style="bold").append(Text(text, style="not bold")), soft_wrap=False)
        self._results.print()
        for text in further_in_words(diagnosis):
            self._results.print(Text("• ").append(text), soft_wrap=False)
        self._show_deeper(diagnosis)
        self._results.print()
        self._results.print(_layer_table(diagnosis))
        self._results.print(Text(_COLUMNS.format(noun=diagnosis.trace.attrs["prompt_noun"])))
        self._results.print(Text(f"\nReport: {report or UNDRAWN}\nData:   {', '.join(diagnosis.files) or 'beside it'}"))

    def _show_deeper(self, diagnosis: Diagnosis) -> None:
        """Print the results of repeated passes, if there are any."""
        if diagnosis.deeper is None:
            return
        first, *others = deeper_in_words(diagnosis)
        self._results.print(Text("\nDeeper: ", style="bold").append(Text(first, style="not bold")))
        for sentence in others:
            self._results.print(Text("• ").append(sentence), soft_wrap=False)


def _layer_table(diagnosis: Diagnosis) -> Table:
    averaged = mean_over_prompts(diagnosis.trace)
    last = averaged.sizes["layer"] - 1
    prompts = diagnosis.trace.sizes["prompt"]
    columns = ("layer", "κ′", "cosine", "E", "rank", "norm", "massive", "state")
    title = f"Mean over {plural(prompts, 'prompt')}, without massive tokens except in E"
    shown = table(*columns, left=("state",), title=title)
    for layer in sorted({round(float(place)) for place in np.linspace(0, last, min(last + 1, _MOST_ROWS))}):
        site = averaged.sel(layer=layer, site="feed_forward")
        effect = "" if layer == 0 else diagnosis.verdict.layers[layer - 1]
        shown.add_row(str(layer), *_cells(site, averaged.massive_count[layer].item()), effect)
    final = averaged.sel(layer=last, site="final_norm")
    if not np.isnan(final.norm_median.sel(sinks="kept")):
        shown.add_row("norm", *_cells(final, None), diagnosis.verdict.final_norm or "")
    return shown


def _cells(site: xr.Dataset, sinks: float | None) -> list[str]:
    kept, removed = site.sel(sinks="kept"), site.sel(sinks="removed")
    return [
        fixed(float(removed.consensus_relative), 3),
        fixed(float(removed.mean_pair_cosine), 3),
        fixed(float(kept.consensus_first), 3),
        fixed(float(removed.effective_rank_unit_rows)),
        number(float(removed.norm_median)),
        "" if sinks is None else fixed(sinks, 1),
    ]
