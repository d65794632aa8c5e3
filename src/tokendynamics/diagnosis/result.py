"""What a diagnosis is: the data, the sentences, and how they came about; and its files."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import xarray as xr

from tokendynamics.diagnosis.deepening.result import Deeper
from tokendynamics.diagnosis.gating._result import UNMEASURED, Answer, Levers, in_view_of
from tokendynamics.diagnosis.network import checked_model, norms_there, parts_there
from tokendynamics.diagnosis.tracing.variables import AXES, LABELS
from tokendynamics.diagnosis.verdict import (
    Verdict,
    mean_over_prompts,
    spread_over_prompts,
    verdict_as_plain,
    verdict_of,
)
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_choice, as_integer, as_text
from tokendynamics.numerics.errors import expected, shown
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained.edits.variant import NAMED, PARTS
from tokendynamics.provenance.manifest import plain
from tokendynamics.provenance.reading import read_json
from tokendynamics.provenance.whole import settle_results
from tokendynamics.results import StoredResult
from tokendynamics.results.door import pages
from tokendynamics.results.tables import (
    Dims,
    Format,
    conventions_of,
    file_names,
    nothing_saved,
    one_of,
    open_table,
    unreadable,
)
from tokendynamics.words import Convention, Finding

WRITER = "tokendynamics diagnose"
SUMMARY = "diagnosis.json"
TABLES = ("audit", "trace", "paths", "levers", "what_if", "deeper")


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


_WANTED = "a saved diagnosis"

DIMS: dict[str, Dims] = {
    "audit": {
        "regime": ("layer",),
        "A_defined": ("layer",),
        "W_inertia": ("layer", "sign"),
        "qk_balance": ("layer", "head"),
        "ov_balance": ("layer", "head"),
    },
    "trace": AXES,
    "paths": {
        "position": ("layer", "token", "axis"),
        "norm": ("layer", "token"),
        "is_sink": ("layer", "token"),
        "token_text": ("token",),
    },
    "levers": {
        "consensus_sensitivity": ("layer", "component"),
        "loss_sensitivity": ("layer", "component"),
        "candidate_layer": ("candidate",),
        "candidate_part": ("candidate",),
        "alpha": ("candidate",),
        "kappa_change": ("candidate",),
        "kappa_interval": ("candidate", "bound"),
        "loss_change": ("candidate",),
        "loss_interval": ("candidate", "bound"),
        "verified": ("candidate",),
    },
    "what_if": {
        "consensus_within": ("model", "layer", "site"),
        "consensus_within_difference": ("layer", "site"),
        "consensus_within_difference_interval": ("layer", "site", "bound"),
        "effective_rank": ("model", "layer", "site"),
        "loss": ("model",),
        "loss_difference": (),
    },
    "deeper": {
        "consensus": ("variant", "prompt", "pass"),
        "log_norm": ("variant", "prompt", "pass"),
        "consensus_within": ("variant", "pass"),
        "share_own": ("variant", "pass"),
        "median_consensus": ("variant", "pass"),
        "median_half_life": ("variant", "estimate"),
        "median_collapse_pass": ("variant", "estimate"),
        "fit_first": ("variant",),
        "fit_last": ("variant",),
        "status": ("variant", "prompt"),
    },
}
"""Variables that every reader of a diagnosis asks for; the rest stands and falls with them."""

_OF_TEXTS: Dims = {"decoded": ("variant", "decoded_pass"), "distinct_1": ("variant", "decoded_pass")}
"""Further ones of a network that was made deeper, where texts were decoded."""

_OF_LEVERS = LABELS | {"component": PARTS}
"""The final norm adds nothing to the residual stream."""


def stored_fields(folder: Path) -> dict[str, Any]:
    """Return the fields of a `Diagnosis` from a folder that one was saved in.

    Args:
        folder: See `tokendynamics.diagnosis.Diagnosis.save`.

    Raises:
        ArgumentValueError: Nothing there, or something damaged or incomplete; it is named.
        MemoryLimitError: A file declares more than the memory.
    """
    if not (folder / SUMMARY).exists():
        raise nothing_saved(folder, _WANTED, SUMMARY, {"comparison.json": "td.Comparison.open"})
    summary = read_json(folder / SUMMARY, "folder")
    try:
        found = {
            "model": checked_model(summary["model"]),
            "verdict": verdict_of(summary["verdict"]),
            "conventions": conventions_of(summary["conventions"]),
            "manifest": dict(summary["manifest"]),
            "audit_refused": as_text(summary.get("audit_refused", ""), "audit_refused"),
            "levers_refused": as_text(summary.get("levers_refused", ""), "levers_refused"),
            "deeper_refused": as_text(summary.get("deeper_refused", ""), "deeper_refused"),
        }
        absent = {name for name in ("audit", "levers", "deeper") if summary.get(name) is None}
        absent |= {"what_if"} if (summary.get("levers") or {}).get("best") is None else set()
        tables = {
            name: open_table(folder, name, DIMS[name], _WANTED, _OF_LEVERS if name == "levers" else LABELS)
            for name in TABLES
            if name not in absent
        }
        _check_depth(found, tables)
        _check_parts(tables["trace"])
        levers, deeper = None, None
        if "levers" in tables:
            levers = _levers(summary["levers"], tables.pop("levers"), tables.pop("what_if", None))
        if "deeper" in tables:
            deeper = _deeper(summary["deeper"], tables.pop("deeper"))
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise unreadable(folder, _WANTED, error) from error
    return found | {"audit": None, "levers": levers, "deeper": deeper} | tables


def _levers(values: Any, table: xr.Dataset, effect: xr.Dataset | None) -> Levers:
    where = as_integer(values["where"], "where")
    best = None if effect is None else as_integer(values["best"], "best", 0, table.sizes["candidate"] - 1)
    if where not in table.layer.values:
        raise ArgumentValueError(expected("levers", f"a layer from 1 to {table.sizes['layer']}", where))
    return Levers(
        table,
        float(values["kappa"]),
        where,
        one_of(Answer, values["answer"], "levers"),
        as_text(values["text"], "text"),
        conventions_of(values["conventions"]),
        best,
        effect,
    )


def _deeper(values: Any, table: xr.Dataset) -> Deeper:
    undecoded = as_text(values["undecoded"], "undecoded")
    for name in table.variant.values:
        as_choice(str(name), "variant", NAMED)
    if not (
        (table.fit_first >= 0) & (table.fit_first <= table.fit_last) & (table.fit_last < table.sizes["pass"])
    ).all():
        raise ArgumentValueError(expected("deeper", "fits within its passes", shown(table.fit_last.values.tolist())))
    for name, dims in _OF_TEXTS.items() if not undecoded else ():
        came = table.variables[name].dims if name in table.variables else None
        if came != dims:
            raise ArgumentValueError(expected(f"deeper {name}", f"axes {dims}", came))
    return Deeper(
        table,
        tuple(as_text(each, "sentences") for each in values["sentences"]),
        conventions_of(values["conventions"]),
        {as_text(name, "refused"): as_text(why, "refused") for name, why in values["refused"].items()},
        undecoded,
    )


def _check_parts(trace: xr.Dataset) -> None:
    """Refuse the record of a layout that no page can ask which parts there are."""
    norms_there(trace)
    for part, layers in parts_there(trace).items():
        if len(layers) != trace.sizes["layer"] - 1:
            raise ArgumentValueError(expected(f"trace {part}", f"{trace.sizes['layer'] - 1} layers", len(layers)))


def _check_depth(found: dict[str, Any], tables: dict[str, xr.Dataset]) -> None:
    """Refuse parts that are of networks of different depth: a folder of two diagnoses."""
    layers = found["model"]["layers"]
    for name in ("trace", "paths"):
        if tables[name].layer.values.tolist() != list(range(layers + 1)):
            raise ArgumentValueError(expected(name, f"layers 0 to {layers}", shown(tables[name].layer.values.tolist())))
    if len(found["verdict"].layers) != layers:
        came = f"{len(found['verdict'].layers)} badges"
        raise ArgumentValueError(expected("verdict", f"a badge for each of {layers} layers", came))
    if "levers" in tables and tables["levers"].layer.values.tolist() != list(range(1, layers + 1)):
        raise ArgumentValueError(
            expected("levers", f"layers 1 to {layers}", shown(tables["levers"].layer.values.tolist()))
        )
    if "audit" in tables and not set(tables["audit"].layer.values.tolist()) <= set(range(1, layers + 1)):
        raise ArgumentValueError(expected("audit", f"layers from 1 to {layers}", "others"))
