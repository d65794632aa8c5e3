"""What a user passes where circuits are expected: matrices, schedules, a function of time, or one of them per head."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention._circuits import FactoredMatrix
from tokendynamics.attention.circuit_at_time import CircuitAtTime, Dense
from tokendynamics.attention.schedules._periodic import Periodic, Sinusoidal
from tokendynamics.attention.schedules._schedule import Constant, Schedule, Time, mapped, with_head_axis
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_finite, as_tensor


class PerHead:
    """Heads that vary each in its own way.

    Args:
        heads: Schedules of one head each; those that differ between systems all with the same system axes.
        argument: The argument's name in messages.

    Raises:
        ArgumentValueError: An entry of several heads, or shapes that differ (both are printed).

    >>> heads = [as_schedule([[1.0]], "qk"), as_schedule(lambda t: [[t]], "qk")]
    >>> PerHead(heads, "qk").shape
    (2, 1, 1)
    """

    def __init__(self, heads: Sequence[Schedule], argument: str) -> None:
        self.heads, self.argument = tuple(heads), argument
        known = [(number, head) for number, head in enumerate(heads) if shape_is_known(head)]
        systems = max((head.shape[:-3] for _, head in known), key=len, default=())
        for number, head in known:
            wanted = (1, *known[0][1].shape[-2:])
            if head.shape[-3:] != wanted or head.shape[:-3] not in ((), systems):
                came = f"shape {tuple(head.shape)}"
                raise ArgumentValueError(f"{argument}[{number}]", f"one head of shape {wanted}", came)

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Schedule`."""
        return self._shape

    @cached_property
    def _shape(self) -> tuple[int, ...]:
        systems = max((head.shape[:-3] for head in self.heads), key=len)
        return (*systems, len(self.heads), *self.heads[0].shape[-2:])

    @property
    def shape_is_known(self) -> bool:
        """Whether all heads have a shape already; see `FromCallable`."""
        return all(map(shape_is_known, self.heads))

    def beginning(self, t: float) -> Schedule:
        """See `FromCallable.beginning`."""
        return self._with_heads(lambda head: beginning(head, t))

    def with_jumps(self, jumps: Sequence[float]) -> Schedule:
        """See `FromCallable.with_jumps`."""
        return self._with_heads(lambda head: with_jumps(head, jumps))

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
        return self._with_heads(lambda head: head.within(start, end))

    def flattened(self) -> Schedule:
        """See `Schedule`."""
        return self._with_heads(lambda head: head.flattened())

    def select(self, systems: Tensor) -> Schedule:
        """See `Schedule`."""
        return self._with_heads(lambda head: head.select(systems))

    def to(self, *, dtype: torch.dtype, device: torch.device) -> Schedule:
        """See `Schedule`."""
        return self._with_heads(lambda head: head.to(dtype=dtype, device=device))

    def _with_heads(self, change: Callable[[Schedule], Schedule]) -> Schedule:
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
    # Over all heads: products with fixed matrices. `PerHead` forms a matrix for each system's time.
    # A constant head is one whose gate stands still at sin(π/2) = 1.
    parts = [
        head if isinstance(head, Sinusoidal) else Sinusoidal(head.matrix_at(0.0), 1.0, 0.0, math.pi / 2)
        for head in heads
    ]
    gates = (_side_by_side([getattr(part, name) for part in parts], 2) for name in ("amplitude", "frequency", "phase"))
    return Sinusoidal(_side_by_side([part.matrix for part in parts]), *gates, absolute=gated[0].absolute)


def _side_by_side(parts: Sequence[Tensor], axes: int = 3) -> Tensor:
    systems = np.broadcast_shapes(*(part.shape[:-axes] for part in parts))
    return torch.cat([part.expand(*systems, *part.shape[-axes:]) for part in parts], dim=-axes)


def _all(known: Sequence[bool | None]) -> bool | None:
    """Tell whether all are true; None where that depends on one that is not known."""
    if False in known:
        return False
    return None if None in known else True


