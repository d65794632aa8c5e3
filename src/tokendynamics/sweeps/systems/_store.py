"""The Zarr store of a sweep: each chunk is written once, whole, and counts only when its task's record is there.

A chunk is written beside the store under a name of its own and renamed into it, by the client alone: a worker that
dies leaves nothing behind, and no file system needs to be shared. The record of a task is its chunk of the variable
`complete`, which is written last: when all others of the task are on the disk, so that a power cut leaves none without.
What is missing is never taken for data.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from numcodecs.checksum32 import CRC32C
from zarr.codecs import Crc32cCodec
from zarr.errors import ZarrUserWarning
from zarr.storage import MemoryStore

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.resources import in_bytes
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.reading import read_json
from tokendynamics.provenance.stores import check_arrays_3
from tokendynamics.provenance.swap import put_durably
from tokendynamics.specification.build import build
from tokendynamics.sweeps._store import differences, first_few, own_versions
from tokendynamics.sweeps.systems._plan import POINT, Plan, parse_plan
from tokendynamics.sweeps.systems.measures import ALWAYS, COMPLETE, MEASURES, MISSING, Measure
from tokendynamics.words import plural

_CHECKSUM, _SECTOR, _DESCRIPTION = 4, 4096, 8192
"""Bytes behind each chunk, the least that a file takes, and what an array's description and folders take."""


@dataclass(frozen=True)
class Variable:
    """One array of the store.

    Attributes:
        dims: Its axes.
        shape: Their lengths.
        chunks: Of a task; the whole array for a coordinate.
        dtype: Of its numbers.
        fill: What stands where nothing was written.
        attributes: What it is, and its unit.
        values: Of a coordinate; None for what the tasks write.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str
    fill: Any
    attributes: Mapping[str, Any] = field(default_factory=dict)
    values: np.ndarray | None = None


def layout(plan: Plan) -> dict[str, Variable]:
    """Return the arrays of a sweep's store by name: coordinates, what the tasks write, and `COMPLETE` last."""
    table, random = plan.table, plan.table.design == "random"
    variables = {axis.name: _coordinate(POINT if random else axis.name, axis.labels, axis.keys) for axis in plan.axes}
    known = ALWAYS | MEASURES
    variables |= {name: _of_systems(plan, known[name]) for name in dict.fromkeys([*ALWAYS, *table.measure])}
    if table.over_time or table.keep == "states":
        first: tuple[tuple[int, int], list[float]] | None = None
        for point, block in plan.samples():
            file = plan.file(point)
            setup = build(file, block)
            tokens, dim = setup.start.shape[1:]
            came = ((tokens, dim), setup.times.tolist())
            if first is not None and came != first:
                key = "keep" if plan.table.keep else "over_time"
                came_both = " and ".join(_shape_and_times(*one) for one in (first, came))
                raise file.error(("sweep", key), f"expected points of one shape and the same times, got {came_both}")
            first = came
        if first is None:
            raise AssertionError
        shape, times = first[0], np.array(first[1])
        variables["time"] = _coordinate("time", times)
        for name in table.over_time:
            variables[f"{name}_over_time"] = _of_systems(plan, MEASURES[name], ("time",), (len(times),))
        if table.keep == "states":
            states = Measure("float64", "states at the saved times")
            variables["states"] = _of_systems(plan, states, ("time", "token", "feature"), (len(times), *shape))
    done = {"long_name": "whether it was run"}
    return variables | {COMPLETE: Variable(plan.dims, plan.shape, plan.chunks, "bool", False, done)}


def _of_systems(plan: Plan, measure: Measure, dims: tuple[str, ...] = (), lengths: tuple[int, ...] = ()) -> Variable:
    fill = np.nan if measure.dtype.startswith("float") else MISSING
    shape, chunks = (*plan.shape, *lengths), (*plan.chunks, *lengths)
    return Variable((*plan.dims, *dims), shape, chunks, measure.dtype, fill, measure.attributes)


