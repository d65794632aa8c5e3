"""A diagnosis read back from its folder: what was measured, and the sentences as they were written."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import xarray as xr

from tokendynamics.diagnosis._deeper_found import Deeper
from tokendynamics.diagnosis._levers_found import Answer, Levers
from tokendynamics.diagnosis.figure_names import FigureName
from tokendynamics.diagnosis.layer_states import State
from tokendynamics.diagnosis.parts_there import norms_there, parts_there
from tokendynamics.diagnosis.prompt_trace import COMPONENTS, SINK_HANDLING, SITES
from tokendynamics.diagnosis.verdict import Verdict, Worst
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_choice, as_integer, as_text
from tokendynamics.numerics.errors import expected, shown
from tokendynamics.pretrained.edits.variant import NAMED, PARTS
from tokendynamics.provenance.manifest import plain
from tokendynamics.provenance.reading import read_json
from tokendynamics.results.tables import (
    Dims,
    conventions_of,
    findings_of,
    nothing_saved,
    one_of,
    open_table,
    unreadable,
)

TABLES = ("audit", "trace", "paths", "levers", "what_if", "deeper")
SUMMARY = "diagnosis.json"
OTHER_SUMMARY = "comparison.json"
"""Of a folder that `Comparison.save` wrote."""

_WANTED = "a saved diagnosis"
DIMS: dict[str, Dims] = {
    "audit": {
        "regime": ("layer",),
        "A_defined": ("layer",),
        "W_inertia": ("layer", "sign"),
        "qk_balance": ("layer", "head"),
        "ov_balance": ("layer", "head"),
    },
    "trace": {
        "mean_pair_cosine": ("prompt", "layer", "site", "sinks"),
        "norm_median": ("prompt", "layer", "site", "sinks"),
        "component_change": ("prompt", "layer", "component"),
        "massive_count": ("prompt", "layer"),
        "token_text": ("prompt", "token"),
        "text": ("prompt",),
    },
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

LABELS = {"site": SITES, "sinks": SINK_HANDLING, "component": COMPONENTS, "part": PARTS}
"""What stands along these axes."""
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
        raise nothing_saved(folder, _WANTED, SUMMARY, {OTHER_SUMMARY: "td.Comparison.open"})
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


def checked_model(values: Any) -> dict[str, Any]:
    """Return the stored facts about a network, checked as far as anyone asks for them."""
    as_text(values["name"], "name")
    for name, least in (("layers", 1), ("dim", 1), ("heads", 0), ("parameters", 1)):
        if as_integer(values[name], name) < least:
            raise ArgumentValueError(expected(name, f"at least {least}", values[name]))
    return dict(values)


def verdict_as_plain(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as it is stored."""
    return {
        "state": verdict.state,
        "worst": asdict(verdict.worst),
        "layers": list(verdict.layers),
        "sentences": [plain(asdict(finding)) for finding in verdict.sentences],
        "details": [plain(asdict(finding)) for finding in verdict.details],
    }


def verdict_of(values: Any) -> Verdict:
    """Return a stored verdict."""
    stored = values["worst"]
    several = tuple(as_integer(each, "layer") for each in stored.get("layers", ()))  # absent before there were any
    worst = Worst(one_of(State, stored["state"]), as_integer(stored["layer"], "layer"), several)
    layers = tuple(one_of(State, each) for each in values["layers"])
    sentences, details = (findings_of(values[name], FigureName) for name in ("sentences", "details"))
    return Verdict(one_of(State, values["state"]), worst, layers, sentences, details)


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
