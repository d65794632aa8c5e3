"""Circuits that change in ways nobody can know, looked at over the times of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention import Schedule
from tokendynamics.attention.circuit_at_time import CircuitAtTime
from tokendynamics.attention.schedules import Time
from tokendynamics.dynamics import Flow

_MOST = 16
_BETWEEN = 8
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class OnHorizon:
    """A schedule over the horizon of a run: before it, its value at the beginning.

    Attributes:
        schedule: What it is.
        moments: Where it is looked at, increasing.
    """

    schedule: Schedule
    moments: tuple[float, ...]
    constant: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Schedule`."""
        return self.schedule.shape

    @property
    def bounded(self) -> bool | None:
        """See `Schedule`."""
        return self.schedule.bounded

    @property
    def uniformly_continuous(self) -> bool | None:
        """See `Schedule`."""
        return self.schedule.uniformly_continuous

    def at(self, t: Time) -> CircuitAtTime:
        """See `Schedule`."""
        first = self.moments[0]
        return self.schedule.at(t.clamp_min(first) if isinstance(t, Tensor) else max(t, first))

    def matrix_at(self, t: float) -> Tensor:
        """See `Schedule`."""
        return self.schedule.matrix_at(max(t, self.moments[0]))

    def breaks(self, start: float, end: float) -> list[float]:
        """See `Schedule`."""
        return self.schedule.breaks(start, end)

    def corners(self, start: float, end: float) -> list[float]:
        """See `Schedule`."""
        return self.schedule.corners(start, end)

    def within(self, start: float, end: float) -> Schedule:
        """See `Schedule`."""
        return self.schedule.within(start, end)

    def flattened(self) -> OnHorizon:
        """See `Schedule`."""
        return OnHorizon(self.schedule.flattened(), self.moments)

    def select(self, systems: Tensor) -> OnHorizon:
        """See `Schedule`."""
        return OnHorizon(self.schedule.select(systems), self.moments)

    def to(self, *, dtype: torch.dtype, device: torch.device) -> OnHorizon:
        """See `Schedule`."""
        return OnHorizon(self.schedule.to(dtype=dtype, device=device), self.moments)


def over_horizon(flow: Flow, times: np.ndarray) -> Flow:
    """Return the flow whose sampled circuits are looked at between the first and the last of these times."""
    attention, moments = flow.attention, _moments(np.asarray(times, dtype=float))
    qk, ov = (
        schedule if schedule.constant or hasattr(schedule, "pieces") else OnHorizon(schedule, moments)
        for schedule in (attention.qk, attention.ov)
    )
    if qk is attention.qk and ov is attention.ov:
        return flow
    return flow.with_attention(attention.with_schedules(qk, ov, attention.positions))


def _moments(times: np.ndarray) -> tuple[float, ...]:
    """Choose some of the times, ends included, and some between in no simple ratio, which no period hides behind."""
    some = times[np.unique(np.linspace(0, len(times) - 1, min(len(times), _MOST)).round().astype(int))]
    between = times[0] + (times[-1] - times[0]) * (np.arange(1, _BETWEEN + 1) * _GOLDEN % 1)
    return tuple(np.unique(np.concatenate([some, between])).tolist())
