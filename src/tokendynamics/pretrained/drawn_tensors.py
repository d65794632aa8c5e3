"""Tensors of an untrained network, drawn one at a time: the same values whatever is asked for, in any order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from tokendynamics.pretrained.adapters.adapter import Law


class DrawnTensors:
    """Initial weights of an architecture, each from its own generator seeded by (seed, name).

    Attributes:
        shapes: Shape of every tensor by its name in the base model.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], law: Callable[[str], Law], seed: int) -> None:
        self.shapes = shapes
        self._law = law
        self._seed = seed

    def read(self, name: str) -> Tensor:
        """Draw one tensor, float32."""
        law, shape = self._law(name), self.shapes[name]
        if law.std == 0.0:
            return torch.full(shape, law.constant)
        name_key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, name_key])))
        tensor = torch.from_numpy(generator.standard_normal(shape, dtype=np.float32)).mul_(law.std)
        if law.zero_row is not None:
            tensor[law.zero_row] = 0.0
        return tensor
