"""Circuits as functions of time: constant, sinusoidally gated, piecewise constant and periodic, or any callable."""

from tokendynamics.attention.schedules._as_schedule import FromCallable, ScheduleLike, as_schedule
from tokendynamics.attention.schedules._constant import Constant
from tokendynamics.attention.schedules._per_head import PerHead
from tokendynamics.attention.schedules._periodic import Periodic
from tokendynamics.attention.schedules._schedule import Schedule, Time
from tokendynamics.attention.schedules._sinusoidal import Sinusoidal

__all__ = [
    "Constant",
    "FromCallable",
    "PerHead",
    "Periodic",
    "Schedule",
    "ScheduleLike",
    "Sinusoidal",
    "Time",
    "as_schedule",
]
