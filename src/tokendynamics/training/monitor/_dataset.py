"""The looks of a run as a dataset over steps and layers, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.diagnosis._prompt_shares import BOUNDS, CONFIDENCE
from tokendynamics.diagnosis._prompt_trace import COMPONENTS
from tokendynamics.diagnosis._trace_variables import DESCRIPTIONS
from tokendynamics.training.monitor._changes import states_in
from tokendynamics.training.monitor._looks import MEASURED, Look
from tokendynamics.training.monitor._measures import DIMS

EMBEDDING = "embedding"
"""Stands where a state would be, at layer 0."""

STORED: dict[str, tuple[str, ...]] = {
    **{name: ("step", *dims) for name, dims in DIMS.items()}, "status": ("step",), "text": ("prompt",)
}  # fmt: skip
"""What `looks_of` reads, with its axes."""

_LABELS: dict[str, list[str]] = {"component": list(COMPONENTS), "bound": list(BOUNDS)}
_OF_TEXTS = {"update_ratio": "; median over texts", "attention_sink_mass": "; mean over texts"}
_WORDS = DESCRIPTIONS | {
    "attention_sink_uniform": "what the token of attention_sink_mass would receive if each attended alike to all that "
    "it sees; mean over texts",
    "state": "the state after the layer, from the measures of this step alone",
    "state_held": "the state that changes are counted from: it stays while anything within the intervals makes it",
    "status": f"'{MEASURED}', or why there are no numbers",
}


def dataset_of(
    looks: Sequence[Look], held: Sequence[Sequence[str]], texts: Sequence[Sequence[str]], facts: Mapping[str, Any]
) -> xr.Dataset:
    """Return everything over ``step``, ``layer`` (0 … L) and further axes, by the names of `tokendynamics.trace`.

    Args:
        looks: In the order of their steps.
        held: The state that changes of each layer 1 … L are counted from, at each look; none without numbers.
        texts: The name of each, and what it is.
        facts: The attributes.
    """
    depth = max((len(values) for look in looks for values in look.values.values()), default=0)
    variables: dict[str, Any] = {}
    for name, dims in DIMS.items():
        shape = (depth, *(len(_LABELS[dim]) for dim in dims[1:]))
        rows = [look.values.get(name, np.full(shape, np.nan)) for look in looks]
        variables[name] = (("step", *dims), np.array(rows, dtype=np.float64).reshape(len(rows), *shape))
    states = [states_in(look.values) if look.values else [] for look in looks]
    for name, found in (("state", states), ("state_held", held)):
        words = np.array([_row(each, depth) for each in found], dtype=str)
        variables[name] = (("step", "layer"), words.reshape(len(looks), depth))
    variables["status"] = ("step", np.array([look.status for look in looks], dtype=str))
    names, words = (np.array([each[place] for each in texts], dtype=str) for place in (0, 1))
    coords = {"step": [look.step for look in looks], "layer": np.arange(depth), "prompt": names} | _LABELS
    table = xr.Dataset(variables, coords={**coords, "text": ("prompt", words)}, attrs=dict(facts))
    for name, variable in table.data_vars.items():
        variable.attrs["description"] = _description(str(name))
    return table


def looks_of(table: xr.Dataset) -> list[Look]:
    """Return the looks that a dataset is of.

    Args:
        table: From `dataset_of`.
    """
    found = []
    for place, step in enumerate(table.step.values):
        status = str(table.status.values[place])
        values = {name: np.array(table[name].values[place]) for name in DIMS} if status == MEASURED else {}
        found.append(Look(int(step), status, values))
    return found


def _row(states: Sequence[str], depth: int) -> list[str]:
    """Return the words of one step over layers 0 … L."""
    return [EMBEDDING, *(states or ["undetermined"] * (depth - 1))][:depth]


def _description(name: str) -> str:
    if name.endswith("_interval"):
        return f"ends of the {CONFIDENCE:.0%} interval over texts: {_WORDS[name.removesuffix('_interval')]}"
    return _WORDS[name] + _OF_TEXTS.get(name, "")
