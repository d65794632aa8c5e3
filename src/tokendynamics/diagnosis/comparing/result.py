"""What a comparison is: each network's verdict, their differences, the sentences, how they came about; its files."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import xarray as xr

from tokendynamics.diagnosis.comparing._first_difference import Difference, Kind, Part, Parting
from tokendynamics.diagnosis.network import checked_model
from tokendynamics.diagnosis.tracing.prompts import noun_in
from tokendynamics.diagnosis.tracing.variables import AXES, LABELS
from tokendynamics.diagnosis.verdict import FigureName, Verdict, verdict_as_plain, verdict_of
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_integer, as_text
from tokendynamics.numerics.errors import shown
from tokendynamics.provenance.manifest import plain
from tokendynamics.results.result import StoredResult
from tokendynamics.results.tables import Dims, axes_of, conventions_of, findings_of, one_of, open_table, opening
from tokendynamics.words import Convention, Finding, listing, plural

WRITER = "tokendynamics compare"
SUMMARY = "comparison.json"


TABLES = ("table", "difference", "gaps", "weights", "tensors", "halved", "heads")

_WANTED = "a saved comparison"

_ALWAYS = ("table", "difference")

_TABLE_DIMS: dict[str, Dims] = {
    "table": axes_of("model layer site: consensus_relative", "model layer site share: shares", "model layer: state"),
    "difference": axes_of(
        "other layer site: consensus_relative",
        "other layer site bound: consensus_relative_interval",
        "other layer component: update_quotient",
    ),
    "gaps": axes_of("other prompt layer component: update_difference"),
    "weights": axes_of(
        "model layer: qk_norm ov_norm ff_norm",
        "other layer: qk_difference qk_angle ov_difference ov_angle ff_difference ff_angle",
    ),
    "tensors": axes_of("other layer tensor: tensor_difference tensor_scale"),
    "heads": axes_of("model layer head: consensus_sensitivity"),
    "halved": axes_of(
        "model prompt: loss",
        "model prompt layer part: loss_change",
        "other layer part: difference",
        "other layer part bound: difference_interval",
    ),
}
"""Variables that every reader of a comparison asks for; the rest stands and falls with them."""

_TRACE_DIMS: Dims = {
    **AXES,
    **axes_of(
        "layer site: consensus_relative line_excess",
        "layer site bound: consensus_relative_interval line_excess_interval",
        "layer site share: shares",
        "layer site share bound: shares_interval",
        "prompt layer component: update_ratio",
        "prompt layer sinks: token_count",
    ),
}


@dataclass(frozen=True, repr=False)
class Comparison(StoredResult):
    """Several networks on the same texts; the others are compared with the first.

    Attributes:
        models: Their names.
        descriptions: Name, source and architecture of each, as plain values.
        traces: Of each; see `trace`. Tokens that are massive in one are left out in all, where they are the same.
        verdicts: Of each.
        table: Their numbers side by side, with the dim ``model``.
        difference: Of all but the first: other less first, paired over prompts, with intervals; the dim ``other``.
        gaps: How far states and updates of each part differ, token by token, over (other, prompt, layer, component);
            None where no two networks have states that can be paired.
        partings: Of all but the first: where it parts from the first; None where `gaps` has nothing of it.
        weights: How far their weights differ, by layer and head; None if not requested.
        tensors: How far the stored tensors of their blocks differ, by name; None if not requested, or none compares.
        halved: What halving each part does to the loss; None if not requested.
        heads: First-order effects of their heads on κ; None if not requested, or κ′ differs significantly in none.
        sentences: What is found, the most important first.
        conventions: Every choice that the numbers depend on.
        manifest: Command, parameters, versions, hardware, seed, start and duration.
        files: Names of the data files saved beside the report.

    >>> from tokendynamics.diagnosis import compare
    >>> models, texts = ("random:gpt2-tiny", "random:gpt2-tiny:1"), [[5, 9], [12, 3, 4], [1, 2]]
    >>> comparison = compare(*models, texts=texts, weights=False)
    >>> comparison.models, comparison.difference.sizes["layer"]
    (('random:gpt2-tiny:0', 'random:gpt2-tiny:1'), 7)
    """

    SUMMARY: ClassVar[str] = SUMMARY
    WRITER: ClassVar[str] = WRITER

    models: tuple[str, ...]
    descriptions: tuple[dict[str, Any], ...]
    traces: tuple[xr.Dataset, ...]
    verdicts: tuple[Verdict, ...]
    table: xr.Dataset
    difference: xr.Dataset
    gaps: xr.Dataset | None
    partings: tuple[Parting | None, ...]
    weights: xr.Dataset | None
    tensors: xr.Dataset | None
    halved: xr.Dataset | None
    heads: xr.Dataset | None
    sentences: tuple[Finding, ...]
    conventions: tuple[Convention, ...]
    manifest: dict[str, Any]
    files: tuple[str, ...] = field(default=())

    @property
    def headline(self) -> str:
        """Which models, and on how many prompts."""
        others, prompts = listing(self.models[1:]), plural(self.traces[0].sizes["prompt"], noun_in(self.traces[0]))
        return f"{others} compared with {self.models[0]}, on {prompts}"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The sentences."""
        return self.sentences

    @property
    def first_difference(self) -> Difference | None:
        """The part at which the second network parts from the first; None where none stands out."""
        return self.partings[0] and self.partings[0].first

    @property
    def first_layer(self) -> int | None:
        """Its layer, counted from 1; 0 for the embedding, None where no part stands out."""
        return None if self.first_difference is None else self.first_difference.layer

    @property
    def first_part(self) -> str | None:
        """That part: "attention", "feed_forward", "norm", "embedding", or "block" as a whole.

        It is "norm" for the final norm, and where only norms of `first_layer` differ in the part.
        """
        names = {"feed-forward part": "feed_forward", "final norm": "norm"}
        first = self.first_difference
        return first and ("norm" if first.norms else names.get(first.part, first.part))

    @property
    def first_head(self) -> int | None:
        """The head, counted from 0, that differs alone in the attention of `first_layer`; None otherwise."""
        first = self.first_difference
        return first.heads[0] if first is not None and len(first.heads) == 1 else None

    @property
    def tables(self) -> dict[str, xr.Dataset]:
        """The datasets that it has, by the name of their file."""
        named = {name: getattr(self, name) for name in TABLES}
        named |= {f"trace-{number}": trace for number, trace in enumerate(self.traces, start=1)}
        return {name: table for name, table in named.items() if table is not None}

    @property
    def record(self) -> dict[str, Any]:
        """Everything else, and the small datasets, as plain JSON values; an undefined number is null."""
        return summary(self)

    @classmethod
    def _stored(cls, folder: Path) -> Comparison:
        """Return the comparison that a folder holds; see `open`."""
        return cls(**stored_comparison(folder))


