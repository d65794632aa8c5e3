"""Trainable attention in a chosen regime."""

from tokendynamics.modules._constrained_attention import AttentionWeights, ConstrainedAttention
from tokendynamics.modules._placed_spectrum import PlacedSpectrum
from tokendynamics.modules._regimes import REGIMES, Regime
from tokendynamics.modules._signed_matrix import FreeMatrix, SignedMatrix

__all__ = [
    "REGIMES", "AttentionWeights", "ConstrainedAttention", "FreeMatrix", "PlacedSpectrum", "Regime", "SignedMatrix",
]  # fmt: skip
