"""One attempted step of an explicit Runge–Kutta method for many systems, and its dense output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokendynamics.dynamics._field import Field
from tokendynamics.dynamics.engines.tableau import Row, Tableau


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
            state = _moved(part.start, row, part.slopes[: count + number], part.h)
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
        state = _moved(y, method.stages[number], slopes[:number], h)
        slopes[number] = field.velocity(state, _time(field, method.nodes[number], t, h, until))
    errors = (method.errors @ slopes[:count].flatten(start_dim=1)).view(-1, *y.shape) * _wide(h, y)
    return Attempt(method, y, state, errors, slopes, t, h, until)


def _moved(y: Tensor, row: Tensor, slopes: Tensor, h: Tensor) -> Tensor:
    """Return ``y + h Σ_s row_s k_s``."""
    return torch.addcmul(y, (row @ slopes.flatten(start_dim=1)).view_as(y), _wide(h, y))


def _wide(h: Tensor, y: Tensor) -> Tensor:
    return h.to(y.dtype)[:, None, None]


def _time(field: Field, node: float, t: Tensor, h: Tensor, until: Tensor) -> Tensor | float:
    return 0.0 if field.constant else torch.minimum(t + node * h, until)
