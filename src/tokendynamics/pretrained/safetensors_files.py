"""Tensors of a folder of safetensors files, read one at a time and never mapped for longer than that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from tokendynamics.numerics.errors import CheckpointError, expected
from tokendynamics.pretrained.messages import in_short

_INDEX = "model.safetensors.index.json"


class SafetensorsFiles:
    """The tensors of a checkpoint folder, single or sharded; only the headers are read on construction.

    Attributes:
        shapes: Shape of every tensor by its stored name.
    """

    def __init__(self, folder: Path) -> None:
        self.shapes: Mapping[str, tuple[int, ...]] = {}
        self._files: dict[str, Path] = {}
        for path in safetensors_paths(folder):
            shapes = _header(path)
            self.shapes |= shapes
            self._files |= dict.fromkeys(shapes, path)

    def read(self, name: str) -> Tensor:
        """Return a copy of one tensor in its stored dtype.

        The file is opened for this tensor alone: pages of a mapped file count as resident memory for as long as
        the mapping lives, and an audit must stay within one layer.
        """
        from safetensors import SafetensorError, safe_open

        path = self._files[name]
        try:
            with safe_open(path, framework="pt") as file:
                return file.get_tensor(name).clone()
        except (SafetensorError, OSError) as error:
            raise _broken(path, error) from error


def safetensors_paths(folder: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint folder, in order; none if it has none.

    Raises:
        CheckpointError: A broken index, a shard that is missing, or several files that no index connects.
    """
    index, single = folder / _INDEX, folder / "model.safetensors"
    if index.is_file():
        return _shards(folder, read_index(index))
    if single.is_file():
        return [single]
    found = sorted(folder.glob("*.safetensors"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:3])
        advice = f"add {_INDEX} or keep only the model's own file"
        raise CheckpointError(expected(str(folder), "one safetensors file or an index", names, advice))
    return found


def read_index(index: Path) -> list[str]:
    """Return the names of the shards that an index file lists, each once, in order."""
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        came = f"an unreadable file ({in_short(error)})"
        raise CheckpointError(expected(str(index), "a JSON object with a weight_map", came)) from error
    # A shard lies beside its index; anything else could point at any file of the machine.
    strange = [name for name in names if not isinstance(name, str) or Path(name).name != name]
    if strange:
        raise CheckpointError(expected(str(index), "plain file names as shards", repr(strange[0])))
    return names


def _shards(folder: Path, names: list[str]) -> list[Path]:
    paths = [folder / name for name in names]
    for path in paths:
        if not path.is_file():
            advice = "copy the whole checkpoint again"
            raise CheckpointError(
                expected(str(folder), f"the shard {path.name} that its index names", "no such file", advice)
            )
    return paths


def _header(path: Path) -> dict[str, tuple[int, ...]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise _broken(path, error) from error


def _broken(path: Path, error: Exception) -> CheckpointError:
    came = f"a truncated or corrupt one ({in_short(error)})"
    return CheckpointError(expected(str(path), "a complete safetensors file", came, "copy or download it again"))
