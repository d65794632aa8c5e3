"""The result of `levers`: derivatives by every gate, trials of a few, and one of several answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import xarray as xr

from tokendynamics.results import Readable
from tokendynamics.words import Convention

Answer: TypeAlias = Literal[
    "one part does it", "one part does it, at an unknown cost", "all layers do it and no single part helps",
    "some layers do it and no single part helps", "nothing needs doing", "not tried for this state",
]  # fmt: skip

NOTHING: Answer = "nothing needs doing"
ALL_LAYERS: Answer = "all layers do it and no single part helps"
SOME_LAYERS: Answer = "some layers do it and no single part helps"


@dataclass(frozen=True, repr=False)
class Levers(Readable):
    """The part of a network that causes consensus, and the effect of turning it down; returned by `levers`.

    Attributes:
        table: Dims ``layer`` (from 1), ``component`` ("attention", "feed_forward"): ``consensus_sensitivity`` ∂κ/∂α and
            ``loss_sensitivity`` ∂loss/∂α (nats) at α = 1, on the texts that find. Dim ``depth`` (0 … L): ``consensus``,
            κ there on the same texts. Dims ``candidate``, ``bound`` ("low", "high"): ``candidate_layer``,
            ``candidate_part``, ``alpha``, and measured on the other texts ``kappa_change``, ``kappa_interval``,
            ``loss_change``, ``loss_interval`` and ``verified``, whether the interval of the change of κ lies below 0.
            ``found_on`` and ``measured_on`` name the texts.
        kappa: κ on the texts that measure, without gates.
        where: After which layer, from 1 on, κ is read.
        answer: One of `Answer`: whether one part causes consensus, at a known or unknown cost; whether all layers
            contribute, or some; whether consensus needs no change. "not tried for this state" occurs in a diagnosis
            whose verdict is a state that κ does not measure.
        text: The answer in sentences, with its numbers and their intervals.
        conventions: Every choice that the numbers depend on.
        best: Index of the candidate that the answer names; None where it names none.
        effect: Its effect on every measure at every depth, from `tokendynamics.what_if` on the texts that measure;
            None without one.
    """

    table: xr.Dataset
    kappa: float
    where: int
    answer: Answer
    text: str
    conventions: tuple[Convention, ...]
    best: int | None = None
    effect: xr.Dataset | None = None

    @property
    def changes(self) -> dict[str, float]:
        """The change that the answer names, for `tokendynamics.what_if` and `Checkpoint.under`; empty without one.

        With ``ckpt.under(found.changes).save(folder)`` it becomes a checkpoint.
        """
        if self.best is None:
            return {}
        row = self.table.isel(candidate=self.best)
        return {f"layer {int(row.candidate_layer)} {row.candidate_part.item()}": float(row.alpha)}

    @property
    def headline(self) -> str:
        """The answer."""
        return self.answer

    @property
    def findings(self) -> tuple[str, ...]:
        """The answer in two or three sentences."""
        return (self.text,)

    def __str__(self) -> str:
        return self.text

    @property
    def consensus_sensitivity(self) -> xr.DataArray:
        """∂κ/∂α by (layer, component), of `table`."""
        return self.table.consensus_sensitivity

    @property
    def loss_sensitivity(self) -> xr.DataArray:
        """∂loss/∂α by (layer, component), of `table`, in nats."""
        return self.table.loss_sensitivity

    def __getitem__(self, name: str) -> xr.DataArray:
        """Return a variable of `table`."""
        return self.table[name]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of `table`, so that ``levers(…).sel(layer=3)`` works as on any dataset."""
        if name.startswith("__"):  # copies and pickles ask before there is a table
            raise AttributeError(name)
        return getattr(self.table, name)
