"""The result of `deeper`: variants of a network side by side over passes, decoded texts, and sentences on both."""

from __future__ import annotations

from dataclasses import dataclass, field

import xarray as xr

from tokendynamics.results import Readable
from tokendynamics.words import Convention, listing, plural

DECODED = (1, 2, 5, 10, 20, 50, 100)
"""Passes after which the text is decoded; a text that degrades has done so by the last."""


@dataclass(frozen=True, repr=False)
class Deeper(Readable):
    """A network and its variants, made deeper by running their blocks on their own output; returned by `deeper`.

    Attributes:
        table: The measures of `passes`, with a leading dim ``variant``; NaN after the end of a run. Also
            ``median_consensus`` (variant, pass), the median of E over prompts while all of them are finite,
            ``median_half_life`` and ``median_collapse_pass`` (variant, estimate) of it, ``fit_first`` and ``fit_last``
            (variant), the range of passes that the half-life is fitted to. Where texts were decoded, ``decoded`` and
            ``distinct_1`` (variant, decoded_pass), empty and NaN after the end of a run.
        sentences: The findings, each with its numbers.
        conventions: Every choice that the numbers depend on.
        refused: The reason for each variant that was not run, by name.
        undecoded: The reason why there is no decoded text; empty if there is.
    """

    table: xr.Dataset
    sentences: tuple[str, ...]
    conventions: tuple[Convention, ...]
    refused: dict[str, str] = field(default_factory=dict)
    undecoded: str = ""

    @property
    def text(self) -> str:
        """The sentences as one text."""
        return " ".join(self.sentences)

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of the variants that ran."""
        return tuple(map(str, self.table.variant.values))

    @property
    def headline(self) -> str:
        """How many passes of which variants."""
        return f"{plural(self.table.sizes['pass'] - 1, 'pass', 'passes')} of {listing(self.variants)}"

    @property
    def findings(self) -> tuple[str, ...]:
        """The sentences."""
        return self.sentences

    def __getitem__(self, name: str) -> xr.DataArray:
        """Return a variable of `table`."""
        return self.table[name]
