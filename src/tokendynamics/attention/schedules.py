"""Circuits as functions of time: constant, sinusoidally gated, piecewise constant and periodic, or any callable."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from tokendynamics.attention.circuits import FactoredMatrix
from tokendynamics.attention.frozen import Dense, Factored, Frozen, Multiple, RowScaled
from tokendynamics.numerics.arguments import ArrayLike, as_tensor
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, expected

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
    """

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102

    @property
    def constant(self) -> bool: ...  # noqa: D102

    @property
    def bounded(self) -> bool | None: ...  # noqa: D102

    @property
    def uniformly_continuous(self) -> bool | None: ...  # noqa: D102

    def at(self, t: Time) -> Frozen:
        """The circuits at time t."""
        ...

    def matrix_at(self, t: float) -> Tensor:
        """The dense matrices at time t, of `shape`."""
        ...

    def breaks(self, start: float, end: float) -> list[float]:
        """Times strictly between start and end where the matrices jump."""
        ...

    def within(self, start: float, end: float) -> Schedule:
        """A schedule that agrees on the open interval, which holds no break, and is continuous on the closed one."""
        ...

    def flattened(self) -> Schedule:
        """The schedule with all its system axes made one."""
        ...

    def select(self, systems: Tensor) -> Schedule:
        """The schedule of some systems, by index along the first axis."""
        ...

    def to(self, *, dtype: torch.dtype, device: torch.device) -> Schedule:
        """The same in another precision or place."""
        ...


class _Continuous:
    """What schedules without jumps share."""

    def breaks(self, start: float, end: float) -> list[float]:
        """See `Schedule`."""
        return []

    def within(self, start: float, end: float) -> Any:
        """See `Schedule`."""
        return self


@dataclass(frozen=True)
class Constant(_Continuous):
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
        return Constant(_mapped(self.matrix, lambda tensor: _one_system_axis(tensor, 3)))

    def select(self, systems: Tensor) -> Constant:
        """See `Schedule`."""
        return self if len(self.shape) == 3 else Constant(_mapped(self.matrix, lambda tensor: tensor[systems]))

    def to(self, *, dtype: torch.dtype, device: torch.device) -> Constant:
        """See `Schedule`."""
        return Constant(_mapped(self.matrix, lambda tensor: tensor.to(dtype=dtype, device=device)))


class Sinusoidal(_Continuous):
    """``diag(amplitude · sin(frequency · t + phase)) @ matrix``, entrywise |·| of the diagonal if `absolute`.

    Args:
        matrix: (dim, dim), (head, dim, dim) or (*system, head, dim, dim).
        amplitude: A number, (dim,), (head, dim) or (*system, head, dim).
        frequency: Likewise, in radians per unit of time.
        phase: Likewise, in radians; π/2 gives a cosine.
        absolute: Take |sin|. Its kinks cost an adaptive high-order method its order: with many frequencies pick
            ``method="bosh3"`` or a fixed step in `simulate`.

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
        self.amplitude, self.frequency, self.phase = (
            _gate(value, name, self.matrix, rows)
            for value, name in ((amplitude, "amplitude"), (frequency, "frequency"), (phase, "phase"))
        )
        self.absolute = absolute

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Schedule`."""
        gates = torch.broadcast_shapes(self.amplitude.shape, self.frequency.shape, self.phase.shape)
        return (*torch.broadcast_shapes(gates, self.matrix.shape[:-1]), self.matrix.shape[-1])

    def at(self, t: Time) -> Frozen:
        """See `Schedule`."""
        time = t.reshape(-1, 1, 1) if isinstance(t, Tensor) and t.ndim else t
        wave = torch.sin(self.frequency * time + self.phase)
        # Times are float64 also for float32 matrices.
        return RowScaled((self.amplitude * (wave.abs() if self.absolute else wave)).to(self.matrix), self.matrix)

    def matrix_at(self, t: float) -> Tensor:
        """See `Schedule`."""
        return self.at(t).dense()

    def flattened(self) -> Sinusoidal:
        """See `Schedule`."""
        gates = (self.amplitude, self.frequency, self.phase)
        return self._with(_one_system_axis(self.matrix, 3), *(_one_system_axis(gate, 2) for gate in gates))

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


