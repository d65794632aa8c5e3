"""What the arguments of trainable modules may be."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_device

_FORMATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

LARGEST = 1e12
"""Of the numbers that parameters start with: the product of three is within float32."""


def placement(device: torch.device | str | None, dtype: torch.dtype | None) -> dict[str, Any]:
    """Return where parameters are made, and in which number format, as PyTorch's modules take them.

    Raises:
        ArgumentTypeError, ArgumentValueError: No device of this machine (nor "meta", for parameters without values), or
            a format without halves and thirds.

    >>> placement("cpu", None)
    {'device': device(type='cpu'), 'dtype': None}
    """
    if dtype is not None and dtype not in _FORMATS:
        raise ArgumentValueError("dtype", "None or one of " + ", ".join(map(str, _FORMATS)), dtype)
    empty = isinstance(device, torch.device | str) and str(device) == "meta"
    return {"device": device if device is None or empty else as_device(device, "device"), "dtype": dtype}


def check_shares(**shares: float) -> None:
    """Refuse a share, such as a dropout, outside 0 to below 1."""
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise ArgumentValueError(name, "a share from 0 to below 1", share)


def check_spreads(**spreads: float | None) -> None:
    """Refuse a standard deviation that is negative, not finite or above `LARGEST`; None stands for a default."""
    for name, spread in spreads.items():
        if spread is not None and not 0 <= spread <= LARGEST:
            limit = f" to {LARGEST:g}" if LARGEST < spread < math.inf else ""
            raise ArgumentValueError(name, f"a standard deviation from 0{limit}, or None", spread)


def check_choices(**chosen: tuple[str, Collection[str]]) -> None:
    """Refuse a value that is not one of the known ones, for each ``name=(value, known)``."""
    for name, (value, known) in chosen.items():
        if value not in known:
            raise ArgumentValueError(name, "one of " + ", ".join(known), repr(value))


def check_sizes(**sizes: int) -> None:
    """Refuse a size below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ArgumentValueError(name, "an integer from 1", size)


def check_heads(**numbers: int) -> None:
    """Refuse a number of heads that does not divide the features of a token: ``check_heads(dim=4, heads=2)``."""
    (dim, features), (heads, count) = numbers.items()
    if count < 1 or features % count:
        raise ArgumentValueError(heads, f"a divisor of {dim} = {features}", count)
