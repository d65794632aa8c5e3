"""What a diagnosis is: the data, the sentences, and how they came about; and its files."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import xarray as xr

from tokendynamics.diagnosis.deepening.result import Deeper
from tokendynamics.diagnosis.gating._result import Answer, Levers, in_view_of, nothing_tried, unmeasured_by_kappa
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
from tokendynamics.numerics.errors import shown
from tokendynamics.pretrained.edits.variant import NAMED, PARTS
from tokendynamics.provenance.manifest import plain
from tokendynamics.results import Refused
from tokendynamics.results.result import StoredResult, pages, reason_of
from tokendynamics.results.tables import Dims, Format, axes_of, conventions_of, file_names, one_of, open_table, opening
from tokendynamics.words import Convention, Finding

WRITER = "tokendynamics diagnose"
SUMMARY = "diagnosis.json"
TABLES = (
    "audit", "trace", "paths", "levers", "what_if", "deeper", "baseline", "heads", "directions", "sources", "remedies",
    "joint",
)  # fmt: skip


_WANTED = "a saved diagnosis"

_REFUSABLE = ("audit", "levers", "deeper", "baseline", "heads", "directions", "sources", "remedies", "joint")

DIMS: dict[str, Dims] = {
    "audit": axes_of("layer: regime A_defined", "layer head: qk_balance ov_balance", "layer sign: W_inertia"),
    "trace": AXES,
    "paths": axes_of("layer token axis: position", "layer token: norm is_sink", "token: token_text"),
    "levers": axes_of(
        "layer component: consensus_sensitivity loss_sensitivity",
        "candidate: candidate_layer candidate_part alpha verified kappa_change loss_change",
        "candidate bound: kappa_interval loss_interval",
    ),
    "what_if": axes_of(
        "model layer site: consensus_within effective_rank",
        "layer site: consensus_within_difference",
        "layer site bound: consensus_within_difference_interval",
        "model: loss",
        ": loss_difference",
    ),
    "deeper": axes_of(
        "variant prompt pass: consensus log_norm",
        "variant pass: consensus_within share_own median_consensus",
        "variant estimate: median_half_life median_collapse_pass",
        "variant: fit_first fit_last",
        "variant prompt: status",
    ),
    "baseline": axes_of(
        "layer site: consensus_relative centred_cos2 line_excess",
        "layer site bound: consensus_relative_interval",
        "layer site share: shares",
    ),
    "heads": axes_of(
        "layer head: consensus_sensitivity loss_sensitivity consensus_effect loss_effect",
        "layer head bound: consensus_effect_interval loss_effect_interval",
    ),
    "directions": axes_of("direction layer: similarity carried", "direction layer source component: written"),
    "sources": axes_of(
        "prompt kind layer token: contribution",
        "prompt kind layer: added",
        "kind layer token: by_position",
        "prompt token: token_text",
    ),
    "remedies": axes_of(
        "trial: name strength status after_training recommended consensus_change loss_change",
        "trial bound: consensus_change_interval loss_change_interval",
    ),
    "joint": axes_of(
        "step: change alpha kappa_change gain loss_change reported",
        "step bound: kappa_change_interval gain_interval loss_change_interval",
    ),
}
"""Variables that every reader of a diagnosis asks for; the rest stands and falls with them."""

_OF_TEXTS = axes_of("variant decoded_pass: decoded distinct_1")
"""Further ones of a network that was made deeper, where texts were decoded."""

_OF_PARTS = LABELS | {"component": PARTS}
"""The final norm adds nothing to the residual stream."""


def _why(name: str, meaning: str) -> property:
    """Return a property with the reason why a field was refused; empty if it was not."""
    return property(lambda diagnosis: reason_of(getattr(diagnosis, name)), doc=meaning)


@dataclass(frozen=True, repr=False)
class Diagnosis(StoredResult):
    """Everything measured on one model.

    Attributes:
        model: Name, family, layers, heads, dim, parameters and the like, as plain values.
        audit: Signs, spectra and regime of the weights; see `audit`. Refused if factors of an attention are unknown.
        trace: Measures of the tokens of real prompts at every layer; see `trace`.
        paths: The tokens of one prompt in two principal dimensions; see `token_paths`.
        verdict: States and sentences.
        conventions: Every choice that the numbers depend on.
        manifest: Command, parameters, versions, hardware, seed, start and duration.
        files: Names of the data files saved beside the report.
        levers: The part that causes consensus, and the effect of turning it down; refused if none was tried, None in
            results of versions that could not.
        deeper: The tokens when the blocks run repeatedly on their own output; None if not requested.
        baseline: The numbers over all texts of the trace of an untrained network of the same architecture on the same
            texts: dims layer, site, share and bound; refused if none was traced, None in results of versions that
            could not.
        heads: What each attention head adds to the consensus and to the loss; see `head_effects`. Refused if that was
            not measured, None in results of versions that could not.
        directions: The directions that tokens share, and what writes them; see `shared_directions`. Those after the
            last layer alone are read as vocabulary entries. Likewise.
        sources: Which tokens attention brings them from; see `source_tokens`. Likewise.
        remedies: Remedies tried on the network as it is; see `remedies`. Likewise.
        joint: Sets of parts and heads that lower consensus: the table of `joint_levers`, its sentences in the attribute
            ``summary``. Likewise.

    >>> from tokendynamics.diagnosis import diagnose
    >>> diagnosis = diagnose("random:gpt2-tiny", "a short text", layers=[1])
    >>> diagnosis.audit.sizes["head"], diagnosis.trace.sizes["layer"]
    (12, 7)
    """

    SUMMARY: ClassVar[str] = SUMMARY
    WRITER: ClassVar[str] = WRITER

    model: dict[str, Any]
    audit: xr.Dataset | Refused
    trace: xr.Dataset
    paths: xr.Dataset
    verdict: Verdict
    conventions: tuple[Convention, ...]
    manifest: dict[str, Any]
    files: tuple[str, ...] = ()
    levers: Levers | Refused | None = None
    deeper: Deeper | Refused | None = None
    baseline: xr.Dataset | Refused | None = None
    heads: xr.Dataset | Refused | None = None
    directions: xr.Dataset | Refused | None = None
    sources: xr.Dataset | Refused | None = None
    remedies: xr.Dataset | Refused | None = None
    joint: xr.Dataset | Refused | None = None

    audit_refused = _why("audit", "Why there is no audit; empty if there is one.")
    levers_refused = _why("levers", "Why no levers were tried; empty otherwise.")
    deeper_refused = _why("deeper", "Why it was not made deeper although that was requested; empty otherwise.")
    baseline_refused = _why("baseline", "Why no untrained network was traced; empty otherwise.")
    heads_refused = _why("heads", "Why no effects of heads were measured; empty otherwise.")
    directions_refused = _why("directions", "Why no shared directions were measured; empty otherwise.")
    sources_refused = _why("sources", "Why no source tokens were measured; empty otherwise.")
    remedies_refused = _why("remedies", "Why no remedies were tried; empty otherwise.")
    joint_refused = _why("joint", "Why no sets of parts and heads were tried; empty otherwise.")

    @property
    def headline(self) -> str:
        """Name of the model, its state after the last layer, and where it is worst."""
        return f"{self.model['name']}: {self.verdict.headline}"

    @property
    def findings(self) -> tuple[Finding | str, ...]:
        """The sentences of the verdict, those on levers if any were tried, and the details."""
        first = (f"{name}: {text}" for name, text in self.verdict.lines)
        return (*first, *further_in_words(self))

    @property
    def tables(self) -> dict[str, xr.Dataset]:
        """The datasets that it has, by the name of their file."""
        return tables_of(self)

    @property
    def record(self) -> dict[str, Any]:
        """Everything else as plain JSON values, and the means over prompts by layer; an undefined number is null."""
        return summary(self)

    @classmethod
    def _stored(cls, folder: Path) -> Diagnosis:
        """Return the diagnosis that a folder holds; see `open`."""
        return cls(**stored_fields(folder))

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
    ('audit.nc', 'trace.nc', 'paths.nc', 'levers.nc', 'what_if.nc', 'deeper.nc', 'baseline.nc', 'heads.nc',
    'directions.nc', 'sources.nc', 'remedies.nc', 'joint.nc', 'diagnosis.json')

    Raises:
        ArgumentValueError: An unknown format, or one that cannot be written here.
    """
    return (*file_names([name for name in TABLES if name in tables], format), SUMMARY)


