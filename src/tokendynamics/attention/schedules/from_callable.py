"""Circuits that a user's function of time returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tokendynamics.attention.frozen import Dense, Frozen
from tokendynamics.attention.schedules.axes import with_head_axis
from tokendynamics.attention.schedules.schedule import Continuous, Time
from tokendynamics.numerics.arguments import as_tensor
from tokendynamics.numerics.errors import ArgumentValueError, expected


class FromCallable(Continuous):
    """Any function of time that returns a matrix; whether it stays bounded or is continuous cannot be known.

    Args:
        function: From a time (a float) to (dim, dim) or (head, dim, dim); always the same shape. It is called with 0.0
            first, to learn that shape.
        argument: The argument's name in messages.
    """

    constant = False
    bounded: bool | None = None
    uniformly_continuous: bool | None = None

    def __init__(
        self,
        function: Callable[[float], Any],
        argument: str,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.function, self.argument, self._dtype, self._device = function, argument, dtype, device
        self.shape = tuple(self._evaluate(0.0).shape)

    def __repr__(self) -> str:
        return f"FromCallable({self.argument}, {self.shape})"

    def at(self, t: Time) -> Frozen:
        """See `Schedule`."""
        if not (isinstance(t, Tensor) and t.ndim):
            return Dense(self.matrix_at(float(t)))
        found: dict[float, Tensor] = {}
        for time in t.tolist():
            if time not in found:
                found[time] = self.matrix_at(time)
        if len(found) == 1:
            return Dense(next(iter(found.values())))
        return Dense(torch.stack([found[time] for time in t.tolist()]))

    def matrix_at(self, t: float) -> Tensor:
        """See `Schedule`."""
        matrix = self._evaluate(t, finite=False)
        if matrix.shape != self.shape:
            wanted = f"a matrix of shape {self.shape} at every time"
            raise ArgumentValueError(expected(f"{self.argument}({t})", wanted, f"shape {tuple(matrix.shape)}"))
        return matrix

    def flattened(self) -> FromCallable:
        """See `Schedule`."""
        return self

    def select(self, systems: Tensor) -> FromCallable:
        """See `Schedule`."""
        return self

    def to(self, *, dtype: torch.dtype, device: torch.device) -> FromCallable:
        """See `Schedule`."""
        return FromCallable(self.function, self.argument, dtype=dtype, device=device)

    def _evaluate(self, t: float, *, finite: bool = True) -> Tensor:
        # Later on a NaN is left to the engine, which ends the run with a status and keeps what was reached.
        name = f"{self.argument}({t})"
        matrix = as_tensor(self.function(t), name, ndim_at_least=2, axes="(…, dim, dim)", finite=finite)
        if matrix.ndim > 3:
            wanted = "(dim, dim) or (head, dim, dim)"
            raise ArgumentValueError(expected(f"{self.argument}({t})", wanted, f"shape {tuple(matrix.shape)}"))
        return with_head_axis(matrix).to(dtype=self._dtype, device=self._device)
