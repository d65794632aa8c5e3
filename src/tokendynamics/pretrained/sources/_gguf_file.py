"""A GGUF file that is split over several, `NAME-00001-of-00003.gguf` and so on, put together for its readers."""

from __future__ import annotations

import errno
import mmap
import os
import re
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected, shown
from tokendynamics.numerics.resources import check_fits
from tokendynamics.pretrained.sources._configuration import MOST_LAYERS
from tokendynamics.pretrained.sources._gguf_settings import FAMILIES
from tokendynamics.provenance.reading import kind_of

_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_AXES = 4
_LEAST_TENSOR, _LEAST_ENTRY = 24, 13  # bytes of the shortest description that can be written
_LARGEST = 2**31

_COUNTS = ("block_count", "embedding_length", "feed_forward_length", "context_length", "attention.head_count")
_POSITIVE = (
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
)
_OPTIONAL_COUNTS = ("attention.head_count_kv", "vocab_size", "rope.dimension_count")

_SIDES = (("token_embd.weight", 0, "embedding_length"), ("blk.0.ffn_up.weight", 1, "feed_forward_length"))
_FUSED = {"phi3": {"feed_forward_length": 2}}
"""Architectures that store the gate and the other half of the feed-forward part as one matrix."""


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says of itself.

    Attributes:
        metadata: Values by name; of an array its length alone, as ``range(length)``.
        shapes: Shape of each tensor, the fastest axis first.
    """

    metadata: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]


def read_header(path: Path) -> GgufHeader:
    """Read and check the header of a GGUF file.

    Raises:
        CheckpointError: Another format or version, a count or length that the file cannot hold, a tensor that ends
            behind it, or sizes that no network of its architecture has.
        MemoryLimitError: Weights that do not fit into the memory.
    """
    header = read_part(path)
    _check_sizes(path, header)
    check_fits(4 * sum(prod(shape) for shape in header.shapes.values()), str(path))
    return header


def read_part(path: Path) -> GgufHeader:
    """Read the header of a GGUF file that may be one of several; sizes are checked where all tensors are together.

    Raises:
        CheckpointError: It is no complete GGUF file.
    """
    if path.stat().st_size == 0:
        raise _IncompleteError(path, "an empty file")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _Reader(path, data).header()


class _IncompleteError(CheckpointError):
    def __init__(self, path: Path, came: str) -> None:
        super().__init__(expected(str(path), "a complete GGUF file", came, "download it again"))


class _Reader:
    """A position in the bytes of a file, which it never leaves."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._at = path, data, 0

    def header(self) -> GgufHeader:
        magic, version, tensors, entries = self._numbers("4sIQQ")
        if magic != b"GGUF" or version not in _VERSIONS:
            raise self._refused(f"version {version}; versions 2 and 3 can be read")
        left = len(self._data) - self._at
        if tensors * _LEAST_TENSOR + entries * _LEAST_ENTRY > left:
            raise self._refused(f"{tensors} tensors and {entries} entries in {left} bytes")
        metadata = {self._text(): self._value(*self._numbers("I")) for _ in range(entries)}
        infos = [self._tensor() for _ in range(tensors)]
        if len({name for name, *_ in infos}) < tensors:
            raise self._refused("two tensors of one name")
        self._check_data(metadata.get("general.alignment", 32), infos)
        return GgufHeader(metadata, {name: shape for name, shape, *_ in infos})

    def _check_data(self, alignment: Any, infos: list[tuple[str, tuple[int, ...], int, int]]) -> None:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        if not isinstance(alignment, int) or not 0 < alignment <= _LARGEST:
            raise self._refused(f"an alignment of {shown(alignment)}")
        start = -(-self._at // alignment) * alignment
        for name, shape, kind, offset in infos:
            try:
                block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
            except (ValueError, KeyError):
                raise self._refused(f"a tensor of type {kind}") from None
            if start + offset + -(-prod(shape) // block) * size > len(self._data):
                raise self._refused(f"one that ends within tensor {shown(name)}")

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, (axes,) = self._text(), self._numbers("I")
        if not 1 <= axes <= _MOST_AXES:
            raise self._refused(f"tensor {shown(name)} with {axes} axes")
        shape = self._numbers(f"{axes}Q")
        if not 0 < prod(shape) < 2**63:
            raise self._refused(f"tensor {shown(name)} of shape {shape}")
        return (name, shape, *self._numbers("IQ"))

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY and depth < _MOST_AXES:
            inner, length = self._numbers("IQ")
            self._skip(inner, length, depth)
            return range(length)
        if kind not in _SCALARS:
            raise self._refused(f"an entry of type {kind}")
        return self._numbers(_SCALARS[kind])[0]

    def _skip(self, kind: int, length: int, depth: int) -> None:
        if kind in _SCALARS:
            self._take(length * struct.calcsize(_SCALARS[kind]))
            return
        self._room(length)
        for _ in range(length):
            self._value(kind, depth + 1)

    def _text(self) -> str:
        (length,) = self._numbers("Q")
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise self._refused("text that is not UTF-8") from None

    def _numbers(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{layout}", self._take(struct.calcsize(f"<{layout}")))

    def _take(self, length: int) -> bytes:
        self._room(length)
        self._at += length
        return self._data[self._at - length : self._at]

    def _room(self, length: int) -> None:
        left = len(self._data) - self._at
        if length > left:
            raise self._refused(f"one that ends too early: {length} bytes wanted at byte {self._at}, {left} left")

    def _refused(self, came: str) -> _IncompleteError:
        return _IncompleteError(self._path, came)


def _check_sizes(path: Path, header: GgufHeader) -> None:
    """Refuse sizes that no network has, and more layers than the file has tensors of."""
    family = header.metadata.get("general.architecture")
    if family not in FAMILIES:  # whose keys are not all known
        wanted = f"one that is read from GGUF ({', '.join(sorted(FAMILIES))})"
        raise CheckpointError("architecture", wanted, shown(family), "convert it to safetensors")
    for name in (*_COUNTS, *_OPTIONAL_COUNTS):
        came = header.metadata.get(f"{family}.{name}")
        if came is None and name in _OPTIONAL_COUNTS:
            continue
        largest = MOST_LAYERS if name == "block_count" else _LARGEST
        if isinstance(came, bool) or not isinstance(came, int) or not 1 <= came <= largest:
            wanted = f"{family}.{name} as a whole number from 1 to {largest:,}"
            raise CheckpointError(str(path), wanted, "an array" if isinstance(came, range) else shown(came))
    for name in _POSITIVE:
        came = header.metadata.get(f"{family}.{name}", 1.0)
        if not isinstance(came, float) or not 0.0 < came < float("inf"):
            raise CheckpointError(str(path), f"{family}.{name} as a positive number", shown(came))
    block_count = header.metadata[f"{family}.block_count"]
    blocks = {name.split(".")[1] for name in header.shapes if name.startswith("blk.")}
    if block_count > len(blocks):
        wanted = f"{family}.block_count of the {len(blocks)} layers that the file holds"
        raise CheckpointError(str(path), wanted, block_count)
    for tensor, axis, name in _SIDES:
        shape, came = header.shapes.get(tensor, ()), header.metadata[f"{family}.{name}"]
        fused = _FUSED.get(str(family), {}).get(name, 1)
        if len(shape) == 2 and shape[axis] != fused * came:
            wanted = f"{family}.{name} of {shape[axis] // fused} as in the tensor {tensor}"
            raise CheckpointError(str(path), wanted, came)


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
        raise CheckpointError(str(path), f"at most {_MOST_SHARDS} shards", count)
    shards = [path.with_name(f"{match['name']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    for shard in shards:
        if not shard.is_file():
            wanted = f"the shard {shard.name} beside it"
            raise CheckpointError(str(path), wanted, kind_of(shard), "copy the whole model again")
    return shards


def name_of(path: Path) -> str:
    """Return what a GGUF file is called, without the number of its shard.

    >>> name_of(Path("tiny-00001-of-00002.gguf")), name_of(Path("tiny.gguf"))
    ('tiny', 'tiny')
    """
    match = _SHARD.fullmatch(path.name)
    return path.stem if match is None else match["name"]


_BLOCK = 4096


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
        read_part(shard)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        target = Path(place) / f"{name_of(shards[0])}.gguf"
        _join(shards, target)
        try:
            read_part(target)
        except CheckpointError as error:  # every shard is complete: what is missing was not written
            with target.open("ab") as file:  # a limit of file size is an error of its own
                file.write(bytes(_BLOCK))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target)) from error
        yield target


def _join(shards: list[Path], target: Path) -> None:
    from gguf import GGUFReader, GGUFWriter

    readers: list[Any] = [GGUFReader(shard) for shard in shards]
    names = [tensor.name for reader in readers for tensor in reader.tensors]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise CheckpointError(str(shards[0]), "each tensor in one shard", f"{twice} in several")
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
