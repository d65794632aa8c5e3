"""Shares of systems as the page needs them: at one point in words, and counted together over parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from tokendynamics.numerics.intervals import wilson
from tokendynamics.sweeps.systems.results import with_intervals
from tokendynamics.words import fixed

_ROUNDING = 1e-9


@dataclass(frozen=True)
class SystemShare:
    """How many of some systems ended in one way.

    Attributes:
        count: How many did.
        total: How many were run.
    """

    count: int
    total: int

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval of the probability; the whole of what is possible where no system was run."""
        return wilson(self.count, self.total) if self.total else (0.0, 1.0)

    def __str__(self) -> str:
        if not self.total:
            return "no system was run"
        low, high = self.interval
        share, low, high = (100 * value for value in (self.count / self.total, low, high))
        digits = _decimals(share, low, high)
        share, low, high = (fixed(value, digits if 0 < value < 100 else 0) for value in (share, low, high))
        return f"{share} % (95 % CI {low}–{high} %)"


def _decimals(share: float, low: float, high: float) -> int:
    """Return the decimals that distinguish the ends of an interval, and shares near 0 and 100 % from these."""
    near = [min(each, 100 - each) for each in (share, low, high) if 0 < each < 100]
    needed = [-np.floor(np.log10(high - low)), *(1 - np.floor(np.log10(each)) for each in near if each > _ROUNDING)]
    return int(max(0, *needed))


def kind_of(shares: xr.Dataset) -> str:
    """Return the dim of the words: "outcome" or "status"."""
    return next(str(dim) for dim in shares["count"].dims if dim not in shares.total.dims)


def words_of(shares: xr.Dataset) -> list[str]:
    """Return the words that occur, the most frequent first."""
    kind = kind_of(shares)
    counts = shares["count"].sum(shares.total.dims)
    found = [str(word) for word in shares[kind].values if int(counts.sel({kind: word}))]
    return sorted(found, key=lambda word: -int(counts.sel({kind: word})))


def together(shares: xr.Dataset, word: str) -> SystemShare:
    """Count one word over everything."""
    return SystemShare(int(shares["count"].sel({kind_of(shares): word}).sum()), int(shares.total.sum()))


def along(shares: xr.Dataset, word: str, axis: str) -> list[SystemShare]:
    """Count one word for each value of one parameter, over all others."""
    others = [dim for dim in shares.total.dims if dim != axis]
    counts, totals = shares["count"].sel({kind_of(shares): word}).sum(others), shares.total.sum(others)
    return [SystemShare(int(count), int(total)) for count, total in zip(counts.values, totals.values, strict=True)]


def summed(shares: xr.Dataset, axes: list[str]) -> xr.Dataset:
    """Return the shares over some parameters, with the systems of all others counted together."""
    others = [dim for dim in shares.total.dims if dim not in axes]
    if not others:
        return shares
    return with_intervals(shares["count"].sum(others), shares.total.sum(others))
