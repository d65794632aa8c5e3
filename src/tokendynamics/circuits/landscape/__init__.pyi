"""The public names of the package: `lazy_loader` imports each on first use, and type checkers read this file."""

from .basins import find_basins as find_basins
from .categories_only import CategoriesOnly as CategoriesOnly
from .claims import survey as survey
from .classification import classify as classify
from .positions_only import PositionsOnly as PositionsOnly
from .softmax_positions import SoftmaxPositions as SoftmaxPositions
