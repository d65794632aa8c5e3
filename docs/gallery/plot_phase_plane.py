"""
A phase plane with velocities
=============================

Arrows show the velocity that the first token would have at each place, with the other tokens where they end.
"""

import numpy as np

import tokendynamics as td

flow = td.Flow(
    td.Attention([[0.5, 0.2], [-0.1, 0.4]], [[0.3, -0.6], [0.6, 0.3]]), td.Free()
)
run = td.simulate(flow, td.Free().sample(4, 2, seed=6), np.linspace(0, 3, 61))
td.figures.phase_plane(run, probe=0, frame=-1)