def tables_of(diagnosis: Diagnosis) -> dict[str, xr.Dataset]:
    """Return the datasets that a diagnosis has, by the name of their file."""
    tables: dict[str, Any] = {"audit": diagnosis.audit, "trace": diagnosis.trace, "paths": diagnosis.paths}
    if isinstance(diagnosis.levers, Levers):
        tables |= {"levers": diagnosis.levers.table, "what_if": diagnosis.levers.effect}
    if isinstance(diagnosis.deeper, Deeper):
        tables["deeper"] = diagnosis.deeper.table
    names = ("baseline", "heads", "directions", "sources", "remedies", "joint")
    tables |= {name: getattr(diagnosis, name) for name in names}
    return {name: table for name, table in tables.items() if isinstance(table, xr.Dataset)}


def summary(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis as plain JSON values; an undefined number is null.

    The full arrays are in the data files; here are the per-layer means and standard deviations over
    prompts and the audit's layer table, which is null where there is no audit.
    """
    audit, levers, deeper = diagnosis.audit, diagnosis.levers, diagnosis.deeper
    averaged, spread = mean_over_prompts(diagnosis.trace), spread_over_prompts(diagnosis.trace)
    values: dict[str, Any] = dict.fromkeys(_REFUSABLE)
    if isinstance(audit, xr.Dataset):
        values["audit"] = {"dims": {str(name): list(variable.dims) for name, variable in audit.items()}}
        values["audit"] |= {str(k): plain(v.values) for k, v in audit.items() if "eigenvalues" not in str(k)}
    if isinstance(levers, Levers):
        names = ("answer", "text", "advice", "kappa", "where", "best")
        values["levers"] = {name: getattr(levers, name) for name in names}
        values["levers"] |= {"conventions": list(map(asdict, levers.conventions))}
    if isinstance(deeper, Deeper):
        values["deeper"] = {"sentences": list(deeper.sentences), "refused": deeper.refused}
        values["deeper"] |= {"undecoded": deeper.undecoded, "conventions": list(map(asdict, deeper.conventions))}
    if isinstance(diagnosis.baseline, xr.Dataset):
        values["baseline"] = plain(dict(diagnosis.baseline.attrs))
        values["baseline"]["consensus_relative"] = plain(diagnosis.baseline.consensus_relative.values)
    for name in ("heads", "directions", "sources", "remedies", "joint"):
        if isinstance(table := getattr(diagnosis, name), xr.Dataset):
            values[name] = plain(dict(table.attrs))
    record: dict[str, Any] = {"model": plain(diagnosis.model), "verdict": verdict_as_plain(diagnosis.verdict)}
    for name in _REFUSABLE:
        record |= {name: values[name], f"{name}_refused": reason_of(getattr(diagnosis, name))}
    trace = {str(name): plain(variable.values) for name, variable in averaged.items()}
    return {
        **record,
        "trace_spread": {str(name): plain(variable.values) for name, variable in spread.items()},
        "trace_mean": {"dims": {str(k): list(v.dims) for k, v in averaged.items()}, **trace},
        "prompts": dict(zip(diagnosis.trace.prompt.values.tolist(), diagnosis.trace.text.values.tolist(), strict=True)),
        "conventions": list(map(asdict, diagnosis.conventions)),
        "manifest": plain(diagnosis.manifest),
    }


def levers_in_words(diagnosis: Diagnosis) -> str:
    """Return the answer of the levers in sentences, or why nothing was tried."""
    if not isinstance(diagnosis.levers, Levers):
        return nothing_tried(diagnosis.levers_refused or "the version that wrote this diagnosis could not")
    levers = in_view_of(diagnosis.levers, diagnosis.verdict)
    other = unmeasured_by_kappa(diagnosis.verdict, levers.answer)
    return f"{levers.text} κ does not measure {other}, so nothing was tried for it." if other else levers.text


def tried_in_words(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return what remedies and sets of parts and heads do, or why they were not tried although that was requested."""
    sentences = []
    for words, tried in (("No remedy was", diagnosis.remedies), ("No set of parts and heads was", diagnosis.joint)):
        if isinstance(tried, xr.Dataset):
            sentences.append(str(tried.attrs["summary"]))
        elif tried is not None and tried.reason not in ("it was not requested", diagnosis.levers_refused):
            sentences.append(f"{words} tried: {tried.reason}.")
    return tuple(sentences)


def further_in_words(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return what follows the first screen: what was tried, and the details."""
    levers = (levers_in_words(diagnosis),) if isinstance(diagnosis.levers, Levers) else ()
    return (*levers, *tried_in_words(diagnosis), *(finding.text for finding in diagnosis.verdict.details))


def deeper_in_words(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return the sentences on a deeper network, or why there are none."""
    if not isinstance(diagnosis.deeper, Deeper):
        return (f"It was not made deeper: {diagnosis.deeper_refused or 'it was not requested'}.",)
    return diagnosis.deeper.sentences


def stored_fields(folder: Path) -> dict[str, Any]:
    """Return the fields of a `Diagnosis` from a folder that one was saved in.

    Args:
        folder: See `tokendynamics.diagnosis.Diagnosis.save`.

    Raises:
        ArgumentValueError: Nothing there, or something damaged or incomplete; it is named.
        MemoryLimitError: A file declares more than the memory.
    """
    with opening(folder, _WANTED, SUMMARY, {"comparison.json": "td.Comparison.open"}) as summary:
        fields = {
            "model": checked_model(summary["model"]),
            "verdict": verdict_of(summary["verdict"]),
            "conventions": conventions_of(summary["conventions"]),
            "manifest": dict(summary["manifest"]),
        }
        reasons = {name: as_text(summary.get(f"{name}_refused", ""), f"{name}_refused") for name in _REFUSABLE}
        absent = {name for name in _REFUSABLE if summary.get(name) is None}
        fields |= {name: Refused(reasons[name]) if reasons[name] or name == "audit" else None for name in absent}
        absent |= {"what_if"} if (summary.get("levers") or {}).get("best") is None else set()
        of_parts = ("levers", "directions")
        there = [name for name in TABLES if name not in absent]
        tables = {
            name: open_table(folder, name, DIMS[name], _WANTED, _OF_PARTS if name in of_parts else LABELS)
            for name in there
        }
        _check_depth(fields, tables)
        # Refuse the record of a layout that no page can ask which parts there are.
        trace = tables["trace"]
        norms_there(trace)
        for part, layers in parts_there(trace).items():
            if len(layers) != trace.sizes["layer"] - 1:
                raise ArgumentValueError(f"trace {part}", f"{trace.sizes['layer'] - 1} layers", len(layers))
        fields |= tables
        if "levers" in tables:
            fields["levers"] = _levers(summary["levers"], tables["levers"], fields.pop("what_if", None))
        if "deeper" in tables:
            fields["deeper"] = _deeper(summary["deeper"], tables["deeper"])
    return fields


def _levers(values: Any, table: xr.Dataset, effect: xr.Dataset | None) -> Levers:
    where = as_integer(values["where"], "where")
    best = None if effect is None else as_integer(values["best"], "best", 0, table.sizes["candidate"] - 1)
    if where not in table.layer.values:
        raise ArgumentValueError("levers", f"a layer from 1 to {table.sizes['layer']}", where)
    return Levers(
        table,
        float(values["kappa"]),
        where,
        one_of(Answer, values["answer"], "levers"),
        as_text(values["text"], "text"),
        conventions_of(values["conventions"]),
        best,
        effect,
        as_text(values.get("advice", ""), "advice"),  # absent before there was any
    )


def _deeper(values: Any, table: xr.Dataset) -> Deeper:
    undecoded = as_text(values["undecoded"], "undecoded")
    for name in table.variant.values:
        as_choice(str(name), "variant", NAMED)
    if not (
        (table.fit_first >= 0) & (table.fit_first <= table.fit_last) & (table.fit_last < table.sizes["pass"])
    ).all():
        raise ArgumentValueError("deeper", "fits within its passes", shown(table.fit_last.values.tolist()))
    for name, dims in _OF_TEXTS.items() if not undecoded else ():
        came = table.variables[name].dims if name in table.variables else None
        if came != dims:
            raise ArgumentValueError(f"deeper {name}", f"axes {dims}", came)
    return Deeper(
        table,
        tuple(as_text(sentence, "sentences") for sentence in values["sentences"]),
        conventions_of(values["conventions"]),
        {as_text(name, "refused"): as_text(why, "refused") for name, why in values["refused"].items()},
        undecoded,
    )


def _check_depth(fields: dict[str, Any], tables: dict[str, xr.Dataset]) -> None:
    """Refuse parts that are of networks of different depth: a folder of two diagnoses."""
    layers = fields["model"]["layers"]
    for name in tables.keys() & {"trace", "paths", "baseline", "directions"}:
        if tables[name].layer.values.tolist() != list(range(layers + 1)):
            raise ArgumentValueError(name, f"layers 0 to {layers}", shown(tables[name].layer.values.tolist()))
    if len(fields["verdict"].layers) != layers:
        came = f"{len(fields['verdict'].layers)} badges"
        raise ArgumentValueError("verdict", f"a badge for each of {layers} layers", came)
    for name in tables.keys() & {"levers", "heads", "sources"}:
        if tables[name].layer.values.tolist() != list(range(1, layers + 1)):
            raise ArgumentValueError(name, f"layers 1 to {layers}", shown(tables[name].layer.values.tolist()))
    if "audit" in tables and not set(tables["audit"].layer.values.tolist()) <= set(range(1, layers + 1)):
        raise ArgumentValueError("audit", f"layers from 1 to {layers}", "others")
