"""
A matrix with blocks
====================

The query–key circuit of a hand-built transformer, solution 2 of `logical`: it reads categories and ignores positions.
White is zero, orange positive, purple negative; a minus marks negative cells for print in grey.
"""

from tokendynamics.circuits import PairTask
from tokendynamics.circuits.constructions import solution_2
from tokendynamics.figures import heat_map

task = PairTask([[0.5, -1.0, 0.2], [1.5, 0.3, -0.7], [-0.4, 0.9, 1.1]], positions=4)
circuit = solution_2(task).qk[0]  # of its only head
heat_map(
    circuit,
    blocks={"category": 3, "position": 4},
    cells="signs",
    label="query–key circuit",
)
