"""Every random draw comes from a seed that the caller passes."""

from __future__ import annotations

import torch

from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, expected


def generator(seed: int) -> torch.Generator:
    """Return a generator of its own on the CPU, so that no draw depends on what was drawn before.

    >>> torch.rand(1, generator=generator(0)) == torch.rand(1, generator=generator(0))
    tensor([True])
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ArgumentTypeError(expected("seed", "an integer", repr(seed)))
    if not -(2**63) <= seed < 2**63:
        raise ArgumentValueError(expected("seed", "an integer of 64 bits", seed))
    return torch.Generator().manual_seed(seed)
