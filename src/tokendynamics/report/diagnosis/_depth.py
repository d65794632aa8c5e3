"""The place of each measured state on the depth axis, and the summary over prompts there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.network import parts_there

_OFFSET = {"attention": -0.5, "feed_forward": 0.0, "final_norm": 0.5}


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


@dataclass(frozen=True)
class Spread:
    """A quantity over prompts: its values (None where undefined), mean, lowest and highest."""

    values: tuple[float | None, ...]
    mean: float | None
    low: float | None
    high: float | None


def steps(trace: xr.Dataset) -> list[Step]:
    """Return the states that were measured for at least one prompt, in order of depth.

    A layer with only an attention has one state, its output.
    """
    measured = trace["norm_median"].notnull().any(["prompt", "sinks"]).transpose("layer", "site").values
    alone = [False, *~parts_there(trace)["feed_forward"]]
    found = [
        Step(int(layer), str(site), bool(alone[i]))
        for i, layer in enumerate(trace["layer"].values)
        for j, site in enumerate(trace["site"].values)
        if measured[i, j] and not (alone[i] and site == "attention")
    ]
    return sorted(found, key=lambda step: step.x)


def spread(values: np.ndarray) -> Spread:
    """Summarise one value per prompt; undefined ones are left out of the summary."""
    each = tuple(float(v) if math.isfinite(v) else None for v in values)
    defined = [v for v in each if v is not None]
    if not defined:
        return Spread(each, None, None, None)
    return Spread(each, float(np.mean(defined)), min(defined), max(defined))


def by_depth(trace: xr.Dataset, variable: str, sinks: str, where: list[Step]) -> list[Spread]:
    """Return the spread over prompts of `variable` at each step, with the sinks ``"kept"`` or ``"removed"``."""
    values = trace[variable].sel(sinks=sinks).transpose("layer", "site", "prompt")
    return at_steps(values, where)


def at_steps(values: xr.DataArray, where: list[Step]) -> list[Spread]:
    """Return the spread of `values` (layer, site, …) at each step."""
    layers = {int(layer): index for index, layer in enumerate(values["layer"].values)}
    sites = {str(site): index for index, site in enumerate(values["site"].values)}
    return [spread(np.atleast_1d(values.values[layers[step.layer], sites[step.site]])) for step in where]


def undrawn(trace: xr.Dataset) -> str:
    """Return why a measure of pairs is not plotted."""
    prompts = "the prompt does not have" if trace.sizes["prompt"] == 1 else "no prompt has"
    return f"Not plotted because {prompts} two tokens that count, and a pair needs two."
