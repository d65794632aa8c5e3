"""Trainable attention in a chosen regime."""

from tokendynamics.modules._constrained_attention import ConstrainedAttention
from tokendynamics.modules._regimes import REGIMES, Regime
from tokendynamics.modules.matrices import PlacedSpectrum, SignedMatrix
from tokendynamics.modules.positions import (
    DecoupledRotary,
    LearnedPositions,
    NegativeDiagonal,
    Rotary,
    SinusoidalPositions,
)

__all__ = [
    "REGIMES", "ConstrainedAttention", "DecoupledRotary", "LearnedPositions", "NegativeDiagonal", "PlacedSpectrum",
    "Regime", "Rotary", "SignedMatrix", "SinusoidalPositions",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
