"""
Tokens in the plane
===================

In free space tokens may go to infinity or to zero. Here the value circuit turns and shrinks them.
"""

import tokendynamics as td

flow = td.Flow(
    td.Attention([[1.0, 0.0], [0.0, 1.0]], [[-0.3, -1.0], [1.0, -0.3]]), td.Free()
)
run = td.simulate(
    flow, td.Free().sample(5, 2, seed=2), [0.05 * step for step in range(121)]
)
td.figures.tokens(run)