def _coordinate(dim: str, values: np.ndarray, keys: tuple[str, ...] = ()) -> Variable:
    text = values.dtype.kind == "U"
    dtype = "string" if text else values.dtype.name
    fill = "" if text else values.dtype.type(0).item()
    return Variable((dim,), values.shape, values.shape, dtype, fill, {"keys": list(keys)} if keys else {}, values)


def _shape_and_times(shape: tuple[int, int], times: list[float]) -> str:
    return f"{plural(shape[0], 'token')} of dim {shape[1]} at {len(times)} times from {times[0]:g} to {times[-1]:g}"


def size(plan: Plan, variables: Mapping[str, Variable]) -> int:
    """Return how many bytes a store takes on the disk, exactly but for the file system's own records."""
    tasks = math.prod(plan.tasks)
    total = 0
    for variable in variables.values():
        width = 8 if variable.dtype == "string" else np.dtype(variable.dtype).itemsize
        chunk = math.prod(variable.chunks) * width + _CHECKSUM
        files = 1 if variable.values is not None else tasks
        total += _DESCRIPTION + files * -(-chunk // _SECTOR) * _SECTOR
    return total


def check_room(needed: int, store: Path) -> None:
    """Refuse a sweep whose store is larger than what is free on its disk.

    Raises:
        ArgumentValueError: Both sizes are printed.
    """
    place = store.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed > free:
        advice = "take fewer points, draws or measures, or another disk"
        wanted = f"a sweep that fits into the {in_bytes(free)} free at {place}"
        raise ArgumentValueError("store", wanted, f"{in_bytes(needed)} needed", advice)


SPECIFICATION, IDENTITY, VERSIONS, ENGINE = "specification", "identity", "versions", "engine"

Task = tuple[int, ...]


class Store:
    """A store that is being written.

    Args:
        path: Where it is, or will be.
        plan: What is to be in it.
        variables: Its arrays, from `layout`.
        staged: A folder on the same disk for what is not whole yet.
        engine: What tries first: that of the file, or what `sweep` chose.
    """

    def __init__(self, path: Path, plan: Plan, variables: Mapping[str, Variable], staged: Path, engine: str) -> None:
        self.path, self.plan, self._staged, self._all, self.engine = path, plan, staged, variables, engine
        self._variables = {name: variable for name, variable in variables.items() if variable.values is None}
        # Chunks are encoded in memory by the library, so that only whole ones reach the disk.
        self._buffers: dict[str, dict[str, Any]] = {name: {} for name in self._variables}
        self._twins = {
            name: _array(MemoryStore(self._buffers[name]), "", variable) for name, variable in self._variables.items()
        }

    def create(self) -> None:
        """Make the store without chunks, whole or not at all."""
        attributes = {SPECIFICATION: self.plan.text, IDENTITY: self.plan.identity()}
        attributes |= {VERSIONS: own_versions(), ENGINE: self.engine}
        made = self._staged / "new"
        with warnings.catch_warnings():
            # Consolidated metadata and text are extensions that the specification of Zarr 3 does not have yet.
            warnings.simplefilter("ignore", category=ZarrUserWarning)
            warnings.simplefilter("ignore", category=FutureWarning)
            group = zarr.create_group(made, zarr_format=3, attributes=attributes)
            for name, variable in self._all.items():
                array = _array(group.store, name, variable)
                if variable.values is not None:
                    array[:] = variable.values
            zarr.consolidate_metadata(made)
        made.rename(self.path)

    def missing(self) -> Iterator[Task]:
        """Return the tasks without a record, or of which a chunk was lost or damaged since, in order."""
        for task in product(*map(range, self.plan.tasks)):
            if not all(
                _is_whole(_chunk(self.path, name, task, len(of.shape)), of) for name, of in self._variables.items()
            ):
                yield task

    def write(self, task: Task, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the chunks of a task, and then its record."""
        region = self.plan.region(task)
        done = np.ones([part.stop - part.start for part in region], dtype=bool)
        for name in self._variables:
            self._write_chunk(name, task, region, done if name == COMPLETE else arrays[name])

    def _write_chunk(self, name: str, task: Task, region: tuple[slice, ...], values: np.ndarray) -> None:
        self._twins[name][region] = values
        (encoded,) = (part for key, part in self._buffers[name].items() if not key.endswith("zarr.json"))
        data = encoded.to_bytes()
        self._buffers[name].clear()
        place = _chunk(self.path, name, task, len(self._variables[name].shape))
        put_durably(data, self._staged / "chunk", place)


def _chunk(store: Path, name: str, task: Task, axes: int) -> Path:
    """Return the file of a task's chunk of an array whose array has `axes` axes."""
    return store.joinpath(name, "c", *map(str, task), *("0" * (axes - len(task))))


def _is_whole(chunk: Path, variable: Variable) -> bool:
    """Tell whether the file of a chunk is there with its length and its checksum: a folder is read as fill values."""
    if not chunk.is_file():
        return False
    try:
        values = CRC32C().decode(chunk.read_bytes())
    except (OSError, RuntimeError, ValueError):
        return False
    return len(values) == math.prod(variable.chunks) * np.dtype(variable.dtype).itemsize


def _array(store: Any, name: str, variable: Variable) -> zarr.Array:
    return zarr.create_array(
        store,
        name=name or None,
        shape=variable.shape,
        chunks=variable.chunks,
        dtype=variable.dtype,
        fill_value=variable.fill,
        compressors=None if variable.dtype == "string" else [Crc32cCodec()],
        dimension_names=variable.dims,
        attributes=dict(variable.attributes),
        zarr_format=3,
        # A chunk of zeros is data, and its file says that it was written.
        config={"write_empty_chunks": True},
    )


def stored_attributes(path: Path) -> dict[str, Any]:
    """Return what a store says of itself.

    Raises:
        ArgumentValueError: Nothing there, or no store of a sweep.
    """
    try:
        attributes = read_json(path / "zarr.json", "store")["attributes"]
        if isinstance(attributes[SPECIFICATION], str) and {IDENTITY, VERSIONS, ENGINE} <= set(attributes):
            return attributes
    except (ValueError, KeyError, TypeError):
        pass
    came = f"{path}, which is something else" if path.exists() else f"nothing at {path}"
    raise ArgumentValueError("store", "the store of a sweep", came)


def check_same(path: Path, plan: Plan, engine: str) -> None:
    """Refuse to go on with a store that another specification made, or another engine or other versions.

    Args:
        path: The store.
        plan: What is to be in it.
        engine: What would try first.

    Raises:
        ArgumentValueError: With what differs, key by key.
    """
    attributes = stored_attributes(path)
    if differing := differences(attributes[IDENTITY], plan.identity()):
        raise ArgumentValueError(
            f"store: expected one of the same specification at {path}, got another one: {first_few(differing)}"
            "; choose another store, or undo the change"
        )
    if plan.engine is None and attributes[ENGINE] != engine:
        advice = 'install the extra "fast" on both machines or on neither: the last bits of the two differ'
        wanted_words = f"the engine {attributes[ENGINE]!r} with which the store was created"
        raise ArgumentValueError("store", wanted_words, f"{engine!r} here", advice)
    if other := differences(attributes[VERSIONS], own_versions()):
        advice = "install those, or create another store: results of other versions differ in the last bits"
        wanted_words = "the versions with which the store was created"
        raise ArgumentValueError("store", wanted_words, "; ".join(other), advice)


def _is_array_of(variable: Variable, array: xr.Variable | None, described: Path) -> bool:
    """Tell whether an array of a store has the axes, type, words and, of a coordinate, values of its specification."""
    if array is None or array.dims != variable.dims or array.shape != variable.shape:
        return False
    entry = read_json(described, "store")
    orders = [codec.get("configuration", {}).get("endian", "little") for codec in entry["codecs"]]
    fill = "NaN" if variable.fill != variable.fill else variable.fill
    if (entry["data_type"], entry["fill_value"], set(orders)) != (variable.dtype, fill, {"little"}):
        return False
    # A title decides nothing, the words of codes do. What JSON makes of tuples are lists.
    words = json.loads(json.dumps(dict(variable.attributes)))
    if any(entry["attributes"].get(key) != value for key, value in words.items() if key != "long_name"):
        return False
    return variable.values is None or np.array_equal(array.values.astype(variable.values.dtype), variable.values)


def _check_chunks(store: Path, plan: Plan, variables: Mapping[str, Variable]) -> None:
    """Refuse a store of which a chunk of a finished task is gone or damaged: it would be read as fill values, or fail.

    Raises:
        ArgumentValueError: The file is named.
    """
    tasks = product(*map(range, plan.tasks))
    for task in (task for task in tasks if _chunk(store, COMPLETE, task, len(plan.shape)).exists()):
        for name, variable in variables.items():
            place = _chunk(store, name, task, len(variable.shape))
            if variable.values is None and not _is_whole(place, variable):
                came = f"a damaged one at {place}" if os.path.lexists(place) else f"none at {place}"
                wanted = "the store of a sweep with all chunks of its finished tasks"
                raise ArgumentValueError("store", wanted, came, "resume the sweep")


@typed_arguments
def open_store(store: str | Path, *, partial: bool = False) -> xr.Dataset:
    """Return the dataset of a sweep.

    Args:
        store: Folder of the Zarr store.
        partial: Whether systems may be missing: their numbers are NaN, their codes and counts −1, `complete` false.

    Raises:
        ArgumentValueError: No store of a sweep, a damaged one, one whose codecs or files are not known to be harmless,
            or systems are missing and `partial` is not set.
        MemoryLimitError: It declares more than the memory.

    >>> from tempfile import mkdtemp
    >>> from distributed import Client
    >>> from tokendynamics.sweeps import parse_plan, sweep
    >>> from tokendynamics.specification.examples import example_text
    >>> plan = parse_plan(example_text("temperature", "sweep").replace("draws = 200", "draws = 1"), "temperature.toml")
    >>> store = Path(mkdtemp(), "temperature.zarr")
    >>> with Client(processes=False, dashboard_address=None) as client:
    ...     _ = sweep(plan, store, client)
    >>> dict(open_store(store).sizes)
    {'beta': 10, 'tokens': 7, 'draw': 1}
    """
    place = Path(store)
    plan = parse_plan(stored_attributes(place)[SPECIFICATION], place.name)
    check_arrays_3(place, "store", "the store of a sweep")
    try:
        # The manifest beside the arrays is no part of the format.
        with warnings.catch_warnings(action="ignore", category=ZarrUserWarning):
            # Not the consolidated descriptions: those that were checked are read.
            dataset = xr.open_zarr(place, consolidated=False, zarr_format=3, chunks=None)
        # What varies in a random design is a coordinate of its points, though no index.
        dataset = dataset.set_coords([axis.name for axis in plan.axes if axis.name in dataset])
        variables = layout(plan)
        for name, variable in variables.items():
            if not _is_array_of(variable, dataset.variables.get(name), place / name / "zarr.json"):
                came = f"{place}, whose array {name!r} is not that of its specification"
                raise ArgumentValueError("store", "the store of a sweep", came)
        dataset = dataset[list(dict.fromkeys([*variables, *dataset.variables]))]  # Zarr lists them in any order.
        _check_chunks(place, plan, variables)
        complete = dataset[COMPLETE].values
    except ArgumentValueError:
        raise
    except Exception as error:  # what readers and codecs raise of damaged files is theirs to choose
        raise ArgumentValueError("store", "the store of a sweep", f"{place} ({error})") from error
    if complete.all():
        return dataset
    if not partial:
        came = f"{place} with {int(complete.sum())} of {complete.size} systems"
        advice = "resume the sweep, or open the finished part with partial=True"
        raise ArgumentValueError("store", "the store of a sweep that is complete", came, advice)
    dataset = dataset.load()
    # Wherever a task has no record stands what marks a missing number, whatever its other chunks hold.
    there = dataset[COMPLETE]
    for name, variable in variables.items():
        if variable.values is None and name != COMPLETE:
            dtype = dataset[name].dtype
            filled = xr.where(there, dataset[name], np.asarray(variable.fill, dtype=dtype), keep_attrs=False)
            dataset[name] = filled.astype(dtype).transpose(*variable.dims).assign_attrs(dataset[name].attrs)
    return dataset
