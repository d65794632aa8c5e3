"""Trajectories on disk: Zarr stores and NetCDF files, whole or not there.

What a file declares is read before anything of it is: codecs that run nothing, sizes that fit. A damaged store may be
readable and still say what no run can: its fields are held to what a run can have found.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.dynamics._options import read_times
from tokendynamics.dynamics._status import Status
from tokendynamics.numerics._arguments import as_positive, as_states, as_text
from tokendynamics.numerics._errors import ArgumentTypeError, ArgumentValueError, TokenDynamicsError, expected, shown
from tokendynamics.numerics._extras import require
from tokendynamics.numerics._resources import check_fits
from tokendynamics.provenance._reading import read_json
from tokendynamics.provenance._swap import NEW, put, recover, staging
from tokendynamics.provenance._whole import full_disk_as_storage_error

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
        raise ArgumentValueError(expected("states", wanted, f"shape {tuple(states.shape)}"))
    for word in fields["status"].reshape(-1):
        if word not in set(Status):
            raise ArgumentValueError(expected("status", "words for the end of a run", shown(str(word))))
    if (fields["reached"] != (times <= fields["end_times"][..., None])).any():
        raise ArgumentValueError(expected("reached", "True up to each end_time and False after it", "something else"))
    if fields["flow"] is not None:
        fields["flow"].fitting(states[..., 0, :, :], "states")
    for name, count in fields["counts"].items():
        if count.dtype.kind not in "iu" or (count < 0).any():
            raise ArgumentValueError(expected(name, "whole numbers of at least 0", shown(count)))
    as_text(fields["engine"], "engine")
    for note in fields["notes"]:
        as_text(note, "notes")
    _check_parameters(fields["parameters"])


def _check_parameters(parameters: Any) -> None:
    if not isinstance(parameters, dict):
        raise ArgumentTypeError(expected("parameters", "an object", shown(parameters)))
    for name in _TOLERANCES:
        if name in parameters:
            as_positive(parameters[name], name)


_CODECS = frozenset({"blosc", "zlib", "gzip", "zstd", "lz4", "shuffle", "delta", "vlen-utf8"})
"""Codecs that move bytes and nothing else. Others are names of Python code, and one of them unpickles."""

_LONGEST_WORD = 64
"""Bytes taken for a text, of which a store tells the number only."""


def check_store(store: Path) -> None:
    """Refuse a Zarr store that is not of version 2, would run code, or is larger than the memory.

    Raises:
        ArgumentValueError: No array, one of another version, a codec that is not known, damaged metadata.
        MemoryLimitError: The arrays, or one chunk, need more memory than is installed.
    """
    if (store / "zarr.json").exists():
        raise _refused("a Zarr store of version 2", f"version 3 in {store}")
    described = sorted(store.glob("*/.zarray"))
    if not described:
        raise _refused("a saved trajectory", f"{store}, a folder without arrays")
    check_fits(sum(_needed(path) for path in described), "path", f"{store} declares it")


def check_variables(dataset: xr.Dataset, path: Path) -> None:
    """Refuse a dataset, opened and not yet loaded, whose variables do not fit into the memory.

    Raises:
        MemoryLimitError: They do not.
    """
    needed = sum(_bytes(variable.shape, variable.dtype) for variable in dataset.variables.values())
    check_fits(needed, "path", f"{path} declares it")


def _needed(described: Path) -> int:
    """Count the bytes of one array, or of one of its chunks if that is more."""
    name, entry = described.parent.name, read_json(described, "path")
    try:
        codecs = [codec["id"] for codec in (entry["compressor"], *(entry["filters"] or ())) if codec is not None]
        shape, chunks, dtype = entry["shape"], entry["chunks"], np.dtype(entry["dtype"])
        lengths = [_length(length) for length in (*shape, *chunks)]
    except (KeyError, TypeError, ValueError) as error:
        raise _refused("a saved trajectory", f"{described} ({shown(str(error))[1:-1]})") from error
    unknown = next((codec for codec in codecs if codec not in _CODECS), None)
    if unknown is not None:
        raise _refused(f"a codec among {', '.join(sorted(_CODECS))}", f"{shown(unknown)} at {name!r}")
    return max(_bytes(lengths[: len(shape)], dtype), _bytes(lengths[len(shape) :], dtype))


def _length(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"a length of {value!r}")
    return value


def _bytes(shape: Any, dtype: np.dtype) -> int:
    return math.prod(shape) * (_LONGEST_WORD if dtype.hasobject else dtype.itemsize)


def _refused(wanted: str, came: str) -> ArgumentValueError:
    return ArgumentValueError(expected("path", wanted, came))


def save(dataset: xr.Dataset, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write a Zarr store (any name, by custom ending in .zarr) or a NetCDF file (.nc, extra `netcdf`).

    An older trajectory at `path` is replaced; it stays until the new one is whole.

    Raises:
        ArgumentValueError: Another suffix; or something else stands there, or in the older store, and `overwrite` is
            not set.
        StorageError: The disk is full; what was there is as it was.
    """
    target = Path(path)
    if target.suffix not in ("", ".zarr", ".nc"):
        raise ArgumentValueError(expected("path", "a name ending in .zarr or .nc", str(target)))
    if target.suffix == ".nc":
        require("netcdf", "path", "a file that ends in .nc", otherwise="save under a name ending in .zarr")
    target = Path(os.path.realpath(target))
    recover(target)
    foreign = None if overwrite else _foreign(target)
    if foreign is not None:
        wanted = "a new name, or a saved trajectory and nothing else to replace"
        raise ArgumentValueError(expected("path", wanted, str(foreign), "overwrite=True replaces it"))
    with full_disk_as_storage_error(target):
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


