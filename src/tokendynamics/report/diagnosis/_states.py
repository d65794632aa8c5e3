"""The states of a trace in order of depth, and its quantities there, as the sections of the page read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.network import PART_NAMES, parts_there
from tokendynamics.diagnosis.tracing.layer_states import FEWEST
from tokendynamics.diagnosis.tracing.prompts import noun_in
from tokendynamics.figures.axes import Column
from tokendynamics.figures.palette import BLUE, ORANGE
from tokendynamics.words import number

_OFFSET = {"attention": -0.5, "feed_forward": 0.0, "final_norm": 0.5}

LOOKS: dict[str, tuple[str, tuple[float, ...]]] = {"attention": (BLUE, ()), "feed_forward": (ORANGE, (5.0, 3.0))}
"""Colour and dash of the curve of each part."""


@dataclass(frozen=True)
class Step:
    """One measured state: after a component of a layer; layer 0 is the embedding."""

    layer: int
    site: str
    alone: bool = False
    """Whether the layer has only an attention, which then wrote its output."""

    @property
    def x(self) -> float:
        """Place on the depth axis: attention half a layer early, the final norm half a layer late."""
        return self.layer + _OFFSET[self.site]

    @property
    def after(self) -> str:
        """The component that wrote this state."""
        if self.layer == 0:
            return "embedding"
        return {"attention": "attention", "feed_forward": "feed-forward", "final_norm": "final norm"}[self.part]

    @property
    def part(self) -> str:
        """The label of that component in the data."""
        return "attention" if self.alone and self.site == "feed_forward" else self.site

    @property
    def name(self) -> str:
        """The state in words."""
        return "Embedding" if self.layer == 0 else f"Layer {self.layer}, after {self.after}"


def steps_of(trace: xr.Dataset) -> list[Step]:
    """Return the states that were measured for at least one prompt, in order of depth.

    A layer with only an attention has one state, its output.
    """
    measured = trace["norm_median"].notnull().any(["prompt", "sinks"]).transpose("layer", "site").values
    alone = [False, *~parts_there(trace)["feed_forward"]]
    steps = [
        Step(int(layer), str(site), bool(alone[i]))
        for i, layer in enumerate(trace["layer"].values)
        for j, site in enumerate(trace["site"].values)
        if measured[i, j] and not (alone[i] and site == "attention")
    ]
    return sorted(steps, key=lambda step: step.x)


@dataclass(frozen=True)
class Band:
    """A quantity at each place of an axis with the ends of its band; NaN where undefined."""

    values: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def defined(self) -> bool:
        """Whether it has a value anywhere."""
        return bool(np.isfinite(self.values).any())

    @property
    def has_ends(self) -> bool:
        """Whether its band has an end anywhere."""
        return bool(np.isfinite(self.low).any())

    def text(self, place: int, before: str = "") -> str:
        """Return the value at a place, in brackets with the ends of the band where there are any."""
        value = number(float(self.values[place]))
        if not np.isfinite(self.low[place]):
            return value
        return f"{value} ({before}{number(float(self.low[place]))} to {number(float(self.high[place]))})"


def over_prompts(values: np.ndarray, middle: Callable[[np.ndarray], float] = np.mean) -> Band:
    """Return the middle, the lowest and the highest of the defined values of each row (place, prompt)."""
    rows = [row[np.isfinite(row)] for row in values.astype(float)]
    summaries = (
        [float(statistic(row)) if row.size else np.nan for row in rows] for statistic in (middle, np.min, np.max)
    )
    return Band(*map(np.array, summaries))


def at_steps(values: xr.DataArray, steps: Sequence[Step]) -> np.ndarray:
    """Return `values` (layer, site, …) at each step."""
    layers = xr.DataArray([step.layer for step in steps], dims="step")
    sites = xr.DataArray([step.site for step in steps], dims="step")
    return values.sel(layer=layers, site=sites).transpose("step", ...).values


def by_prompt(trace: xr.Dataset, variable: str, sinks: str, steps: Sequence[Step]) -> np.ndarray:
    """Return a variable (step, prompt) with the massive tokens ``"kept"`` or ``"removed"``."""
    return at_steps(trace[variable].sel(sinks=sinks).transpose("layer", "site", "prompt"), steps)


def estimates(trace: xr.Dataset, variable: str, steps: Sequence[Step], **chosen: str) -> Band:
    """Return a variable of the trace that is one number for all prompts, with its interval, at each step.

    Args:
        trace: From `tokendynamics.trace`.
        variable: Its name.
        steps: From `steps_of`.
        chosen: Further coordinates, such as ``share="common"``.
    """
    bounds = at_steps(trace[f"{variable}_interval"].sel(chosen), steps)
    ends = trace["bound"].values.tolist()
    values = at_steps(trace[variable].sel(chosen), steps)
    return Band(values, *(bounds[:, ends.index(end)] for end in ("low", "high")))


def step_columns(steps: Sequence[Step], lines: Callable[[int, Step], str]) -> list[Column]:
    """Return what is shown of each state on hover."""
    return [(step.x - 0.25, step.x + 0.25, lines(place, step)) for place, step in enumerate(steps)]


def layer_columns(layers: Sequence[int], lines: Callable[[int, int], str]) -> list[Column]:
    """Return what is shown of each layer on hover."""
    return [(layer - 0.5, layer + 0.5, lines(place, layer)) for place, layer in enumerate(layers)]


def extremes(layers: Sequence[int], by_part: Mapping[str, np.ndarray]) -> dict[str, tuple[tuple[float, int], ...]]:
    """Return the lowest and the highest value of each part that has any, each with its layer."""
    known = {
        PART_NAMES[name]: [(float(value), layer) for value, layer in zip(values, layers, strict=True) if value == value]
        for name, values in by_part.items()
    }
    return {name: (min(pairs), max(pairs)) for name, pairs in known.items() if pairs}


def undrawn(trace: xr.Dataset) -> str:
    """Return why a measure of pairs is not plotted."""
    noun = noun_in(trace)
    which = f"the {noun} does not have" if trace.sizes["prompt"] == 1 else f"no {noun} has"
    return f"Not plotted because {which} two tokens that count, and a pair needs two."


def unshared(trace: xr.Dataset) -> str:
    """Return why there are no shares."""
    noun = noun_in(trace)
    alone = f"one {noun} cannot show which similarity is its own and which all {noun}s share"
    if trace.sizes["prompt"] == 1:
        return f"Not plotted because {alone}. Shares need at least two {noun}s, their intervals three."
    if different_prompts(trace) < 2:
        return f"Not plotted because all {noun}s are identical, and {alone}."
    if not bool(trace.mean_pair_cosine.sel(sinks="removed").notnull().any()):
        return f"Not plotted because every {noun} has fewer than two tokens that count, so there are no pairs."
    return "Not plotted because the numbers are undefined after every layer."


def different_prompts(trace: xr.Dataset) -> int:
    """Return how many prompts count, of equal ones the first; all where an earlier version stored the trace."""
    return int((trace.repeats < 0).sum()) if "repeats" in trace else trace.sizes["prompt"]


def without_intervals(trace: xr.Dataset) -> str:
    """Return why there are no confidence intervals, as a clause."""
    if (different := different_prompts(trace)) >= FEWEST:
        return "they are undefined"
    alike = f"{different} different " if different < trace.sizes["prompt"] else f"{different} "
    return f"{alike}{noun_in(trace)}{' is' if different == 1 else 's are'} too few for a confidence interval"
