"""
Distances between tokens
========================

Theorem 3.1 of `positional`: with a symmetric, negative definite :math:`A` no distance in the norm of :math:`A` grows.
Here :math:`A = -I`, so that Euclidean distances fall. The axis of time is plain, that of distances logarithmic.
"""

import tokendynamics as td

identity = [[1.0, 0.0], [0.0, 1.0]]
flow = td.Flow(td.Attention(identity, [[-1.0, 0.0], [0.0, -1.0]]), td.Free())
run = td.simulate(
    flow, td.Free().sample(4, 2, seed=3), [0.1 * step for step in range(101)]
)
td.figures.distances(run, log="values")
