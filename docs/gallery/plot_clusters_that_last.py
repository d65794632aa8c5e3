"""
Clusters that last
==================

How many clusters 24 tokens on the circle form over ten decades of time, for three inverse temperatures β.
"""

import torch

import tokendynamics as td

identity = torch.eye(2, dtype=torch.float64)
start = td.Sphere().sample(24, 2, seed=5)
times = torch.cat(
    [
        torch.zeros(1, dtype=torch.float64),
        torch.logspace(-1, 9, 61, dtype=torch.float64),
    ]
)
betas = (1.0, 4.0, 9.0)
counts = []
for beta in betas:
    flow = td.Flow(
        td.Attention(beta * identity, identity, normalization="plain"), td.Sphere()
    )
    run = td.simulate(flow, start, times, engine="stiff")
    counts.append(td.observables.clusters(run.states, 0.05).double())
assert all(int(count[-1]) == 1 for count in counts)

td.figures.over_time(
    times,
    torch.stack(counts),
    "clusters at an angle of 0.05",
    names=[f"β = {beta:g}" for beta in betas],
    log="times",
)
