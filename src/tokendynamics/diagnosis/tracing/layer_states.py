"""The state of the tokens after a layer, from the measures that distinguish a collapse from a common direction."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.tracing.prompt_shares import CONFIDENCE
from tokendynamics.numerics.intervals import student_quantile

State = Literal[
    "spread", "drawing together", "consensus", "rank collapse", "anisotropic", "one point", "undetermined"
]  # fmt: skip
"""What tokens of a prompt share beyond all texts and the embedding: almost nothing; some; nearly all (one point per
prompt); a line or a few directions; almost nothing although all texts share one direction. The tokens of all texts may
also be one point. All states are listed here alone."""

SPREAD = 0.06
"""κ′ below which tokens count as spread. Built networks that do nothing, or the same to every text, stay below 0.024;
those that draw tokens together begin at 0.144."""

CONSENSUS = 0.72
"""κ′ from which tokens count as one point per prompt. A causal running mean, which is not a collapse, gives 2/3 if it
replaces the tokens (0.71 for two of them) and 0.50 if it is added. Two points with shares p and 1 − p of the tokens
give p² + (1 − p)², and the line excess detects them below 0.72. Built collapses begin at 0.75."""

LINE_EXCESS = 0.2
"""Variance of the centred cosine over pairs, relative to the embedding, from which tokens count as collapsed to a line
or to a few directions. A line gives at least 0.4, two or three points per prompt 0.24, tokens drawing towards one point
less than 0.07."""

ANISOTROPIC = 0.85
"""Share of a token's direction common to all texts from which tokens count as anisotropic, if κ′ is small."""

ONE_POINT = 0.001
"""What common share leaves to prompts and tokens, 1 − common, below which the tokens of all texts count as one point,
whatever of it belongs to a prompt. Built networks that add one direction keep 0.011 or more,
those that go to one point 0.0008 or less."""

SEVERITY: dict[str, int] = {
    "undetermined": -1, "spread": 0, "drawing together": 1, "anisotropic": 2, "rank collapse": 3, "consensus": 3,
    "one point": 4,
}  # fmt: skip

COLLAPSES = ("consensus", "rank collapse", "one point")

ROUNDED = 0.005
"""Two measures that differ by no more than this may be written with the same two decimals."""

OF_ALL_TEXTS = ("anisotropic", "one point")
"""States that the common share decides."""

FEWEST = 3
"""Prompts from which a difference of two layers has an interval."""


def state_of(common: float, consensus_relative: float, line_excess: float) -> State:
    """Return the state given by three measures of one layer (`mathematics` 10).

    Args:
        common: Share common to all prompts; NaN for one prompt.
        consensus_relative: κ′; NaN where it is not defined.
        line_excess: Variance of the centred cosine over pairs of tokens, relative to the embedding.

    >>> state_of(0.1, 0.9, 0.0), state_of(0.1, 0.01, 0.9), state_of(0.99, 0.01, 0.0), state_of(0.5, 0.3, 0.05)
    ('consensus', 'rank collapse', 'anisotropic', 'drawing together')
    >>> state_of(0.9999, 0.3, 0.0)
    'one point'
    """
    if 1 - common < ONE_POINT:
        return "one point"
    if np.isnan(consensus_relative):
        # Where the embedding already agrees, what is common to all texts can still be seen.
        return "anisotropic" if common >= ANISOTROPIC else "undetermined"
    if consensus_relative >= CONSENSUS:
        return "consensus"
    if line_excess >= LINE_EXCESS:
        return "rank collapse"
    if consensus_relative >= SPREAD:
        return "drawing together"
    return "anisotropic" if common >= ANISOTROPIC else "spread"


def layer_states(trace: xr.Dataset) -> tuple[State, ...]:
    """Return the state after each layer 1 … L; undetermined where there are no two different prompts.

    Args:
        trace: From `tokendynamics.trace`.
    """
    if int((trace.repeats < 0).sum()) < 2:
        return ("undetermined",) * (trace.sizes["layer"] - 1)
    common, kappa, excess = measures(trace)
    return tuple(state_of(*values) for values in zip(common[1:], kappa[1:], excess[1:], strict=True))


