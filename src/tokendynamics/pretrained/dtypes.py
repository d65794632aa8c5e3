"""The number formats a network can run in, by name."""

from __future__ import annotations

import torch

from tokendynamics.numerics.errors import ArgumentValueError, expected

_BY_NAME = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def dtype_of(name: str | torch.dtype) -> torch.dtype:
    """Return the torch dtype called `name`.

    >>> dtype_of("bfloat16")
    torch.bfloat16

    Raises:
        ArgumentValueError: Any other name.
    """
    if name in _BY_NAME.values():
        return name  # pyright: ignore[reportReturnType]
    try:
        return _BY_NAME[str(name)]
    except KeyError:
        raise ArgumentValueError(expected("dtype", " or ".join(_BY_NAME), repr(str(name)))) from None


def at_least_single(tensor: torch.Tensor) -> torch.Tensor:
    """Return half-precision values as float32 (no linear algebra exists below it), others as they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
