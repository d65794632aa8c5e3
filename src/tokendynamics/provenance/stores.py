"""Datasets on disk, which anyone may have written: Zarr stores and NetCDF files, read without running code.

What a file declares is read before anything of it is: codecs that run nothing, sizes that fit.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.numerics import ArgumentValueError, TokenDynamicsError
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.extras import require
from tokendynamics.numerics.resources import check_fits
from tokendynamics.provenance.reading import check_regular, read_json

_CODECS = frozenset({"blosc", "zlib", "gzip", "zstd", "lz4", "shuffle", "delta", "vlen-utf8"})
"""Codecs that move bytes and nothing else. Others are names of Python code, and one of them unpickles."""

_CODECS_3 = frozenset({"bytes", "crc32c", "vlen-utf8", "transpose", "blosc", "gzip", "zstd"})
"""The same of version 3, where a name such as "numcodecs.pickle" is looked up among installed packages."""
_TYPES_3 = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)|string")

_LONGEST_WORD = 64
"""Bytes taken for a text, of which a store tells the number only."""


def read_store(source: Path, argument: str, wanted: str) -> xr.Dataset:
    """Read a store (a folder) or a NetCDF file whole, once its sizes and codecs are known to be harmless.

    Args:
        source: Where it is.
        argument: What an error calls it.
        wanted: What it should be, such as "a saved trajectory".

    Returns:
        Dataset without indexes.

    Raises:
        ArgumentValueError: Nothing there, damaged, of another version, or with codecs that are not known.
        MemoryLimitError: It declares more than the memory.
    """
    if not source.exists():
        raise ArgumentValueError(argument, wanted, f"nothing at {source}")
    if source.is_dir():
        if (source / "zarr.json").exists():
            raise ArgumentValueError(argument, "a Zarr store of version 2", f"version 3 in {source}")
        described = sorted(source.glob("*/.zarray"))
        if not described:
            raise ArgumentValueError(argument, wanted, f"{source}, a folder without arrays")
        check_files(source, argument)
        total = sum(_needed(path, argument, wanted) for path in described)
        check_fits(total, argument, f"{source} declares it")
    elif not source.is_file():
        raise ArgumentValueError(argument, wanted, f"{source}, no regular file")
    else:
        require("netcdf", argument, "reading a NetCDF file")
    try:
        with opened(source) as dataset:
            needed = sum(_bytes(variable.shape, variable.dtype) for variable in dataset.variables.values())
            check_fits(needed, argument, f"{source} declares it")
            return dataset.load()
    except TokenDynamicsError:
        raise
    except Exception as error:  # what readers and codecs raise of damaged files is theirs to choose
        raise ArgumentValueError(argument, wanted, f"{source} ({error})") from error


def opened(target: Path) -> xr.Dataset:
    """Open a store or file; without indexes nothing is read yet, however long an axis says that it is."""
    options: dict[str, Any] = {"engine": "zarr", "consolidated": False} if target.is_dir() else {"engine": "h5netcdf"}
    return xr.open_dataset(target, create_default_indexes=False, **options)


def check_files(store: Path, argument: str) -> None:
    """Refuse a store that holds a device, a pipe or a link to one, or a file larger than the memory.

    Descriptions are held to the size of a JSON file, which takes many times its size in memory.

    Raises:
        ArgumentValueError: The file is named.
        MemoryLimitError: A chunk is larger than the memory.
    """
    sizes = {
        path: check_regular(path, argument, described=path.name == "zarr.json" or path.name.startswith(".z"))
        for path in _files(store)
    }
    if sizes:
        largest = max(sizes, key=lambda path: sizes[path])
        check_fits(sizes[largest], argument, f"{largest} has that size")


def _files(folder: Path) -> Iterator[Path]:
    for name, folders, files in os.walk(folder):
        for entry in files:
            yield Path(name, entry)
        for entry in folders:
            if Path(name, entry).is_symlink():
                yield Path(name, entry)


def check_arrays_3(store: Path, argument: str, wanted: str) -> None:
    """Refuse a Zarr store of version 3 whose arrays need code beyond that of the codecs that move bytes.

    What is checked are the descriptions of the arrays themselves; a reader has to use these and not the copies that
    the store may hold elsewhere (``consolidated=False``).

    Raises:
        ArgumentValueError: A codec or data type that is not known, an array that is damaged, a file that is no
            regular one.
        MemoryLimitError: It declares an axis, or a chunk, that is larger than the memory.
    """
    check_files(store, argument)
    for described in sorted(store.glob("*/zarr.json")):
        name, entry = described.parent.name, read_json(described, argument)
        try:
            if entry["node_type"] != "array":
                continue
            kind, codecs = entry["data_type"], [codec["name"] for codec in entry["codecs"]]
            shape, chunks = entry["shape"], entry["chunk_grid"]["configuration"]["chunk_shape"]
            lengths = [_length(length) for length in (*shape, *chunks)]
            further = entry.get("storage_transformers") or []
        except (KeyError, TypeError, ValueError) as error:
            raise ArgumentValueError(argument, wanted, f"{described} ({shown(str(error))[1:-1]})") from error
        if not isinstance(kind, str) or not _TYPES_3.fullmatch(kind):
            raise ArgumentValueError(argument, "an array of numbers or words", f"{shown(kind)} at {name!r}")
        unknown = next((codec for codec in codecs if codec not in _CODECS_3), None)
        if unknown is not None or further:
            known = f"a codec among {', '.join(sorted(_CODECS_3))}"
            raise ArgumentValueError(argument, known, f"{shown(unknown or further)} at {name!r}")
        width = _LONGEST_WORD if kind == "string" else np.dtype(kind).itemsize
        # Axes are read whole as soon as the store is opened, other arrays by chunks.
        least = lengths[: len(shape)] if len(shape) == 1 else lengths[len(shape) :]
        check_fits(math.prod(least) * width, argument, f"{described} declares it")


def _needed(described: Path, argument: str, wanted: str) -> int:
    """Count the bytes of one array, or of one of its chunks if that is more."""
    name, entry = described.parent.name, read_json(described, argument)
    try:
        codecs = [codec["id"] for codec in (entry["compressor"], *(entry["filters"] or ())) if codec is not None]
        shape, chunks, dtype = entry["shape"], entry["chunks"], np.dtype(entry["dtype"])
        lengths = [_length(length) for length in (*shape, *chunks)]
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentValueError(argument, wanted, f"{described} ({shown(str(error))[1:-1]})") from error
    unknown = next((codec for codec in codecs if codec not in _CODECS), None)
    if unknown is not None:
        known = f"a codec among {', '.join(sorted(_CODECS))}"
        raise ArgumentValueError(argument, known, f"{shown(unknown)} at {name!r}")
    return max(_bytes(lengths[: len(shape)], dtype), _bytes(lengths[len(shape) :], dtype))


def _length(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"a length of {value!r}")
    return value


def _bytes(shape: Any, dtype: np.dtype) -> int:
    return math.prod(shape) * (_LONGEST_WORD if dtype.hasobject else dtype.itemsize)
