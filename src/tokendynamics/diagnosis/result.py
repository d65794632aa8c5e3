"""What a diagnosis is: the data, the sentences, and how they came about; and its files."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import xarray as xr

from tokendynamics.diagnosis._deeper_found import Deeper
from tokendynamics.diagnosis._lever_words import UNMEASURED, in_view_of
from tokendynamics.diagnosis._levers_found import Levers
from tokendynamics.diagnosis.stored import SUMMARY, TABLES, stored_fields, verdict_as_plain
from tokendynamics.diagnosis.verdict import Verdict, mean_over_prompts, spread_over_prompts
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.manifest import plain
from tokendynamics.provenance.whole import settle_results
from tokendynamics.results import StoredResult
from tokendynamics.results.door import pages
from tokendynamics.results.tables import Format, file_names
from tokendynamics.words import Convention, Finding

WRITER = "tokendynamics diagnose"


@dataclass(frozen=True, repr=False)
class Diagnosis(StoredResult):
    """Everything measured on one model.

    Attributes:
        model: Name, family, layers, heads, dim, parameters and the like, as plain values.
        audit: Signs, spectra and regime of the weights; see `audit`. None if the factors of an attention are unknown.
        trace: Measures of the tokens of real prompts at every layer; see `trace`.
        paths: The tokens of one prompt in two principal dimensions; see `token_paths`.
        verdict: States and sentences.
        conventions: Every choice that the numbers depend on.
        manifest: Command, parameters, versions, hardware, seed, start and duration.
        files: Names of the data files saved beside the report.
        audit_refused: Why there is no audit; empty if there is one.
        levers: The part that causes consensus, and the effect of turning it down; None if none was tried.
        levers_refused: Why none was tried; empty otherwise.
        deeper: The tokens when the blocks run repeatedly on their own output; None if not requested, or refused.
        deeper_refused: Why it was refused; empty otherwise.
    """

    SUMMARY: ClassVar[str] = SUMMARY
    WRITER: ClassVar[str] = WRITER

    model: dict[str, Any]
    audit: xr.Dataset | None
    trace: xr.Dataset
    paths: xr.Dataset
    verdict: Verdict
    conventions: tuple[Convention, ...]
    manifest: dict[str, Any]
    files: tuple[str, ...] = ()
    audit_refused: str = ""
    levers: Levers | None = None
    levers_refused: str = ""
    deeper: Deeper | None = None
    deeper_refused: str = ""

    @property
    def headline(self) -> str:
        """Name of the model, its state after the last layer, and where it is worst."""
        return f"{self.model['name']}: {self.verdict.headline}"

    @property
    def findings(self) -> tuple[Finding | str, ...]:
        """The sentences of the verdict, those on levers if any were tried, and the details."""
        levers = () if self.levers is None else (levers_in_words(self),)
        return (*self.verdict.sentences, *levers, *self.verdict.details)

    @property
    def tables(self) -> dict[str, xr.Dataset]:
        """The datasets that it has, by the name of their file."""
        return tables_of(self)

    @property
    def record(self) -> dict[str, Any]:
        """Everything else as plain JSON values, and the means over prompts by layer; an undefined number is null."""
        return summary(self)

    @classmethod
    @typed_arguments
    def open(cls, folder: str | Path) -> Diagnosis:
        """Read what `save` or the command wrote, in either format; the sentences are those that were written.

        Args:
            folder: Where it was saved.

        Raises:
            ArgumentValueError: Nothing there, or no diagnosis, or a damaged one.
            MemoryLimitError: A file declares more than the memory.
        """
        settle_results(folder)
        return cls(**stored_fields(Path(folder)))

    def plot(self) -> Any:
        """Return the shares of a token's direction over depth as an Altair chart.

        Returns:
            `altair.LayerChart` of the three shares, stacked; with one prompt, which has none, a chart of the reason.
        """
        return pages().chart(self)

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the sentences of the verdict, and the shares as a figure."""
        return pages().notebook_html(self)


