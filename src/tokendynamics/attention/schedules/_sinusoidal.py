"""Sinusoidal gates over fixed circuits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention.circuit_at_time import CircuitAtTime, RowScaled
from tokendynamics.attention.schedules._schedule import Continuous, Time, one_system_axis, with_head_axis
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_finite, as_tensor
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments

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
        self,
        matrix: ArrayLike,
        amplitude: ArrayLike,
        frequency: ArrayLike,
        phase: ArrayLike,
        absolute: bool = False,
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
        raise ArgumentValueError(expected("amplitude, frequency, phase", wanted, came)) from None


def _gate(value: ArrayLike, argument: str, matrix: Tensor, rows: Sequence[int]) -> Tensor:
    gate = as_tensor(value, argument).to(matrix)
    try:
        shape = np.broadcast_shapes(gate.shape, tuple(rows))
        np.broadcast_shapes(shape, matrix.shape[:-1])
    except ValueError:
        wanted = f"a number, or one for each row of matrix, shape {tuple(matrix.shape)}"
        raise ArgumentValueError(expected(argument, wanted, f"shape {tuple(gate.shape)}")) from None
    return gate.expand(shape)
