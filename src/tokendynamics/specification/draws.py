"""Where the random numbers of a file come from: a seed for each law, or a stream for each system of a sweep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from tokendynamics.numerics.seeding import generator
from tokendynamics.numerics.streams import normal_of_systems, uniform_of_systems
from tokendynamics.specification.toml import KeyPath


@runtime_checkable
class Draws(Protocol):
    """What the laws of a file are drawn from.

    Attributes:
        systems: How many systems draw each their own numbers of a law without a seed; None where each law has a seed.
    """

    @property
    def systems(self) -> int | None:
        """See the class."""
        ...

    def normal(self, seed: int | None, path: KeyPath, *shape: int) -> Tensor:
        """Return standard normal numbers, (*shape) or, without a seed, (system, *shape); float64."""
        ...

    def uniform(self, seed: int | None, path: KeyPath, *shape: int) -> Tensor:
        """Return numbers uniform on (0, 1), likewise."""
        ...


@dataclass(frozen=True)
class OfSeeds:
    """Every law has a seed."""

    systems: None = None

    def normal(self, seed: int | None, path: KeyPath, *shape: int) -> Tensor:
        """See `Draws`."""
        return torch.randn(*shape, dtype=torch.float64, generator=_seeded(seed))

    def uniform(self, seed: int | None, path: KeyPath, *shape: int) -> Tensor:
        """See `Draws`."""
        return torch.rand(*shape, dtype=torch.float64, generator=_seeded(seed))


def _seeded(seed: int | None) -> torch.Generator:
    if seed is None:
        raise AssertionError
    return generator(seed)


@dataclass(frozen=True)
class OfSystems:
    """Systems `first` … `first` + `systems` − 1 of a point: a law without a seed has a stream of each system.

    Attributes:
        key: The seed of the sweep and the coordinates of the point, in words.
        first: Number of the first system.
        systems: How many.
    """

    key: str
    first: int
    systems: int

    def normal(self, seed: int | None, path: KeyPath, *shape: int) -> Tensor:
        """See `Draws`."""
        return OfSeeds().normal(seed, path, *shape) if seed is not None else self._of(normal_of_systems, path, shape)

    def uniform(self, seed: int | None, path: KeyPath, *shape: int) -> Tensor:
        """See `Draws`."""
        return OfSeeds().uniform(seed, path, *shape) if seed is not None else self._of(uniform_of_systems, path, shape)

    def _of(self, law: Callable[..., np.ndarray], path: KeyPath, shape: tuple[int, ...]) -> Tensor:
        numbers = law(f"{self.key} {'.'.join(map(str, path))}", self.first, self.systems, int(np.prod(shape)))
        return torch.from_numpy(numbers).reshape(self.systems, *shape)
