"""Exact loss landscapes of attention that is to read pairs, their stationary points, and where descent ends.

The families of stationary points are in `positions_only` for 3.1, in `categories_only` for 3.3.
"""

from tokendynamics.circuits.landscape._claims import LandscapeSurvey, survey
from tokendynamics.circuits.landscape._classification import Classification, classify
from tokendynamics.circuits.landscape.basins import Basins, find_basins
from tokendynamics.circuits.landscape.categories_only import CategoriesOnly
from tokendynamics.circuits.landscape.landscape import StationaryPoint
from tokendynamics.circuits.landscape.positions_only import PositionsOnly
from tokendynamics.circuits.landscape.softmax_positions import SoftmaxPositions

__all__ = [
    "Basins", "CategoriesOnly", "Classification", "LandscapeSurvey", "PositionsOnly", "SoftmaxPositions",
    "StationaryPoint", "classify", "find_basins", "survey",
]  # fmt: skip
