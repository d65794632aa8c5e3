"""The public names of the package: `lazy_loader` imports each on first use, and type checkers read this file."""

from ._attention import Attention as Attention
from ._circuits import FactoredMatrix as FactoredMatrix
from ._circuits import from_asymptotic as from_asymptotic
from ._circuits import from_logical as from_logical
from ._circuits import from_positional as from_positional
from ._circuits import ov_circuit as ov_circuit
from ._circuits import qk_circuit as qk_circuit
from ._positions import AbsolutePositions as AbsolutePositions
from ._positions import Positions as Positions
from ._positions import RotaryPositions as RotaryPositions
from ._positions import rotate as rotate
from .schedules import Constant as Constant
from .schedules import Periodic as Periodic
from .schedules import Schedule as Schedule
from .schedules import Sinusoidal as Sinusoidal