def data_file_names(format: Format = "zarr", *, tables: Collection[str] = TABLES) -> tuple[str, ...]:
    """Return the names of the files that `Diagnosis.save` writes.

    Args:
        format: "zarr" or "netcdf".
        tables: Which there are; see `tables_of`.

    >>> data_file_names("netcdf")
    ('audit.nc', 'trace.nc', 'paths.nc', 'levers.nc', 'what_if.nc', 'deeper.nc', 'diagnosis.json')

    Raises:
        ArgumentValueError: An unknown format, or one that cannot be written here.
    """
    return (*file_names([name for name in TABLES if name in tables], format), SUMMARY)


def tables_of(diagnosis: Diagnosis) -> dict[str, xr.Dataset]:
    """Return the datasets that a diagnosis has, by the name of their file."""
    levers, effect = (None, None) if (each := diagnosis.levers) is None else (each.table, each.effect)
    deeper = None if diagnosis.deeper is None else diagnosis.deeper.table
    found = {"audit": diagnosis.audit, "trace": diagnosis.trace, "paths": diagnosis.paths}
    found |= {"levers": levers, "what_if": effect, "deeper": deeper}
    return {name: table for name, table in found.items() if table is not None}


def summary(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis as plain JSON values; an undefined number is null.

    The full arrays are in the data files; here are the per-layer means and standard deviations over
    prompts and the audit's layer table, which is null where there is no audit.
    """
    averaged = mean_over_prompts(diagnosis.trace)
    trace = {str(name): plain(variable.values) for name, variable in averaged.items()}
    spread = spread_over_prompts(diagnosis.trace)
    return {
        "model": plain(diagnosis.model),
        "verdict": verdict_as_plain(diagnosis.verdict),
        "audit": None if diagnosis.audit is None else _layer_table(diagnosis.audit),
        "audit_refused": diagnosis.audit_refused,
        "levers": None if diagnosis.levers is None else _answer(diagnosis.levers),
        "levers_refused": diagnosis.levers_refused,
        "deeper": None if diagnosis.deeper is None else _said_of_deeper(diagnosis.deeper),
        "deeper_refused": diagnosis.deeper_refused,
        "trace_spread": {str(name): plain(variable.values) for name, variable in spread.items()},
        "trace_mean": {"dims": {str(k): list(v.dims) for k, v in averaged.items()}, **trace},
        "prompts": dict(zip(diagnosis.trace.prompt.values.tolist(), diagnosis.trace.text.values.tolist(), strict=True)),
        "conventions": [asdict(convention) for convention in diagnosis.conventions],
        "manifest": plain(diagnosis.manifest),
    }


def levers_in_words(diagnosis: Diagnosis) -> str:
    """Return the answer of the levers in sentences, or why nothing was tried."""
    if diagnosis.levers is None:
        return f"Nothing was tried: {diagnosis.levers_refused or 'the version that wrote this diagnosis could not'}."
    levers = in_view_of(diagnosis.levers, diagnosis.verdict)
    other = UNMEASURED.get(diagnosis.verdict.state)
    if levers.answer == "not tried for this state" or other is None:
        return levers.text
    return f"{levers.text} κ does not measure {other}, so nothing was tried for it."


def deeper_in_words(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return the sentences on a deeper network, or why there are none."""
    if diagnosis.deeper is None:
        return (f"It was not made deeper: {diagnosis.deeper_refused or 'it was not requested'}.",)
    return diagnosis.deeper.sentences


def _answer(levers: Levers) -> dict[str, Any]:
    return {
        "answer": levers.answer,
        "text": levers.text,
        "kappa": levers.kappa,
        "where": levers.where,
        "best": levers.best,
        "conventions": [asdict(each) for each in levers.conventions],
    }


def _said_of_deeper(deeper: Deeper) -> dict[str, Any]:
    return {
        "sentences": list(deeper.sentences),
        "refused": deeper.refused,
        "undecoded": deeper.undecoded,
        "conventions": [asdict(each) for each in deeper.conventions],
    }


def _layer_table(audit: xr.Dataset) -> dict[str, Any]:
    values = {str(name): plain(variable.values) for name, variable in audit.items() if "eigenvalues" not in str(name)}
    return {"dims": {str(name): list(variable.dims) for name, variable in audit.items()}, **values}
