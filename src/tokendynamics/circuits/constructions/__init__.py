"""One-layer transformers set by hand: three places for the same logic, as printed and as they work."""

from tokendynamics.circuits.constructions.catalogue import HAND_BUILT, linear_case, linear_solution, mixture
from tokendynamics.circuits.constructions.comparison import Answer, Comparison, WrongPair, compare
from tokendynamics.circuits.constructions.equivalence import Equivalence, check_equivalence
from tokendynamics.circuits.constructions.selection import Selection
from tokendynamics.circuits.constructions.softmax_solutions import (
    softmax_solution_1,
    softmax_solution_2,
    softmax_solution_3,
)
from tokendynamics.circuits.constructions.solutions import by_pair, pair_order, solution_1, solution_2, solution_3

__all__ = [
    "HAND_BUILT",
    "Answer",
    "Comparison",
    "Equivalence",
    "Selection",
    "WrongPair",
    "by_pair",
    "check_equivalence",
    "compare",
    "linear_case",
    "linear_solution",
    "mixture",
    "pair_order",
    "softmax_solution_1",
    "softmax_solution_2",
    "softmax_solution_3",
    "solution_1",
    "solution_2",
    "solution_3",
]
