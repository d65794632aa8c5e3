"""The task of `logical`: read a functional of each pair of adjacent categories from a sequence."""

from tokendynamics.circuits.pair_task.functionals import (
    equal_column_means,
    pair_numbers,
    positive_functional,
    random_functional,
)
from tokendynamics.circuits.pair_task.laws import category_law
from tokendynamics.circuits.pair_task.logic import WORD_LOGIC, BinaryLogic, WordLogic, either_pair
from tokendynamics.circuits.pair_task.task import PairTask

__all__ = [
    "WORD_LOGIC",
    "BinaryLogic",
    "PairTask",
    "WordLogic",
    "category_law",
    "either_pair",
    "equal_column_means",
    "pair_numbers",
    "positive_functional",
    "random_functional",
]
