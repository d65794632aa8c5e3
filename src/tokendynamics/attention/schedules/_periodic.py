"""Circuits that return: pieces that repeat after a period, such as the layers of a network, and sinusoidal gates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention._circuits import FactoredMatrix
from tokendynamics.attention.circuit_at_time import CircuitAtTime, Dense, RowScaled
from tokendynamics.attention.schedules._schedule import (
    Constant,
    Continuous,
    Time,
    mapped,
    one_system_axis,
    with_head_axis,
)
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_finite, as_tensor
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
            raise ArgumentValueError("period", "a positive finite time", period)
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
            raise ArgumentValueError("times", wanted, f"{count} from time {start:g} to {end:g}", "end earlier")
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
            raise ArgumentValueError("t", "a finite time", t)
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
        raise ArgumentValueError("matrices", wanted, f"shape {tuple(tensor.shape)}")
    return tensor.unsqueeze(1) if tensor.ndim == 3 else tensor


MOST_GATES, MOST_TURNS = 64, 1e5
"""Up to this many gates, and radians of all of them together, each kink of |sin| ends a step."""


class Sinusoidal(Continuous):
    """``diag(amplitude · sin(frequency · t + phase)) @ matrix``, entrywise |·| of the diagonal if `absolute`.

    Args:
        matrix: (dim, dim), (head, dim, dim) or (*system, head, dim, dim).
        amplitude: A number, (dim,), (head, dim) or (*system, head, dim). Axes of length 1 broadcast, heads and systems
            too: gates that differ between systems may stand over one matrix, and one gate over many matrices.
        frequency: Likewise, in radians per unit of time.
        phase: Likewise, in radians; π/2 gives a cosine.
        absolute: Take |sin|. Up to `MOST_GATES` gates the explicit engines step exactly onto the kinks. Beyond that
            the kinks cost a method of high order its order: ``method="bosh3"`` or a fixed step may then be cheaper.

    Source: `asymptotic` section 7.2 (cosines and sines) and 7.4 (|2 sin(wt + φ)|).

    Raises:
        ArgumentValueError: Shapes that do not fit, or numbers that are not finite.

    >>> import math
    >>> Sinusoidal([[1.0, 2.0], [3.0, 4.0]], [2.0, 1.0], math.pi, [math.pi / 2, 0.0]).matrix_at(1.0).round().tolist()
    [[[-2.0, -4.0], [0.0, 0.0]]]
    """

    constant = False
    bounded: bool | None = True
    uniformly_continuous: bool | None = True

    @typed_arguments
    def __init__(
        self, matrix: ArrayLike, amplitude: ArrayLike, frequency: ArrayLike, phase: ArrayLike, absolute: bool = False
    ) -> None:
        self.matrix = with_head_axis(as_tensor(matrix, "matrix", ndim_at_least=2, axes="(…, dim, dim)"))
        rows = (1, self.matrix.shape[-2])
        gates = [
            _gate(value, name, self.matrix, rows)
            for value, name in ((amplitude, "amplitude"), (frequency, "frequency"), (phase, "phase"))
        ]
        *systems, heads, _ = _common_shape(gates, self.matrix)
        # Whoever has system axes has all systems and everyone has all heads, so that each can be indexed by itself.
        if self.matrix.ndim > 3:
            self.matrix = self.matrix.expand(*systems, heads, *self.matrix.shape[-2:])
        else:
            self.matrix = self.matrix.expand(heads, *self.matrix.shape[-2:])
        self.amplitude, self.frequency, self.phase = (
            gate.expand(*(systems if gate.ndim > 2 else ()), heads, rows[1]) for gate in gates
        )
        self.absolute = absolute

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Schedule`."""
        # Asked for at every right-hand side: read off, not broadcast anew.
        gates = (self.amplitude, self.frequency, self.phase)
        systems = next((gate.shape[:-2] for gate in gates if gate.ndim > 2), self.matrix.shape[:-3])
        return (*systems, *self.matrix.shape[-3:])

    def __repr__(self) -> str:
        return f"Sinusoidal({tuple(self.shape)}{', absolute' * self.absolute})"

    def at(self, t: Time) -> CircuitAtTime:
        """See `Schedule`."""
        time = t.reshape(-1, 1, 1) if isinstance(t, Tensor) and t.ndim else t
        wave = torch.sin(self.frequency * time + self.phase)
        # Times are float64 also for float32 matrices.
        return RowScaled((self.amplitude * (wave.abs() if self.absolute else wave)).to(self.matrix), self.matrix)

    def corners(self, start: float, end: float) -> list[float]:
        """Return the zeros of the sines under an absolute value, unless they are too many to step onto each."""
        gates = torch.broadcast_tensors(self.frequency, self.phase)
        frequency, phase = (gate.detach().double().flatten() for gate in gates)
        turns = (end - start) * float(frequency.abs().sum())
        if not self.absolute or len(frequency) > MOST_GATES or turns > MOST_TURNS:
            return []
        zeros: set[float] = set()
        for rate, angle in zip(frequency.tolist(), phase.tolist(), strict=True):
            if rate != 0:
                ends = sorted(((rate * start + angle) / math.pi, (rate * end + angle) / math.pi))
                zeros |= {(k * math.pi - angle) / rate for k in range(math.floor(ends[0]), math.ceil(ends[1]) + 1)}
        return sorted(time for time in zeros if start < time < end)

    @typed_arguments
    def matrix_at(self, t: float) -> Tensor:
        """See `Schedule`."""
        return self.at(as_finite(t, "t")).dense()

    def flattened(self) -> Sinusoidal:
        """See `Schedule`."""
        gates = (self.amplitude, self.frequency, self.phase)
        return self._with(one_system_axis(self.matrix, 3), *(one_system_axis(gate, 2) for gate in gates))

    def select(self, systems: Tensor) -> Sinusoidal:
        """See `Schedule`."""

        def pick(tensor: Tensor, axes: int) -> Tensor:
            return tensor[systems] if tensor.ndim > axes else tensor

        return self._with(
            pick(self.matrix, 3), *(pick(gate, 2) for gate in (self.amplitude, self.frequency, self.phase))
        )

    def to(self, *, dtype: torch.dtype, device: torch.device) -> Sinusoidal:
        """See `Schedule`."""
        parts = (self.matrix, self.amplitude, self.frequency, self.phase)
        return self._with(*(part.to(dtype=dtype, device=device) for part in parts))

    def _with(self, matrix: Tensor, amplitude: Tensor, frequency: Tensor, phase: Tensor) -> Sinusoidal:
        other = object.__new__(Sinusoidal)
        other.matrix, other.amplitude, other.frequency, other.phase = matrix, amplitude, frequency, phase
        other.absolute = self.absolute
        return other


def _common_shape(gates: Sequence[Tensor], matrix: Tensor) -> tuple[int, ...]:
    """Return (*system, head, dim) of all gates and the matrix together."""
    try:
        return np.broadcast_shapes(*(gate.shape for gate in gates), matrix.shape[:-1])
    except ValueError:
        wanted = f"gates that broadcast with each other and matrix, shape {tuple(matrix.shape)}"
        came = "shapes " + ", ".join(str(tuple(gate.shape)) for gate in gates)
        raise ArgumentValueError("amplitude, frequency, phase", wanted, came) from None


def _gate(value: ArrayLike, argument: str, matrix: Tensor, rows: Sequence[int]) -> Tensor:
    gate = as_tensor(value, argument).to(matrix)
    try:
        shape = np.broadcast_shapes(gate.shape, tuple(rows))
        np.broadcast_shapes(shape, matrix.shape[:-1])
    except ValueError:
        wanted = f"a number, or one for each row of matrix, shape {tuple(matrix.shape)}"
        raise ArgumentValueError(argument, wanted, f"shape {tuple(gate.shape)}") from None
    return gate.expand(shape)
