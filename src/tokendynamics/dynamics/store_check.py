"""What a saved trajectory declares, read before anything of it is: codecs that run nothing, sizes that fit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.numerics.errors import ArgumentValueError, expected, shown
from tokendynamics.numerics.memory import check_fits
from tokendynamics.provenance.reading import read_json

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