def read(path: str | Path) -> xr.Dataset:
    """Read a store or file whole, once its sizes and codecs are known to be harmless; see `check_store`."""
    source = Path(path)
    if not source.exists():
        raise ArgumentValueError(expected("path", "a saved trajectory", f"nothing at {source}"))
    if source.is_dir():
        check_store(source)
    elif not source.is_file():
        raise ArgumentValueError(expected("path", "a saved trajectory", f"{source}, no regular file"))
    else:
        require("netcdf", "path", "reading a NetCDF file")
    try:
        with _opened(source) as dataset:
            check_variables(dataset, source)
            return dataset.load()
    except TokenDynamicsError:
        raise
    except Exception as error:  # what readers and codecs raise of damaged files is theirs to choose
        raise ArgumentValueError(expected("path", "a saved trajectory", f"{source} ({error})")) from error


def _foreign(target: Path) -> Path | None:
    """Return the first thing at `target` that is no part of a trajectory; None if all is, or nothing is there."""
    if not target.exists():
        return None
    try:
        with warnings.catch_warnings(action="ignore"), _opened(target) as old:
            ours, variables = "flow" in old.attrs and "states" in old, set(map(str, old.variables))
    except Exception:  # whatever the readers raise of what is no file of theirs
        return target
    if not ours:
        return target
    if target.is_file():
        return None
    files = (path for path in sorted(target.rglob("*")) if path.is_symlink() or not path.is_dir())
    return next((path for path in files if not _of_store(path.relative_to(target), variables)), None)


def _opened(target: Path) -> xr.Dataset:
    # Without indexes nothing is read yet, however long an axis says that it is.
    options: dict[str, Any] = {"engine": "zarr", "consolidated": False} if target.is_dir() else {"engine": "h5netcdf"}
    return xr.open_dataset(target, create_default_indexes=False, **options)


def _of_store(path: Path, variables: set[str]) -> bool:
    """Tell whether a path is what Zarr's version 2 calls its files: attributes, and chunks by their indices."""
    if len(path.parts) == 1:
        return path.name in (".zgroup", ".zattrs", ".zmetadata")
    known = re.fullmatch(r"\.zarray|\.zattrs|\d+(\.\d+)*", path.name) is not None
    return len(path.parts) == 2 and path.parts[0] in variables and known
