"""What a simulation returns: states at the times asked for, and how each system ended; and its files."""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tokendynamics.attention import AbsolutePositions, Attention, FactoredMatrix, RotaryPositions
from tokendynamics.attention.schedules import Constant, Periodic, Schedule, Sinusoidal
from tokendynamics.attention.schedules.conversion import PerHead
from tokendynamics.dynamics._deviations import Deviations
from tokendynamics.dynamics._flow import Flow
from tokendynamics.dynamics._noise import Noise
from tokendynamics.dynamics.engines.problem import RecordedEvents
from tokendynamics.dynamics.events import Status
from tokendynamics.dynamics.options import read_times
from tokendynamics.dynamics.rescaled import Frame
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import as_choice, as_not_negative, as_positive, as_states, as_text
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.extras import require
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.observables import consensus, mean_pair_cosine, norms, pairwise_distances
from tokendynamics.provenance.reading import CHECKSUM, changed_content
from tokendynamics.provenance.stores import opened, read_store
from tokendynamics.provenance.swap import NEW, put, recover, staging
from tokendynamics.provenance.whole import settle_results, storage_errors
from tokendynamics.results import Result
from tokendynamics.spaces import Ellipsoid, Free, Normalized, Space, Sphere
from tokendynamics.words import count, listing, number, plural


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
        frame: "tokens", or "rescaled": states, observables and events are those of ``z = exp(−t V) x``; see `simulate`.
        engine: Which engine did the work.
        counts: Right-hand sides and accepted steps of each system, (…,), and what else the engine knows: rejected steps
            (not LSODA's, which does not tell), Jacobians.
        notes: How the work was done, in words.
        recorded: When and where events with ``then="record"`` happened; None where there were none.
        parameters: Every option of the call, and the versions.
        deviations: Of layers, what tokens differ by at a scale of its own, far below the rounding of `states`; None of
            other engines, and where weights are no softmax, there are positions, or gradients are wanted.

    >>> import tokendynamics as td
    >>> flow = td.Flow(td.Attention([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]), td.Sphere())
    >>> run = td.simulate(flow, [[1.0, 0.0], [0.6, 0.8]], [0.0, 1.0, 30.0])
    >>> run.dataset.states.dims, str(run.status)
    (('system', 'time', 'token', 'feature'), 'reached the horizon')
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
    deviations: Deviations | None = None
    frame: Frame = "tokens"
    noise: Noise | None = None

    @cached_property
    def dataset(self) -> xr.Dataset:
        """An xarray Dataset with dims system, time, token, feature: states, observables, status, and the flow."""
        return to_dataset(self)

    @property
    def log_residual(self) -> np.ndarray:
        """Natural logarithm of the distance of the states to all with equal tokens, ``(Σ_i |x_i − x̄|²)^½``, (…, time).

        Of layers it is exact far below the smallest float, as rank collapse without residual connection needs; of
        other runs it is that of the saved states, which cannot be told from equal ones below their rounding.
        """
        known = self.deviations or Deviations.of(self.tensor.detach())
        return known.log_residual.cpu().numpy()

    @typed_arguments
    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the dataset: a Zarr store, or NetCDF where the name ends in .nc; whole or not at all.

        Args:
            path: An older trajectory there is replaced.
            overwrite: Replace whatever else is there, too.

        Raises:
            ArgumentValueError: Another suffix, or something that is no trajectory is in the way.
            StorageError: The disk is full or cannot be written; what was there is as it was.
        """
        return write_dataset(self.dataset, path, overwrite=overwrite)

    @classmethod
    @typed_arguments
    def open(cls, path: str | Path) -> Trajectory:
        """Read what `save` wrote; states come back as a numpy array.

        Raises:
            ArgumentValueError: Nothing there, not a trajectory, or one whose content changed since it was saved.
        """
        dataset = read_dataset(path)
        try:
            fields = from_dataset(dataset)
            check_fields(fields)
            trajectory = cls(**fields)
        except (KeyError, ValueError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise ArgumentValueError("path", "a saved trajectory", f"{path} ({reason})") from error
        check_content(dataset, "path")
        return trajectory

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
        sentences = [f"{plural(len(self.times), 'time')} from t = {first} to {last}"]
        if self.frame == "rescaled":
            sentences.append("rescaled tokens z = exp(−t ov) x: states and observables are those of z")
        if self.noise is not None:
            sentences.append(f"noise of strength {number(self.noise.strength)}, seed {self.noise.seed}")
        for word in np.unique(self.status):
            ended = self.end_times[self.status == word]
            least, most = number(float(ended.min())), number(float(ended.max()))
            when = f"t = {least}" if least == most else f"t = {least} to {most}"
            sentences.append(f"{word}: {plural(ended.size, 'system')}, at {when}")
        return [*sentences, *self.notes]


_DEVIATIONS = {
    "center": ("system", "time", "feature"),
    "shape": ("system", "time", "token", "feature"),
    "exponent": ("system", "time"),
}
_TOLERANCES = ("rtol", "atol", "tau")


def check_fields(fields: Mapping[str, Any]) -> None:
    """Refuse fields of a trajectory that contradict each other.

    Args:
        fields: Of `tokendynamics.dynamics.Trajectory`, by name.

    Raises:
        ArgumentTypeError, ArgumentValueError: The field is named.
    """
    states = as_states(fields["states"], "states")  # finite: a chunk that is missing reads as NaN
    times = np.array(read_times(fields["times"], at_least=1))
    if states.ndim < 3 or states.shape[-3] != len(times):
        wanted = f"shape (…, {len(times)}, token, dim), a state for each time"
        raise ArgumentValueError("states", wanted, f"shape {tuple(states.shape)}")
    for word in fields["status"].reshape(-1):
        if word not in set(Status):
            raise ArgumentValueError("status", "words for the end of a run", shown(str(word)))
    if (fields["reached"] != (times <= fields["end_times"][..., None])).any():
        raise ArgumentValueError("reached", "True up to each end_time and False after it", "something else")
    if fields["flow"] is not None:
        fields["flow"].fitting(states[..., 0, :, :], "states")
    if fields["deviations"] is not None:
        deviations = fields["deviations"]
        if deviations.shape.shape != states.shape:
            fitting = f"the shape of states, {tuple(states.shape)}"
            raise ArgumentValueError("deviations_shape", fitting, f"shape {tuple(deviations.shape.shape)}")
        for part in _DEVIATIONS:
            if not bool(torch.isfinite(getattr(deviations, part)).all()):
                raise ArgumentValueError(f"deviations_{part}", "finite numbers", "others")
    for name, counts in fields["counts"].items():
        if counts.dtype.kind not in "iu" or (counts < 0).any():
            raise ArgumentValueError(name, "whole numbers of at least 0", shown(counts))
    as_text(fields["engine"], "engine")
    as_choice(fields["frame"], "frame", ("tokens", "rescaled"))
    for note in fields["notes"]:
        as_text(note, "notes")
    parameters = fields["parameters"]
    if not isinstance(parameters, dict):
        raise ArgumentTypeError("parameters", "an object", shown(parameters))
    for tolerance in _TOLERANCES:
        if tolerance in parameters:
            as_positive(parameters[tolerance], tolerance)
    if "residual" in parameters:
        as_not_negative(parameters["residual"], "residual")


def write_dataset(dataset: xr.Dataset, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write a Zarr store (any name, by custom ending in .zarr) or a NetCDF file (.nc, extra `netcdf`).

    An older trajectory at `path` is replaced; it stays until the new one is whole.

    Raises:
        ArgumentValueError: Another suffix; or something else stands there, or in the older store, and `overwrite` is
            not set.
        StorageError: The disk is full or cannot be written; what was there is as it was.
    """
    target = Path(path)
    if target.suffix not in ("", ".zarr", ".nc"):
        raise ArgumentValueError("path", "a name ending in .zarr or .nc", str(target))
    if target.suffix == ".nc":
        require("netcdf", "path", "a file that ends in .nc", otherwise="save under a name ending in .zarr")
    target = Path(os.path.realpath(target))
    recover(target)
    foreign = None if overwrite else _foreign(target)
    if foreign is not None:
        wanted = "a new name, or a saved trajectory and nothing else to replace"
        raise ArgumentValueError("path", wanted, str(foreign), "overwrite=True replaces it")
    dataset = dataset.assign_attrs({CHECKSUM: _content(dataset)})
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with staging(target) as root:
            new = root / NEW
            if target.suffix == ".nc":
                dataset.to_netcdf(new, engine="h5netcdf")
            else:
                # Version 3 has no settled form for words; version 2 has, and every reader takes it.
                dataset.to_zarr(new, mode="w", zarr_format=2, consolidated=False)
            put(root, target)
    return Path(path)


def check_content(dataset: xr.Dataset, argument: str) -> None:
    """Refuse a trajectory whose numbers or words are not those that were saved: a damaged store may be readable.

    Args:
        dataset: As it was read.
        argument: What an error calls it.

    Raises:
        ArgumentValueError: They are others. Trajectories of earlier versions have no checksum.
    """
    saved = dataset.attrs.get(CHECKSUM)
    if saved is not None and saved != _content(dataset):
        raise changed_content(argument)


def _content(dataset: xr.Dataset) -> str:
    """Return the SHA-256 of all variables and attributes, the same in both formats."""
    content = sha256()
    for name in sorted(map(str, dataset.variables)):
        variable = dataset.variables[name]
        values = variable.values
        if not values.size:  # words that are none may come back as none of numbers
            data = b""
        elif values.dtype.kind in "OUST":
            data = json.dumps([str(word) for word in values.reshape(-1)]).encode()
        else:
            values = values.astype(np.uint8) if values.dtype.kind == "b" else values
            # NaN has many bit patterns, and readers put one of them for all.
            values = np.where(np.isnan(values), np.nan, values) if values.dtype.kind == "f" else values
            data = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"))).tobytes()
        content.update(f"{name} {variable.dims} {variable.shape} {len(data)} ".encode() + data)
    attributes = {str(name): value for name, value in dataset.attrs.items() if name != CHECKSUM}
    content.update(json.dumps(attributes, sort_keys=True, default=str).encode())
    return content.hexdigest()


def read_dataset(path: str | Path) -> xr.Dataset:
    """Read a store or file whole, once its sizes and codecs are known to be harmless; see `read_store`."""
    settle_results(path, "path")
    return read_store(Path(path), "path", "a saved trajectory")


def _foreign(target: Path) -> Path | None:
    """Return the first thing at `target` that is no part of a trajectory; None if all is, or nothing is there."""
    if not target.exists():
        return None
    try:
        with warnings.catch_warnings(action="ignore"), opened(target) as old:
            is_trajectory, variables = "flow" in old.attrs and "states" in old, set(map(str, old.variables))
    except Exception:  # whatever the readers raise of what is no file of theirs
        return target
    if not is_trajectory:
        return target
    if target.is_file():
        return None
    files = (path for path in sorted(target.rglob("*")) if path.is_symlink() or not path.is_dir())
    return next((path for path in files if not _of_store(path.relative_to(target), variables)), None)


def _of_store(path: Path, variables: set[str]) -> bool:
    """Tell whether a path is what Zarr's version 2 calls its files: attributes, and chunks by their indices."""
    if len(path.parts) == 1:
        return path.name in (".zgroup", ".zattrs", ".zmetadata")
    known = re.fullmatch(r"\.zarray|\.zattrs|\d+(\.\d+)*", path.name) is not None
    return len(path.parts) == 2 and path.parts[0] in variables and known


_PREFIX = "flow_"


def to_dataset(trajectory: Any) -> xr.Dataset:
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
            shape = part.shape[len(tensor.shape) - 3 :]
            variables[f"recorded_{name}"] = (along, part.reshape(systems, *shape))
    if trajectory.deviations is not None:
        for name, along in _DEVIATIONS.items():
            part = getattr(trajectory.deviations, name).detach().cpu().numpy()
            variables[f"deviations_{name}"] = (along, part.reshape(systems, *part.shape[len(tensor.shape) - 3 :]))
        variables["log_residual"] = (("system", "time"), trajectory.log_residual.reshape(systems, -1))
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
    if trajectory.frame != "tokens":
        attributes["frame"] = trajectory.frame
    if trajectory.noise is not None:
        attributes["noise"] = json.dumps(asdict(trajectory.noise))
    return xr.Dataset(variables, coords={"time": trajectory.times}, attrs=attributes)


def from_dataset(dataset: xr.Dataset) -> dict[str, Any]:
    """Return the fields of a `Trajectory`.

    Raises:
        ArgumentValueError: The dataset is not one of a trajectory.
    """
    if "states" not in dataset or "time" not in dataset.coords or "flow" not in dataset.attrs:
        raise ArgumentValueError("variables", "states, time and a flow", shown(list(dataset.variables)))
    leading = tuple(json.loads(dataset.attrs["leading_shape"]))
    words, noise = json.loads(dataset.attrs["flow"]), json.loads(dataset.attrs.get("noise", "null"))
    arrays = {str(name)[len(_PREFIX) :]: dataset[name].values for name in dataset if str(name).startswith(_PREFIX)}
    states = dataset["states"].values
    states = states.reshape(*leading, *states.shape[1:])
    if "deviations_shape" not in dataset:
        deviations = None
    else:
        parts = (torch.as_tensor(dataset[f"deviations_{name}"].values) for name in _DEVIATIONS)
        deviations = Deviations(*parts).reshaped(*leading)
    return {
        "states": states,
        "times": dataset["time"].values,
        "status": np.array([str(word) for word in dataset["status"].values]).reshape(leading),
        "reached": dataset["reached"].values.astype(bool).reshape(*leading, dataset.sizes["time"]),
        "end_times": dataset["end_time"].values.reshape(leading),
        "tensor": torch.as_tensor(states),
        "flow": None if words is None else flow_from_arrays(words, arrays),
        "engine": dataset.attrs["engine"],
        "frame": dataset.attrs.get("frame", "tokens"),
        "counts": {name: dataset[name].values.reshape(leading) for name in json.loads(dataset.attrs["counts"])},
        "notes": tuple(json.loads(dataset.attrs["notes"])),
        "parameters": json.loads(dataset.attrs["parameters"]),
        "recorded": _recorded(dataset, leading),
        "deviations": deviations,
        "noise": None if noise is None else Noise(**noise),
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
    observables: dict[str, Any] = {"norm": ((*system_time, "token"), norms(states).numpy())}
    if math.prod(states.shape[:2]) * states.shape[2] ** 2 <= 2**24:
        observables["diameter"] = (system_time, pairwise_distances(states).flatten(-2).amax(dim=-1).numpy())
    if bool((observables["norm"][1] > 0).all()):
        observables["consensus"] = (system_time, consensus(states).numpy())
        observables["consensus_signed"] = (system_time, consensus(states, signed=True).numpy())
        if states.shape[-2] > 1:
            observables["mean_pair_cosine"] = (system_time, mean_pair_cosine(states).numpy())
    return observables


def _axes(name: str, array: np.ndarray) -> tuple[str, ...]:
    return tuple(f"{_PREFIX}{name}_axis_{i}" for i in range(array.ndim))


Arrays = dict[str, np.ndarray]
OWN = "the caller's own"


def flow_to_arrays(flow: Flow) -> tuple[dict[str, Any], Arrays]:
    """Return a description in words and numbers, and the matrices by name.

    A schedule that is a user's function is described as "callable", a space or positions of the user's own as such:
    none of these comes back.
    """
    attention, positions = flow.attention, flow.attention.positions
    arrays: Arrays = {}
    words: dict[str, Any] = {
        "space": flow.space.name if _is_kept(flow.space) else OWN,
        "projection": flow.projection,
        "normalization": flow.normalization,
        "weights": attention.weights,
        "offset": attention.offset,
        "causal": attention.causal,
        "qk": _schedule_to_arrays(attention.qk, "qk", arrays),
        "ov": _schedule_to_arrays(attention.ov, "ov", arrays),
        "positions": None,
        "frozen": list(flow.frozen),
    }
    if isinstance(flow.space, Normalized):
        words["norm"] = {name: getattr(flow.space, name) for name in _OF_NORMS} if _is_kept(flow.space) else None
    if attention.mask is not None:
        arrays["mask"] = _array(attention.mask)
    if flow.geometry.metric is not None:
        arrays["metric"] = _array(flow.geometry.metric)
    if isinstance(positions, AbsolutePositions):
        words["positions"], arrays["positions_table"] = {"kind": "absolute"}, _array(positions.table)
    if isinstance(positions, RotaryPositions):
        words["positions"] = {"kind": "rotary", "base": positions.base, "scale": positions.scale}
        arrays["positions_frequencies"] = _array(positions.frequencies)
        words["positions"]["query"] = _schedule_to_arrays(positions.query, "positions_query", arrays)
        words["positions"]["key"] = _schedule_to_arrays(positions.key, "positions_key", arrays)
    elif positions is not None and words["positions"] is None:
        words["positions"] = {"kind": OWN}
    return words, arrays


_OF_NORMS = ("scheme", "switch", "rate", "radius")


def _is_kept(space: Space) -> bool:
    """Tell whether a space comes back from a file: one of the package's, without a function of the caller's own."""
    return type(space) in (Free, Sphere, Ellipsoid) or (isinstance(space, Normalized) and not callable(space.rate))


def flow_from_arrays(words: dict[str, Any], arrays: Arrays) -> Flow | None:
    """Return the flow again; None if its space, positions or one of its schedules was a user's own."""
    qk, ov = (_schedule_from_arrays(words[name], name, arrays) for name in ("qk", "ov"))
    place = words["positions"]
    positions: AbsolutePositions | RotaryPositions | None = None
    if place is not None and place["kind"] == "absolute":
        positions = AbsolutePositions(arrays["positions_table"])
    if place is not None and place["kind"] == "rotary":
        sides = [_schedule_from_arrays(place[name], f"positions_{name}", arrays) for name in ("query", "key")]
        if sides[0] is None or sides[1] is None:
            return None
        positions = RotaryPositions(
            sides[0], sides[1], place["base"], place["scale"], frequencies=arrays["positions_frequencies"]
        )
    if qk is None or ov is None or OWN in (words["space"], (place or {}).get("kind")):
        return None
    options = {name: words[name] for name in ("causal", "weights", "normalization")}
    options["offset"] = words.get("offset", 0.0)  # folders written before there were exponential weights have none
    mask = arrays["mask"].astype(bool) if "mask" in arrays else None
    attention = Attention(qk, ov, mask=mask, positions=positions, **options)
    if "norm" in words:
        norm = dict(words["norm"])
        norm["rate"] = norm["rate"] if norm["scheme"] == "ngpt" else None
        return Flow(attention, Normalized(**norm), words["projection"], words.get("frozen", ()))
    space = {"free": Free, "sphere": Sphere, "ellipsoid": lambda: Ellipsoid(arrays["metric"])}[words["space"]]()
    return Flow(attention, space, words["projection"], words.get("frozen", ()))


def _schedule_to_arrays(schedule: Schedule, name: str, arrays: Arrays) -> dict[str, Any]:
    if isinstance(schedule, Constant):
        _store(schedule.matrix, name, arrays)
        return {"kind": "constant"}
    if isinstance(schedule, Sinusoidal):
        for part in ("matrix", "amplitude", "frequency", "phase"):
            arrays[f"{name}_{part}"] = _array(getattr(schedule, part))
        return {"kind": "sinusoidal", "absolute": schedule.absolute}
    if isinstance(schedule, PerHead):
        heads = [_schedule_to_arrays(head, f"{name}_head{i}", arrays) for i, head in enumerate(schedule.heads)]
        return {"kind": "heads", "heads": heads}
    if isinstance(schedule, Periodic):
        _store(schedule.matrices, name, arrays)
        return {"kind": "periodic", "period": schedule.period}
    return {"kind": "callable"}


def _schedule_from_arrays(words: dict[str, Any], name: str, arrays: Arrays) -> Any:
    if words["kind"] == "constant":
        return Constant(_stored(name, arrays))
    if words["kind"] == "sinusoidal":
        parts = (arrays[f"{name}_{part}"] for part in ("matrix", "amplitude", "frequency", "phase"))
        return Sinusoidal(*parts, absolute=words["absolute"])
    if words["kind"] == "periodic":
        return Periodic(_stored(name, arrays), words["period"])
    if words["kind"] == "heads":
        heads = [_schedule_from_arrays(head, f"{name}_head{i}", arrays) for i, head in enumerate(words["heads"])]
        return None if None in heads else PerHead(heads, name)
    return None


def _store(matrix: torch.Tensor | FactoredMatrix, name: str, arrays: Arrays) -> None:
    if isinstance(matrix, FactoredMatrix):
        arrays[f"{name}_left"], arrays[f"{name}_right"] = _array(matrix.left), _array(matrix.right)
    else:
        arrays[name] = _array(matrix)


def _stored(name: str, arrays: Arrays) -> torch.Tensor | FactoredMatrix:
    if name in arrays:
        return torch.as_tensor(arrays[name])
    return FactoredMatrix(torch.as_tensor(arrays[f"{name}_left"]), torch.as_tensor(arrays[f"{name}_right"]))


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy().copy()
