"""Signs and spectra of the QK and OV circuits, and the regime they put a layer in."""

from tokendynamics.spectra.balance import balance
from tokendynamics.spectra.inertia import Inertia, inertia
from tokendynamics.spectra.low_rank import compress, low_rank_eigenvalues, low_rank_inertia, product_eigenvalues
from tokendynamics.spectra.regime import Regime, RegimeName, classify, regime
from tokendynamics.spectra.value_map import ValueSpectrum, value_spectrum, value_spectrum_of_factors

__all__ = [
    "Inertia",
    "Regime",
    "RegimeName",
    "ValueSpectrum",
    "balance",
    "classify",
    "compress",
    "inertia",
    "low_rank_eigenvalues",
    "low_rank_inertia",
    "product_eigenvalues",
    "regime",
    "value_spectrum",
    "value_spectrum_of_factors",
]
