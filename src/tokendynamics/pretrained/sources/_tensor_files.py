"""Tensors of a folder: safetensors one at a time; pickled weights on request, by torch's restricted unpickler."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import shown
from tokendynamics.pretrained.other_libraries import in_short, refusing
from tokendynamics.pretrained.sources._configuration import check_file, read_json_object
from tokendynamics.provenance.reading import kind_of

_SAFE = "model.safetensors"
_PICKLED = "pytorch_model.bin"
_ENDINGS: Mapping[str, tuple[str, ...]] = {_SAFE: (".safetensors",), _PICKLED: (".bin", ".pt", ".pth", ".ckpt")}
"""Endings of the files of a format, by the name that transformers gives a single one."""

WEIGHT_ENDINGS = tuple(ending for endings in _ENDINGS.values() for ending in endings)

# What stands beside the weights of a model.
_NOT_WEIGHTS = ("training_args", "optimizer", "scheduler", "scaler", "rng_state", "adapter_model")
_FOREIGN = (".h5", ".msgpack", ".ot", ".onnx")
_SHARD = re.compile(r"(.+)-(\d{1,9})-of-(\d{1,9})")
_MOST_SHARDS = 10_000
_POINTER = b"version https://git-lfs"


class TensorFiles(ABC):
    """The tensors of a checkpoint.

    Attributes:
        shapes: Shape of every tensor by its stored name, without what `unwrap` took off.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = shapes
        self._wrapper = ""

    def unwrap(self) -> bool:
        """Take off the first part of all names, as modules around a network add one (DataParallel ``module.``).

        Returns:
            Whether all names have the same first part, and something after it.
        """
        parts = {name.partition(".")[0] for name in self.shapes}
        if len(parts) != 1 or not all("." in name for name in self.shapes):
            return False
        wrapper = f"{parts.pop()}."
        self.shapes = {name.removeprefix(wrapper): shape for name, shape in self.shapes.items()}
        self._wrapper += wrapper
        return True

    def rewrap(self) -> None:
        """Give all names back what was taken off."""
        self.shapes = {self._wrapper + name: shape for name, shape in self.shapes.items()}
        self._wrapper = ""

    def read(self, name: str) -> Tensor:
        """Return a copy of one tensor in its stored dtype."""
        return self._read(self._wrapper + name)

    def read_rows(self, name: str, rows: Sequence[int]) -> Tensor:
        """Return some rows of one tensor in its stored dtype."""
        return self._read_rows(self._wrapper + name, rows)

    @abstractmethod
    def _read(self, name: str) -> Tensor: ...

    @abstractmethod
    def _read_rows(self, name: str, rows: Sequence[int]) -> Tensor: ...


class SafetensorsFiles(TensorFiles):
    """Safetensors, in one file or in shards; only the headers are read on construction."""

    def __init__(self, paths: Sequence[Path]) -> None:
        shapes: dict[str, tuple[int, ...]] = {}
        self._files: dict[str, Path] = {}
        for path in paths:
            with _opened(path) as file:
                shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
                self._files |= dict.fromkeys(file.keys(), path)
        super().__init__(shapes)

    def _read(self, name: str) -> Tensor:
        # The file is opened for this tensor alone: pages of a mapped file count as resident memory for as long as
        # the mapping lives, and an audit must stay within one layer.
        with _opened(self._files[name]) as file:
            return file.get_tensor(name).clone()

    def _read_rows(self, name: str, rows: Sequence[int]) -> Tensor:
        """Return some rows; the others are not read."""
        with _opened(self._files[name]) as file:
            whole = file.get_slice(name)
            return torch.cat([whole[row : row + 1] for row in rows])


