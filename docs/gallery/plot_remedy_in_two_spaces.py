"""
The remedy λI in two spaces
===========================

The term λI with λ < 0 in the logits turns tokens in free space from meeting to flying apart. On the sphere with
ov = I they meet all the same, and sooner.
"""

import torch

import tokendynamics as td

plane, space = torch.eye(2, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
coefficients = (0.0, -1.0, -2.0)
names = [f"λ = {coefficient:g}" for coefficient in coefficients]
free_start = torch.tensor(
    [[1.0, 0.2], [0.4, 0.9], [-0.6, 0.5], [0.1, -0.8]], dtype=torch.float64
)
sphere_start = td.Sphere().sample(4, 3, seed=2)
free_times, sphere_times = (
    [0.05 * step for step in range(41)],
    [0.1 * step for step in range(101)],
)
free, sphere = [], []
for coefficient in coefficients:
    flow = td.Flow(td.Attention((1 + coefficient) * plane, -plane), td.Free())
    free.append(
        td.observables.diameter(td.simulate(flow, free_start, free_times).states)
    )
    flow = td.Flow(
        td.Attention((1 + coefficient) * space, space, normalization="plain"),
        td.Sphere(),
    )
    sphere.append(
        td.observables.diameter(td.simulate(flow, sphere_start, sphere_times).states)
    )
assert free[0][-1] < free[0][0] < free[2][-1]
assert sphere[2][-1] < sphere[0][-1] < 0.01

figure, (left, right) = td.figures.panels(
    2,
    width=td.figures.DOUBLE,
    height=2.6,
    titles=["free space, ov = −I", "sphere, ov = I"],
)
label = "largest distance"
td.figures.over_time(
    free_times, torch.stack(free), label, names=names, log="values", axes=left
)
td.figures.over_time(
    sphere_times, torch.stack(sphere), label, names=names, log="values", axes=right
)
figure
