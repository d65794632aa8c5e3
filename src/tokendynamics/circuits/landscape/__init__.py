"""Exact loss landscapes of attention that is to read pairs, their stationary points, and where descent ends.

The stationary families have modules of their own: `positions_families` for 3.1, `categories_families` for 3.3.
"""

from tokendynamics.circuits.landscape import categories_families, positions_families
from tokendynamics.circuits.landscape._basins import Basins, find_basins
from tokendynamics.circuits.landscape._categories_only import CategoriesOnly
from tokendynamics.circuits.landscape._claims import STARTS, LandscapeSurvey, survey
from tokendynamics.circuits.landscape._classification import Classification, classify
from tokendynamics.circuits.landscape._continuation import Continuation, Symmetries, continue_descent, find_symmetries
from tokendynamics.circuits.landscape._landscape import Gradient, Landscape, LossAndGradient, StationaryPoint
from tokendynamics.circuits.landscape._normalized import NormalizedPositions
from tokendynamics.circuits.landscape._positions_only import PositionsOnly
from tokendynamics.circuits.landscape._softmax_positions import Descent, SoftmaxPositions, Stall, stall

__all__ = [
    "STARTS", "Basins", "CategoriesOnly", "Classification", "Continuation", "Descent", "Gradient", "Landscape",
    "LandscapeSurvey", "LossAndGradient", "NormalizedPositions", "PositionsOnly", "SoftmaxPositions", "Stall",
    "StationaryPoint", "Symmetries", "categories_families", "classify", "continue_descent", "find_basins",
    "find_symmetries", "positions_families", "stall", "survey",
]  # fmt: skip
