"""Piecewise constant circuits that return after a period, such as the layers of a network."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from tokendynamics.attention._circuits import FactoredMatrix
from tokendynamics.attention.circuit_at_time import CircuitAtTime, Dense
from tokendynamics.attention.schedules._schedule import Constant, Time, mapped
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_finite, as_tensor
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments

MOST_JUMPS = 1_000_000
"""Between the first and the last time of a run: each jump ends a step, and their times are listed before it."""


class Periodic:
    """Piecewise constant and periodic: piece k holds on ``[k, k + 1) · period / pieces``, then all again.

    Which piece holds is decided exactly, for the numbers that t and the period are: at whole times the n matrices of
    a whole period follow each other without a slip, at any size of t.

    The layers of a network run over and over, with period = its depth, are one (`asymptotic` section 7.5).

    Args:
        matrices: (piece, dim, dim), (piece, head, dim, dim), or a `FactoredMatrix` of (piece, head, dim, rank).
        period: The time after which the first piece returns, above 0.

    Raises:
        ArgumentValueError: A period that is not positive and finite, or matrices of another shape; later on, a time
            that is not finite.

    >>> Periodic([[[1.0]], [[2.0]]], period=2.0).matrix_at(3.5).tolist()
    [[[2.0]]]
    """

    constant = False
    bounded: bool | None = True
    uniformly_continuous: bool | None = False

    @typed_arguments
    def __init__(self, matrices: ArrayLike | FactoredMatrix, period: float) -> None:
        if not (math.isfinite(period) and period > 0):
            raise ArgumentValueError(expected("period", "a positive finite time", period))
        self.period = float(period)
        self.matrices = matrices if isinstance(matrices, FactoredMatrix) else _pieces(matrices)
        self._count = len(self.matrices.left if isinstance(self.matrices, FactoredMatrix) else self.matrices)

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Schedule`."""
        return self.piece(0).shape

    @property
    def pieces(self) -> tuple[Constant, ...]:
        """See `Schedule`."""
        return tuple(self.piece(index) for index in range(self._count))

    def piece(self, index: int) -> Constant:
        """Return the constant circuits of one piece."""
        return Constant(mapped(self.matrices, lambda tensor: tensor[index]))

    def __repr__(self) -> str:
        return f"Periodic({self._count} pieces of {tuple(self.shape)}, period {self.period:g})"

    def at(self, t: Time) -> CircuitAtTime:
        """See `Schedule`."""
        times = t.reshape(-1).tolist() if isinstance(t, Tensor) else [t]
        indices = {self._index(time) for time in times}
        if len(indices) == 1:
            return self.piece(indices.pop()).at(0.0)
        return Dense(torch.stack([self.matrix_at(time) for time in times]))

    @typed_arguments
    def matrix_at(self, t: float) -> Tensor:
        """See `Schedule`."""
        return self.piece(self._index(as_finite(t, "t"))).matrix_at(t)

    def breaks(self, start: float, end: float) -> list[float]:
        """See `Schedule`.

        Raises:
            ArgumentValueError: More than `MOST_JUMPS` jumps.
        """
        first, last = (self._pieces_until(time) for time in (start, end))
        if last - first > MOST_JUMPS:
            wanted = f"at most {MOST_JUMPS:,} jumps of a periodic matrix (period {self.period:g})"
            jumps = (end - start) / self.period * self._count
            count = f"{jumps:.3g}" if math.isfinite(jumps) else "more than float64 can count"
            came = f"{count} from time {start:g} to {end:g}"
            raise ArgumentValueError(expected("times", wanted, came, "end earlier"))
        times = {self._begin(piece) for piece in range(first + 1, last + 1)}
        return sorted(time for time in times if start < time < end)

    def corners(self, start: float, end: float) -> list[float]:
        """Return none: it jumps, see `breaks`."""
        return []

    def within(self, start: float, end: float) -> Constant:
        """See `Schedule`."""
        middle = start + (end - start) / 2
        return self.piece(self._index(middle if middle < end else start))

    def flattened(self) -> Periodic:
        """See `Schedule`."""
        return self

    def select(self, systems: Tensor) -> Periodic:
        """See `Schedule`."""
        return self

    def to(self, *, dtype: torch.dtype, device: torch.device) -> Periodic:
        """See `Schedule`."""
        return Periodic(mapped(self.matrices, lambda tensor: tensor.to(dtype=dtype, device=device)), self.period)

    def _index(self, t: float) -> int:
        return self._pieces_until(t) % self._count

    def _pieces_until(self, t: float) -> int:
        """Return ``floor(t · pieces / period)`` exactly: floats are fractions, and a quotient of floats is rounded."""
        if not math.isfinite(t):
            raise ArgumentValueError(expected("t", "a finite time", t))
        (above, below), (length, unit) = float(t).as_integer_ratio(), self.period.as_integer_ratio()
        return above * self._count * unit // (below * length)

    def _begin(self, number: int) -> float:
        """Return the first float at which piece `number`, counted from time 0, holds: engines step onto it."""
        exact = Fraction(self.period) * number / self._count
        nearest = float(exact)
        return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)


def _pieces(matrices: ArrayLike) -> Tensor:
    tensor = as_tensor(matrices, "matrices", ndim_at_least=3, axes="(piece, …, dim, dim)")
    if tensor.ndim > 4 or len(tensor) == 0:
        wanted = "(piece, dim, dim) or (piece, head, dim, dim)"
        raise ArgumentValueError(expected("matrices", wanted, f"shape {tuple(tensor.shape)}"))
    return tensor.unsqueeze(1) if tensor.ndim == 3 else tensor
