"""What a comparison is: each network's verdict, their differences, the sentences, how they came about; its files."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import xarray as xr

from tokendynamics.diagnosis._first_difference import Difference, Parting
from tokendynamics.diagnosis._stored_comparison import SUMMARY, TABLES, stored_comparison
from tokendynamics.diagnosis.stored import verdict_as_plain
from tokendynamics.diagnosis.verdict import Verdict
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.manifest import plain
from tokendynamics.provenance.whole import settle_results
from tokendynamics.results import StoredResult
from tokendynamics.words import Convention, Finding, listing, plural

WRITER = "tokendynamics compare"


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
        weights: How far their weights differ; None if not requested.
        halved: What halving each part does to the loss; None if not requested.
        sentences: What is found, the most important first.
        conventions: Every choice that the numbers depend on.
        manifest: Command, parameters, versions, hardware, seed, start and duration.
        files: Names of the data files saved beside the report.
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
    halved: xr.Dataset | None
    sentences: tuple[Finding, ...]
    conventions: tuple[Convention, ...]
    manifest: dict[str, Any]
    files: tuple[str, ...] = field(default=())

    @property
    def headline(self) -> str:
        """Which models, and on how many prompts."""
        others, prompts = listing(self.models[1:]), plural(self.traces[0].sizes["prompt"], "prompt")
        return f"{others} compared with {self.models[0]}, on {prompts}"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The sentences."""
        return self.sentences

    @property
    def first_difference(self) -> Difference | None:
        """The part at which the second network parts from the first; None where none stands out."""
        parting = self.partings[0]
        return None if parting is None else parting.first

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
        if first is None:
            return None
        return "norm" if first.norms else names.get(first.part, first.part)

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
    @typed_arguments
    def open(cls, folder: str | Path) -> Comparison:
        """Read what `save` or the command wrote, in either format; the sentences are those that were written.

        Args:
            folder: Where it was saved.

        Raises:
            ArgumentValueError: Nothing there, or no comparison, or a damaged one.
            MemoryLimitError: A file declares more than the memory.
        """
        settle_results(folder)
        return cls(**stored_comparison(Path(folder)))


def summary(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain JSON values; an undefined number is null.

    Args:
        comparison: From `tokendynamics.compare`.
    """
    others = comparison.models[1:]
    trace = comparison.traces[0]
    return {
        "models": list(comparison.models),
        "descriptions": plain(comparison.descriptions),
        "sentences": [plain(asdict(finding)) for finding in comparison.sentences],
        "verdicts": {
            name: verdict_as_plain(each) for name, each in zip(comparison.models, comparison.verdicts, strict=True)
        },
        "partings": {
            name: None if each is None else plain(each.plain())
            for name, each in zip(others, comparison.partings, strict=True)
        },
        "tables": [name for name in TABLES if getattr(comparison, name) is not None],
        "table": _values(comparison.table),
        "difference": _values(comparison.difference),
        "weights": None if comparison.weights is None else _values(comparison.weights),
        "halved": None if comparison.halved is None else _values(comparison.halved),
        "prompts": dict(zip(trace.prompt.values.tolist(), trace.text.values.tolist(), strict=True)),
        "conventions": [asdict(convention) for convention in comparison.conventions],
        "manifest": plain(comparison.manifest),
    }


def _values(table: xr.Dataset) -> dict[str, Any]:
    dims = {str(name): list(variable.dims) for name, variable in table.variables.items()}
    return {"dims": dims, **{str(name): plain(variable.values) for name, variable in table.variables.items()}}