def final_norm_state(trace: xr.Dataset) -> State | None:
    """Return the state after the final norm; None for a network without one.

    Args:
        trace: From `tokendynamics.trace`.
    """
    if bool(trace.norm_median.sel(site="final_norm").isel(layer=-1).isnull().all()):
        return None
    if int((trace.repeats < 0).sum()) < 2:
        return "undetermined"
    return state_of(*(float(values[-1]) for values in measures(trace, "final_norm")))


def worst_layer(trace: xr.Dataset, states: tuple[State, ...]) -> int:
    """Return the layer, from 1, with the worst state: by severity, then by its measure; the first of equals.

    Tokens that draw together in one direction of all texts are no better off than tokens that only have that direction.

    Args:
        trace: From `tokendynamics.trace`.
        states: From `layer_states`.
    """
    common, kappa, excess = (np.nan_to_num(values[1:], nan=-np.inf) for values in measures(trace))
    one_way = common >= ANISOTROPIC
    far = [
        (SEVERITY["anisotropic"], common[place])
        if state == "drawing together" and one_way[place]
        else (SEVERITY[state], common[place] if state in OF_ALL_TEXTS else max(kappa[place], excess[place]))
        for place, state in enumerate(states)
    ]
    return max(range(len(far)), key=lambda place: (far[place], -place)) + 1


def states_within(trace: xr.Dataset, layer: int, site_name: str = "feed_forward") -> tuple[State, ...]:
    """Return the states at the ends of the confidence intervals after one layer.

    Args:
        trace: From `tokendynamics.trace`.
        layer: From 0.
        site_name: "feed_forward" for the state after the layer, or "final_norm".
    """
    names = ("shares_interval", "consensus_relative_interval", "line_excess_interval")
    site = trace[[*names]].sel(site=site_name, share="common").isel(layer=layer)
    ends = [site[name].values for name in names]
    if any(np.isnan(bounds).any() for bounds in ends):
        return ()
    states = {state_of(*corner) for corner in np.stack(np.meshgrid(*ends), axis=-1).reshape(-1, 3)}
    return tuple(state for state in get_args(State) if state in states)


def measures(trace: xr.Dataset, site_name: str = "feed_forward") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return common share, κ′ and line excess after each layer 0 … L.

    Args:
        trace: From `tokendynamics.trace`.
        site_name: Of which states.
    """
    site = trace[["shares", "consensus_relative", "line_excess"]].sel(site=site_name, share="common")
    return site.shares.values, site.consensus_relative.values, site.line_excess.values


def deciding_measure(
    trace: xr.Dataset, state: State, site_name: str = "feed_forward"
) -> tuple[str, np.ndarray, np.ndarray]:
    """Return the name of the measure that decides a state, and over layers 0 … L its values and intervals.

    Args:
        trace: From `tokendynamics.trace`.
        state: One of the states.
        site_name: Of which states.
    """
    if state in OF_ALL_TEXTS:
        name, names, chosen = "common share", ("shares", "shares_interval"), {"share": "common"}
    else:
        name, variable = ("line excess", "line_excess") if state == "rank collapse" else ("κ′", "consensus_relative")
        names, chosen = (variable, f"{variable}_interval"), {}
    values, interval = (trace[variable].sel({"site": site_name, **chosen}).values for variable in names)
    return name, values, interval


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
    if state not in (*OF_ALL_TEXTS, "rank collapse"):
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
    if count < FEWEST:
        return np.zeros(kappa.shape[1], dtype=bool)
    half = student_quantile(CONFIDENCE, count - 1) * gaps.std(axis=0, ddof=1) / np.sqrt(count)
    return gaps.mean(axis=0) > half
