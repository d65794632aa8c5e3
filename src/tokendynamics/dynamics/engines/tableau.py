"""Runge–Kutta methods as data: a new one is a new table of tableaus.toml; one attempted step and its dense output."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from fractions import Fraction
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from tokendynamics.dynamics._field import Field

Row = tuple[Fraction, ...]


@dataclass(frozen=True)
class Tableau:
    """An explicit method with an embedded error estimate and a continuous extension.

    Attributes:
        name: As in `simulate(method=…)`.
        order: Of the solution that is propagated.
        nodes: c.
        stages: Rows of a, the first (empty) for the first stage. Of a pair the last row is the solution itself.
        weights: b.
        error: b − b̂ over all stages; empty for methods of fixed step only. Of a pair the last stage of a step is the
            first of the next one.
        bend: What the continuous extension adds to the cubic through both ends, over all stages and the extra ones:
            coefficients of ``θ²(1−θ)²``, ``θ³(1−θ)²``, ``θ³(1−θ)³``, …
        coarse: A second difference of weights, of lower order; with it the error is ``e² / √(e² + c² / 100)``, which
            an e that is small by chance does not make small.
        extra_nodes: c of the stages that only the continuous extension needs.
        extra_stages: Their rows of a, over all stages before.
        reach: Times the step and the largest stage slope, how far a state can be within a step from where it is at
            either end: the largest sum of sizes of the extension's weights. Infinite where the extension needs stages
            that a step does not have.
    """

    name: str
    order: int
    nodes: Row
    stages: tuple[Row, ...]
    weights: Row
    error: Row = ()
    bend: tuple[Row, ...] = ()
    coarse: Row = ()
    extra_nodes: Row = ()
    extra_stages: tuple[Row, ...] = ()
    reach: float = math.inf

    @property
    def extension(self) -> tuple[Row, ...]:
        """The continuous extension: for each stage, extra ones included, its coefficients e_0, e_1, ….

        ``y(θ) = y_0 + h Σ_s k_s θ (e_0 + (1−θ) (e_1 + θ (e_2 + (1−θ) (e_3 + …))))``.

        The first three are the cubic through states and slopes at both ends. In this form nothing cancels near an end,
        and at θ = 1 it is the solution itself.
        """
        count, zero = len(self.stages), Fraction(0)
        rows: list[Row] = []
        for stage in range(count + len(self.extra_stages)):
            weight = self.weights[stage] if stage < count else zero
            first, last = Fraction(stage == 0), Fraction(stage == count - 1)
            cubic = (weight, first - weight, 2 * weight - first - last)
            rows.append(cubic + tuple(row[stage] for row in self.bend))
        return tuple(rows)


def _row(numbers: str) -> Row:
    return tuple(map(Fraction, numbers.split()))


def _tableau(name: str, entry: dict[str, Any]) -> Tableau:
    order, reach = entry.pop("order"), entry.pop("reach", math.inf)
    rows: dict[str, Any] = {
        key: _row(value) if isinstance(value, str) else tuple(map(_row, value)) for key, value in entry.items()
    }
    if lower := rows.pop("lower_weights", ()):
        rows["coarse"] = tuple(weight - other for weight, other in zip(rows["weights"], lower, strict=True))
    return Tableau(name, order, reach=reach, **rows)


_FILE = tomllib.loads(files("tokendynamics.dynamics.engines").joinpath("tableaus.toml").read_text(encoding="utf-8"))
TABLEAUS = {name: _tableau(name, entry) for name, entry in _FILE.items()}


@dataclass(frozen=True)
class Coefficients:
    """A tableau as tensors of the states' dtype and device.

    Attributes:
        stages: Rows of a.
        nodes: c.
        weights: b.
        errors: `Tableau.error` and, where there is one, `Tableau.coarse`: (1 or 2, stage).
        extension: `Tableau.extension`, (stage, coefficient), over all stages and the extra ones.
        extra_stages: Rows of a of the stages that only the extension needs.
        extra_nodes: Their c.
    """

    stages: tuple[Tensor, ...]
    nodes: tuple[float, ...]
    weights: Tensor
    errors: Tensor
    extension: Tensor
    extra_stages: tuple[Tensor, ...]
    extra_nodes: tuple[float, ...]

    @classmethod
    def of(cls, tableau: Tableau, states: Tensor) -> Coefficients:
        """Convert the exact fractions of a tableau."""

        def tensor(row: Row) -> Tensor:
            return torch.tensor([float(number) for number in row], dtype=states.dtype, device=states.device)

        return cls(
            stages=tuple(tensor(row) for row in tableau.stages),
            nodes=tuple(float(node) for node in tableau.nodes),
            weights=tensor(tableau.weights),
            errors=torch.stack([tensor(row) for row in (tableau.error, tableau.coarse) if row or row is tableau.error]),
            extension=torch.stack([tensor(row) for row in tableau.extension]),
            extra_stages=tuple(tensor(row) for row in tableau.extra_stages),
            extra_nodes=tuple(float(node) for node in tableau.extra_nodes),
        )

    @property
    def new_stages(self) -> int:
        """Right-hand sides of one attempted step, the first stage being known."""
        return len(self.stages) - 1


@dataclass(frozen=True)
class Attempt:
    """An attempted step: the new states before any retraction, the error estimates, and all slopes.

    Attributes:
        method: Of the step.
        start: States before the step, (system, token, dim).
        y: States after it.
        errors: Estimates of the local error, (1 or 2, system, token, dim).
        slopes: (stage, system, token, dim); those of extra stages are 0 until `extend` knows them.
        t: Times (system,), float64.
        h: Step sizes (system,).
        until: Times after the step.
    """

    method: Coefficients
    start: Tensor
    y: Tensor
    errors: Tensor
    slopes: Tensor
    t: Tensor
    h: Tensor
    until: Tensor

    def rows(self, index: Tensor) -> Attempt:
        """Return the attempt of some systems, in increasing order."""
        return self if len(index) == len(self.y) else self.taken(index)

    def taken(self, index: Tensor) -> Attempt:
        """Return the attempt of systems in any order, also several times."""
        start, y, t, h, until = (part[index] for part in (self.start, self.y, self.t, self.h, self.until))
        return Attempt(self.method, start, y, self.errors[:, index], self.slopes[:, index], t, h, until)

    def extend(self, field: Field, index: Tensor) -> None:
        """Evaluate the extra stages of the continuous extension for some systems, which `at` needs inside the step.

        Args:
            field: The vector field of all systems of the attempt.
            index: Which of them, in increasing order.
        """
        part, selected = self.rows(index), field.select(index)
        count = len(self.method.stages)
        for number, (row, node) in enumerate(zip(self.method.extra_stages, self.method.extra_nodes, strict=True)):
            state = _advanced(part.start, row, part.slopes[: count + number], part.h)
            slope = selected.velocity(state, _time(field, node, part.t, part.h, part.until))
            part.slopes[count + number] = slope
            self.slopes[count + number, index] = slope

    def at(self, share: Tensor) -> Tensor:
        """Return states at the shares θ in [0, 1] of the step, one for each system, by the continuous extension."""
        factor, factors = share, [share]
        for number in range(1, self.method.extension.shape[1]):
            factor = factor * (1 - share if number % 2 else share)
            factors.append(factor)
        parts = (self.h * torch.stack(factors)).to(self.y.dtype).mT @ self.method.extension.mT
        return self.start + torch.einsum("ns,sntd->ntd", parts, self.slopes)

    @property
    def stages(self) -> Tensor:
        """The slopes of the step itself, (stage, system, token, dim)."""
        return self.slopes[: len(self.method.stages)]

    @property
    def last_slope(self) -> Tensor:
        """The slope at the end of the step, which is the last stage."""
        return self.stages[-1]


def take_step(
    field: Field, method: Coefficients, y: Tensor, t: Tensor, h: Tensor, slope: Tensor, until: Tensor
) -> Attempt:
    """Attempt a step of a first-same-as-last pair from the known first slope.

    Args:
        field: The vector field.
        method: Of an embedded pair.
        y: States (system, token, dim).
        t: Times (system,), float64.
        h: Step sizes (system,), float64.
        slope: The field at (y, t).
        until: Times after the step (system,): t + h but for rounding, and never passed.
    """
    count = len(method.stages)
    slopes = torch.empty(len(method.extension), *y.shape, dtype=y.dtype, device=y.device)
    slopes[0], slopes[count:] = slope, 0.0
    state = y
    for number in range(1, count):
        state = _advanced(y, method.stages[number], slopes[:number], h)
        slopes[number] = field.velocity(state, _time(field, method.nodes[number], t, h, until))
    errors = (method.errors @ slopes[:count].flatten(start_dim=1)).view(-1, *y.shape) * _wide(h, y)
    return Attempt(method, y, state, errors, slopes, t, h, until)


def _advanced(y: Tensor, row: Tensor, slopes: Tensor, h: Tensor) -> Tensor:
    """Return ``y + h Σ_s row_s k_s``."""
    return torch.addcmul(y, (row @ slopes.flatten(start_dim=1)).view_as(y), _wide(h, y))


def _wide(h: Tensor, y: Tensor) -> Tensor:
    return h.to(y.dtype)[:, None, None]


def _time(field: Field, node: float, t: Tensor, h: Tensor, until: Tensor) -> Tensor | float:
    return 0.0 if field.constant else torch.minimum(t + node * h, until)
