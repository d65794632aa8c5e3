"""
Signs of the two circuits
=========================

Four tokens in free space, with circuits qk = ±I and ov = ±I. Distances shrink where the signs differ, and grow
where they agree: the sign of A = qk · ov⁻¹ decides.
"""

import torch

import tokendynamics as td

identity = torch.eye(2, dtype=torch.float64)
start = torch.tensor(
    [[1.0, 0.2], [0.4, 0.9], [-0.6, 0.5], [0.1, -0.8]], dtype=torch.float64
)
times = [0.05 * step for step in range(41)]
diameters = {}
for qk in (1, -1):
    for ov in (1, -1):
        run = td.simulate(
            td.Flow(td.Attention(qk * identity, ov * identity), td.Free()), start, times
        )
        diameter = td.observables.diameter(run.states)
        assert bool((diameter.diff() * qk * ov > 0).all())
        diameters[f"qk = {qk:+d} I, ov = {ov:+d} I"] = diameter

figure = td.figures.over_time(
    times,
    torch.stack(list(diameters.values())),
    "largest distance",
    names=list(diameters),
    log="values",
)
figure.axes[0].set_ylim(0.9, 20)
figure
