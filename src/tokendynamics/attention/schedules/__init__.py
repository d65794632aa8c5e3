"""Circuits as functions of time: constant, sinusoidally gated, piecewise constant and periodic, or any callable."""

from tokendynamics.attention.schedules._periodic import Periodic, Sinusoidal
from tokendynamics.attention.schedules._schedule import Constant, Schedule, Time

__all__ = ["Constant", "Periodic", "Schedule", "Sinusoidal", "Time"]
