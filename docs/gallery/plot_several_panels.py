"""
Several panels at printed size
==============================

`td.figures.panels` makes an empty figure of a fixed width, one or both columns of a paper. Every function of
`td.figures` draws on a panel with `axes=`.
"""

import numpy as np

import tokendynamics as td

identity = np.eye(3)
flow = td.Flow(td.Attention(4 * identity, identity), td.Sphere())
run = td.simulate(flow, td.Sphere().sample(8, 3, seed=7), np.linspace(0, 30, 151))
figure, (left, right) = td.figures.panels(
    2, width=td.figures.DOUBLE, height=3.0, titles=["paths", "angles"]
)
td.figures.tokens(run, axes=left)
td.figures.distances(run, geometry="sphere", log="values", axes=right)
figure
