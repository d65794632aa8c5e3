"""Trainable attention in a chosen regime."""

from tokendynamics.modules._constrained_attention import ConstrainedAttention, LinearWeights
from tokendynamics.modules._placed_spectrum import PlacedSpectrum
from tokendynamics.modules._positions import (
    DecoupledRotary,
    LearnedPositions,
    LogitTerm,
    NegativeDiagonal,
    Rotary,
    SinusoidalPositions,
)
from tokendynamics.modules._regimes import REGIMES, Regime
from tokendynamics.modules._signed_matrix import FreeMatrix, SignedMatrix

__all__ = [
    "REGIMES", "ConstrainedAttention", "DecoupledRotary", "FreeMatrix", "LearnedPositions", "LinearWeights",
    "LogitTerm", "NegativeDiagonal", "PlacedSpectrum", "Regime", "Rotary", "SignedMatrix", "SinusoidalPositions",
]  # fmt: skip
