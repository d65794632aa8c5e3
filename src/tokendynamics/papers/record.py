"""What a reproduced figure says: quantities beside what was expected of them, what was invented, where it ran."""

from __future__ import annotations

import functools
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, ParamSpec

import numpy as np
import torch

from tokendynamics._version import __version__

Arguments = ParamSpec("Arguments")
Relation = Literal["=", "≤", "≥"]
Source = Literal["paper", "theory", "simulation"]


@dataclass(frozen=True)
class Quantity:
    """One number beside what was expected of it.

    Attributes:
        name: What it is, with its unit if it has one.
        expected: The published or predicted value, or the bound.
        ours: What came out.
        tolerance: How far `ours` may be from `expected` (beyond it, for a bound).
        relation: "=" for a value, "≤" and "≥" for bounds.
        source: Who expects it: the "paper" prints or claims it, "theory" follows from the equations, and a
            "simulation" by independent code gave it.
        reason: Why it does not come out, where that is known.

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

    @property
    def ok(self) -> bool:
        """Whether it came out; never so for a NaN."""
        gap = self.ours - self.expected
        return {"=": abs(gap), "≤": gap, "≥": -gap}[self.relation] <= self.tolerance


@dataclass(frozen=True)
class Record:
    """A reproduced figure or remark.

    Attributes:
        paper: "asymptotic" or "positional".
        figure: Such as "Figure 1" or "Remark 3.5".
        statement: What it shows, in a sentence or two.
        quantities: The comparisons.
        invented: What the paper does not print and was chosen here.
        seed: Of all random draws; None if nothing was drawn.
        results: What `draw` needs; not part of the JSON record.
        seconds: How long `reproduce` ran, in wall-clock time.
        ran_on: Versions and hardware.
    """

    paper: str
    figure: str
    statement: str
    quantities: tuple[Quantity, ...]
    invented: str
    seed: int | None
    results: Mapping[str, Any] = field(repr=False)
    seconds: float = 0.0
    ran_on: Mapping[str, str] = field(default_factory=lambda: environment(), repr=False)

    @property
    def failures(self) -> tuple[Quantity, ...]:
        """The quantities that did not come out."""
        return tuple(quantity for quantity in self.quantities if not quantity.ok)

    @property
    def caption(self) -> str:
        """What the figure shows and what in it was invented."""
        return f"{self.paper}, {self.figure}. {self.statement} Invented: {self.invented}"

    def __getitem__(self, name: str) -> Quantity:
        """The quantity of that name."""
        return next(quantity for quantity in self.quantities if quantity.name == name)

    def as_json(self) -> dict[str, Any]:
        """Everything but `results`, as what `json.dumps` takes."""
        columns = ("name", "source", "relation", "expected", "ours", "tolerance", "ok", "reason")
        rows = [{column: getattr(quantity, column) for column in columns} for quantity in self.quantities]
        return {
            "paper": self.paper,
            "figure": self.figure,
            "statement": self.statement,
            "quantities": rows,
            "invented": self.invented,
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            "ran_on": dict(self.ran_on),
        }


def timed(reproduce: Callable[Arguments, Record]) -> Callable[Arguments, Record]:
    """Fill in `Record.seconds`."""

    @functools.wraps(reproduce)
    def with_seconds(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Record:
        started = time.perf_counter()
        record = reproduce(*args, **kwargs)
        return replace(record, seconds=time.perf_counter() - started)

    return with_seconds


def environment() -> dict[str, str]:
    """Versions of what computes, and the machine."""
    return {
        "tokendynamics": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processors": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
    }
