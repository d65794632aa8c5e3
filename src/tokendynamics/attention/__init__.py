"""Attention: QK and OV circuits, their schedules in time, positions, and the map of states they make."""

from tokendynamics.attention.attention import Attention
from tokendynamics.attention.circuits import FactoredMatrix, ov_circuit, qk_circuit
from tokendynamics.attention.notation import from_asymptotic, from_logical, from_positional
from tokendynamics.attention.positions import AbsolutePositions, Positions, RotaryPositions
from tokendynamics.attention.rotary import rotate
from tokendynamics.attention.schedules import Constant, Periodic, Schedule, Sinusoidal

__all__ = [
    "AbsolutePositions",
    "Attention",
    "Constant",
    "FactoredMatrix",
    "Periodic",
    "Positions",
    "RotaryPositions",
    "Schedule",
    "Sinusoidal",
    "from_asymptotic",
    "from_logical",
    "from_positional",
    "ov_circuit",
    "qk_circuit",
    "rotate",
]
