"""Tensors of a folder: safetensors one at a time; pickled weights on request, by torch's restricted unpickler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected, shown
from tokendynamics.pretrained.other_libraries import in_short, refusing
from tokendynamics.pretrained.sources._configuration import read_json_object

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
            with _opened(path) as file:
                self.shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
                self._files |= dict.fromkeys(file.keys(), path)

    def read(self, name: str) -> Tensor:
        """Return a copy of one tensor in its stored dtype.

        The file is opened for this tensor alone: pages of a mapped file count as resident memory for as long as
        the mapping lives, and an audit must stay within one layer.
        """
        with _opened(self._files[name]) as file:
            return file.get_tensor(name).clone()

    def read_rows(self, name: str, rows: Sequence[int]) -> Tensor:
        """Return some rows of one tensor in its stored dtype; the others are not read."""
        with _opened(self._files[name]) as file:
            whole = file.get_slice(name)
            return torch.cat([whole[row : row + 1] for row in rows])


def safetensors_paths(folder: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint folder, in order; none if it has none.

    Raises:
        CheckpointError: A broken index, a shard that is missing, or several files that no index connects.
    """
    index, single = folder / _INDEX, folder / "model.safetensors"
    if index.is_file():
        paths = [folder / name for name in read_index(index)]
        for path in paths:
            if not path.is_file():
                wanted, advice = f"the shard {path.name} that its index names", "copy the whole checkpoint again"
                raise CheckpointError(expected(str(folder), wanted, "no such file", advice))
        return paths
    if single.is_file():
        return [single]
    files = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    if len(files) > 1:
        names = ", ".join(path.name for path in files[:3])
        advice = f"add {_INDEX} or keep only the model's own file"
        raise CheckpointError(expected(str(folder), "one safetensors file or an index", names, advice))
    return files


def read_index(index: Path) -> list[str]:
    """Return the names of the shards that an index file lists, each once, in order."""
    wanted = "a JSON object with a weight_map"
    names = read_json_object(index, wanted).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError(expected(str(index), wanted, "none in it" if names is None else shown(names)))
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
        raise CheckpointError(expected(str(index), "plain file names as shards", shown(strange[0])))
    return sorted(set(names.values()))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import safe_open

    def refusal(words: str) -> CheckpointError:
        came = f"a truncated or corrupt one ({words})"
        return CheckpointError(expected(str(path), "a complete safetensors file", came, "copy or download it again"))

    with refusing(refusal), safe_open(path, framework="pt") as file:
        yield file


_PICKLED_INDEX = "pytorch_model.bin.index.json"
_ENDINGS = (".bin", ".pt", ".pth")
# What training scripts leave beside the weights.
_NOT_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state")


class PickledFiles:
    """The tensors of a folder of pickled weights, memory-mapped where the file format allows it.

    Attributes:
        shapes: Shape of every tensor by its stored name.
    """

    def __init__(self, paths: list[Path]) -> None:
        self._tensors: dict[str, Tensor] = {}
        for path in paths:
            self._tensors |= _tensors(path)
        self.shapes: Mapping[str, tuple[int, ...]] = {name: tuple(t.shape) for name, t in self._tensors.items()}

    def read(self, name: str) -> Tensor:
        """Return a copy of one tensor in its stored dtype."""
        return self._tensors[name].clone()

    def read_rows(self, name: str, rows: Sequence[int]) -> Tensor:
        """Return some rows of one tensor in its stored dtype."""
        return self._tensors[name][list(rows)]


def pickled_paths(folder: Path) -> list[Path]:
    """Return the files of pickled weights in a folder, in order; none if it has none."""
    index = folder / _PICKLED_INDEX
    if index.is_file():
        return [folder / name for name in read_index(index)]
    paths = (path for path in sorted(folder.iterdir()) if path.suffix in _ENDINGS and path.is_file())
    return [path for path in paths if not path.name.startswith(_NOT_WEIGHTS)]


def _tensors(path: Path) -> dict[str, Tensor]:
    safely: dict[str, Any] = {"map_location": "cpu", "weights_only": True}
    try:
        try:
            content = torch.load(path, mmap=True, **safely)
        except RuntimeError:
            # Files from before torch 1.6 are no zip archives and cannot be mapped.
            content = torch.load(path, **safely)
    except Exception as error:  # torch.load raises nearly anything on a broken or hostile file
        came, advice = f"one that cannot be read safely ({in_short(error)})", "convert it to safetensors"
        raise CheckpointError(expected(str(path), "a file of pickled tensors", came, advice)) from error
    content = content.get("state_dict", content) if isinstance(content, dict) else {}
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise CheckpointError(expected(str(path), "a dictionary of tensors by name", "none"))
    return tensors
