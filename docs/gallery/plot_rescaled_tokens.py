"""
Tokens that diverge, rescaled
=============================

With qk = ov = I tokens of free space grow like e^t. Divided by that they go to the vertices of a polygon, and stay
there: here up to t = 1000, when the tokens themselves are about 10^434.
"""

import numpy as np

import tokendynamics as td

identity = np.eye(2)
flow = td.Flow(td.Attention(identity, identity), td.Free())
start = td.Free().sample(25, 2, seed=4)
times = np.concatenate([np.linspace(0.0, 5.0, 101), [1000.0]])
run = td.simulate(flow, start, times, frame="rescaled")
assert str(run.status) == "reached the horizon"
(certificate,) = td.certify(run, ["clusters-3.1"])
assert certificate.outcome == "holds"
td.figures.phase_plane(run)
