"""The public names of the package: `lazy_loader` imports each on first use, and type checkers read this file."""

from ._constrained_attention import ConstrainedAttention as ConstrainedAttention
from ._regimes import REGIMES as REGIMES
from ._regimes import Regime as Regime
from .matrices import PlacedSpectrum as PlacedSpectrum
from .matrices import SignedMatrix as SignedMatrix
from .positions import DecoupledRotary as DecoupledRotary
from .positions import LearnedPositions as LearnedPositions
from .positions import NegativeDiagonal as NegativeDiagonal
from .positions import Rotary as Rotary
from .positions import SinusoidalPositions as SinusoidalPositions