class FromCallable:
    """Any function of time that returns a matrix; whether it stays bounded or is continuous cannot be known.

    The function is called at times of a run only. Its shape is that at the first such time; before, it is not known,
    and asking for it calls the function with 0.0.

    Args:
        function: From a time (a float) to (dim, dim) or (head, dim, dim); always the same shape.
        argument: The argument's name in messages.
        jumps: Times at which the function may jump. Steps end there, and the function is asked on the near side only.
        dtype: Of the matrices; as the function gives them if None.
        device: Likewise.

    >>> import torch
    >>> box = FromCallable(lambda t: torch.eye(2) * float(1 < t < 2), "ov", jumps=[1.0, 2.0])
    >>> box.breaks(0.0, 10.0), box.within(1.0, 2.0).matrix_at(1.0)[0, 0].tolist()
    ([1.0, 2.0], [1.0, 0.0])
    """

    constant = False
    bounded: bool | None = None
    uniformly_continuous: bool | None = None

    def __init__(
        self,
        function: Callable[[float], Any],
        argument: str = "function",
        *,
        jumps: Sequence[float] = (),
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.function, self.argument, self._dtype, self._device = function, argument, dtype, device
        self.jumps = tuple(sorted({as_finite(float(jump), "jumps") for jump in jumps}))
        self._shape: tuple[int, ...] | None = None
        self._within = (-math.inf, math.inf)

    def __repr__(self) -> str:
        return f"FromCallable({self.argument}, {self._shape or 'shape not known yet'})"

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Schedule`."""
        return self.beginning(0.0).shape if self._shape is None else self._shape

    @property
    def shape_is_known(self) -> bool:
        """Whether the function has been asked at some time."""
        return self._shape is not None

    def beginning(self, t: float) -> FromCallable:
        """Return the same with its shape known from time t."""
        if self._shape is not None:
            return self
        return self._with(shape=tuple(self._evaluate(t).shape))

    def with_jumps(self, jumps: Sequence[float]) -> FromCallable:
        """Return the same with further jumps."""
        return self._with(jumps=tuple(sorted({*self.jumps, *jumps})))

    def breaks(self, start: float, end: float) -> list[float]:
        """See `Schedule`."""
        return [jump for jump in self.jumps if start < jump < end]

    def corners(self, start: float, end: float) -> list[float]:
        """Return none: kinks are not known."""
        return []

    def within(self, start: float, end: float) -> FromCallable:
        """Return the function between two times; at a jump its limit from within, which is asked one float inside."""
        if not self.jumps:
            return self
        first = math.nextafter(start, math.inf) if start in self.jumps else start
        last = math.nextafter(end, -math.inf) if end in self.jumps else end
        return self._with(within=(first, max(first, last)))

    def at(self, t: Time) -> CircuitAtTime:
        """See `Schedule`."""
        if not (isinstance(t, Tensor) and t.ndim):
            return Dense(self.matrix_at(float(t)))
        matrices: dict[float, Tensor] = {}
        for time in t.tolist():
            if time not in matrices:
                matrices[time] = self.matrix_at(time)
        if len(matrices) == 1:
            return Dense(next(iter(matrices.values())))
        return Dense(torch.stack([matrices[time] for time in t.tolist()]))

    def matrix_at(self, t: float) -> Tensor:
        """See `Schedule`."""
        matrix = self._evaluate(t, finite=False)
        if self._shape is not None and matrix.shape != self._shape:
            wanted = f"a matrix of shape {self._shape} at every time"
            raise ArgumentValueError(f"{self.argument}({t})", wanted, f"shape {tuple(matrix.shape)}")
        return matrix

    def flattened(self) -> FromCallable:
        """See `Schedule`."""
        return self

    def select(self, systems: Tensor) -> FromCallable:
        """See `Schedule`."""
        return self

    def to(self, *, dtype: torch.dtype, device: torch.device) -> FromCallable:
        """See `Schedule`."""
        return self._with(dtype=dtype, device=device)

    def _with(
        self,
        *,
        jumps: tuple[float, ...] | None = None,
        shape: tuple[int, ...] | None = None,
        within: tuple[float, float] | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> FromCallable:
        place = {"dtype": dtype or self._dtype, "device": device or self._device}
        other = FromCallable(self.function, self.argument, jumps=self.jumps if jumps is None else jumps, **place)
        other._shape, other._within = shape or self._shape, within or self._within
        return other

    def _evaluate(self, t: float, *, finite: bool = True) -> Tensor:
        # Later on a NaN is left to the engine, which ends the run with a status and keeps what was reached.
        name, (first, last) = f"{self.argument}({t})", self._within
        value = self.function(min(max(t, first), last))
        matrix = as_tensor(value, name, ndim_at_least=2, axes="(…, dim, dim)", finite=finite)
        if matrix.ndim > 3:
            wanted = "(dim, dim) or (head, dim, dim)"
            raise ArgumentValueError(f"{self.argument}({t})", wanted, f"shape {tuple(matrix.shape)}")
        return with_head_axis(matrix).to(dtype=self._dtype, device=self._device)


def shape_is_known(schedule: Schedule) -> bool:
    """Tell whether a schedule's shape is known without asking a function of time."""
    return getattr(schedule, "shape_is_known", True)


def beginning(schedule: Schedule, t: float) -> Schedule:
    """Return the schedule with its shape known, from time t where that takes asking."""
    return schedule.beginning(t) if isinstance(schedule, FromCallable | PerHead) else schedule


def with_jumps(schedule: Schedule, jumps: Sequence[float]) -> Schedule:
    """Return the schedule with jumps declared in its functions of time; others know theirs."""
    return schedule.with_jumps(jumps) if isinstance(schedule, FromCallable | PerHead) else schedule


def has_function(schedule: Schedule) -> bool:
    """Tell whether some head is a function of time, which may not exist at all times."""
    heads = schedule.heads if isinstance(schedule, PerHead) else (schedule,)
    return any(isinstance(head, FromCallable) for head in heads)


def is_sampled(schedule: Schedule) -> bool:
    """Tell whether a schedule is known only where it is asked, so that what it does in between may be missed."""
    if isinstance(schedule, PerHead):
        return any(map(is_sampled, schedule.heads))
    if schedule.constant or isinstance(schedule, Sinusoidal | Periodic):
        return False
    return getattr(schedule, "is_sampled", True)


ScheduleLike: TypeAlias = ArrayLike | FactoredMatrix | Schedule | Callable[[float], Any] | Sequence[Any]


def as_schedule(value: ScheduleLike, argument: str) -> Schedule:
    """Read what a user passes where circuits are expected as a schedule; a list may hold one for each head.

    Raises:
        ArgumentTypeError: Not a matrix, a schedule or a callable; or integer or complex numbers.
        ArgumentValueError: Fewer than two axes, or numbers that are not finite.

    >>> schedule = as_schedule(lambda t: [[t, 0.0], [0.0, 1.0]], "qk")
    >>> schedule.constant, as_schedule([[1.0]], "qk").constant
    (False, True)
    """
    # In this order: a protocol asks for every attribute, `shape` too, which calls a function whose shape is not known.
    if isinstance(value, FromCallable | PerHead | Schedule):
        return value
    if isinstance(value, list | tuple) and any(_stands_for_itself(entry) for entry in value):
        return side_by_side([as_schedule(entry, f"{argument}[{i}]") for i, entry in enumerate(value)], argument)
    if isinstance(value, FactoredMatrix):
        return Constant(value if value.left.ndim > 2 else mapped(value, lambda tensor: tensor.unsqueeze(0)))
    if not isinstance(value, Tensor | type) and callable(value):
        return FromCallable(value, argument)
    if isinstance(value, int | float | str | type) or value is None:
        wanted = "a matrix, a schedule or a function of time"
        raise ArgumentTypeError(argument, wanted, repr(value), "a multiple of the identity needs its matrix")
    return Constant(with_head_axis(as_tensor(value, argument, ndim_at_least=2, axes="(…, dim, dim)")))


def _stands_for_itself(entry: Any) -> bool:
    """Tell whether an entry of a list is a head's circuits, not numbers."""
    if isinstance(entry, float | int | list | tuple | Tensor | type):  # a protocol takes microseconds to ask a number
        return False
    return isinstance(entry, FromCallable | PerHead | Schedule | FactoredMatrix) or callable(entry)