class PickledFiles(TensorFiles):
    """Pickled weights, memory-mapped where the file format allows it."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._tensors: dict[str, Tensor] = {}
        for path in paths:
            self._tensors |= _tensors(path)
        super().__init__({name: tuple(tensor.shape) for name, tensor in self._tensors.items()})

    def _read(self, name: str) -> Tensor:
        return self._tensors[name].clone()

    def _read_rows(self, name: str, rows: Sequence[int]) -> Tensor:
        return self._tensors[name][list(rows)]


def stored_tensors(folder: Path, file: Path | None, allow_pickle: bool) -> TensorFiles:
    """Return the tensors of a checkpoint folder, or of one file in it; safetensors are preferred.

    Args:
        folder: Of the checkpoint.
        file: Its weights; None for those that transformers reads.
        allow_pickle: Whether pickled weights are read.

    Raises:
        CheckpointError: There are none, they are pickled without the permission, or they cannot be read.
    """
    chosen = None if file is None else [file]
    safe = chosen or safetensors_paths(folder)
    if safe and safe[0].suffix in _ENDINGS[_SAFE]:
        return SafetensorsFiles(safe)
    pickled = chosen or _paths(folder, _PICKLED)
    if pickled and allow_pickle:
        return PickledFiles(pickled)
    foreign = sorted(path.name for path in folder.iterdir() if path.suffix in _FOREIGN)
    came = f"only those of another framework ({foreign[0]})" if foreign else "none"
    advice = "random: before its name draws an untrained network of its configuration"
    if foreign:
        advice = "convert them with an earlier version of transformers (from_tf or from_flax)"
    if pickled:
        came = f"only pickled ones ({pickled[0].name}), which can run code when read"
        advice = "pickled weights that you trust need allow_pickle=True (--allow-pickle)"
    raise CheckpointError(str(file or folder), "safetensors weights", came, advice)


ADAPTER_CONFIGURATION = "adapter_config.json"
"""What PEFT calls the configuration of an adapter."""


def adapter_weights(folder: Path) -> Path | None:
    """Return the file of an adapter's weights in its folder; None without one.

    Raises:
        CheckpointError: It is no regular file.
    """
    paths = (folder / f"adapter_model{ending}" for ending in (".safetensors", ".bin"))
    chosen = next((path for path in paths if os.path.lexists(path)), None)
    if chosen is not None:
        check_file(chosen)
    return chosen


def without_weights(folder: Path) -> bool:
    """Tell whether a folder holds no weights of a model; an adapter's are none.

    Raises:
        CheckpointError: See `safetensors_paths`.
    """
    return not safetensors_paths(folder) and not _paths(folder, _PICKLED)


def safetensors_paths(folder: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint folder, in order; none if it has none.

    Raises:
        CheckpointError: A broken index, a shard that is missing, or several files that no index connects.
    """
    return _paths(folder, _SAFE)


def beside(file: Path) -> Path | None:
    """Return the file of weights that a path stands for in its folder; None for one that the folder means anyway.

    A shard stands for all of them.

    Raises:
        CheckpointError: See `safetensors_paths`.
    """
    single = _SAFE if file.suffix in _ENDINGS[_SAFE] else _PICKLED
    siblings = [path for path in file.parent.iterdir() if path.suffix in _ENDINGS[single]]
    meant = siblings if siblings == [file] else _paths(file.parent, single) if _SHARD.fullmatch(file.stem) else []
    return None if file in meant and (single == _SAFE or not safetensors_paths(file.parent)) else file


def _paths(folder: Path, single: str) -> list[Path]:
    """Return the files of one format in the order in which transformers prefers them: one file, its index, others."""
    index = folder / f"{single}.index.json"
    if os.path.lexists(folder / single):
        check_file(folder / single)
        return [folder / single]
    if index.is_file():
        return _present([folder / name for name in read_index(index)], "that its index names")
    paths = sorted(path for path in folder.iterdir() if path.suffix in _ENDINGS[single] and path.is_file())
    files = [path for path in paths if not path.name.startswith(_NOT_WEIGHTS)]
    if shards := _counted(files):  # their index is not there
        return _present(shards, "that the names of the others count")
    if len(files) > 1:
        names = ", ".join(path.name for path in files[:3])
        advice = f"pass the file itself, add {index.name}, or keep only the model's own file"
        kind = "safetensors file" if single == _SAFE else "file of pickled weights"
        raise CheckpointError(str(folder), f"one {kind} or an index", names, advice)
    return files


