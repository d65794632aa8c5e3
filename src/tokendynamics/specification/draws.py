"""Where the random numbers of a file come from: a seed for each law, or a stream for each system of a sweep.

The numbers of a system's stream depend on a key and its number, not on who is drawn beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from tokendynamics.numerics.arguments import generator
from tokendynamics.specification.toml import KeyPath

_BLOCK = 4
"""Words of 64 bits that a step of the counter gives."""
_BYTES_OF_NOISE = 7
"""Of the seed of noise, which has at most 63 bits."""


def uniform_of_systems(key: str, first: int, count: int, size: int) -> np.ndarray:
    """Draw `size` numbers uniform on (0, 1) for each of the systems from `first` on.

    Philox is a function of a key and a counter (J. K. Salmon et al., 2011): the key is the SHA-256 of a text, the
    counter begins at the system's number times the steps that a system needs.

    Args:
        key: What the numbers belong to.
        first: Number of the first system.
        count: How many systems.
        size: Numbers of each.

    Returns:
        Shape (count, size), float64: (k + ½) / 2^53 for whole k.

    >>> together = uniform_of_systems("a key", 0, 5, 3)
    >>> bool((together[3:] == uniform_of_systems("a key", 3, 2, 3)).all())
    True
    """
    steps = -(-size // _BLOCK)
    bits = np.random.Philox(key=_secret(key, 16), counter=first * steps).random_raw(count * steps * _BLOCK)
    return ((bits.reshape(count, -1)[:, :size] >> 11) + 0.5) * 2.0**-53


def _secret(key: str, length: int) -> int:
    """Return the first bytes of the SHA-256 of a text as a number."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:length], "little")


def normal_of_systems(key: str, first: int, count: int, size: int) -> np.ndarray:
    """Draw standard normal numbers as `uniform_of_systems` does: the quantiles of its numbers, one for one.

    >>> normal_of_systems("a key", 7, 1, 2).shape
    (1, 2)
    """
    return ndtri(uniform_of_systems(key, first, count, size))


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

    def noise(self, seed: int | None, path: KeyPath) -> tuple[int, int]:
        """Return seed and first place of the noise of the systems; see `tokendynamics.Noise`."""
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

    def noise(self, seed: int | None, path: KeyPath) -> tuple[int, int]:
        """See `Draws`."""
        del path
        if seed is None:
            raise AssertionError
        return seed, 0


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

    def noise(self, seed: int | None, path: KeyPath) -> tuple[int, int]:
        """See `Draws`; a seed would not make the noise of all systems the same, and is not allowed in a sweep."""
        if seed is not None:
            raise AssertionError
        return _secret(f"{self.key} {'.'.join(map(str, path))}", _BYTES_OF_NOISE), self.first

    def _of(self, law: Callable[..., np.ndarray], path: KeyPath, shape: tuple[int, ...]) -> Tensor:
        numbers = law(f"{self.key} {'.'.join(map(str, path))}", self.first, self.systems, int(np.prod(shape)))
        return torch.from_numpy(numbers).reshape(self.systems, *shape)
