"""Span reduction: where ov is a multiple of the identity, tokens never leave the span of their start.

With an orthonormal basis B of that span (dim, rank), tokens are ``x = c B^T``, and c moves under the same equations
with ``qk → B^T qk B``, ``M → B^T M B`` and the same ov: exact, and rank ≤ tokens coordinates instead of dim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tokendynamics.attention import FactoredMatrix
from tokendynamics.attention.circuit_at_time import CircuitAtTime, Dense, RowScaled
from tokendynamics.attention.schedules import Constant, Schedule, Sinusoidal, Time
from tokendynamics.dynamics.engines._crossings import RadiusGuard
from tokendynamics.dynamics.engines.problem import Outcome, Problem
from tokendynamics.dynamics.events import AtRest, Consensus, NormAbove
from tokendynamics.dynamics.rescaled import Growing
from tokendynamics.words import plural

WORTH = 0.7
"""The reduction is taken where the rank is at most this share of dim."""


@dataclass(frozen=True)
class Compressed:
    """A schedule seen through a basis for each system: ``B^T qk(t) B``, (system, head, rank, rank).

    Attributes:
        schedule: Of dim × dim matrices.
        basis: (system, dim, rank).
        right: ``matrix @ B``, (system, head, dim, rank), where the schedule is a gate over a fixed matrix.
    """

    schedule: Schedule
    basis: Tensor
    right: Tensor | None

    constant = False
    bounded: bool | None = None
    uniformly_continuous: bool | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Schedule`."""
        systems, _, rank = self.basis.shape
        return (systems, self.schedule.shape[-3], rank, rank)

    def at(self, t: Time) -> CircuitAtTime:
        """See `Schedule`."""
        frozen = self.schedule.at(t)
        if self.right is not None and isinstance(frozen, RowScaled):
            gated = self.basis.unsqueeze(-3) * frozen.scale.unsqueeze(-1)
            return Dense(gated.mT @ self.right)
        return Dense(in_span(frozen.dense(), self.basis))

    def matrix_at(self, t: float) -> Tensor:
        """See `Schedule`."""
        return self.at(t).dense()

    def breaks(self, start: float, end: float) -> list[float]:
        """See `Schedule`."""
        return self.schedule.breaks(start, end)

    def corners(self, start: float, end: float) -> list[float]:
        """See `Schedule`."""
        return self.schedule.corners(start, end)

    def within(self, start: float, end: float) -> Schedule:
        """See `Schedule`."""
        part = self.schedule.within(start, end)
        return compress_schedule(part, self.basis) if part.constant else replace(self, schedule=part)

    def flattened(self) -> Compressed:
        """See `Schedule`."""
        return self

    def select(self, systems: Tensor) -> Compressed:
        """See `Schedule`."""
        right = None if self.right is None else self.right[systems]
        return Compressed(self.schedule.select(systems), self.basis[systems], right)

    def to(self, *, dtype: torch.dtype, device: torch.device) -> Compressed:
        """See `Schedule`."""
        right = None if self.right is None else self.right.to(dtype=dtype, device=device)
        place = {"dtype": dtype, "device": device}
        return Compressed(self.schedule.to(**place), self.basis.to(**place), right)


@dataclass(frozen=True)
class SpanReduction:
    """A problem in the coordinates of the span of its start.

    Attributes:
        problem: The reduced problem.
        original: The problem it came from.
        basis: (system, dim, rank).
    """

    problem: Problem
    original: Problem
    basis: Tensor

    @classmethod
    def of(cls, problem: Problem) -> SpanReduction | None:
        """Return the reduction, or None where it does not hold or is not worth it."""
        field, (tokens, dim) = problem.field, problem.start.shape[1:]
        positions = field.attention.positions
        # A user's event may read coordinates.
        kinds = AtRest | Consensus | NormAbove | RadiusGuard
        known = all(isinstance(event, kinds) for event in (*problem.events, *problem.recorded))
        if not known or field.multiples is None or tokens > WORTH * dim or problem.start.requires_grad:
            return None
        basis = torch.linalg.qr(problem.start.mT).Q
        rank = basis.shape[-1]
        ov = torch.eye(rank, dtype=basis.dtype, device=basis.device) * field.multiples.to(basis)[..., None, None]
        geometry = field.geometry.restricted(basis)
        placed = positions and positions.restricted(basis)
        if geometry is None or (positions is not None and placed is None):
            return None
        attention = field.attention.with_schedules(compress_schedule(field.attention.qk, basis), Constant(ov), placed)
        reduced = replace(field, attention=attention, geometry=geometry)
        # A gated qk is compressed anew at every time: a product over all of dim.
        footprint = 0 if attention.qk.constant else dim * rank
        start = problem.start @ basis
        return cls(replace(problem, field=reduced, start=start, footprint=footprint), problem, basis)

    def lifted(self, outcome: Outcome) -> Outcome:
        """Return the outcome in the original coordinates."""
        outcome.states = self.original.field.projected_over_time(outcome.states @ self.basis.mT.unsqueeze(1))
        outcome.crossings = [
            (
                number,
                system,
                time,
                self.original.field.select(torch.tensor([system])).exactly_projected(
                    (state @ self.basis[system].mT).unsqueeze(0)
                )[0],
            )
            for number, system, time, state in outcome.crossings
        ]
        dim, rank = self.basis.shape[-2:]
        outcome.notes.append(f"span reduction: {plural(rank, 'coordinate')} instead of {dim}")
        return outcome


def compress_schedule(schedule: Schedule, basis: Tensor) -> Schedule:
    """Return ``B^T qk B`` as a schedule; constant where the schedule is."""
    if isinstance(schedule, Growing):
        return replace(schedule, qk=compress_schedule(schedule.qk, basis))
    if isinstance(schedule, Constant):
        matrix = schedule.matrix
        if isinstance(matrix, FactoredMatrix):
            sides = (basis.mT.unsqueeze(-3) @ side for side in (matrix.left, matrix.right))
            return Constant(FactoredMatrix(*sides))
        return Constant(in_span(matrix, basis))
    right = schedule.matrix @ basis.unsqueeze(-3) if isinstance(schedule, Sinusoidal) else None
    return Compressed(schedule, basis, right)


def in_span(matrix: Tensor, basis: Tensor) -> Tensor:
    """Return ``B^T matrix B`` for each system and head."""
    return basis.mT.unsqueeze(-3) @ (matrix @ basis.unsqueeze(-3))
