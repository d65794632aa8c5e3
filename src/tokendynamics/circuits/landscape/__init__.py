"""Exact loss landscapes of attention that is to read pairs, their stationary points, and where descent ends.

The stationary families have modules of their own: `positions_families` for 3.1, `categories_families` for 3.3.
"""

from tokendynamics.circuits.landscape import categories_families, positions_families
from tokendynamics.circuits.landscape.basins import Basins, find_basins
from tokendynamics.circuits.landscape.categories_only import CategoriesOnly
from tokendynamics.circuits.landscape.claims import STARTS, LandscapeSurvey, survey
from tokendynamics.circuits.landscape.classification import Classification, classify
from tokendynamics.circuits.landscape.continuation import Continuation, continue_descent
from tokendynamics.circuits.landscape.landscape import Gradient, Landscape, LossAndGradient, StationaryPoint
from tokendynamics.circuits.landscape.normalized import NormalizedPositions
from tokendynamics.circuits.landscape.positions_only import PositionsOnly
from tokendynamics.circuits.landscape.softmax_positions import Descent, SoftmaxPositions
from tokendynamics.circuits.landscape.softmax_stall import Stall, stall
from tokendynamics.circuits.landscape.symmetries import Symmetries, find_symmetries

__all__ = [
    "STARTS",
    "Basins",
    "CategoriesOnly",
    "Classification",
    "Continuation",
    "Descent",
    "Gradient",
    "Landscape",
    "LandscapeSurvey",
    "LossAndGradient",
    "NormalizedPositions",
    "PositionsOnly",
    "SoftmaxPositions",
    "Stall",
    "StationaryPoint",
    "Symmetries",
    "categories_families",
    "classify",
    "continue_descent",
    "find_basins",
    "find_symmetries",
    "positions_families",
    "stall",
    "survey",
]
