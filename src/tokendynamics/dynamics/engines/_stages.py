"""One attempted step of an explicit Runge–Kutta method for many systems, and its dense output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokendynamics.dynamics._field import Field
from tokendynamics.dynamics.engines.tableau import Row, Tableau


@dataclass(frozen=True)
class Coefficients:
    """A tableau as tensors of the states' dtype and device."""

    stages: tuple[Tensor, ...]
    nodes: tuple[float, ...]
    weights: Tensor
    error: Tensor
    dense: Tensor
    same_last: bool

    @classmethod
    def of(cls, tableau: Tableau, states: Tensor) -> Coefficients:
        """Convert the exact fractions of a tableau."""

        def tensor(row: Row) -> Tensor:
            return torch.tensor([float(number) for number in row], dtype=states.dtype, device=states.device)

        dense = torch.stack([tensor(row) for row in tableau.dense]) if tableau.dense else torch.zeros(0)
        return cls(
            stages=tuple(tensor(row) for row in tableau.stages),
            nodes=tuple(float(node) for node in tableau.nodes),
            weights=tensor(tableau.weights),
            error=tensor(tableau.error),
            dense=dense,
            same_last=tableau.same_last,
        )

    @property
    def new_stages(self) -> int:
        """Right-hand sides of one attempted step, the first stage being known."""
        return len(self.stages) - 1


@dataclass(frozen=True)
class Attempt:
    """An attempted step: the new states before any retraction, the error estimate, and all slopes.

    Attributes:
        start: States before the step, (system, token, dim).
        y: States after it.
        error: Estimate of the local error.
        slopes: (stage, system, token, dim).
        h: Step sizes (system,).
        dense: Coefficients of the continuous extension.
    """

    start: Tensor
    y: Tensor
    error: Tensor
    slopes: Tensor
    h: Tensor
    dense: Tensor

    def rows(self, index: Tensor) -> Attempt:
        """Return the attempt of some systems, in increasing order."""
        return self if len(index) == len(self.y) else self.taken(index)

    def taken(self, index: Tensor) -> Attempt:
        """Return the attempt of systems in any order, also several times."""
        start, y, error = (part[index] for part in (self.start, self.y, self.error))
        return Attempt(start, y, error, self.slopes[:, index], self.h[index], self.dense)

    def at(self, share: Tensor) -> Tensor:
        """Return states at the shares θ in [0, 1] of the step, one for each system, by the continuous extension."""
        powers = share.unsqueeze(-1) ** torch.arange(1, self.dense.shape[-1] + 1, device=share.device)
        parts = (self.h.unsqueeze(-1) * powers).to(self.y.dtype) @ self.dense.mT
        return self.start + torch.einsum("ns,sntd->ntd", parts, self.slopes)

    @property
    def last_slope(self) -> Tensor:
        """The slope at the end of the step, which is the last stage."""
        return self.slopes[-1]


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
    slopes = torch.empty(len(method.stages), *y.shape, dtype=y.dtype, device=y.device)
    slopes[0] = slope
    flat, wide = slopes.flatten(start_dim=1), h.to(y.dtype)[:, None, None]
    state = y
    for number in range(1, len(method.stages)):
        direction = (method.stages[number] @ flat[:number]).view_as(y)
        state = torch.addcmul(y, direction, wide)
        now = 0.0 if field.constant else torch.minimum(t + method.nodes[number] * h, until)
        slopes[number] = field.velocity(state, now)
    error = (method.error @ flat).view_as(y) * wide
    return Attempt(y, state, error, slopes, h, method.dense)
