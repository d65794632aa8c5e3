"""What a result says of itself: a headline and findings, from which the terminal, a notebook and a page take theirs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal, TypeVar

import xarray as xr

from tokendynamics.numerics.printable import printable
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.manifest import write_json
from tokendynamics.provenance.whole import check_free, check_unchanged, settle_results, whole_folder
from tokendynamics.results.tables import Format, file_names, save_tables
from tokendynamics.words import Finding, plural

LINES = 15
"""The most lines that `print(result)` writes."""


_MARKS = re.compile(r"[\\`*_{}\[\]#|~$@]|^[-+=]|(?<=^\d)[.)]|(?<=^\d\d)[.)]")
"""What Markdown reads as a mark, a number of a list among them, and what GitHub reads as a mention or a formula."""


def pages() -> ModuleType:
    """Return `tokendynamics.report`, which stands above results: the one door upwards."""
    return import_module("tokendynamics.report")


class Readable:
    """What has a headline and findings, and shows them: `summary`, `markdown`, `repr`, `print` and notebooks.

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

    def markdown(self) -> str:
        """Return the headline in bold and every finding as a list in Markdown, for a model card or a pull request.

        Characters that Markdown or HTML would read as a mark are escaped.
        """
        headline, *rest = (_MARKS.sub(r"\\\g<0>", escape(text.strip(), quote=False)) for text in self._texts())
        return "\n".join([f"**{headline}**", "", *(f"- {text}" for text in rest)])

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._texts()[0]}>"

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the headline and all findings, escaped."""
        headline, *rest = map(escape, self._texts())
        return f"<p><strong>{headline}</strong></p><ul>{''.join(f'<li>{text}</li>' for text in rest)}</ul>"

    def _texts(self) -> list[str]:
        sentences = (finding.text if isinstance(finding, Finding) else finding for finding in self.findings)
        return [printable(text) for text in (self.headline, *sentences)]


@dataclass(frozen=True)
class Refused:
    """What stands in place of a result that could not be had: ``isinstance(found, Refused)`` tells them apart.

    Attributes:
        reason: Why, as part of a sentence.

    >>> Refused("layer 1: its factors are unknown").reason
    'layer 1: its factors are unknown'
    """

    reason: str


def reason_of(result: object) -> str:
    """Return why a result was refused; empty for one that was not.

    >>> reason_of(Refused("it is streamed")), reason_of(None)
    ('it is streamed', '')
    """
    return result.reason if isinstance(result, Refused) else ""


class Result(Readable):
    """What has a page of its own, too.

    >>> class Answer(Result):
    ...     headline, findings = "Two of three hold.", ("The third fails.",)
    >>> Answer()
    <Answer: Two of three hold.>
    >>> print(Answer().summary())
    Two of three hold.
    - The third fails.
    """

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

    @typed_arguments
    def explore(self, path: str | Path, *, observables: Mapping[str, Callable[[Any], float]] | None = None) -> Path:
        """Write a page on which the tokens of this result move, as one HTML file without any request.

        A flow that a browser can integrate is integrated there, with sliders for what moves the tokens; the states of
        others are played.

        Args:
            path: The file to write; its folder is made if need be.
            observables: Functions of a state (token, dim), a float64 tensor, by name, each of which gives one number:
                a chart for each stands on the page, and the states of the run are played. None for a diagnosis.

        Returns:
            The path written.

        Raises:
            ArgumentTypeError: A result in which no token moves in time; trajectories, simulations and diagnoses
                can be explored; or observables that are no functions or give no number.
            ArgumentValueError: `path` is a folder, or the name of an observable is one of the page's own.
        """
        return pages().explore(path, self, observables=observables)


AnyStored = TypeVar("AnyStored", bound="StoredResult")


class StoredResult(Result):
    """What is saved as a folder: its datasets, a summary in JSON, and a manifest."""

    SUMMARY: ClassVar[str]
    """Name of the summary, by which a reader knows what the folder is."""
    WRITER: ClassVar[str]
    """What writes such folders, as the manifest has it."""

    manifest: Any

    @property
    def tables(self) -> dict[str, xr.Dataset]:
        """Its datasets, by the name of their file."""
        raise NotImplementedError

    @property
    def record(self) -> dict[str, Any]:
        """Everything else, as plain JSON values; an undefined number is null."""
        raise NotImplementedError

    def file_names(self, format: Format = "zarr") -> tuple[str, ...]:
        """Return the names of the files that `save` writes.

        Args:
            format: "zarr" or "netcdf".

        Raises:
            ArgumentValueError: An unknown format, or one that cannot be written here.
        """
        return (*file_names(self.tables, format), self.SUMMARY)

    @typed_arguments
    def save(
        self, folder: str | Path, *, format: Literal["zarr", "netcdf"] = "zarr", overwrite: bool = False
    ) -> tuple[Path, ...]:
        """Write the datasets and a JSON summary into a folder, whole: files of an earlier result go, others stay.

        Args:
            folder: Made if it does not exist.
            format: "zarr" (folders) or "netcdf" (files; needs the extra ``netcdf``).
            overwrite: Replace files in the way that no earlier result of this kind wrote.

        Returns:
            Paths of the data files.

        Raises:
            ArgumentValueError: An unknown format, or a foreign file in the way.
            StorageError: The disk is full or cannot be written; what was there is as it was.
        """
        place, names = Path(folder), self.file_names(format)
        check_free(place, names, self.WRITER, overwrite=overwrite)
        with whole_folder(place, self.manifest, self.WRITER, overwrite=overwrite) as made:
            self.write_data(made, format)
        return tuple(place / name for name in names)

    @classmethod
    @typed_arguments
    def open(cls: type[AnyStored], folder: str | Path) -> AnyStored:
        """Read what `save` or the command wrote, in either format; the sentences are those that were written.

        Args:
            folder: Where it was saved.

        Raises:
            ArgumentValueError: Nothing there, or another kind of result, or a damaged one, or one whose data changed
                since.
            MemoryLimitError: A file declares more than the memory.
        """
        settle_results(folder)
        result = cls._stored(Path(folder))
        check_unchanged(Path(folder))
        return result

    @classmethod
    def _stored(cls, folder: Path) -> Any:
        """Return what a folder holds; see `open`."""
        raise NotImplementedError

    def write_data(self, made: Path, format: Format) -> None:
        """Write the datasets and the summary into a folder from `whole_folder`.

        Args:
            made: The folder.
            format: "zarr" or "netcdf".
        """
        save_tables(self.tables, made, format)
        write_json(made / self.SUMMARY, self.record)
