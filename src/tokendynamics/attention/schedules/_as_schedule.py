"""What a user passes where circuits are expected: matrices, schedules, or a function of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tokendynamics.attention._circuit_at_time import Dense, Frozen
from tokendynamics.attention._circuits import FactoredMatrix
from tokendynamics.attention.schedules._constant import Constant
from tokendynamics.attention.schedules._per_head import side_by_side
from tokendynamics.attention.schedules._schedule import Continuous, Schedule, Time, mapped, with_head_axis
from tokendynamics.numerics._arguments import ArrayLike, as_tensor
from tokendynamics.numerics._errors import ArgumentTypeError, ArgumentValueError, expected


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


ScheduleLike: TypeAlias = ArrayLike | FactoredMatrix | Schedule | Callable[[float], Any] | Sequence[Any]


def as_schedule(value: ScheduleLike, argument: str) -> Schedule:
    """Read what a user passes where circuits are expected as a schedule; a list may hold one for each head.

    Raises:
        ArgumentTypeError: Not a matrix, a schedule or a callable; or integer or complex numbers.
        ArgumentValueError: Fewer than two axes, or numbers that are not finite.
    """
    if isinstance(value, Schedule):
        return value
    if isinstance(value, list | tuple) and any(_stands_for_itself(entry) for entry in value):
        return side_by_side([as_schedule(entry, f"{argument}[{i}]") for i, entry in enumerate(value)], argument)
    if isinstance(value, FactoredMatrix):
        return Constant(value if value.left.ndim > 2 else mapped(value, lambda tensor: tensor.unsqueeze(0)))
    if not isinstance(value, Tensor) and callable(value):
        return FromCallable(value, argument)
    if isinstance(value, int | float | str) or value is None:
        wanted = "a matrix, a schedule or a function of time"
        raise ArgumentTypeError(expected(argument, wanted, repr(value), "a multiple of the identity needs its matrix"))
    return Constant(with_head_axis(as_tensor(value, argument, ndim_at_least=2, axes="(…, dim, dim)")))


def _stands_for_itself(entry: Any) -> bool:
    """Tell whether an entry of a list is a head's circuits, not numbers."""
    return isinstance(entry, Schedule | FactoredMatrix) or (not isinstance(entry, Tensor) and callable(entry))
