"""Circuits as functions of time: constant, sinusoidally gated, piecewise constant and periodic, or any callable."""

from tokendynamics.attention.schedules._periodic import Periodic
from tokendynamics.attention.schedules._schedule import Constant, Schedule, Time
from tokendynamics.attention.schedules._sinusoidal import Sinusoidal
from tokendynamics.attention.schedules.conversion import FromCallable, PerHead, ScheduleLike, as_schedule

__all__ = [
    "Constant", "FromCallable", "PerHead", "Periodic", "Schedule", "ScheduleLike", "Sinusoidal", "Time", "as_schedule",
]  # fmt: skip