class Periodic:
    """Piecewise constant and periodic: piece k holds on ``[k, k + 1) · period / pieces``, then all again.

    The layers of a network run over and over, with period = its depth, are one (`asymptotic` section 7.5).

    Args:
        matrices: (piece, dim, dim), (piece, head, dim, dim), or a `FactoredMatrix` of (piece, head, dim, rank).
        period: The time after which the first piece returns, above 0.

    Raises:
        ArgumentValueError: A period that is not positive and finite, or matrices of another shape.

    >>> Periodic([[[1.0]], [[2.0]]], period=2.0).matrix_at(3.5).tolist()
    [[[2.0]]]
    """

    constant = False
    bounded: bool | None = True
    uniformly_continuous: bool | None = False

    def __init__(self, matrices: ArrayLike | FactoredMatrix, period: float) -> None:
        if not (math.isfinite(period) and period > 0):
            raise ArgumentValueError(expected("period", "a positive finite time", period))
        self.period = float(period)
        self.matrices = matrices if isinstance(matrices, FactoredMatrix) else _pieces(matrices)
        self.pieces = len(self.matrices.left if isinstance(self.matrices, FactoredMatrix) else self.matrices)

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Schedule`."""
        return self.piece(0).shape

    def piece(self, index: int) -> Constant:
        """The constant circuits of one piece."""
        return Constant(_mapped(self.matrices, lambda tensor: tensor[index]))

    def at(self, t: Time) -> Frozen:
        """See `Schedule`."""
        times = t.reshape(-1).tolist() if isinstance(t, Tensor) else [t]
        indices = {self._index(time) for time in times}
        if len(indices) == 1:
            return self.piece(indices.pop()).at(0.0)
        return Dense(torch.stack([self.matrix_at(time) for time in times]))

    def matrix_at(self, t: float) -> Tensor:
        """See `Schedule`."""
        return self.piece(self._index(t)).matrix_at(t)

    def breaks(self, start: float, end: float) -> list[float]:
        """See `Schedule`."""
        width = self.period / self.pieces
        first, last = math.floor(start / width), math.ceil(end / width)
        return [k * width for k in range(first, last + 1) if start < k * width < end]

    def within(self, start: float, end: float) -> Constant:
        """See `Schedule`."""
        return self.piece(self._index((start + end) / 2))

    def flattened(self) -> Periodic:
        """See `Schedule`."""
        return self

    def select(self, systems: Tensor) -> Periodic:
        """See `Schedule`."""
        return self

    def to(self, *, dtype: torch.dtype, device: torch.device) -> Periodic:
        """See `Schedule`."""
        return Periodic(_mapped(self.matrices, lambda tensor: tensor.to(dtype=dtype, device=device)), self.period)

    def _index(self, t: float) -> int:
        # floor of t over the width of a piece, the rounding of `breaks`: a break belongs to the piece it begins.
        width = self.period / self.pieces
        index = math.floor(t / width)
        index += (index + 1) * width <= t
        index -= index * width > t
        return index % self.pieces


class FromCallable(_Continuous):
    """Any function of time that returns a matrix; whether it stays bounded or is continuous cannot be known.

    Args:
        function: From a time (a float) to (dim, dim) or (head, dim, dim); always the same shape.
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
        matrix = self._evaluate(t)
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

    def _evaluate(self, t: float) -> Tensor:
        matrix = as_tensor(self.function(t), f"{self.argument}({t})", ndim_at_least=2, axes="(…, dim, dim)")
        if matrix.ndim > 3:
            wanted = "(dim, dim) or (head, dim, dim)"
            raise ArgumentValueError(expected(f"{self.argument}({t})", wanted, f"shape {tuple(matrix.shape)}"))
        return with_head_axis(matrix).to(dtype=self._dtype, device=self._device)


ScheduleLike: TypeAlias = ArrayLike | FactoredMatrix | Schedule | Callable[[float], Any]


def as_schedule(value: ScheduleLike, argument: str) -> Schedule:
    """What a user passes where circuits are expected, as a schedule.

    Raises:
        ArgumentTypeError: Not a matrix, a schedule or a callable; or integer or complex numbers.
        ArgumentValueError: Fewer than two axes, or numbers that are not finite.
    """
    if isinstance(value, Schedule):
        return value
    if isinstance(value, FactoredMatrix):
        return Constant(value if value.left.ndim > 2 else _mapped(value, lambda tensor: tensor.unsqueeze(0)))
    if not isinstance(value, Tensor) and callable(value):
        return FromCallable(value, argument)
    if isinstance(value, int | float | str) or value is None:
        wanted = "a matrix, a schedule or a function of time"
        raise ArgumentTypeError(expected(argument, wanted, repr(value), "a multiple of the identity needs its matrix"))
    return Constant(with_head_axis(as_tensor(value, argument, ndim_at_least=2, axes="(…, dim, dim)")))


def with_head_axis(matrix: Tensor) -> Tensor:
    """(dim, dim) as (1, dim, dim); anything longer as it is."""
    return matrix.unsqueeze(0) if matrix.ndim == 2 else matrix


def _mapped(matrix: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(matrix, FactoredMatrix):
        return FactoredMatrix(function(matrix.left), function(matrix.right))
    return function(matrix)


def _one_system_axis(tensor: Tensor, axes: int) -> Tensor:
    return tensor.flatten(0, -axes - 1) if tensor.ndim > axes + 1 else tensor


def _pieces(matrices: ArrayLike) -> Tensor:
    tensor = as_tensor(matrices, "matrices", ndim_at_least=3, axes="(piece, …, dim, dim)")
    if tensor.ndim > 4 or len(tensor) == 0:
        wanted = "(piece, dim, dim) or (piece, head, dim, dim)"
        raise ArgumentValueError(expected("matrices", wanted, f"shape {tuple(tensor.shape)}"))
    return tensor.unsqueeze(1) if tensor.ndim == 3 else tensor


def _gate(value: ArrayLike, argument: str, matrix: Tensor, rows: Sequence[int]) -> Tensor:
    gate = as_tensor(value, argument).to(matrix)
    try:
        shape = torch.broadcast_shapes(gate.shape, tuple(rows))
        torch.broadcast_shapes(shape, matrix.shape[:-1])
    except RuntimeError:
        wanted = f"a number, or one for each row of matrix, shape {tuple(matrix.shape)}"
        raise ArgumentValueError(expected(argument, wanted, f"shape {tuple(gate.shape)}")) from None
    return gate.expand(shape)
