"""The Zarr store of a sweep: each chunk is written once, whole, and counts only when its task's record is there.

A chunk is written beside the store under a name of its own and renamed into it, by the client alone: a worker that
dies leaves nothing behind, and no file system needs to be shared. The record of a task is its chunk of the variable
`complete`, which is written last: when all others of the task are on the disk, so that a power cut leaves none without.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec
from zarr.errors import ZarrUserWarning
from zarr.storage import MemoryStore

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.provenance.durable import put_durably
from tokendynamics.provenance.reading import read_json
from tokendynamics.sweeps._layout import Variable
from tokendynamics.sweeps._plan import Plan
from tokendynamics.sweeps._versions import own_versions
from tokendynamics.sweeps.measures import COMPLETE

SPECIFICATION, IDENTITY, VERSIONS, ENGINE = "specification", "identity", "versions", "engine"

Task = tuple[int, ...]

_NAMED = 3
"""Differences that a message names."""


class Store:
    """A store that is being written.

    Args:
        path: Where it is, or will be.
        plan: What is to be in it.
        variables: Its arrays, from `layout`.
        staged: A folder on the same disk for what is not whole yet.
        engine: What tries first where the file has no engine.
    """

    def __init__(self, path: Path, plan: Plan, variables: Mapping[str, Variable], staged: Path, engine: str) -> None:
        self.path, self.plan, self._staged, self._all, self.engine = path, plan, staged, variables, engine
        self._variables = {name: each for name, each in variables.items() if each.values is None}
        # Chunks are encoded in memory by the library, so that only whole ones reach the disk.
        self._buffers: dict[str, dict[str, Any]] = {name: {} for name in self._variables}
        self._twins = {
            name: _array(MemoryStore(self._buffers[name]), "", each) for name, each in self._variables.items()
        }

    def create(self) -> None:
        """Make the store without chunks, whole or not at all."""
        attributes = {SPECIFICATION: self.plan.text, IDENTITY: identity(self.plan)}
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
        """Return the tasks without a record, in order."""
        for task in product(*map(range, self.plan.tasks)):
            if not self._chunk(COMPLETE, task).exists():
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
        put_durably(data, self._staged / "chunk", self._chunk(name, task))

    def _chunk(self, name: str, task: Task) -> Path:
        further = len(self._variables[name].shape) - len(task)
        return self.path.joinpath(name, "c", *map(str, task), *("0" * further))


def identity(plan: Plan) -> dict[str, Any]:
    """Return everything that a sweep's numbers depend on but the versions: two stores of one identity hold the same."""
    return plan.values | {"sweep": plan.table.model_dump(mode="json", exclude_none=True)}


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
    raise ArgumentValueError(expected("store", "the store of a sweep", came))


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
    wanted = json.loads(json.dumps(identity(plan)))
    found = differences(attributes[IDENTITY], wanted)
    if found:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise ArgumentValueError(
            f"store: expected one of the same specification at {path}, got another one: {'; '.join(found[:_NAMED])}"
            f"{more}; choose another store, or undo the change"
        )
    if attributes[ENGINE] != engine:
        advice = 'install the extra "fast" on both machines or on neither: the last bits of the two differ'
        wanted_words = f"the engine {attributes[ENGINE]!r} with which the store was created"
        raise ArgumentValueError(expected("store", wanted_words, f"{engine!r} here", advice))
    other = differences(attributes[VERSIONS], own_versions())
    if other:
        advice = "install those, or create another store: results of other versions differ in the last bits"
        wanted_words = "the versions with which the store was created"
        raise ArgumentValueError(expected("store", wanted_words, "; ".join(other), advice))


def differences(stored: Any, given: Any) -> list[str]:
    """Name the keys at which nested tables differ, with both values.

    >>> differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "c": 2}, "d": 4})
    ['a.b is 1 in the store and 3 here', 'd is not in the store and 4 here']
    """
    one, other = _flat(stored), _flat(given)
    keys = sorted(one.keys() | other.keys())
    return [
        f"{key} is {_told(one, key, 'not')} in the store and {_told(other, key, 'not')} here"
        for key in keys
        if one.get(key, _NOTHING) != other.get(key, _NOTHING)
    ]


_NOTHING = object()


def _told(table: Mapping[str, Any], key: str, otherwise: str) -> str:
    return json.dumps(table[key], ensure_ascii=False)[:60] if key in table else otherwise


def _flat(value: Any, above: str = "") -> dict[str, Any]:
    """Return nested tables, and lists that hold tables, as one table of dotted keys."""
    inner: Any = None
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        inner = enumerate(value)
    if inner is None:
        return {above: value}
    found: dict[str, Any] = {}
    for key, entry in inner:
        found |= _flat(entry, f"{above}.{key}" if above else str(key))
    return found
