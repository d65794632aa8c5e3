"""A trajectory as an xarray Dataset, and back."""

from __future__ import annotations

import json
import math
import platform
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr

from tokendynamics._version import __version__
from tokendynamics.dynamics.flow_record import flow_from_record, flow_to_record
from tokendynamics.dynamics.recorded import Recorded
from tokendynamics.numerics.errors import ArgumentValueError, expected, shown
from tokendynamics.observables.agreement import consensus, mean_pair_cosine
from tokendynamics.observables.distances import norms, pairwise_distances

if TYPE_CHECKING:
    from tokendynamics.dynamics.trajectory import Trajectory

_PREFIX = "flow_"


def record(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a run with the versions and the machine's kind."""
    versions = {name: version(name) for name in ("torch", "numpy", "scipy")}
    return {**options, "tokendynamics": __version__, "python": platform.python_version(), **versions}


def to_dataset(trajectory: Trajectory) -> xr.Dataset:
    """Make a dataset of system, time, token, feature: parameters as attributes, the flow's matrices as variables."""
    tensor = trajectory.tensor.detach().cpu()
    systems = math.prod(tensor.shape[:-3])
    states = tensor.reshape(systems, *tensor.shape[-3:])
    variables: dict[str, Any] = {
        "states": (("system", "time", "token", "feature"), states.numpy()),
        "reached": (("system", "time"), trajectory.reached.reshape(systems, len(trajectory.times))),
        "status": (("system",), trajectory.status.reshape(systems).astype(object)),
        "end_time": (("system",), trajectory.end_times.reshape(systems)),
        **_observables(states),
    }
    variables |= {name: (("system",), count.reshape(systems)) for name, count in trajectory.counts.items()}
    if trajectory.recorded is not None:
        axes = ("system", "event", "occurrence")
        for name, along in (("counts", axes[:2]), ("times", axes), ("states", (*axes, "token", "feature"))):
            part = getattr(trajectory.recorded, name)
            own = part.shape[len(tensor.shape) - 3 :]
            variables[f"recorded_{name}"] = (along, part.reshape(systems, *own))
    words: dict[str, Any] | None = None
    if trajectory.flow is not None:
        words, arrays = flow_to_record(trajectory.flow)
        variables |= {f"{_PREFIX}{name}": (_axes(name, array), array) for name, array in arrays.items()}
    attributes = {
        "engine": trajectory.engine,
        "notes": json.dumps(list(trajectory.notes)),
        "leading_shape": json.dumps(list(tensor.shape[:-3])),
        "counts": json.dumps(list(trajectory.counts)),
        "flow": json.dumps(words),
        "parameters": json.dumps(trajectory.parameters),
        "recorded": json.dumps(None if trajectory.recorded is None else list(trajectory.recorded.events)),
    }
    return xr.Dataset(variables, coords={"time": trajectory.times}, attrs=attributes)


def from_dataset(dataset: xr.Dataset) -> dict[str, Any]:
    """Return the fields of a `Trajectory`.

    Raises:
        ArgumentValueError: The dataset is not one of a trajectory.
    """
    if "states" not in dataset or "time" not in dataset.coords or "flow" not in dataset.attrs:
        raise ArgumentValueError(expected("variables", "states, time and a flow", shown(list(dataset.variables))))
    leading = tuple(json.loads(dataset.attrs["leading_shape"]))
    words = json.loads(dataset.attrs["flow"])
    arrays = {str(name)[len(_PREFIX) :]: dataset[name].values for name in dataset if str(name).startswith(_PREFIX)}
    states = dataset["states"].values
    states = states.reshape(*leading, *states.shape[1:])
    return {
        "states": states,
        "times": dataset["time"].values,
        "status": np.array([str(word) for word in dataset["status"].values]).reshape(leading),
        "reached": dataset["reached"].values.astype(bool).reshape(*leading, dataset.sizes["time"]),
        "end_times": dataset["end_time"].values.reshape(leading),
        "tensor": torch.as_tensor(states),
        "flow": None if words is None else flow_from_record(words, arrays),
        "engine": dataset.attrs["engine"],
        "counts": {name: dataset[name].values.reshape(leading) for name in json.loads(dataset.attrs["counts"])},
        "notes": tuple(json.loads(dataset.attrs["notes"])),
        "parameters": json.loads(dataset.attrs["parameters"]),
        "recorded": _recorded(dataset, leading),
    }


def _recorded(dataset: xr.Dataset, leading: tuple[int, ...]) -> Recorded | None:
    events = json.loads(dataset.attrs.get("recorded", "null"))
    if events is None:
        return None
    parts = (dataset[f"recorded_{name}"].values for name in ("counts", "times", "states"))
    return Recorded(tuple(events), *(part.reshape(*leading, *part.shape[1:]) for part in parts))


def _observables(states: torch.Tensor) -> dict[str, Any]:
    """Return norms always, the rest where it is defined (directions need tokens that are not zero)."""
    system_time = ("system", "time")
    found: dict[str, Any] = {"norm": ((*system_time, "token"), norms(states).numpy())}
    if math.prod(states.shape[:2]) * states.shape[2] ** 2 <= 2**24:
        found["diameter"] = (system_time, pairwise_distances(states).flatten(-2).amax(dim=-1).numpy())
    if bool((found["norm"][1] > 0).all()):
        found["consensus"] = (system_time, consensus(states).numpy())
        found["consensus_signed"] = (system_time, consensus(states, signed=True).numpy())
        if states.shape[-2] > 1:
            found["mean_pair_cosine"] = (system_time, mean_pair_cosine(states).numpy())
    return found


def _axes(name: str, array: np.ndarray) -> tuple[str, ...]:
    return tuple(f"{_PREFIX}{name}_axis_{i}" for i in range(array.ndim))
