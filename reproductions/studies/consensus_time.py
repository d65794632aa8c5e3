"""`asymptotic` theorems 4.1 and 5.1: how the time to consensus moves with tokens, dimension, β and causal depth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xarray as xr

from reproductions.studies.design import Design
from reproductions.studies.record import Cell, Table
from reproductions.studies.statistics import bootstrap_groups, power, share, slope
from tokendynamics.sweeps.systems.measures import STATUSES

TITLE = "How long does consensus take?"
QUESTION = (
    "Theorem 4.1 of `asymptotic` has all tokens of an open half space come together, theorem 5.1 has causal tokens "
    "follow the first one from almost everywhere; neither says how soon. Here qk = β · 1, ov = 1 on the sphere, "
    "without the paper's factor 1/√dim; the time is that at which all tokens are within 10^(−3) of the first. Theorem "
    "4.1: uniform starts in a half space, 8 tokens, dim 3, β = 1 but for what varies. Theorem 5.1: uniform starts on "
    "the sphere, dim 3, β = 1; the first k causal tokens do not feel the later ones, so depth is a number of tokens."
)


@dataclass(frozen=True)
class Cut:
    """A line through the parameters along which the time is asked for.

    Attributes:
        axis: What varies.
        law: The growth law that is fitted: the time as a power of it, or an exponential in it.
        theorem: Which one.
    """

    axis: str
    law: Literal["power", "exponential"]
    theorem: str


CUTS = {
    "consensus-tokens": Cut("tokens", "power", "4.1"),
    "consensus-dim": Cut("dim", "power", "4.1"),
    "consensus-beta": Cut("beta", "exponential", "4.1"),
    "consensus-depth": Cut("depth", "power", "5.1"),
}
SPECS = tuple(CUTS)
_CONSENSUS, _REACHED = (STATUSES.index(name) for name in ("consensus", "reached the horizon"))
_FITTED, _STOPPED = "growth laws", "not followed to the end"


def measure(designs: Mapping[str, Design]) -> tuple[Table, ...]:
    """Run the designs; return times along each cut, and the laws fitted to them."""
    swept = {name: designs[name].swept() for name in CUTS}
    tables = [table(CUTS[name], dataset) for name, dataset in swept.items()]
    rows = tuple(fitted(CUTS[name], dataset) for name, dataset in swept.items())
    caption = (
        "Least squares through the logarithms of the medians: time ∝ (what varies)^p, or ∝ e^(p β); p between the "
        "first two points and between the last two tells whether one law holds. Intervals by bootstrap within points."
    )
    heads = ("theorem", "time against", "law", "p", "p of the first two", "p of the last two", "change of p")
    return (*tables, Table(_FITTED, caption, heads, rows))


def points(dataset: xr.Dataset, axis: str) -> np.ndarray:
    """Return the values of an axis, labels being numbers in words."""
    return dataset[axis].values.astype(float)


def times(dataset: xr.Dataset, axis: str) -> list[np.ndarray]:
    """Return the times to consensus at each point; infinite where there was none."""
    reached = np.where(dataset["status"] == _CONSENSUS, dataset["end_time"], np.inf)
    return list(dataset["end_time"].copy(data=reached).transpose(axis, "draw").values)


def stopped(dataset: xr.Dataset, axis: str) -> list[int]:
    """Return at each point how many systems were neither in consensus nor followed to the horizon."""
    return (~dataset["status"].isin([_CONSENSUS, _REACHED])).transpose(axis, "draw").values.sum(axis=1).tolist()


def table(cut: Cut, dataset: xr.Dataset) -> Table:
    """Return how many came to consensus, how many were not followed to the end, and the quantiles of the time."""
    rows: list[tuple[Cell, ...]] = []
    values, samples, left = points(dataset, cut.axis), times(dataset, cut.axis), stopped(dataset, cut.axis)
    for seed, (value, sample) in enumerate(zip(values.tolist(), samples, strict=True)):
        middle = bootstrap_groups(lambda groups: _median(groups[0]), [sample], seed)
        outer = [float(np.quantile(sample, part, method="nearest")) for part in (0.1, 0.9)]
        rows.append((value, len(sample), share(np.isfinite(sample)), left[seed], middle, *outer))
    caption = (
        f"Theorem {cut.theorem}: time to consensus. Median with its bootstrap interval; shares with Wilson's. Those "
        "not followed to the end had spent their steps before t = 10^9."
    )
    heads = (cut.axis, "draws", "came to consensus", _STOPPED, "median time", "first tenth", "last tenth")
    return Table(f"time against {cut.axis}", caption, heads, tuple(rows))


def _median(values: np.ndarray) -> float:
    return float(np.quantile(values, 0.5, method="nearest"))  # of a system: none is between a number and infinity


def fitted(cut: Cut, dataset: xr.Dataset) -> tuple[Cell, ...]:
    """Return the exponent over all points, over both ends, and how it changes from one end to the other."""
    values, samples = points(dataset, cut.axis), times(dataset, cut.axis)
    ends = [
        bootstrap_groups(_exponent(cut, values[part]), samples[part], seed)
        for seed, part in enumerate((slice(None), slice(2), slice(-2, None)))
    ]
    first, last = _exponent(cut, values[:2]), _exponent(cut, values[-2:])
    gap = bootstrap_groups(lambda groups: last(groups[-2:]) - first(groups[:2]), samples, 3)
    return (cut.theorem, cut.axis, cut.law, *ends, gap)


def _exponent(cut: Cut, values: np.ndarray) -> Callable[[list[np.ndarray]], float]:
    def of(groups: list[np.ndarray]) -> float:
        medians = np.array([_median(sample) for sample in groups])
        if not np.isfinite(medians).all():
            return math.nan
        return power(values, medians) if cut.law == "power" else slope(values, np.log(medians))

    return of


def conclude(tables: Mapping[str, Table]) -> list[str]:
    """Say whether consensus came, how the time grows, and whether one law holds."""
    sentences = [_came(tables[f"time against {cut.axis}"], cut) for cut in CUTS.values()]
    return sentences + [sentence for row in tables[_FITTED].each() for sentence in _law(row)]


def _came(outcomes: Table, cut: Cut) -> str:
    total = sum(outcomes.column("draws"))
    reached = sum(row["came to consensus"].of(row["draws"]) for row in outcomes.each())
    where = f"Theorem {cut.theorem}, along {cut.axis}"
    if reached == total:
        return f"{where}: all {total:,} systems came to consensus."
    left = sum(outcomes.column(_STOPPED))
    missed = f"{total - reached - left} of {total:,} systems did not come to consensus by t = 10^9"
    short = f" and {left} were not followed so far" if left else ""
    return f"{where}: {missed}{short}; their time counts as infinite."


def _law(row: Mapping[str, Any]) -> list[str]:
    exponent, change = row["p"], row["change of p"]
    axis = str(row["time against"])
    form = f"{axis}^p" if row["law"] == "power" else f"e^(p · {axis})"
    if not math.isfinite(exponent.value):
        return [f"Against {axis}: at some point most systems did not come to consensus, no law can be fitted."]
    if exponent.low > 0:
        grows = f"The time grows with {axis}, fitted by {form} with p = {exponent}"
    elif exponent.high < 0:
        grows = f"The time falls with {axis}, fitted by {form} with p = {exponent}"
    else:
        return [f"No growth of the time with {axis} is seen (p = {exponent} in {form})."]
    if change.low > 0 or change.high < 0:
        ends = f"{row['p of the first two']} to {row['p of the last two']}"
        return [f"{grows}; but no single such law holds: p moves from {ends} along the line."]
    return [f"{grows}; nothing contradicts one such law (p changes by {change} along the line)."]
