"""What a user passes where circuits are expected: matrices, schedules, a function of time, or one of them per head."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tokendynamics.attention._circuit_at_time import CircuitAtTime, Dense
from tokendynamics.attention._circuits import FactoredMatrix
from tokendynamics.attention.schedules._schedule import Constant, Continuous, Schedule, Time, mapped, with_head_axis
from tokendynamics.attention.schedules._sinusoidal import Sinusoidal
from tokendynamics.numerics._arguments import ArrayLike, as_tensor
from tokendynamics.numerics._errors import ArgumentTypeError, ArgumentValueError, expected


class PerHead:
    """Heads that vary each in its own way.

    Args:
        heads: Schedules of one head each; those that differ between systems all with the same system axes.
        argument: The argument's name in messages.

    Raises:
        ArgumentValueError: An entry of several heads, or shapes that differ (both are printed).
    """

    def __init__(self, heads: Sequence[Schedule], argument: str) -> None:
        self.heads, self.argument = tuple(heads), argument
        systems = max((head.shape[:-3] for head in heads), key=len)
        for number, head in enumerate(heads):
            wanted = (1, *heads[0].shape[-2:])
            if head.shape[-3:] != wanted or head.shape[:-3] not in ((), systems):
                came = f"shape {tuple(head.shape)}"
                raise ArgumentValueError(expected(f"{argument}[{number}]", f"one head of shape {wanted}", came))
        self.shape = (*systems, len(heads), *heads[0].shape[-2:])

    def __repr__(self) -> str:
        return f"PerHead({', '.join(type(head).__name__ for head in self.heads)})"

    @property
    def constant(self) -> bool:
        """See `Schedule`."""
        return all(head.constant for head in self.heads)

    @property
    def bounded(self) -> bool | None:
        """See `Schedule`."""
        return _all([head.bounded for head in self.heads])

    @property
    def uniformly_continuous(self) -> bool | None:
        """See `Schedule`."""
        return _all([head.uniformly_continuous for head in self.heads])

    def at(self, t: Time) -> CircuitAtTime:
        """See `Schedule`."""
        return Dense(_side_by_side([head.at(t).dense() for head in self.heads]))

    def matrix_at(self, t: float) -> Tensor:
        """See `Schedule`."""
        return _side_by_side([head.matrix_at(t) for head in self.heads])

    def breaks(self, start: float, end: float) -> list[float]:
        """See `Schedule`."""
        return sorted({time for head in self.heads for time in head.breaks(start, end)})

    def corners(self, start: float, end: float) -> list[float]:
        """See `Schedule`."""
        return sorted({time for head in self.heads for time in head.corners(start, end)})

    def within(self, start: float, end: float) -> Schedule:
        """See `Schedule`."""
        return self._each(lambda head: head.within(start, end))

    def flattened(self) -> Schedule:
        """See `Schedule`."""
        return self._each(lambda head: head.flattened())

    def select(self, systems: Tensor) -> Schedule:
        """See `Schedule`."""
        return self._each(lambda head: head.select(systems))

    def to(self, *, dtype: torch.dtype, device: torch.device) -> Schedule:
        """See `Schedule`."""
        return self._each(lambda head: head.to(dtype=dtype, device=device))

    def _each(self, change: Callable[[Schedule], Schedule]) -> Schedule:
        return side_by_side([change(head) for head in self.heads], self.argument)


def side_by_side(heads: Sequence[Schedule], argument: str) -> Schedule:
    """Return one schedule of all heads: constant or gated where that is all there is, else `PerHead`."""
    together = PerHead(heads, argument)
    if together.constant:
        return Constant(together.matrix_at(0.0))
    gated = [head for head in heads if isinstance(head, Sinusoidal)]
    if len({head.absolute for head in gated}) != 1 or any(
        not isinstance(head, Constant | Sinusoidal) for head in heads
    ):
        return together
    return _gated(heads, gated[0].absolute)


def _gated(heads: Sequence[Schedule], absolute: bool) -> Sinusoidal:
    """Gates over all heads: products with fixed matrices; `PerHead` forms a matrix for each system's time."""
    # A constant head is one whose gate stands still at sin(π/2) = 1.
    parts = [
        head if isinstance(head, Sinusoidal) else Sinusoidal(head.matrix_at(0.0), 1.0, 0.0, math.pi / 2)
        for head in heads
    ]
    gates = (_side_by_side([getattr(part, name) for part in parts], 2) for name in ("amplitude", "frequency", "phase"))
    return Sinusoidal(_side_by_side([part.matrix for part in parts]), *gates, absolute=absolute)


def _side_by_side(parts: Sequence[Tensor], axes: int = 3) -> Tensor:
    systems = torch.broadcast_shapes(*(part.shape[:-axes] for part in parts))
    return torch.cat([part.expand(*systems, *part.shape[-axes:]) for part in parts], dim=-axes)


def _all(known: Sequence[bool | None]) -> bool | None:
    """Tell whether all are true; None where that hangs on one that is not known."""
    if False in known:
        return False
    return None if None in known else True


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

    def at(self, t: Time) -> CircuitAtTime:
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
