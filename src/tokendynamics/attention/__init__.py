"""Attention as a pair of bilinear and linear maps: the QK and OV circuits."""

from tokendynamics.attention.circuits import FactoredMatrix, ov_circuit, qk_circuit
from tokendynamics.attention.notation import from_asymptotic, from_logical, from_positional
from tokendynamics.attention.rotary import rotate

__all__ = ["FactoredMatrix", "from_asymptotic", "from_logical", "from_positional", "ov_circuit", "qk_circuit", "rotate"]
