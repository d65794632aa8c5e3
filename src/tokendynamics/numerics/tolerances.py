"""The thresholds below which a computed number counts as zero, each with the scale it is relative to."""

from __future__ import annotations

import torch
from torch import Tensor

NEAR_ZERO = 1e-3
"""|λ| below which `positional` (Table 7) calls an eigenvalue of the value map near zero. Absolute: it depends on
the scale of the weights, so a count relative to the spectral radius stands beside it everywhere."""


def rounding_threshold(scale: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Return ``size · eps(dtype) · scale``: what rounding alone can make of an exact zero.

    Args:
        scale: The largest singular value, or an upper bound of it.
        size: The larger side of the matrix.
        dtype: The precision the matrix CAME in (a float32 product keeps float32 noise after a cast).
    """
    return size * torch.finfo(dtype).eps * scale
