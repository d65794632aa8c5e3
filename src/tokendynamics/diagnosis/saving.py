"""Writes a diagnosis as Zarr or NetCDF and JSON, whole or not at all."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.result import Diagnosis
from tokendynamics.diagnosis.verdict import mean_over_prompts, spread_over_prompts
from tokendynamics.numerics.errors import ArgumentValueError, expected

Format = Literal["zarr", "netcdf"]
SUFFIXES: dict[str, str] = {"zarr": ".zarr", "netcdf": ".nc"}
TABLES = ("audit", "trace", "paths")
SUMMARY = "diagnosis.json"


def data_file_names(format: Format = "zarr") -> tuple[str, ...]:
    """Names of the files that `save_diagnosis` writes.

    >>> data_file_names("netcdf")
    ('audit.nc', 'trace.nc', 'paths.nc', 'diagnosis.json')

    Raises:
        ArgumentValueError: An unknown format, or one that cannot be written here.
    """
    if format not in SUFFIXES:
        raise ArgumentValueError(expected("format", "'zarr' or 'netcdf'", repr(format)))
    if format == "netcdf" and find_spec("h5netcdf") is None:
        advice = "install the extra netcdf, or save as zarr"
        raise ArgumentValueError(expected("format", "'zarr' where h5netcdf is not installed", repr(format), advice))
    return (*(f"{name}{SUFFIXES[format]}" for name in TABLES), SUMMARY)


def save_diagnosis(diagnosis: Diagnosis, folder: Path, *, format: Format = "zarr") -> tuple[Path, ...]:
    """Write the three datasets and `diagnosis.json` (verdict, model, conventions, manifest, layer means).

    Everything is written to a temporary folder beside the target and moved when complete; files of an earlier
    diagnosis in `folder`, in either format, are replaced.

    Args:
        diagnosis: From `tokendynamics.diagnose`.
        folder: Made if it does not exist.
        format: "zarr" (folders) or "netcdf" (files; needs the extra ``netcdf``).

    Returns:
        Paths of what was written.

    Raises:
        ArgumentValueError: An unknown format.
    """
    names = data_file_names(format)
    if folder.exists() and not folder.is_dir():
        raise ArgumentValueError(expected("folder", "a folder or a new name", f"the file {folder}"))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".partial-") as scratch:
        for name, table in zip(names, (diagnosis.audit, diagnosis.trace, diagnosis.paths), strict=False):
            _write_table(_writable(table), Path(scratch) / name, format)
        text = json.dumps(summary(diagnosis), indent=2, ensure_ascii=False, allow_nan=False)
        (Path(scratch) / SUMMARY).write_text(text + "\n", encoding="utf-8")
        for suffix in SUFFIXES.values():
            for name in TABLES:
                _remove(folder / f"{name}{suffix}")
        return tuple((Path(scratch) / name).replace(folder / name) for name in names)


def summary(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis as plain JSON values; an undefined number is null.

    The full arrays are in the data files; here are the per-layer means and standard deviations over
    prompts and the audit's layer table.
    """
    averaged = mean_over_prompts(diagnosis.trace)
    trace = {str(name): _jsonable(variable.values) for name, variable in averaged.items()}
    spread = spread_over_prompts(diagnosis.trace)
    audit = {
        str(name): _jsonable(variable.values) for name, variable in diagnosis.audit.items() if name != "qk_eigenvalues"
    }
    return {
        "model": _jsonable(diagnosis.model),
        "verdict": {
            "sentences": [_jsonable(asdict(finding)) for finding in diagnosis.verdict.sentences],
            "layers": list(diagnosis.verdict.layers),
        },
        "audit": {"dims": {str(k): list(v.dims) for k, v in diagnosis.audit.items()}, **audit},
        "trace_spread": {str(name): _jsonable(variable.values) for name, variable in spread.items()},
        "trace_mean": {"dims": {str(k): list(v.dims) for k, v in averaged.items()}, **trace},
        "prompts": dict(zip(diagnosis.trace.prompt.values.tolist(), diagnosis.trace.text.values.tolist(), strict=True)),
        "conventions": [asdict(convention) for convention in diagnosis.conventions],
        "manifest": _jsonable(diagnosis.manifest),
    }


def _write_table(table: xr.Dataset, path: Path, format: Format) -> None:
    if format == "zarr":
        table.to_zarr(path, mode="w", zarr_format=2)
    else:
        table.to_netcdf(path, engine="h5netcdf")


def _writable(table: xr.Dataset) -> xr.Dataset:
    """Text as variable-length strings, which both formats read back."""
    return table.assign_coords(
        {name: coord.astype(object) for name, coord in table.coords.items() if coord.dtype.kind == "U"}
    ).assign({name: variable.astype(object) for name, variable in table.items() if variable.dtype.kind == "U"})


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _jsonable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(entry) for entry in value]
    if isinstance(value, np.ndarray | np.generic):
        return _jsonable(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return value.name
    return value
