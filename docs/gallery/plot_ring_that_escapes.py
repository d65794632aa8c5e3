"""
A ring that escapes
===================

Three tokens on a ring: every eigenvalue of V is −1, and both forms have the signs of convergence. A small ring
shrinks, a larger one escapes.
"""

import torch

import tokendynamics as td

logits = torch.tensor(
    [[1.0, 5.671281819617709], [-5.671281819617709, 1.0]], dtype=torch.float64
)
ring = torch.tensor(
    [[1.0, 0.0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]], dtype=torch.float64
)
flow = td.Flow(td.Attention(logits, -torch.eye(2, dtype=torch.float64)), td.Free())
times = torch.cat(
    [
        torch.zeros(1, dtype=torch.float64),
        torch.logspace(-1, 2, 61, dtype=torch.float64),
    ]
)
radii = (0.2, 0.4, 0.5, 1.0)
bound = td.events.NormAbove(100)
norms = []
for radius in radii:
    states = td.simulate(flow, radius * ring, times, events=[bound]).states
    norms.append(states.norm(dim=-1).amax(dim=-1).nan_to_num(nan=100).clamp(max=100))
assert norms[0][-1] < 0.11
assert norms[-1][-1] > 99

td.figures.over_time(
    times,
    torch.stack(norms),
    "radius, up to 100",
    names=[f"from {radius:g}" for radius in radii],
    log="both",
)
