"""Tensors of a folder of pickled weights: read only on request, and then only by torch's restricted unpickler."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokendynamics.numerics.errors import CheckpointError, expected
from tokendynamics.pretrained.messages import in_short
from tokendynamics.pretrained.safetensors_files import read_index

_INDEX = "pytorch_model.bin.index.json"
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


def pickled_paths(folder: Path) -> list[Path]:
    """Return the files of pickled weights in a folder, in order; none if it has none."""
    index = folder / _INDEX
    if index.is_file():
        return [folder / name for name in read_index(index)]
    found = (path for path in sorted(folder.iterdir()) if path.suffix in _ENDINGS and path.is_file())
    return [path for path in found if not path.name.startswith(_NOT_WEIGHTS)]


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        content = _unpickle(path)
    except Exception as error:  # torch.load raises nearly anything on a broken or hostile file
        came = f"one that cannot be read safely ({in_short(error)})"
        raise CheckpointError(
            expected(str(path), "a file of pickled tensors", came, "convert it to safetensors")
        ) from error
    content = content.get("state_dict", content) if isinstance(content, dict) else {}
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise CheckpointError(expected(str(path), "a dictionary of tensors by name", "none"))
    return tensors


def _unpickle(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:
        # Files from before torch 1.6 are no zip archives and cannot be mapped.
        return torch.load(path, map_location="cpu", weights_only=True)
