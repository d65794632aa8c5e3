"""Exact loss landscapes of attention that is to read pairs, their stationary points, and where descent ends.

The families of stationary points are in `positions_only` for 3.1, in `categories_only` for 3.3.
"""

from tokendynamics.circuits.landscape.basins import find_basins
from tokendynamics.circuits.landscape.categories_only import CategoriesOnly
from tokendynamics.circuits.landscape.claims import survey
from tokendynamics.circuits.landscape.classification import classify
from tokendynamics.circuits.landscape.positions_only import PositionsOnly
from tokendynamics.circuits.landscape.softmax_positions import SoftmaxPositions

__all__ = ["CategoriesOnly", "PositionsOnly", "SoftmaxPositions", "classify", "find_basins", "survey"]