def summary(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain JSON values; an undefined number is null.

    Args:
        comparison: From `tokendynamics.compare`.
    """
    others, trace = comparison.models[1:], comparison.traces[0]
    partings = [parting and plain(parting.plain()) for parting in comparison.partings]
    small = {name: getattr(comparison, name) for name in ("weights", "tensors", "halved", "heads")}
    return {
        "models": list(comparison.models),
        "descriptions": plain(comparison.descriptions),
        "sentences": [plain(asdict(finding)) for finding in comparison.sentences],
        "verdicts": dict(zip(comparison.models, map(verdict_as_plain, comparison.verdicts), strict=True)),
        "partings": dict(zip(others, partings, strict=True)),
        "tables": [name for name in TABLES if getattr(comparison, name) is not None],
        "table": _values(comparison.table),
        "difference": _values(comparison.difference),
        **{name: None if table is None else _values(table) for name, table in small.items()},
        "prompts": dict(zip(trace.prompt.values.tolist(), trace.text.values.tolist(), strict=True)),
        "conventions": list(map(asdict, comparison.conventions)),
        "manifest": plain(comparison.manifest),
    }


def _values(table: xr.Dataset) -> dict[str, Any]:
    dims = {str(name): list(variable.dims) for name, variable in table.variables.items()}
    return {"dims": dims, **{str(name): plain(variable.values) for name, variable in table.variables.items()}}


def stored_comparison(folder: Path) -> dict[str, Any]:
    """Return the fields of a `Comparison` from a folder that one was saved in; conventions as their texts.

    Args:
        folder: See `tokendynamics.diagnosis.Comparison.save`.

    Raises:
        ArgumentValueError: Nothing there, a diagnosis, or something damaged or incomplete; it is named.
        MemoryLimitError: A file declares more than the memory.
    """
    with opening(folder, _WANTED, SUMMARY, {"diagnosis.json": "td.Diagnosis.open"}) as summary:
        models = tuple(as_text(name, "models") for name in summary["models"])
        if isinstance(summary["models"], str) or len(models) < 2 or len(set(models)) < len(models):
            raise ArgumentValueError("models", "at least two different names", shown(summary["models"]))
        descriptions = summary["descriptions"]
        if not isinstance(descriptions, list) or len(descriptions) != len(models):
            came = len(descriptions) if isinstance(descriptions, list) else shown(descriptions)
            raise ArgumentValueError("descriptions", f"one for each of {len(models)} models", came)
        fields: dict[str, Any] = {
            "models": models,
            "descriptions": tuple(checked_model(description) for description in descriptions),
            "verdicts": tuple(verdict_of(summary["verdicts"][name]) for name in models),
            "partings": tuple(_parting(summary["partings"][name]) for name in models[1:]),
            "sentences": findings_of(summary["sentences"], FigureName),
            "conventions": conventions_of(summary["conventions"]),
            "manifest": dict(summary["manifest"]),
        }
        fields |= _tables(folder, summary["tables"], models)
        # Parts of networks of different depth are those of two comparisons in one folder.
        of_models = zip(fields["descriptions"], fields["verdicts"], fields["traces"], strict=True)
        for number, (facts, verdict, trace) in enumerate(of_models, start=1):
            layers, badges = facts["layers"], len(verdict.layers)
            if trace.layer.values.tolist() != list(range(layers + 1)):
                raise ArgumentValueError(f"trace-{number}", f"layers 0 to {layers}", shown(trace.layer.values.tolist()))
            if badges != layers:
                raise ArgumentValueError("verdicts", f"a badge for each of {layers} layers", badges)
    return fields


def _parting(values: Any) -> Parting | None:
    if values is None:
        return None
    resized = (_difference(stored) for stored in values["resized"])
    return Parting(
        kind=one_of(Kind, values["kind"], "kind"),
        first=_difference(values["first"]),
        start=_difference(values["start"]),
        largest=_difference(values["largest"]),
        resized=tuple(difference for difference in resized if difference is not None),
        early=_number(values["early"]),
        late=_number(values["late"]),
        missing=tuple(as_integer(layer, "missing") for layer in values.get("missing", ())),
    )


def _difference(values: Any) -> Difference | None:
    if values is None:
        return None
    numbers = {name: _number(values[name]) for name in ("before", "update", "size", "rounding")}
    # JSON has no infinity; what stands beside a part that adds nothing is infinitely much, and never undefined.
    numbers |= {name: math.inf for name in ("size", "rounding") if math.isnan(numbers[name])}
    numbers |= {name: _number(values.get(name)) for name in ("own", "beside")}  # absent before they were measured
    norms = tuple(as_text(norm, "norms") for norm in values.get("norms", ()))  # likewise, as are heads
    heads = tuple(as_integer(head, "heads") for head in values.get("heads", ()))
    part = one_of(Part, values["part"], "part")
    return Difference(as_integer(values["layer"], "layer"), part, **numbers, norms=norms, heads=heads)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _tables(folder: Path, listed: Any, models: tuple[str, ...]) -> dict[str, Any]:
    unknown = next((name for name in listed if name not in TABLES), None)
    if unknown is not None or not set(_ALWAYS) <= set(listed):
        wanted = f"{' and '.join(_ALWAYS)}, and no others than this version has"
        raise ArgumentValueError("tables", wanted, shown(listed))
    tables: dict[str, Any] = dict.fromkeys(TABLES)
    tables |= {name: open_table(folder, name, _TABLE_DIMS[name], _WANTED, LABELS) for name in listed}
    for name in listed:
        for axis, wanted in (("model", models), ("other", models[1:])):
            came = tuple(tables[name][axis].values) if axis in tables[name].dims else wanted
            if came != wanted:
                raise ArgumentValueError(f"{name} {axis}", shown(wanted), shown(came))
    names = [f"trace-{number}" for number in range(1, len(models) + 1)]
    return tables | {"traces": tuple(open_table(folder, name, _TRACE_DIMS, _WANTED, LABELS) for name in names)}
