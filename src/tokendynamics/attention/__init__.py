"""Attention: QK and OV circuits, their schedules in time, positions, and the map of states they make."""

from tokendynamics.attention._attention import Attention
from tokendynamics.attention._circuits import (
    FactoredMatrix,
    from_asymptotic,
    from_logical,
    from_positional,
    ov_circuit,
    qk_circuit,
)
from tokendynamics.attention._positions import AbsolutePositions, Positions, RotaryPositions, rotate
from tokendynamics.attention.schedules import Constant, Periodic, Schedule, Sinusoidal

__all__ = [
    "AbsolutePositions", "Attention", "Constant", "FactoredMatrix", "Periodic", "Positions", "RotaryPositions",
    "Schedule", "Sinusoidal", "from_asymptotic", "from_logical", "from_positional", "ov_circuit", "qk_circuit",
    "rotate",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
