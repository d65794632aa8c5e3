"""Which arrays a sweep's store has, how large they are, and on which disk they fit."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.resources import in_bytes
from tokendynamics.specification import SpecificationFile
from tokendynamics.specification.build import build, build_times
from tokendynamics.sweeps._plan import POINT, Plan
from tokendynamics.sweeps.measures import ALWAYS, COMPLETE, MEASURES, MISSING, Measure

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
    table = plan.table
    found = _coordinates(plan)
    names = list(dict.fromkeys([*ALWAYS, *table.measure]))
    known = ALWAYS | MEASURES
    found |= {name: _of_systems(plan, known[name]) for name in names}
    if table.over_time or table.keep == "states":
        shape, times = _common(plan)
        found["time"] = _coordinate("time", times)
        along = ("time",), (len(times),)
        for name in table.over_time:
            found[f"{name}_over_time"] = _of_systems(plan, MEASURES[name], *along)
        if table.keep == "states":
            states = Measure("float64", "states at the saved times")
            found["states"] = _of_systems(plan, states, ("time", "token", "feature"), (len(times), *shape))
    found[COMPLETE] = Variable(plan.dims, plan.shape, plan.chunks, "bool", False, {"long_name": "whether it was run"})
    return found


def _of_systems(plan: Plan, measure: Measure, dims: tuple[str, ...] = (), lengths: tuple[int, ...] = ()) -> Variable:
    fill = np.nan if measure.dtype.startswith("float") else MISSING
    attributes = {"long_name": measure.says, **measure.attributes}
    return Variable(
        (*plan.dims, *dims), (*plan.shape, *lengths), (*plan.chunks, *lengths), measure.dtype, fill, attributes
    )


def _coordinates(plan: Plan) -> dict[str, Variable]:
    random = plan.table.design == "random"
    return {axis.name: _coordinate(POINT if random else axis.name, axis.labels, axis.keys) for axis in plan.axes}


def _coordinate(dim: str, values: np.ndarray, keys: tuple[str, ...] = ()) -> Variable:
    text = values.dtype.kind == "U"
    dtype = "string" if text else values.dtype.name
    attributes = {"keys": list(keys)} if keys else {}
    fill = "" if text else values.dtype.type(0).item()
    return Variable((dim,), values.shape, values.shape, dtype, fill, attributes, values)


def _common(plan: Plan) -> tuple[tuple[int, int], np.ndarray]:
    """Return the shape (token, dim) and the times that all points share.

    Raises:
        SpecificationError: Points differ.
    """
    first: tuple[Any, ...] | None = None
    for point, block in plan.samples():
        file = plan.file(point)
        setup = build(file, block)
        came = (tuple(setup.start.shape[1:]), setup.times.tolist())
        if first is not None and came != first:
            raise _differing(plan, file)
        first = came
    if first is None:
        raise AssertionError
    return first[0], np.array(first[1])


def _differing(plan: Plan, file: SpecificationFile) -> ArgumentValueError:
    key = "keep" if plan.table.keep else "over_time"
    message = f"expected points of one shape and the same times, got {file.tables.start} and {build_times(file)[-1]:g}"
    return file.error(("sweep", key), message)


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
        raise ArgumentValueError(expected("store", wanted, f"{in_bytes(needed)} needed", advice))
