"""Trajectories on disk: Zarr stores and NetCDF files, written aside and renamed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import xarray as xr

from tokendynamics.numerics.errors import ArgumentValueError, expected


def save(dataset: xr.Dataset, path: str | Path) -> Path:
    """Write a Zarr store (any name, by custom ending in .zarr) or a NetCDF file (.nc, extra `netcdf`).

    What stands at `path` and is a trajectory store is replaced; the former one stays until the new one is whole.
    """
    target = Path(path)
    if target.suffix not in ("", ".zarr", ".nc"):
        raise ArgumentValueError(expected("path", "a name ending in .zarr or .nc", str(target)))
    if target.exists() and not _replaceable(target):
        raise ArgumentValueError(expected("path", "a new name, or a Zarr store or .nc file to replace", str(target)))
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if target.suffix == ".nc":
            dataset.to_netcdf(aside, engine="h5netcdf")
        else:
            # Version 3 has no settled form for words; version 2 has, and every reader takes it.
            dataset.to_zarr(aside, mode="w", zarr_format=2, consolidated=False)
        _remove(target)
        aside.rename(target)
    finally:
        _remove(aside)
    return target


def read(path: str | Path) -> xr.Dataset:
    """Read a store or file whole."""
    source = Path(path)
    if not source.exists():
        raise ArgumentValueError(expected("path", "a saved trajectory", f"nothing at {source}"))
    try:
        if source.is_dir():
            return xr.load_dataset(source, engine="zarr", consolidated=False)
        return xr.load_dataset(source, engine="h5netcdf")
    except (OSError, KeyError, ValueError) as error:
        raise ArgumentValueError(expected("path", "a saved trajectory", f"{source} ({error})")) from error


def _replaceable(target: Path) -> bool:
    return (target / ".zgroup").is_file() if target.is_dir() else target.suffix == ".nc"


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
