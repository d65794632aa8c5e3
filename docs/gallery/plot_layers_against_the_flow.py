"""
Layers against the flow
=======================

A layer is a step of the flow. Halving the step halves the error of a whole run, and divides that of one layer
by four.
"""

import torch

import tokendynamics as td

identity = torch.eye(3, dtype=torch.float64)
flow = td.Flow(td.Attention(2 * identity, identity), td.Sphere())
start = td.Sphere().sample(8, 3, seed=1)
end = td.simulate(flow, start, [0.0, 1.0]).states[-1]

steps = [1 / count for count in (32, 16, 8, 4, 2, 1)]
after_one, after_all = [], []
for tau in steps:
    exact = td.simulate(flow, start, [0.0, tau]).states[-1]
    after_one.append(float((flow.step(start, 0, tau=tau) - exact).abs().max()))
    state = start
    for layer in range(round(1 / tau)):
        state = flow.step(state, layer, tau=tau)
    after_all.append(float((state - end).abs().max()))
assert 3.5 < after_one[1] / after_one[0] < 4.5
assert 1.8 < after_all[1] / after_all[0] < 2.2

td.figures.over_time(
    steps,
    [after_one, after_all],
    "largest error",
    log="both",
    names=["after one layer", "after layers up to t = 1"],
    time_label="step τ of a layer",
)
