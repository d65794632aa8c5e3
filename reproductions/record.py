"""What a reproduced figure says: quantities beside what was expected of them, what was invented, where it ran."""

from __future__ import annotations

import functools
import math
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, ParamSpec

import torch

from tokendynamics.provenance.manifest import versions

Arguments = ParamSpec("Arguments")
Relation = Literal["=", "≤", "≥", "measured"]
Source = Literal["paper", "reading", "theory", "simulation", "nobody"]
Verdict = Literal["yes", "no", "cannot tell", "measured"]


@dataclass(frozen=True)
class Quantity:
    """One number beside what was expected of it.

    Attributes:
        name: What it is, with its unit if it has one.
        expected: The published or predicted value, or the bound.
        ours: What came out.
        tolerance: How far `ours` may be from `expected` (beyond it, for a bound).
        relation: "=" for a value, "≤" and "≥" for bounds, "measured" where nothing is expected (see `measured`), or
            where what was published is of other data and only stands beside ours.
        source: Who expects it: the "paper" prints or claims this number; it is our "reading" of what the paper says
            in words or draws, the number being chosen here; "theory" follows from the equations; a "simulation" by
            independent code gave it; "nobody" if it is only measured.
        reason: Why it does not come out, where that is known.
        unsettled: Why these data cannot tell whether it comes out; empty where they can.

    >>> Quantity("period", 0.5, 0.5000001, 1e-6).ok
    True
    """

    name: str
    expected: float
    ours: float
    tolerance: float
    relation: Relation = "="
    source: Source = "paper"
    reason: str = ""
    unsettled: str = ""

    @property
    def verdict(self) -> Verdict:
        """Whether it came out ("yes" or "no"), if the data can tell and something was expected; never for a NaN."""
        if self.relation == "measured":
            return "measured"
        if self.unsettled:
            return "cannot tell"
        gap = self.ours - self.expected
        return "yes" if {"=": abs(gap), "≤": gap, "≥": -gap}[self.relation] <= self.tolerance else "no"

    @property
    def ok(self) -> bool:
        """Whether it came out."""
        return self.verdict == "yes"


def measured(name: str, value: float) -> Quantity:
    """Return a quantity of which nothing is expected: it says how much the others are worth.

    >>> measured("share of undecided draws", 0.25).verdict
    'measured'
    """
    return Quantity(name, math.nan, value, math.nan, "measured", "nobody")


@dataclass(frozen=True)
class Record:
    """A reproduced figure or remark.

    Attributes:
        paper: "asymptotic", "logical", "positional", or the key of another source.
        figure: Such as "Figure 1" or "Remark 3.5".
        statement: What it shows, in a sentence or two.
        quantities: The comparisons.
        invented: What the paper does not print and was chosen here.
        seed: Of all random draws; None if nothing was drawn.
        results: What `draw` needs; not part of the JSON record.
        seconds: How long `reproduce` ran, in wall-clock time.
        quick: The reduced arguments of a quick run, empty if none was reduced; None for a run at full size.
        ran_on: Versions and hardware.
        arguments: Of `reproduce`, those left at their defaults too: sizes, seeds, tolerances.
        texts: What a network said, by what it was asked, for figures that show words.
        code: Digest of what the numbers rest on; see `reproductions.rests_on`.
    """

    paper: str
    figure: str
    statement: str
    quantities: tuple[Quantity, ...]
    invented: str
    seed: int | None
    results: Mapping[str, Any] = field(repr=False)
    seconds: float = 0.0
    quick: Mapping[str, Any] | None = None
    ran_on: Mapping[str, str] = field(default_factory=lambda: environment(), repr=False)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    code: str = ""

    @property
    def failures(self) -> tuple[Quantity, ...]:
        """The quantities that did not come out."""
        return self.of_verdict("no")

    def of_verdict(self, *verdicts: Verdict) -> tuple[Quantity, ...]:
        """Return the quantities of one verdict or of some."""
        return tuple(quantity for quantity in self.quantities if quantity.verdict in verdicts)

    @property
    def compared(self) -> tuple[Quantity, ...]:
        """The quantities of which something was expected."""
        return self.of_verdict("yes", "no", "cannot tell")

    @property
    def banner(self) -> str:
        """That the run was quick and how; empty for a run at full size."""
        if self.quick is None:
            return ""
        reduced = ", ".join(f"{name} = {value}" for name, value in self.quick.items())
        return f"quick run: {reduced or 'nothing reduced'}"

    @property
    def caption(self) -> str:
        """What the figure shows and what in it was invented."""
        return f"{self.paper}, {self.figure}. {self.statement} Invented: {self.invented}"

    def __getitem__(self, name: str) -> Quantity:
        """Return the quantity of that name."""
        return next(quantity for quantity in self.quantities if quantity.name == name)

    def as_json(self) -> dict[str, Any]:
        """Return everything but `results`, for `json.dumps`: None for NaN, a text for infinity, which JSON lacks."""
        rows = [{column: _finite(getattr(quantity, column)) for column in _COLUMNS} for quantity in self.quantities]
        return {
            "paper": self.paper,
            "figure": self.figure,
            "statement": self.statement,
            "quantities": rows,
            **({"texts": dict(self.texts)} if self.texts else {}),
            "invented": self.invented,
            "seed": self.seed,
            "arguments": dict(self.arguments),
            "run": self.banner or "full size",
            "reduced": None if self.quick is None else dict(self.quick),
            "seconds": round(self.seconds, 3),
            "ran_on": dict(self.ran_on),
            "code": self.code,
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Record:
        """Return a record as `as_json` wrote it; it has no `results`, so it can be read and compared but not drawn.

        Raises:
            KeyError: Something is missing.
        """
        quantities = [
            Quantity(**{column: _number(row[column], column) for column in _COLUMNS if column != "verdict"})
            for row in written["quantities"]
        ]
        texts = ("paper", "figure", "statement", "invented", "seed", "seconds", "ran_on", "arguments", "code")
        given = {name: written[name] for name in texts}
        shown_texts = written.get("texts", {})  # only figures that show words have any
        return cls(**given, quantities=tuple(quantities), results={}, quick=written["reduced"], texts=shown_texts)


_COLUMNS = ("name", "source", "relation", "expected", "ours", "tolerance", "verdict", "reason", "unsettled")


def _number(value: Any, column: str) -> Any:
    """Return what `_finite` wrote for a number, as that number."""
    if column not in ("expected", "ours", "tolerance"):
        return value
    return math.nan if value is None else float(value)


def _finite(value: Any) -> Any:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return None if math.isnan(value) else str(value)


def timed(reproduce: Callable[Arguments, Record]) -> Callable[Arguments, Record]:
    """Fill in `Record.seconds`."""

    @functools.wraps(reproduce)
    def with_seconds(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Record:
        started = time.perf_counter()
        record = reproduce(*args, **kwargs)
        return replace(record, seconds=time.perf_counter() - started)

    return with_seconds


def environment() -> dict[str, str]:
    """Return the versions of what computes, and the machine."""
    return versions("torch", "numpy") | {
        "system": f"{platform.system()} {platform.machine()}",
        "processors": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
    }
