"""What a simulation returns: states at the times asked for, and how each system ended; to and from xarray."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tokendynamics.dynamics import _trajectory_files as trajectory_files
from tokendynamics.dynamics._flow import Flow
from tokendynamics.dynamics._stored_flow import flow_from_arrays, flow_to_arrays
from tokendynamics.dynamics._trajectory_files import check_fields
from tokendynamics.dynamics.engines.problem import Outcome
from tokendynamics.dynamics.events import Event
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected, shown
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.observables import consensus, mean_pair_cosine, norms, pairwise_distances
from tokendynamics.results import Result
from tokendynamics.words import count, listing, number, plural


@dataclass(frozen=True)
class RecordedEvents:
    """When each recorded event happened, and where tokens were.

    Attributes:
        events: What was recorded, in words.
        counts: How often each system met each event, (…, event).
        times: (…, event, occurrence), NaN beyond the count.
        states: (…, event, occurrence, token, dim), likewise.
    """

    events: tuple[str, ...]
    counts: np.ndarray
    times: np.ndarray
    states: np.ndarray


def recorded(events: Sequence[Event], outcome: Outcome, leading: tuple[int, ...]) -> RecordedEvents | None:
    """Return the crossings of an outcome up to the end of each system's run; None where nothing was to be recorded."""
    if not events:
        return None
    systems, _, *shape = outcome.states.shape
    ends = outcome.end_times.tolist()
    found: dict[tuple[int, int], list[tuple[float, np.ndarray]]] = {}
    for event, system, time, state in sorted(outcome.crossings, key=lambda crossing: crossing[2]):
        if time <= ends[system]:
            found.setdefault((system, event), []).append((time, state.detach().cpu().numpy()))
    most = max(map(len, found.values()), default=0)
    counts = np.zeros((systems, len(events)), dtype=np.int64)
    times = np.full((systems, len(events), most), np.nan)
    states = np.full((systems, len(events), most, *shape), np.nan)
    for place, met in found.items():
        counts[place] = len(met)
        for occurrence, (time, state) in enumerate(met):
            times[(*place, occurrence)], states[(*place, occurrence)] = time, state
    parts = (part.reshape(*leading, *part.shape[1:]) for part in (counts, times, states))
    return RecordedEvents(tuple(map(repr, events)), *parts)


_PREFIX = "flow_"


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
        words, arrays = flow_to_arrays(trajectory.flow)
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
        "flow": None if words is None else flow_from_arrays(words, arrays),
        "engine": dataset.attrs["engine"],
        "counts": {name: dataset[name].values.reshape(leading) for name in json.loads(dataset.attrs["counts"])},
        "notes": tuple(json.loads(dataset.attrs["notes"])),
        "parameters": json.loads(dataset.attrs["parameters"]),
        "recorded": _recorded(dataset, leading),
    }


def _recorded(dataset: xr.Dataset, leading: tuple[int, ...]) -> RecordedEvents | None:
    events = json.loads(dataset.attrs.get("recorded", "null"))
    if events is None:
        return None
    parts = (dataset[f"recorded_{name}"].values for name in ("counts", "times", "states"))
    return RecordedEvents(tuple(events), *(part.reshape(*leading, *part.shape[1:]) for part in parts))


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


@dataclass(frozen=True, repr=False)
class Trajectory(Result):
    """Tokens over time.

    Attributes:
        states: (…, time, token, dim), in the type of the start. Where a run ended early the last state is held, and
            `reached` says so.
        times: (time,), float64.
        status: How the run of each system ended, an array of words of shape (…,); see `Status`.
        reached: Whether a system's run got as far as each time, (…, time).
        end_times: Where each system's run ended, (…,).
        tensor: `states` as a tensor.
        flow: What was simulated; None after opening a file whose schedule was a user's function.
        engine: Which engine did the work.
        counts: Right-hand sides and accepted steps of each system, (…,), and what else the engine knows: rejected steps
            (not LSODA's, which does not tell), Jacobians.
        notes: How the work was done, in words.
        recorded: When and where events with ``then="record"`` happened; None where there were none.
        parameters: Every option of the call, and the versions.
    """

    states: Any
    times: np.ndarray
    status: np.ndarray
    reached: np.ndarray
    end_times: np.ndarray
    tensor: Tensor
    flow: Flow | None
    engine: str
    counts: dict[str, np.ndarray]
    notes: tuple[str, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    recorded: RecordedEvents | None = None

    @cached_property
    def dataset(self) -> xr.Dataset:
        """An xarray Dataset with dims system, time, token, feature: states, observables, status, and the flow."""
        return to_dataset(self)

    @typed_arguments
    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the dataset: a Zarr store, or NetCDF where the name ends in .nc; whole or not at all.

        Args:
            path: An older trajectory there is replaced.
            overwrite: Replace whatever else is there, too.

        Raises:
            ArgumentValueError: Another suffix, or something that is no trajectory is in the way.
            StorageError: The disk is full; what was there is as it was.
        """
        return trajectory_files.save(self.dataset, path, overwrite=overwrite)

    @classmethod
    @typed_arguments
    def open(cls, path: str | Path) -> Trajectory:
        """Read what `save` wrote; states come back as a numpy array.

        Raises:
            ArgumentValueError: Nothing there, or not a trajectory.
        """
        dataset = trajectory_files.read(path)
        try:
            fields = from_dataset(dataset)
            check_fields(fields)
            return cls(**fields)
        except (KeyError, ValueError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise ArgumentValueError(expected("path", "a saved trajectory", f"{path} ({reason})")) from error

    @property
    def headline(self) -> str:
        """Shape, engine, and how many systems ended in which way."""
        words, numbers = np.unique(self.status.reshape(-1), return_counts=True)
        ends = listing([f"{count(int(many))} × {word}" for word, many in zip(words, numbers, strict=True)])
        return f"shape {tuple(self.tensor.shape)} by the engine {self.engine}: {ends}"

    @property
    def findings(self) -> list[str]:
        """Times, statuses with the times they were reached at, what was recorded, and the engine's notes."""
        first, last = (number(float(self.times[place])) for place in (0, -1))
        found = [f"{plural(len(self.times), 'time')} from t = {first} to {last}"]
        for word in np.unique(self.status):
            ended = self.end_times[self.status == word]
            least, most = number(float(ended.min())), number(float(ended.max()))
            when = f"t = {least}" if least == most else f"t = {least} to {most}"
            found.append(f"{word}: {plural(ended.size, 'system')}, at {when}")
        return [*found, *self.notes]
