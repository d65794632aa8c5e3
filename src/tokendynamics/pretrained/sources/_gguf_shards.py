"""A GGUF file that is split over several, `NAME-00001-of-00003.gguf` and so on, put together for its readers."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained.sources._gguf_header import check_part

_SHARD = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_MOST_SHARDS = 1000


def shards_of(path: Path) -> list[Path]:
    """Return the files that a GGUF file is one of, in order; the file alone where it is whole.

    Raises:
        CheckpointError: One of them is not there.

    >>> shards_of(Path("tiny.gguf"))
    [PosixPath('tiny.gguf')]
    """
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if not 0 < count <= _MOST_SHARDS:
        raise CheckpointError(expected(str(path), f"at most {_MOST_SHARDS} shards", count))
    found = [path.with_name(f"{match['name']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    for shard in found:
        if not shard.is_file():
            wanted = f"the shard {shard.name} beside it"
            raise CheckpointError(expected(str(path), wanted, "no such file", "copy the whole model again"))
    return found


def name_of(path: Path) -> str:
    """Return what a GGUF file is called, without the number of its shard.

    >>> name_of(Path("tiny-00001-of-00002.gguf")), name_of(Path("tiny.gguf"))
    ('tiny', 'tiny')
    """
    match = _SHARD.fullmatch(path.name)
    return path.stem if match is None else match["name"]


@contextmanager
def joined(shards: list[Path], folder: Path) -> Iterator[Path]:
    """Give one file with all tensors, and the first shard's metadata; written below `folder`, and removed after.

    Raises:
        CheckpointError: A shard is broken, or two of them hold one tensor.
        OSError: There is no room for the file.
    """
    if len(shards) == 1:
        yield shards[0]
        return
    for shard in shards:
        check_part(shard)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        target = Path(place) / f"{name_of(shards[0])}.gguf"
        _join(shards, target)
        try:
            check_part(target)
        except CheckpointError as error:  # every shard is complete: what is missing was not written
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target)) from error
        yield target


def _join(shards: list[Path], target: Path) -> None:
    from gguf import GGUFReader, GGUFWriter

    readers: list[Any] = [GGUFReader(shard) for shard in shards]
    names = [tensor.name for reader in readers for tensor in reader.tensors]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise CheckpointError(expected(str(shards[0]), "each tensor in one shard", f"{twice} in several"))
    fields = readers[0].fields
    writer: Any = GGUFWriter(target, fields["general.architecture"].contents())
    for name, field in fields.items():
        if name != "general.architecture" and not name.startswith(("GGUF.", "split.")):
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    tensors = [tensor for reader in readers for tensor in reader.tensors]
    for tensor in tensors:
        data = tensor.data
        writer.add_tensor_info(tensor.name, data.shape, data.dtype, data.nbytes, tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(tensor.data)
    writer.close()
