"""
A functional over time
======================

E of `asymptotic` (25) is zero if all tokens point one way. Fifty causal systems start at random; the line is their
median, and the band holds the middle 80 %.
"""

import numpy as np

import tokendynamics as td

identity = np.eye(3)
flow = td.Flow(td.Attention(identity, identity, causal=True), td.Sphere())
run = td.simulate(
    flow, td.Sphere().sample(6, 3, (50,), seed=5), np.linspace(0, 20, 101)
)
energy = td.observables.consensus(run.states)
td.figures.over_time(run.times, energy, "consensus E", log="values")
