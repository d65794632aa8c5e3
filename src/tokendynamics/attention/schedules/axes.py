"""Axes of matrices given with or without heads and systems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tokendynamics.attention.circuits import FactoredMatrix


def with_head_axis(matrix: Tensor) -> Tensor:
    """Return (dim, dim) as (1, dim, dim); anything longer as it is."""
    return matrix.unsqueeze(0) if matrix.ndim == 2 else matrix


def mapped(matrix: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return the function of a matrix, or of both of its factors."""
    if isinstance(matrix, FactoredMatrix):
        return FactoredMatrix(function(matrix.left), function(matrix.right))
    return function(matrix)


def one_system_axis(tensor: Tensor, axes: int) -> Tensor:
    """Make one of all leading axes but the last `axes`."""
    return tensor.flatten(0, -axes - 1) if tensor.ndim > axes + 1 else tensor
