"""Circuits as functions of time: constant, sinusoidally gated, piecewise constant and periodic, or any callable."""

from tokendynamics.attention.schedules.constant import Constant
from tokendynamics.attention.schedules.from_callable import FromCallable
from tokendynamics.attention.schedules.per_head import PerHead
from tokendynamics.attention.schedules.periodic import Periodic
from tokendynamics.attention.schedules.reading import ScheduleLike, as_schedule
from tokendynamics.attention.schedules.schedule import Schedule, Time
from tokendynamics.attention.schedules.sinusoidal import Sinusoidal

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
