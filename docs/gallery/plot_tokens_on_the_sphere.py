"""
Tokens on a sphere
==================

Twelve tokens under softmax attention with the identity for both circuits. They meet at one point.
"""

import tokendynamics as td

identity = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
flow = td.Flow(td.Attention(identity, identity), td.Sphere())
run = td.simulate(
    flow, td.Sphere().sample(12, 3, seed=1), [0.1 * step for step in range(101)]
)
td.figures.tokens(run)
