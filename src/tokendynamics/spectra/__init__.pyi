"""The public names of the package: `lazy_loader` imports each on first use, and type checkers read this file."""

from .regimes import Regime as Regime
from .regimes import balance as balance
from .regimes import classify as classify
from .regimes import regime as regime
from .signs import Inertia as Inertia
from .signs import inertia as inertia
from .signs import low_rank_eigenvalues as low_rank_eigenvalues
from .signs import product_eigenvalues as product_eigenvalues
from .value_map import value_spectrum as value_spectrum
