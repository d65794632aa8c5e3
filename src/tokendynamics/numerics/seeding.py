"""Every random draw comes from a seed that the caller passes."""

from __future__ import annotations

import torch

from tokendynamics.numerics.errors import ArgumentTypeError, expected


def generator(seed: int) -> torch.Generator:
    """A generator of its own on the CPU, so that no draw depends on what was drawn before.

    >>> torch.rand(1, generator=generator(0)) == torch.rand(1, generator=generator(0))
    tensor([True])
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ArgumentTypeError(expected("seed", "an integer", repr(seed)))
    return torch.Generator().manual_seed(seed)
