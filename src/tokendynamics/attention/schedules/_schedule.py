"""What every schedule of circuits can do, the axes of its matrices, and circuits that do not depend on time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from tokendynamics.attention._circuits import FactoredMatrix
from tokendynamics.attention.circuit_at_time import CircuitAtTime, Dense, Factored, Multiple


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

    >>> isinstance(Constant(torch.eye(2).unsqueeze(0)), Schedule)
    True
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def constant(self) -> bool: ...

    @property
    def bounded(self) -> bool | None: ...

    @property
    def uniformly_continuous(self) -> bool | None: ...

    def at(self, t: Time) -> CircuitAtTime:
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


@dataclass(frozen=True)
class Constant(Continuous):
    """Matrices that do not depend on time.

    Attributes:
        matrix: (*system, head, dim, dim) dense, or its factors.

    >>> from tokendynamics.attention.schedules.conversion import as_schedule
    >>> as_schedule([[1.0, 0.0], [0.0, 2.0]], "qk").shape
    (1, 2, 2)
    """

    matrix: Tensor | FactoredMatrix
    constant: bool = True
    bounded: bool | None = True
    uniformly_continuous: bool | None = True

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Schedule`."""
        if isinstance(self.matrix, FactoredMatrix):
            return (*self.matrix.left.shape[:-1], self.matrix.dim)
        return tuple(self.matrix.shape)

    @cached_property
    def multiple(self) -> Tensor | None:
        """c_h, (*system, head), if every matrix is exactly c_h times the identity; else None."""
        if isinstance(self.matrix, FactoredMatrix) or self.matrix.shape[-1] != self.matrix.shape[-2]:
            return None
        if self.matrix.requires_grad:
            return None  # The gradient is one of all entries, also of those that are zero.
        diagonal = self.matrix.diagonal(dim1=-2, dim2=-1)
        multiple = diagonal[..., 0]
        exact = torch.equal(self.matrix, torch.diag_embed(multiple.unsqueeze(-1).expand_as(diagonal)))
        return multiple if exact else None

    def at(self, t: Time) -> CircuitAtTime:
        """See `Schedule`."""
        if isinstance(self.matrix, FactoredMatrix):
            return Factored(self.matrix)
        return Dense(self.matrix) if self.multiple is None else Multiple(self.multiple, self.matrix.shape[-1])

    def matrix_at(self, t: float) -> Tensor:
        """See `Schedule`."""
        return self.matrix.dense() if isinstance(self.matrix, FactoredMatrix) else self.matrix

    def flattened(self) -> Constant:
        """See `Schedule`."""
        return Constant(mapped(self.matrix, lambda tensor: one_system_axis(tensor, 3)))

    def select(self, systems: Tensor) -> Constant:
        """See `Schedule`."""
        return self if len(self.shape) == 3 else Constant(mapped(self.matrix, lambda tensor: tensor[systems]))

    def to(self, *, dtype: torch.dtype, device: torch.device) -> Constant:
        """See `Schedule`."""
        return Constant(mapped(self.matrix, lambda tensor: tensor.to(dtype=dtype, device=device)))
