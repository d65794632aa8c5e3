"""Circuits that do not depend on time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tokendynamics.attention._circuit_at_time import Dense, Factored, Frozen, Multiple
from tokendynamics.attention._circuits import FactoredMatrix
from tokendynamics.attention.schedules._schedule import Continuous, Time, mapped, one_system_axis


@dataclass(frozen=True)
class Constant(Continuous):
    """Matrices that do not depend on time.

    Attributes:
        matrix: (*system, head, dim, dim) dense, or its factors.
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

    def at(self, t: Time) -> Frozen:
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
