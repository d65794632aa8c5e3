"""What `deeper` finds: variants of a network side by side, pass by pass, what they say, and sentences about both."""

from __future__ import annotations

from dataclasses import dataclass, field

import xarray as xr

from tokendynamics.results import Readable
from tokendynamics.words import Convention, listing, plural

DECODED = (1, 2, 5, 10, 20, 50, 100)
"""After how many passes the text is read: a text that degrades has done so by then."""


@dataclass(frozen=True, repr=False)
class Deeper(Readable):
    """A network and variants of it, made deeper by running their blocks on their own output; made by `deeper`.

    Attributes:
        table: What `passes` measures, with one more dim ``variant`` in front; NaN behind the end of a run. Further
            ``median_consensus`` (variant, pass), E as the median over prompts as long as all of them are finite,
            ``median_half_life`` and ``median_collapse_pass`` (variant, estimate) of it, ``fit_first`` and ``fit_last``
            (variant), the passes that the half-life is fitted to. Where texts were decoded, ``decoded`` and
            ``distinct_1`` (variant, decoded_pass), empty and NaN behind the end of a run.
        sentences: What was measured, each with its numbers.
        conventions: Every choice the numbers hang on.
        refused: Why a variant was not run, by its name.
        undecoded: Why there is no decoded text; empty where there is.
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
