"""The worst layers: all that do not differ significantly from the worst one, since a plateau has no peak."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.layer_states import State, worst_layer
from tokendynamics.diagnosis.prompt_shares import CONFIDENCE
from tokendynamics.numerics.intervals import student_quantile

ROUNDED = 0.005
"""Two measures that differ by no more than this may be written with the same two decimals."""

_FEWEST = 3
"""Prompts from which a difference of two layers has an interval."""


def deciding_measure(trace: xr.Dataset, state: State) -> tuple[str, np.ndarray, np.ndarray]:
    """Return the name of the measure that decides a state, and over layers 0 … L its values and intervals.

    Args:
        trace: From `tokendynamics.trace`.
        state: One of the states.
    """
    site = trace.sel(site="feed_forward")
    if state == "anisotropic":
        common = {"share": "common"}
        return "common share", site.shares.sel(common).values, site.shares_interval.sel(common).values
    if state == "rank collapse":
        return "line excess", site.line_excess.values, site.line_excess_interval.values
    return "κ′", site.consensus_relative.values, site.consensus_relative_interval.values


def worst_layers(trace: xr.Dataset, states: tuple[State, ...]) -> tuple[int, ...]:
    """Return the layers, from 1, that are as bad as the worst one within rounding or within the interval.

    A layer belongs to them if it has the same state and its measure is equal to that of the worst layer as written, or
    lies within the interval there; for κ′ the difference of the two layers, paired over prompts, must not be
    significant either.

    Args:
        trace: From `tokendynamics.trace`.
        states: From `layer_states`.
    """
    worst = worst_layer(trace, states)
    state = states[worst - 1]
    _, values, intervals = deciding_measure(trace, state)
    low, high = intervals[worst]
    within = (values >= low) & (values <= high)  # False where there is no interval
    if state not in ("anisotropic", "rank collapse"):
        within &= ~_below(trace, worst)
    equal = (np.abs(values - values[worst]) <= ROUNDED) | within
    same = np.array(["", *states]) == state
    return tuple(sorted({worst, *np.flatnonzero(equal & same).tolist()}))


def _below(trace: xr.Dataset, worst: int) -> np.ndarray:
    """Tell for layers 0 … L whether κ of single prompts is significantly lower than at the worst layer."""
    kappa = trace.kappa_of_prompt.sel(site="feed_forward").transpose("prompt", "layer").values
    gaps = (kappa[:, [worst]] - kappa)[trace.repeats.values < 0]
    gaps = gaps[np.isfinite(gaps).all(axis=1)]
    count = len(gaps)
    if count < _FEWEST:
        return np.zeros(kappa.shape[1], dtype=bool)
    half = student_quantile(CONFIDENCE, count - 1) * gaps.std(axis=0, ddof=1) / np.sqrt(count)
    return gaps.mean(axis=0) > half
