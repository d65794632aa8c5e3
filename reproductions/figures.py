"""Every figure by its name, with what makes it quick."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from matplotlib.figure import Figure

from reproductions.asymptotic import fig1, fig2, fig3, fig4, fig5, fig6, fig7, fig8, table3, wendel
from reproductions.given import in_record
from reproductions.logical import attention_2_18, equivalence, landscape, weights, worked_examples
from reproductions.logical import fig1 as logical_fig1
from reproductions.logical import fig2 as logical_fig2
from reproductions.logical.learned import Size
from reproductions.metastability import circle, lifetime, staircase
from reproductions.noise import phases
from reproductions.norms import rates
from reproductions.positional import fig1 as positional_fig1
from reproductions.positional import (
    fig2a,
    fig2b,
    fig9a,
    fig9b,
    fig10,
    fig11,
    remark_3_2,
    remark_3_5,
    remark_4_2,
    table7,
)
from reproductions.positional import fig3 as positional_fig3
from reproductions.positional import fig4 as positional_fig4
from reproductions.positional import fig5 as positional_fig5
from reproductions.positional import fig6 as positional_fig6
from reproductions.positional import fig7 as positional_fig7
from reproductions.positional import fig8 as positional_fig8
from reproductions.positional.study_table import TABLES, Table
from reproductions.rank import collapse
from reproductions.record import Record
from reproductions.rests_on import digest

_HOW = ("folder", "progress", "threads")
"""Arguments that do not affect the numbers."""

GIVEN = ("model", "text")
"""Arguments that a user may hand to every figure which has them."""


def _report(done: float, total: float, what: str) -> None:
    """Say on the standard error how far a long figure is."""
    print(f"  {done} of {total} parts done ({what})", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class PaperFigure:
    """One figure: a module, or a table, with `reproduce` and `draw`.

    Attributes:
        module: The module or table.
        quick: Arguments of `reproduce` for a size that runs in seconds; its defaults are the size of the paper.
    """

    module: ModuleType | Table
    quick: Mapping[str, Any] = field(default_factory=dict)

    def reproduce(
        self, *, quick: bool = False, folder: str | Path | None = None, given: Mapping[str, str] | None = None
    ) -> Record:
        """Compute and compare, at the size of the paper or quickly.

        Args:
            quick: Whether at the reduced size.
            folder: Where a resumable figure keeps parts of the work; the others do not need it.
            given: A "model" and a "text" of the user's; those that the figure does not take are left aside.
        """
        how: dict[str, Any] = {"folder": folder} if self.resumable else {}
        if self.takes("progress") and not quick:
            how["progress"] = _report
        chosen = self._chosen(quick, given or {})
        record = self.module.reproduce(**chosen, **how)
        arguments = self.arguments(quick=quick, given=given)
        record = replace(record, arguments=arguments, code=self.code(record.paper, record.figure))
        if not quick:
            return record
        return replace(record, quick={name: value for name, value in self.quick.items() if chosen[name] == value})

    def code(self, paper: str, figure: str) -> str:
        """Return the digest of the code that `reproduce` runs and of what is published; see `rests_on`."""
        module = self.module if isinstance(self.module, ModuleType) else sys.modules[type(self.module).__module__]
        return digest(module, paper, figure)

    @property
    def resumable(self) -> bool:
        """Whether `reproduce` keeps parts of the work in a folder and takes them from there."""
        return self.takes("folder")

    def takes(self, argument: str) -> bool:
        """Say whether `reproduce` has a keyword of that name."""
        return argument in inspect.signature(self.module.reproduce).parameters

    def _chosen(self, quick: bool, given: Mapping[str, str]) -> dict[str, Any]:
        """Return what `reproduce` is called with: a user's model and text take the place of the figure's own."""
        return {**(self.quick if quick else {}), **{name: value for name, value in given.items() if self.takes(name)}}

    def arguments(self, *, quick: bool = False, given: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return sizes, seeds and tolerances that `reproduce` computes with, those left at their defaults too.

        Of a model or a text that is a path there is the name and a digest: a record says nothing of the machine.
        """
        parameters = inspect.signature(self.module.reproduce).parameters.values()
        named = {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}
        # A figure that learns takes the size of its task as further keywords.
        sized = asdict(Size()) if any(one.kind is one.VAR_KEYWORD for one in parameters) else {}
        arguments = {**named, **sized, **self._chosen(quick, given or {})}
        return {
            name: in_record(name, value) if name in GIVEN else value
            for name, value in arguments.items()
            if name not in _HOW
        }

    def draw(self, record: Record) -> Figure:
        """Draw what `reproduce` returned."""
        return self.module.draw(record)

    @property
    def title(self) -> str:
        """What it shows, in a line."""
        words = self.module.title if isinstance(self.module, Table) else (self.module.__doc__ or "")
        return words.split("\n")[0].replace("`", "")


