"""Random numbers of many systems: those of a system depend on a key and its number, not on who is drawn beside it."""

from __future__ import annotations

import hashlib

import numpy as np
from scipy.special import ndtri

_BLOCK = 4
"""Words of 64 bits that a step of the counter gives."""


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
    secret = int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "little")
    bits = np.random.Philox(key=secret, counter=first * steps).random_raw(count * steps * _BLOCK)
    return ((bits.reshape(count, -1)[:, :size] >> 11) + 0.5) * 2.0**-53


def normal_of_systems(key: str, first: int, count: int, size: int) -> np.ndarray:
    """Draw standard normal numbers as `uniform_of_systems` does: the quantiles of its numbers, one for one.

    >>> normal_of_systems("a key", 7, 1, 2).shape
    (1, 2)
    """
    return ndtri(uniform_of_systems(key, first, count, size))
