"""What every schedule of circuits can do, and the axes of matrices given with or without heads and systems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from tokendynamics.attention._circuit_at_time import Frozen
from tokendynamics.attention._circuits import FactoredMatrix


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


Time: TypeAlias = float | Tensor
"""One time for all systems, or a tensor (system,) with a time for each."""


@runtime_checkable
class Schedule(Protocol):
    """The matrices of all heads over time.

    Attributes:
        shape: (*system, head, dim, dim); without system axes where all systems share the matrices.
        constant: Whether nothing depends on time.
        bounded: Whether the matrices stay bounded for all times; None where that cannot be known (a callable).
        uniformly_continuous: Likewise.

    A schedule may also have `multiple`, (*system, head): numbers c_h such that every matrix is c_h times the identity
    at all times, or None; and `pieces`: the constant schedules that it takes one after the other and over again. Then
    forms of the field and of the theorems that use this are taken.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def constant(self) -> bool: ...

    @property
    def bounded(self) -> bool | None: ...

    @property
    def uniformly_continuous(self) -> bool | None: ...

    def at(self, t: Time) -> Frozen:
        """Return the circuits at time t."""
        ...

    def matrix_at(self, t: float) -> Tensor:
        """Return the dense matrices at time t, of `shape`."""
        ...

    def breaks(self, start: float, end: float) -> list[float]:
        """Return the times strictly between start and end where the matrices jump."""
        ...

    def corners(self, start: float, end: float) -> list[float]:
        """Return the times strictly between start and end of kinks, if these are few enough to step onto."""
        ...

    def within(self, start: float, end: float) -> Schedule:
        """Return a schedule that agrees on the open interval, without a break, and is continuous on the closed one."""
        ...

    def flattened(self) -> Schedule:
        """Return the schedule with all its system axes made one."""
        ...

    def select(self, systems: Tensor) -> Schedule:
        """Return the schedule of some systems, by index along the first axis."""
        ...

    def to(self, *, dtype: torch.dtype, device: torch.device) -> Schedule:
        """Return the same in another precision or place."""
        ...


class Continuous:
    """What schedules without jumps share."""

    def breaks(self, start: float, end: float) -> list[float]:
        """See `Schedule`."""
        return []

    def corners(self, start: float, end: float) -> list[float]:
        """Return none, unless a schedule says otherwise."""
        return []

    def within(self, start: float, end: float) -> Any:
        """See `Schedule`."""
        return self
