"""
Norms that fall like a power of time
====================================

Theorem 3.4 of `positional`: with :math:`A = -I` and :math:`W = I` all tokens tend to zero. Norms fall like
:math:`t^{-1/2}`, a straight line of slope −1/2 on logarithmic axes.
"""

import numpy as np

import tokendynamics as td

identity = np.eye(2)
flow = td.Flow(td.Attention(identity, -identity), td.Free())
times = np.concatenate([[0.0], np.geomspace(0.1, 1000, 80)])
run = td.simulate(flow, td.Free().sample(4, 2, seed=4), times)
td.figures.norms(run, log="both")