def _counted(files: list[Path]) -> list[Path]:
    """Return all the shards of which some are given, by the numbers in their names; none for other files."""
    parts = [_SHARD.fullmatch(path.stem) for path in files]
    sets = {(match[1], match[3], path.suffix) for match, path in zip(parts, files, strict=True) if match}
    if len(sets) != 1 or not all(parts):
        return []
    ((stem, count, ending),) = sets
    numbers = range(1, min(int(count), _MOST_SHARDS) + 1)
    return [files[0].parent / f"{stem}-{number:0{len(count)}}-of-{count}{ending}" for number in numbers]


def _present(paths: list[Path], named: str) -> list[Path]:
    for path in paths:
        if not path.is_file():
            wanted, advice = f"the shard {path.name} {named}", "copy the whole checkpoint again"
            raise CheckpointError(str(path.parent), wanted, kind_of(path), advice)
    return paths


def read_index(index: Path) -> list[str]:
    """Return the names of the shards that an index file lists, each once, in order."""
    wanted = "a JSON object with a weight_map"
    names = read_json_object(index, wanted).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError(str(index), wanted, "none in it" if names is None else shown(names))
    # A shard lies beside its index; anything else could point at any file of the machine.
    strange = [
        name
        for name in names.values()
        if not isinstance(name, str)
        or Path(name).name != name
        or "\0" in name
        or len(name.encode()) > 255
        or name == ".."
    ]
    if strange:
        raise CheckpointError(str(index), "plain file names as shards", shown(strange[0]))
    return sorted(set(names.values()))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import safe_open

    check_file(path)

    def refusal(words: str) -> CheckpointError:
        _check_no_pointer(path)
        came = f"a truncated or corrupt one ({words})"
        return CheckpointError(str(path), "a complete safetensors file", came, "copy or download it again")

    with refusing(refusal), safe_open(path, framework="pt") as file:
        yield file


def _check_no_pointer(path: Path) -> None:
    """Refuse what Git leaves in the place of a large file that it has not fetched."""
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            came, advice = "a pointer of Git LFS", "fetch them with git lfs pull"
            raise CheckpointError(str(path), "weights", came, advice)


def _tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a pickled file: a dictionary of them, or the one such dictionary of a training's state."""
    content = _unpickled(path)
    inside = {str(name): _named_tensors(value) for name, value in content.items()}
    # Weights lie in modules, so that their names have dots; averages, counters and states of generators do not.
    parts = {name: tensors for name, tensors in inside.items() if any("." in inner for inner in tensors)}
    direct = _named_tensors(content)
    if any("." in name for name in direct) or not parts:
        parts = {"": direct} | parts
    (first, tensors), *others = parts.items()
    if others:
        names = ", ".join(name or "the file itself" for name in parts)
        advice = "save the one to read as safetensors"
        raise CheckpointError(str(path), "one dictionary of tensors by name", names, advice)
    if not tensors:
        came = f"none ({', '.join(sorted(inside)[:5])})" if inside and not first else "none"
        raise CheckpointError(str(path), "a dictionary of tensors by name", came)
    return tensors


def _named_tensors(content: Any) -> dict[str, Tensor]:
    items = content.items() if isinstance(content, Mapping) else ()
    return {str(name): value for name, value in items if isinstance(value, Tensor)}


def _unpickled(path: Path) -> Mapping[Any, Any]:
    """Return the dictionary in a pickled file; an empty one for anything else.

    Raises:
        CheckpointError: It cannot be read, or not without running code.
    """
    check_file(path)
    safely: dict[str, Any] = {"map_location": "cpu", "weights_only": True}
    try:
        try:
            content = torch.load(path, mmap=True, **safely)
        except RuntimeError:
            # Files from before torch 1.6 are no zip archives and cannot be mapped.
            content = torch.load(path, **safely)
    except Exception as error:  # torch.load raises nearly anything on a broken or hostile file
        _check_no_pointer(path)
        came, advice = f"one that cannot be read safely ({in_short(error)})", "convert it to safetensors"
        if named := re.search(r"GLOBAL (\S+)", str(error)):
            came = f"one that cannot be read safely (it stores {named[1]}, which is no tensor)"
            advice = "save the model's state_dict() alone"
        raise CheckpointError(str(path), "a file of pickled tensors", came, advice) from error
    return content if isinstance(content, Mapping) else {}
