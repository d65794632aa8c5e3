"""One-layer transformers set by hand: three places for the same logic, as printed and as they work."""

from tokendynamics.circuits.constructions.comparison import check_equivalence, compare
from tokendynamics.circuits.constructions.solutions import (
    linear_case,
    mixture,
    softmax_solution_1,
    softmax_solution_2,
    softmax_solution_3,
    solution_1,
    solution_2,
    solution_3,
)

__all__ = [
    "check_equivalence", "compare", "linear_case", "mixture", "softmax_solution_1", "softmax_solution_2",
    "softmax_solution_3", "solution_1", "solution_2", "solution_3",
]  # fmt: skip
