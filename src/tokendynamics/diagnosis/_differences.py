"""Numbers of several networks side by side, and their differences paired over prompts, with intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool
from torch import Tensor

from tokendynamics.diagnosis._together import nearest_layers
from tokendynamics.diagnosis.layer_states import layer_states
from tokendynamics.diagnosis.prompt_shares import BOUNDS, CONFIDENCE, Estimates
from tokendynamics.diagnosis.prompt_trace import COMPONENTS, SITES
from tokendynamics.numerics.intervals import jackknife_interval

MEASURES = ("shares", "consensus_within", "consensus_relative", "centred_cos2", "line_excess", "kappa_change_sum")
"""What is compared with intervals; of the trace, see there."""

_LEAST_FOR_AN_INTERVAL = 3

_DIMS = {"shares": ("layer", "site", "share"), "kappa_change_sum": ("component",)}


def side_by_side(traces: Sequence[xr.Dataset], names: Sequence[str]) -> xr.Dataset:
    """Return the numbers over all prompts of each network in one dataset.

    Args:
        traces: From `tokendynamics.trace`, of the same prompts.
        names: Of the networks.

    Returns:
        `MEASURES` with their intervals, ``update_ratio`` (the median over prompts) and ``state``, each with the dim
        ``model`` before those that it has in a trace; layers that a network does not have are NaN, and "" in
        ``state``. The coordinate ``relative_depth`` (model, layer) runs from 0 to 1 in each.
    """
    layers = np.arange(max(trace.sizes["layer"] for trace in traces))
    tables, depths = [], []
    for trace in traces:
        table = trace[[*MEASURES, *(f"{name}_interval" for name in MEASURES)]]
        table = table.assign(update_ratio=trace.update_ratio.median("prompt"))
        states = ["", *layer_states(trace)]
        tables.append(table.reindex(layer=layers).drop_attrs())
        tables[-1]["state"] = ("layer", np.array(states + [""] * (len(layers) - len(states))))
        depths.append(np.where(layers < len(states), layers / max(1, len(states) - 1), np.nan))
    whole = xr.concat(tables, dim="model", join="override", combine_attrs="drop")
    return whole.assign_coords(model=list(names), relative_depth=(("model", "layer"), np.stack(depths)))


def paired_differences(
    traces: Sequence[xr.Dataset], estimates: Sequence[Estimates], others: Sequence[str]
) -> xr.Dataset:
    """Return how each network differs from the first, with 90 % intervals of the differences.

    The same prompts went through both, and what one prompt does to both is no difference: the jackknife leaves the
    same prompt out of both and takes the difference each time. Networks of other depth are compared at the nearest
    relative depth.

    Args:
        traces: From `run_together`, also the next.
        estimates: Likewise.
        others: Names of all but the first.

    Returns:
        Dataset over ``other`` and the layers of the first network: `MEASURES`, other less first, each with its interval
        under its name and ``_interval``; ``update_quotient`` (other, layer, component), the geometric mean over prompts
        of the other's update ratio over the first's, with its interval. A text that repeats another is no other text:
        intervals are NaN below three different ones, `MEASURES` below two, and ``update_quotient`` leaves copies out.
    """
    different = torch.from_numpy(traces[0].repeats.values < 0)
    depths = [trace.sizes["layer"] - 1 for trace in traces]
    rows = []
    for trace, own, depth in zip(traces[1:], estimates[1:], depths[1:], strict=True):
        where = nearest_layers(depths[0], depth)
        row = {}
        for name in MEASURES:
            dims = _DIMS.get(name, ("layer", "site"))
            (value, left), (first, first_left) = own[name], estimates[0][name]
            if "layer" in dims:
                value, left = value[where], left[:, where]
            gap, without = value - first, (left - first_left)[different]
            if different.sum() < _LEAST_FOR_AN_INTERVAL:
                without = without[:0]
            row |= _with_interval(name, dims, gap if different.sum() > 1 else torch.full_like(gap, torch.nan), without)
        row |= _update_quotient(traces[0], trace, where, different)
        rows.append(xr.Dataset(row))
    coords = {"layer": np.arange(depths[0] + 1), "site": list(SITES), "component": list(COMPONENTS)}
    coords |= {"share": traces[0].share.values, "bound": list(BOUNDS), "other": list(others)}
    return xr.concat(rows, dim="other").assign_coords(coords)


def _update_quotient(
    first: xr.Dataset, other: xr.Dataset, where: list[int], different: Bool[Tensor, " prompt"]
) -> dict[str, xr.Variable]:
    one = np.where(first.update_ratio.values > 0, first.update_ratio.values, np.nan)
    two = np.where(other.update_ratio.values > 0, other.update_ratio.values, np.nan)[:, where]
    logs = torch.from_numpy(np.log(two / one))[different]
    count = len(logs)
    left = (logs.sum(dim=0) - logs) / max(1, count - 1)
    found = _with_interval("update_quotient", ("layer", "component"), logs.mean(dim=0), left)
    return {name: xr.Variable(each.dims, np.exp(each.values)) for name, each in found.items()}


def _with_interval(name: str, dims: tuple[str, ...], value: Tensor, left: Tensor) -> dict[str, xr.Variable]:
    interval = jackknife_interval(value, left, CONFIDENCE)
    return {
        name: xr.Variable(dims, value.numpy()),
        f"{name}_interval": xr.Variable((*dims, "bound"), interval.numpy()),
    }
