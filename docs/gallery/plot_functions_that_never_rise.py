"""
Functions that never rise
=========================

The potential V, the hemisphere function and the diameter along one run, each relative to its start.
"""

import torch

import tokendynamics as td

identity = torch.eye(3, dtype=torch.float64)
flow = td.Flow(td.Attention(identity, identity, normalization="plain"), td.Sphere())
start = td.Sphere().sample(4, 3, seed=2)
run = td.simulate(flow, start, [0.1 * step for step in range(81)])
deepest = td.observables.hemisphere(start).direction
curves = {
    "potential V, shifted to end at 0": td.observables.potential(run.states, identity),
    "hemisphere function (13)": td.observables.hemisphere_function(run.states, deepest),
    "diameter": td.observables.diameter(run.states),
}
for name, values in curves.items():
    assert bool((values.diff() < 1e-9).all()), name
    values = values - values[-1] if name.startswith("potential") else values
    curves[name] = values / values[0]

td.figures.over_time(
    run.times,
    torch.stack(list(curves.values())),
    "relative to the start",
    names=list(curves),
)