_UNTRAINED = {"model": "random:distilgpt2:1"}
_LEARNED = {"categories": 4, "positions": 8, "batch": 200, "steps": 10, "inner": 10, "seeds": 2}
_SHORT = {"steps": 2, "seeds": 2}
_TRAINED = {"seeds": (1, 2), "layers": 2, "steps": 4}
_DEEP = {"seeds": (1,), "layers": 3, "steps": 4, "texts": 2, "tokens": 12, "draws": 2}

FIGURES: Mapping[str, PaperFigure] = {
    "asymptotic-fig1": PaperFigure(fig1),
    "asymptotic-fig2": PaperFigure(fig2),
    "asymptotic-fig3": PaperFigure(fig3),
    "asymptotic-fig4": PaperFigure(fig4),
    "asymptotic-fig5": PaperFigure(fig5, quick={"systems": 2, "rtol": 1e-5}),
    "asymptotic-fig6": PaperFigure(
        fig6,
        quick={"others": (), "passes": 12, "network": "random:distilgpt2", "fixed_passes": 12, "fresh_passes": 12},
    ),
    "asymptotic-fig7": PaperFigure(fig7, quick={"network": "random:distilgpt2", "passes": 20}),
    "asymptotic-fig8": PaperFigure(fig8, quick={"network": "random:distilgpt2", "passes": 20}),
    "asymptotic-table3": PaperFigure(
        table3, quick={"passes": (1, 2, 5, 10), "between": (), "generated": (1,), "new_tokens": 3}
    ),
    "asymptotic-wendel": PaperFigure(wendel, quick={"draws": 100}),
    "logical-worked-examples": PaperFigure(worked_examples),
    "logical-2-18": PaperFigure(attention_2_18),
    "logical-equivalence": PaperFigure(equivalence),
    "logical-landscape": PaperFigure(landscape, quick={"starts": 8, "depths": (2.0, 4.0, 6.0)}),
    "logical-fig1": PaperFigure(logical_fig1, quick=_LEARNED),
    "logical-fig2": PaperFigure(logical_fig2, quick=_LEARNED),
    "logical-weights": PaperFigure(weights, quick={**_LEARNED, "samples": 300}),
    "positional-fig1": PaperFigure(positional_fig1),
    "positional-fig2a": PaperFigure(fig2a, quick={"systems": 8}),
    "positional-fig2b": PaperFigure(fig2b),
    "positional-fig3": PaperFigure(positional_fig3, quick=_DEEP),
    "positional-fig4": PaperFigure(positional_fig4, quick=_DEEP),
    "positional-fig5": PaperFigure(positional_fig5),
    "positional-table1": PaperFigure(TABLES["table1"], quick=_SHORT),
    "positional-table2": PaperFigure(TABLES["table2"], quick=_SHORT),
    "positional-table3": PaperFigure(TABLES["table3"], quick=_SHORT),
    "positional-fig6": PaperFigure(positional_fig6, quick=_TRAINED),
    "positional-fig7": PaperFigure(positional_fig7, quick=_TRAINED),
    "positional-fig8": PaperFigure(positional_fig8, quick={**_UNTRAINED, "texts": 2, "tokens": 20, "draws": 5}),
    "positional-fig9a": PaperFigure(fig9a),
    "positional-fig9b": PaperFigure(fig9b),
    "positional-table7": PaperFigure(
        table7, quick={**_UNTRAINED, "reinitialised": ("distilgpt2",), "seeds": (0,), "layers": 2}
    ),
    "positional-fig10": PaperFigure(fig10, quick={**_UNTRAINED, "sequences": 2, "reinitialised": None}),
    "positional-fig11": PaperFigure(fig11, quick={**_UNTRAINED, "lengths": (16, 64), "sequences": 3}),
    "positional-remark-3-2": PaperFigure(remark_3_2),
    "positional-remark-3-5": PaperFigure(remark_3_5, quick={"draws": 40}),
    "positional-remark-4-2": PaperFigure(remark_4_2, quick={"draws": 30}),
    "rank-collapse": PaperFigure(collapse, quick={"systems": 8}),
    "norms-rates": PaperFigure(rates, quick={"systems": 8}),
    "noise-phases": PaperFigure(phases, quick={"tokens": 100, "horizon": 20.0}),
    "metastability-lifetime": PaperFigure(lifetime, quick={"draws": 3, "most": 18}),
    "metastability-staircase": PaperFigure(staircase, quick={"draws": 2}),
    "metastability-circle": PaperFigure(circle, quick={"draws": 2, "tokens": 300}),
}
"""In the order of the papers."""
