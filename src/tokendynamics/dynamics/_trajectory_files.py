"""Trajectories on disk: Zarr stores and NetCDF files, complete or absent.

A damaged store may be readable and still say what no run can: its fields are held to what a run can have found.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.dynamics._status import Status
from tokendynamics.dynamics.options import read_times
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import as_positive, as_states, as_text
from tokendynamics.numerics.errors import expected, shown
from tokendynamics.numerics.extras import require
from tokendynamics.provenance.stores import opened, read_store
from tokendynamics.provenance.swap import NEW, put, recover, staging
from tokendynamics.provenance.whole import full_disk_as_storage_error, settle_results

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
    """Read a store or file whole, once its sizes and codecs are known to be harmless; see `read_store`."""
    settle_results(path, "path")
    return read_store(Path(path), "path", "a saved trajectory")


def _foreign(target: Path) -> Path | None:
    """Return the first thing at `target` that is no part of a trajectory; None if all is, or nothing is there."""
    if not target.exists():
        return None
    try:
        with warnings.catch_warnings(action="ignore"), opened(target) as old:
            ours, variables = "flow" in old.attrs and "states" in old, set(map(str, old.variables))
    except Exception:  # whatever the readers raise of what is no file of theirs
        return target
    if not ours:
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
