"""Reads back NumPy files that anyone may have written: bounded, without running code, with typed errors."""

from __future__ import annotations

import tokenize
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.resources import check_fits
from tokendynamics.provenance.reading import check_regular, unreadable

_LONGEST_HEADER = 10_000
_DAMAGED = (
    *(OSError, ValueError, EOFError, RecursionError, SyntaxError, TypeError, OverflowError),
    tokenize.TokenError,  # NumPy takes a header that is no Python apart once more, for one of Python 2
)


def read_npy(path: Path, argument: str) -> np.ndarray:
    """Read the array of a .npy file; objects, which would have to be unpickled, are refused.

    Raises:
        ArgumentValueError: No regular file, damaged, of objects, or one that declares more than the file holds.
    """
    size = check_regular(path, argument)
    try:
        with path.open("rb") as stream:
            return _array(stream, size)
    except _DAMAGED as error:
        raise unreadable(path, argument, "a NumPy array", error) from error


def read_npz(path: Path, argument: str) -> dict[str, np.ndarray]:
    """Read the arrays of a .npz file by name; each only if it declares what its member holds.

    Raises:
        ArgumentValueError: No regular file, no archive, a damaged member, or objects.
        MemoryLimitError: Unpacked it is larger than the memory of this machine.
    """
    check_regular(path, argument)
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            check_fits(sum(member.file_size for member in members), argument, f"{path} is a small file of large arrays")
            return {member.filename.removesuffix(".npy"): _member(archive, member) for member in members}
    except (*_DAMAGED, RuntimeError, zipfile.BadZipFile, NotImplementedError) as error:
        raise unreadable(path, argument, "a NumPy archive", error) from error
    except Exception as error:
        if type(error).__module__ in ("zlib", "lzma"):  # their errors have no common base
            raise unreadable(path, argument, "a NumPy archive", error) from error
        raise


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as stream:
        return _array(stream, member.file_size)


def _array(stream: Any, size: int) -> np.ndarray:
    """Read one array in NumPy's format, whose header is checked against the bytes present."""
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"NumPy's format {version[0]}.{version[1]} is not known")
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read_header(stream, max_header_size=_LONGEST_HEADER)
    if dtype.kind not in "fiubc":
        raise ValueError(f"not numbers, but {'objects' if dtype.hasobject else shown(dtype)}")
    if any(not isinstance(length, int) or length < 0 for length in shape):
        raise ValueError(f"shape {shape}")
    count = 1
    for length in shape:
        count *= length
    if count * dtype.itemsize > size:
        raise ValueError(f"shape {shape} declared, which is {count * dtype.itemsize} bytes, in a file of {size}")
    content = stream.read(count * dtype.itemsize)
    if len(content) < count * dtype.itemsize:
        raise ValueError(f"{len(content)} bytes of {count * dtype.itemsize}")
    return np.frombuffer(bytearray(content), dtype=dtype).reshape(shape, order="F" if fortran else "C")
