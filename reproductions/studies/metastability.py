"""Metastable clusters: how many there are at each time, and how long consensus waits, as β grows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr

from reproductions.studies.design import Design
from reproductions.studies.record import Cell, Estimate, Table
from reproductions.studies.statistics import bootstrap_groups, share

TITLE = "How long do clusters last at large β?"
QUESTION = (
    "With qk = β · 1 and ov = 1 on the circle tokens end in consensus from almost every start (`asymptotic` theorem "
    "3.2; tokens around the whole circle lie in no half space, so that theorem 4.1 does not speak of them), but at "
    "large β they first gather in clusters that hardly move. 24 tokens, uniform starts, clusters by single linkage at "
    "an angle of 0.05, followed to t = 10^9 by implicit steps. How many clusters are there at each time?"
)
SPEC = "metastability"
SPECS = (SPEC,)
SHOWN = (0.0, 1.0, 10.0, 1e2, 1e3, 1e4, 1e6, 1e9)
_COUNTS, _PLATEAUS = "clusters by time", "plateaus"


def measure(designs: Mapping[str, Design]) -> tuple[Table, ...]:
    """Run the design; return mean numbers of clusters and the longest time for which each system's number stands."""
    dataset = designs[SPEC].swept()
    return by_time(dataset), plateaus(dataset)


def by_time(dataset: xr.Dataset) -> Table:
    """Return the mean number of clusters at some times, for each β."""
    saved = dataset["time"].values
    places = [int(np.abs(saved - time).argmin()) for time in SHOWN]
    rows: list[tuple[Cell, ...]] = []
    for beta in dataset["beta"].values:
        counts = dataset["clusters_over_time"].sel(beta=beta).values
        means = [_mean(counts[:, place]) for place in places]
        rows.append((float(beta), len(counts), *means, share(counts[:, -1] == 1)))
    caption = (
        "Mean number of clusters over draws, with bootstrap intervals; share of draws with one cluster at the end."
    )
    heads = ("β", "draws", *(f"t = {saved[place]:.3g}" for place in places), "one cluster at the end")
    return Table(_COUNTS, caption, heads, tuple(rows))


def plateaus(dataset: xr.Dataset) -> Table:
    """Return for how many decades of time a number of two clusters or more stands, and when one cluster is left."""
    saved = dataset["time"].values
    rows: list[tuple[Cell, ...]] = []
    for beta in dataset["beta"].values:
        counts = dataset["clusters_over_time"].sel(beta=beta).values
        decades = np.array([longest(saved, counted) for counted in counts])
        together = np.array([first_alone(saved, counted) for counted in counts])
        median = bootstrap_groups(lambda groups: float(np.quantile(groups[0], 0.5, method="nearest")), [together], 1)
        rows.append((float(beta), len(counts), _mean(decades), median))
    caption = (
        "Longest stretch of log10 t from t = 1 on in which a system's number of clusters, two or more, stands (mean), "
        "and the time from which on there is one cluster (median; – where most draws have more to the end)."
    )
    return Table(_PLATEAUS, caption, ("β", "draws", "decades", "one cluster from"), tuple(rows))


def longest(times: np.ndarray, counts: np.ndarray) -> float:
    """Return the decades of the longest stretch from t = 1 on with one number of clusters, two at least.

    >>> longest(np.array([1.0, 10.0, 100.0, 1e3, 1e4]), np.array([5, 3, 3, 3, 1]))
    2.0
    """
    late = times >= 1.0
    best, begun = 0.0, None
    for time, count, before in zip(times[late], counts[late], np.r_[-1, counts[late][:-1]], strict=True):
        begun = time if count != before or begun is None else begun
        if count > 1:
            best = max(best, float(np.log10(time / begun)))
    return best


def first_alone(times: np.ndarray, counts: np.ndarray) -> float:
    """Return the saved time from which on there is one cluster; infinite if there are more at the end.

    >>> first_alone(np.array([0.0, 1.0, 2.0]), np.array([1, 2, 1]))
    2.0
    """
    several = np.flatnonzero(counts != 1)
    if not len(several):
        return float(times[0])
    return float(times[several[-1] + 1]) if several[-1] + 1 < len(times) else np.inf


def _mean(values: np.ndarray) -> Estimate:
    return bootstrap_groups(lambda groups: float(groups[0].mean()), [values.astype(float)], 1)


def conclude(tables: Mapping[str, Table]) -> list[str]:
    """Say which β have plateaus, whether they last longer as β grows, and where consensus does not come in time."""
    counts, rows = tables[_COUNTS].each(), tables[_PLATEAUS].each()
    sentences = [_plateau(row) for row in rows]
    first, last = rows[0]["decades"], rows[-1]["decades"]
    between = f"between β = {rows[0]['β']:g} and {rows[-1]['β']:g} ({first} to {last} decades)"
    if last.low > first.high:
        sentences.append(f"Numbers of clusters stand longer as β grows {between}.")
    elif last.high < first.low:
        sentences.append(f"Numbers of clusters stand shorter as β grows {between}.")
    else:
        sentences.append(f"These draws do not decide whether numbers of clusters stand longer {between}.")
    return sentences + [_end(row) for row in counts]


def _plateau(row: Mapping[str, Cell]) -> str:
    decades = row["decades"]
    if not isinstance(decades, Estimate):
        raise AssertionError
    several = f"β = {row['β']:g}: a number of clusters above one stands for {decades} decades of time on average"
    if decades.low > 1:
        return f"{several}: clusters are metastable."
    return f"{several}: less than a decade, no metastability." if decades.high < 1 else f"{several}: about a decade."


def _end(row: Mapping[str, Cell]) -> str:
    alone = row["one cluster at the end"]
    if not isinstance(alone, Estimate) or not isinstance(row["draws"], int):
        raise AssertionError
    left = row["draws"] - alone.of(row["draws"])
    if left:
        several = f"{left} of {row['draws']} draws still have several clusters at t = 10^9 (one: {alone})"
        return f"β = {row['β']:g}: {several}, where their stretch is cut off."
    return f"β = {row['β']:g}: all {row['draws']} draws are one cluster by t = 10^9."
