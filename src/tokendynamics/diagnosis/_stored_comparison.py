"""A comparison read back from its folder: what was measured, and the sentences as they were written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from tokendynamics.diagnosis._first_difference import Difference, Kind, Part, Parting
from tokendynamics.diagnosis.figure_names import FigureName
from tokendynamics.diagnosis.stored import DIMS, LABELS, OTHER_SUMMARY, checked_model, verdict_of
from tokendynamics.diagnosis.stored import SUMMARY as OF_A_DIAGNOSIS
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_integer, as_text
from tokendynamics.numerics.errors import expected, shown
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

SUMMARY = OTHER_SUMMARY
TABLES = ("table", "difference", "gaps", "weights", "halved")

_WANTED = "a saved comparison"
_ALWAYS = ("table", "difference")
_SITE = ("layer", "site")
_TABLE_DIMS: dict[str, Dims] = {
    "table": {
        "consensus_relative": ("model", *_SITE),
        "shares": ("model", *_SITE, "share"),
        "state": ("model", "layer"),
    },
    "difference": {
        "consensus_relative": ("other", *_SITE),
        "consensus_relative_interval": ("other", *_SITE, "bound"),
        "update_quotient": ("other", "layer", "component"),
    },
    "gaps": {"update_difference": ("other", "prompt", "layer", "component")},
    "weights": {
        **{f"{part}_norm": ("model", "layer") for part in ("qk", "ov", "ff")},
        **{f"{part}_{kind}": ("other", "layer") for part in ("qk", "ov", "ff") for kind in ("difference", "angle")},
    },
    "halved": {
        "loss": ("model", "prompt"),
        "loss_change": ("model", "prompt", "layer", "part"),
        "difference": ("other", "layer", "part"),
        "difference_interval": ("other", "layer", "part", "bound"),
    },
}
"""Variables that every reader of a comparison asks for; the rest stands and falls with them."""

_TRACE_DIMS: Dims = {
    **DIMS["trace"],
    **dict.fromkeys(("consensus_relative", "line_excess"), _SITE),
    **{f"{name}_interval": (*_SITE, "bound") for name in ("consensus_relative", "line_excess")},
    "shares": (*_SITE, "share"),
    "shares_interval": (*_SITE, "share", "bound"),
    "update_ratio": ("prompt", "layer", "component"),
    "token_count": ("prompt", "layer", "sinks"),
}


def stored_comparison(folder: Path) -> dict[str, Any]:
    """Return the fields of a `Comparison` from a folder that one was saved in; conventions as their texts.

    Args:
        folder: See `tokendynamics.diagnosis.Comparison.save`.

    Raises:
        ArgumentValueError: Nothing there, a diagnosis, or something damaged or incomplete; it is named.
        MemoryLimitError: A file declares more than the memory.
    """
    if not (folder / SUMMARY).exists():
        raise nothing_saved(folder, _WANTED, SUMMARY, {OF_A_DIAGNOSIS: "td.Diagnosis.open"})
    summary = read_json(folder / SUMMARY, "folder")
    try:
        models = _models(summary["models"])
        found = {
            "models": models,
            "descriptions": tuple(checked_model(each) for each in _each(summary["descriptions"], models)),
            "verdicts": tuple(verdict_of(each) for each in _by_name(summary["verdicts"], models)),
            "partings": tuple(_parting(each) for each in _by_name(summary["partings"], models[1:])),
            "sentences": findings_of(summary["sentences"], FigureName),
            "conventions": conventions_of(summary["conventions"]),
            "manifest": dict(summary["manifest"]),
        }
        tables = _tables(folder, summary["tables"], models)
        _check_depths(found, tables["traces"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise unreadable(folder, _WANTED, error) from error
    return found | tables


def _models(values: Any) -> tuple[str, ...]:
    names = tuple(as_text(each, "models") for each in values)
    if isinstance(values, str) or len(names) < 2 or len(set(names)) < len(names):
        raise ArgumentValueError(expected("models", "at least two different names", shown(values)))
    return names


def _each(values: Any, models: Sequence[str]) -> list[Any]:
    if not isinstance(values, list) or len(values) != len(models):
        came = len(values) if isinstance(values, list) else shown(values)
        raise ArgumentValueError(expected("descriptions", f"one for each of {len(models)} models", came))
    return values


def _by_name(values: Any, names: Sequence[str]) -> list[Any]:
    return [values[name] for name in names]


def _parting(values: Any) -> Parting | None:
    if values is None:
        return None
    resized = (_difference(each) for each in values["resized"])
    return Parting(
        kind=one_of(Kind, values["kind"], "kind"),
        first=_difference(values["first"]),
        start=_difference(values["start"]),
        largest=_difference(values["largest"]),
        resized=tuple(each for each in resized if each is not None),
        early=_number(values["early"]),
        late=_number(values["late"]),
    )


def _difference(values: Any) -> Difference | None:
    if values is None:
        return None
    numbers = {name: _number(values[name]) for name in ("before", "update", "size", "rounding")}
    # JSON has no infinity; one rounding of a part that adds nothing is infinitely much beside it, and never undefined.
    numbers["rounding"] = math.inf if math.isnan(numbers["rounding"]) else numbers["rounding"]
    numbers |= {name: _number(values.get(name)) for name in ("own", "beside")}  # absent before they were measured
    norms = tuple(as_text(each, "norms") for each in values.get("norms", ()))  # likewise
    part = one_of(Part, values["part"], "part")
    return Difference(as_integer(values["layer"], "layer"), part, **numbers, norms=norms)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _tables(folder: Path, listed: Any, models: tuple[str, ...]) -> dict[str, Any]:
    unknown = next((each for each in listed if each not in TABLES), None)
    if unknown is not None or not set(_ALWAYS) <= set(listed):
        wanted = f"{' and '.join(_ALWAYS)}, and no others than {', '.join(TABLES)}"
        raise ArgumentValueError(expected("tables", wanted, shown(listed)))
    found: dict[str, Any] = dict.fromkeys(TABLES)
    found |= {name: open_table(folder, name, _TABLE_DIMS[name], _WANTED, LABELS) for name in listed}
    for name, axis, wanted in (("table", "model", models), ("difference", "other", models[1:])):
        if tuple(found[name][axis].values) != wanted:
            raise ArgumentValueError(expected(f"{name} {axis}", shown(wanted), shown(tuple(found[name][axis].values))))
    traces = [
        open_table(folder, f"trace-{number}", _TRACE_DIMS, _WANTED, LABELS) for number in range(1, len(models) + 1)
    ]
    return found | {"traces": tuple(traces)}


def _check_depths(found: Mapping[str, Any], traces: Sequence[xr.Dataset]) -> None:
    """Refuse parts that are of networks of different depth: a folder of two comparisons."""
    for place, (facts, trace) in enumerate(zip(found["descriptions"], traces, strict=True)):
        layers = facts["layers"]
        if trace.layer.values.tolist() != list(range(layers + 1)):
            wanted = f"layers 0 to {layers}"
            raise ArgumentValueError(expected(f"trace-{place + 1}", wanted, shown(trace.layer.values.tolist())))
        badges = len(found["verdicts"][place].layers)
        if badges != layers:
            raise ArgumentValueError(expected("verdicts", f"a badge for each of {layers} layers", badges))
