"""One-layer transformers set by hand: three places for the same logic, as printed and as they work."""

from tokendynamics.circuits.hand_built.blocks import shift
from tokendynamics.circuits.hand_built.catalogue import HAND_BUILT, linear_solution
from tokendynamics.circuits.hand_built.comparison import Answer, Comparison, WrongPair, compare
from tokendynamics.circuits.hand_built.equivalence import Equivalence, equivalence
from tokendynamics.circuits.hand_built.layer_norm import LayerNorm
from tokendynamics.circuits.hand_built.linear_case import linear_case
from tokendynamics.circuits.hand_built.mixture import mixture
from tokendynamics.circuits.hand_built.pair_order import by_pair, pair_order
from tokendynamics.circuits.hand_built.selection import Selection, selection
from tokendynamics.circuits.hand_built.softmax import softmax_solution_1, softmax_solution_3
from tokendynamics.circuits.hand_built.softmax_2 import softmax_solution_2
from tokendynamics.circuits.hand_built.solution_1 import solution_1
from tokendynamics.circuits.hand_built.solution_2 import solution_2
from tokendynamics.circuits.hand_built.solution_3 import solution_3
from tokendynamics.circuits.hand_built.transformer import OneLayerTransformer

__all__ = [
    "HAND_BUILT",
    "Answer",
    "Comparison",
    "Equivalence",
    "LayerNorm",
    "OneLayerTransformer",
    "Selection",
    "WrongPair",
    "by_pair",
    "compare",
    "equivalence",
    "linear_case",
    "linear_solution",
    "mixture",
    "pair_order",
    "selection",
    "shift",
    "softmax_solution_1",
    "softmax_solution_2",
    "softmax_solution_3",
    "solution_1",
    "solution_2",
    "solution_3",
]
