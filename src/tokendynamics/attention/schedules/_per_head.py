"""Schedules of single heads side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tokendynamics.attention._circuit_at_time import Dense, Frozen
from tokendynamics.attention.schedules._constant import Constant
from tokendynamics.attention.schedules._schedule import Schedule, Time
from tokendynamics.attention.schedules._sinusoidal import Sinusoidal
from tokendynamics.numerics._errors import ArgumentValueError, expected


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

    def at(self, t: Time) -> Frozen:
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
