"""The precision in which matrices are built from parameters."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return the tensor in float32, or in float64 where it is in float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def without_autocast(like: Tensor) -> torch.autocast:
    """Return a context in which products of tensors on the device of `like` keep their precision.

    >>> with torch.autocast("cpu", torch.bfloat16), without_autocast(torch.eye(2)):
    ...     (torch.eye(2) @ torch.eye(2)).dtype
    torch.float32
    """
    device = "cpu" if like.is_meta else like.device.type  # autocast does not know the device "meta"
    return torch.autocast(device, enabled=False)
