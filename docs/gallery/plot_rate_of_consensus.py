"""
How fast consensus comes
========================

The diameter of four tokens in a half space, and the late rate e^(−t) that theory predicts, for three values of
β.
"""

import math

import torch

import tokendynamics as td

identity = torch.eye(3, dtype=torch.float64)
start = td.Sphere().sample(4, 3, seed=2)
times = [0.1 * step for step in range(161)]
diameters, names = [], []
for beta in (0.0, 1.0, 2.0):
    flow = td.Flow(
        td.Attention(beta * identity, identity, normalization="plain"), td.Sphere()
    )
    diameters.append(td.observables.diameter(td.simulate(flow, start, times).states))
    names.append(f"β = {beta:g}")
    rate = -float((diameters[-1][160] / diameters[-1][130]).log()) / 3
    assert abs(rate - 1) < 0.02, rate
diameters.append(torch.tensor([math.exp(-time) for time in times], dtype=torch.float64))

td.figures.over_time(
    times,
    torch.stack(diameters),
    "largest distance",
    names=[*names, "e^(−t)"],
    log="values",
)
