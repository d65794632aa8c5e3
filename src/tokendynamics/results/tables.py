"""Results as folders of datasets with a summary in JSON: written, and read back with the checks that readers need."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import xarray as xr

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_text
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.extras import require
from tokendynamics.provenance.reading import read_json
from tokendynamics.provenance.stores import read_store
from tokendynamics.words import Convention, Finding

Format: TypeAlias = Literal["zarr", "netcdf"]
SUFFIXES: dict[str, str] = {"zarr": ".zarr", "netcdf": ".nc"}

Dims: TypeAlias = Mapping[str, tuple[str, ...]]
"""Axes of variables by their names."""


def axes_of(*rows: str) -> dict[str, tuple[str, ...]]:
    """Return the axes of variables by their names.

    Args:
        rows: Axes, a colon, and the variables that have them.

    >>> axes_of("layer: regime depth", "layer head: balance", ": loss")
    {'regime': ('layer',), 'depth': ('layer',), 'balance': ('layer', 'head'), 'loss': ()}
    """
    split = [row.partition(":")[::2] for row in rows]
    return {name: tuple(axes.split()) for axes, names in split for name in names.split()}


def file_names(tables: Iterable[str], format: Format) -> tuple[str, ...]:
    """Return the names of the files of datasets.

    Args:
        tables: Names of the datasets.
        format: "zarr" or "netcdf".

    >>> file_names(["audit", "trace"], "zarr")
    ('audit.zarr', 'trace.zarr')

    Raises:
        ArgumentValueError: An unknown format, or one that cannot be written here.
    """
    if format not in SUFFIXES:
        raise ArgumentValueError("format", "'zarr' or 'netcdf'", repr(format))
    if format == "netcdf":
        require("netcdf", "format", "'netcdf'", otherwise="save as zarr")
    return tuple(f"{name}{SUFFIXES[format]}" for name in tables)


def save_tables(tables: Mapping[str, xr.Dataset], made: Path, format: Format) -> None:
    """Write datasets into a folder from `whole_folder`.

    Args:
        tables: By name.
        made: The folder.
        format: "zarr" or "netcdf".

    Raises:
        ArgumentValueError: Texts that NetCDF does not hold.
    """
    for name, table in tables.items():
        # Text as variable-length strings, which both formats read back; of no objects xarray would write numbers.
        texts = {
            key: variable.astype(object if variable.size else str)
            for key, variable in table.variables.items()
            if variable.dtype.kind in "UO"
        }
        check_texts([[text.values.tolist() for text in texts.values()], dict(table.attrs)], format)
        written, path = _replaced(table, texts), made / f"{name}{SUFFIXES[format]}"
        if format == "zarr":
            _write_zarr(written, path)
        else:
            written.to_netcdf(path, engine="h5netcdf")


def check_texts(values: Any, format: Format) -> None:
    r"""Refuse the character NUL within values, at any depth of lists and mappings, for a format that cannot hold it.

    Raises:
        ArgumentValueError: There is one.

    >>> check_texts({"a text": ["one", 2]}, "netcdf")
    >>> check_texts(["one\0"], "netcdf")
    Traceback (most recent call last):
    tokendynamics.numerics.errors.ArgumentValueError: format: expected 'zarr' for texts with the character NUL, ...
    """
    if format != "netcdf":
        return
    if isinstance(values, str) and "\0" in values:
        wanted = "'zarr' for texts with the character NUL, which NetCDF cannot hold"
        raise ArgumentValueError("format", wanted, repr(format))
    if isinstance(values, Mapping):
        values = [*values, *values.values()]
    for value in values if isinstance(values, (list, tuple)) else ():
        check_texts(value, format)


def _write_zarr(table: xr.Dataset, path: Path) -> None:
    """Write a Zarr store of many small arrays: laid out in memory, as Zarr takes a thread for each file."""
    from zarr.storage import MemoryStore

    files: dict[str, Any] = {}
    # Version 3 has no settled form for words; version 2 has, and every reader takes it.
    table.to_zarr(MemoryStore(files), mode="w", zarr_format=2)
    for folder in {path.joinpath(name).parent for name in files}:
        folder.mkdir(parents=True, exist_ok=True)
    for name, contents in files.items():
        path.joinpath(name).write_bytes(contents.to_bytes())


def open_table(
    folder: Path,
    name: str,
    dims: Dims,
    wanted: str,
    labels: Mapping[str, tuple[str, ...]] | None = None,
    *,
    optional: Dims | None = None,
) -> xr.Dataset:
    """Read one stored dataset, in either format, and check what every reader asks of it.

    Args:
        folder: Where it is.
        name: Of the dataset.
        dims: Variables that it must have, with their axes.
        wanted: What the folder should be.
        labels: What stands along some axes, where the dataset has them.
        optional: Variables that it may have, with their axes.

    Raises:
        ArgumentValueError: It is not there, or another one.
        MemoryLimitError: It declares more than the memory.
    """
    present = [path for suffix in SUFFIXES.values() if (path := folder / f"{name}{suffix}").exists()]
    if not present:
        raise ArgumentValueError("folder", wanted, f"{folder} without {name}.zarr or {name}.nc")
    table = read_store(present[0], "folder", wanted)
    there = {variable: axes for variable, axes in (optional or {}).items() if variable in table.variables}
    for variable, axes in {**dims, **there}.items():
        came = table.variables[variable].dims if variable in table.variables else None
        if came != axes:
            raise ArgumentValueError(f"{name} {variable}", f"axes {axes}", came)
    for axis, known in (labels or {}).items():
        if axis in table.dims and tuple(table[axis].values) != known:
            raise ArgumentValueError(axis, ", ".join(known), shown(list(table[axis].values)))
    # Each format and version gives text back in a type of its own.
    words = {
        key: values.copy(data=values.values.astype(object).astype(str))
        for key, values in table.variables.items()
        if values.dtype.kind in "OT"
    }
    table = _replaced(table, words)
    for axis in table.dims:
        if axis in table.coords and axis not in table.xindexes:
            table = table.set_xindex(str(axis))
    return table


def _replaced(table: xr.Dataset, variables: Mapping[Any, Any]) -> xr.Dataset:
    """Return a dataset with other values of some variables and coordinates."""
    table = table.assign({key: values for key, values in variables.items() if key in table.data_vars})
    return table.assign_coords({key: values for key, values in variables.items() if key in table.coords})


def nothing_saved(folder: Path, wanted: str, summary: str, others: Mapping[str, str]) -> ArgumentValueError:
    """Return the error for a folder without a summary.

    Args:
        folder: The folder, which may not exist.
        wanted: What it should be.
        summary: The file that it does not have.
        others: What reads a folder that has another summary, by the name of that.
    """
    if not folder.exists():
        return ArgumentValueError("folder", wanted, f"nothing at {folder}")
    advice = next((f"{reader} reads {name}" for name, reader in others.items() if (folder / name).exists()), "")
    return ArgumentValueError("folder", wanted, f"{folder} without {summary}", advice)


@contextmanager
def opening(folder: Path, wanted: str, summary: str, others: Mapping[str, str]) -> Iterator[Any]:
    """Give the summary of a saved result; what is missing or damaged in it, or beside it, is named as it is read.

    Args:
        folder: The folder, which may not exist.
        wanted: What it should be.
        summary: The name of its file.
        others: See `nothing_saved`.

    Raises:
        ArgumentValueError: The summary is missing, or something in the block could not be read.
    """
    if not (folder / summary).exists():
        raise nothing_saved(folder, wanted, summary, others)
    values = read_json(folder / summary, "folder")
    try:
        yield values
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise unreadable(folder, wanted, error) from error


def unreadable(folder: Path, wanted: str, error: Exception) -> ArgumentValueError:
    """Return the error for a folder in which something is missing or damaged.

    Args:
        folder: The folder.
        wanted: What it should be.
        error: What reading it raised.
    """
    reason = f"no {error}" if isinstance(error, KeyError) else error
    return ArgumentValueError("folder", wanted, f"{folder} ({reason})")


def conventions_of(values: Any) -> tuple[Convention, ...]:
    """Return stored conventions."""
    names = ("name", "choice", "otherwise")
    return tuple(Convention(*(as_text(entry[name], name) for name in names)) for entry in values)


def findings_of(values: Any, figures: Any) -> tuple[Finding, ...]:
    """Return stored sentences.

    Args:
        values: As they were written.
        figures: The literal type of the names of figures.
    """
    return tuple(
        Finding(as_text(entry["text"], "text"), one_of(figures, entry["figure"]), with_nan(dict(entry["values"])))
        for entry in values
    )


def one_of(names: Any, word: Any, argument: str = "verdict") -> Any:
    """Return a stored word that is one of those of a literal type."""
    if word not in get_args(names):
        raise ArgumentValueError(argument, f"one of {', '.join(get_args(names))}", shown(word))
    return word


def with_nan(value: Any) -> Any:
    """Return numbers as they were measured: JSON has no NaN, and what is undefined stands there as null.

    >>> with_nan({"value": None, "interval": [0.5, None]})
    {'value': nan, 'interval': [0.5, nan]}
    """
    if isinstance(value, dict):
        return {name: with_nan(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [with_nan(entry) for entry in value]
    return math.nan if value is None else value
