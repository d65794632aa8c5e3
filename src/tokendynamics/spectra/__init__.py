"""Signs and spectra of the QK and OV circuits, and the regime they put a layer in."""

from tokendynamics.spectra.regimes import Regime, balance, classify, regime
from tokendynamics.spectra.signs import Inertia, inertia, low_rank_eigenvalues, product_eigenvalues
from tokendynamics.spectra.value_map import value_spectrum

__all__ = [
    "Inertia", "Regime", "balance", "classify", "inertia", "low_rank_eigenvalues", "product_eigenvalues", "regime",
    "value_spectrum",
]  # fmt: skip
