"""Signs and spectra of the QK and OV circuits, and the regime they put a layer in."""

from tokendynamics.spectra.regimes import Regime, RegimeName, balance, classify, regime
from tokendynamics.spectra.signs import (
    Inertia,
    compress,
    inertia,
    low_rank_eigenvalues,
    low_rank_inertia,
    product_eigenvalues,
)
from tokendynamics.spectra.value_map import ValueSpectrum, value_spectrum, value_spectrum_of_factors

__all__ = [
    "Inertia", "Regime", "RegimeName", "ValueSpectrum", "balance", "classify", "compress", "inertia",
    "low_rank_eigenvalues", "low_rank_inertia", "product_eigenvalues", "regime", "value_spectrum",
    "value_spectrum_of_factors",
]  # fmt: skip
