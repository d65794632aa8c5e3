"""Every figure by its name, with what makes it quick."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from matplotlib.figure import Figure

from tokendynamics.papers.asymptotic import fig1, fig2, fig3, fig4, fig5, wendel
from tokendynamics.papers.logical import attention_2_18, equivalence, landscape, weights, worked_examples
from tokendynamics.papers.logical import fig1 as logical_fig1
from tokendynamics.papers.logical import fig2 as logical_fig2
from tokendynamics.papers.positional import fig1 as positional_fig1
from tokendynamics.papers.positional import fig2a, fig2b, fig9a, fig9b, remark_3_2, remark_3_5, remark_4_2
from tokendynamics.papers.positional import fig5 as positional_fig5
from tokendynamics.papers.record import Record

T = TypeVar("T")


def _told(items: Iterable[T], description: str, total: int) -> Iterable[T]:
    """Say on the standard error how far a long figure is."""
    for done, item in enumerate(items):
        print(f"  {done} of {total} parts done ({description})", file=sys.stderr, flush=True)
        yield item


@dataclass(frozen=True)
class PaperFigure:
    """One module with `reproduce` and `draw`.

    Attributes:
        module: The module.
        full: Arguments of `reproduce` for the size of the paper, beyond its defaults.
        quick: Arguments for a size that runs in seconds.
        resumable: Whether `reproduce` keeps parts of the work in a ``folder`` and takes them from there.
    """

    module: ModuleType
    full: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
    resumable: bool = False

    def reproduce(self, *, quick: bool = False, folder: str | Path | None = None) -> Record:
        """Compute and compare, at the size of the paper or quickly.

        Args:
            quick: Whether at the reduced size.
            folder: Where a resumable figure keeps parts of the work; the others do not need it.
        """
        kept = {"folder": folder} if self.resumable else {}
        if quick:
            return replace(self.module.reproduce(**self.quick, **kept), quick=dict(self.quick))
        return self.module.reproduce(**self.full, **kept)

    def draw(self, record: Record) -> Figure:
        """Draw what `reproduce` returned."""
        return self.module.draw(record)

    @property
    def title(self) -> str:
        """The first line of the module."""
        return (self.module.__doc__ or "").split("\n")[0].replace("`", "")


_LEARNED = {"categories": 4, "positions": 8, "batch": 200, "steps": 10, "inner": 10, "seeds": 2}

FIGURES: Mapping[str, PaperFigure] = {
    "asymptotic-fig1": PaperFigure(fig1),
    "asymptotic-fig2": PaperFigure(fig2),
    "asymptotic-fig3": PaperFigure(fig3),
    "asymptotic-fig4": PaperFigure(fig4),
    "asymptotic-fig5": PaperFigure(fig5, full={"track": _told}, quick={"systems": 2, "rtol": 1e-5}),
    "asymptotic-wendel": PaperFigure(wendel, quick={"draws": 100}),
    "logical-worked-examples": PaperFigure(worked_examples),
    "logical-2-18": PaperFigure(attention_2_18),
    "logical-equivalence": PaperFigure(equivalence),
    "logical-landscape": PaperFigure(landscape, full={"track": _told}, quick={"starts": 8, "depths": (2.0, 4.0, 6.0)}),
    "logical-fig1": PaperFigure(logical_fig1, full={"track": _told}, quick=_LEARNED, resumable=True),
    "logical-fig2": PaperFigure(logical_fig2, full={"track": _told}, quick=_LEARNED, resumable=True),
    "logical-weights": PaperFigure(weights, full={"track": _told}, quick={**_LEARNED, "samples": 300}, resumable=True),
    "positional-fig1": PaperFigure(positional_fig1),
    "positional-fig2a": PaperFigure(fig2a, quick={"systems": 8}),
    "positional-fig2b": PaperFigure(fig2b),
    "positional-fig5": PaperFigure(positional_fig5),
    "positional-fig9a": PaperFigure(fig9a),
    "positional-fig9b": PaperFigure(fig9b),
    "positional-remark-3-2": PaperFigure(remark_3_2),
    "positional-remark-3-5": PaperFigure(remark_3_5, quick={"draws": 40}),
    "positional-remark-4-2": PaperFigure(remark_4_2, quick={"draws": 30}),
}
"""In the order of the papers."""
