"""
Rotary positions change the outcome
===================================

The largest norm of four tokens with the circuits of `positional`: with rotary positions it grows, without them
it falls.
"""

import torch

import tokendynamics as td
from tokendynamics.attention import from_positional

query = torch.tensor(
    [[0.07331137, 0.17647239], [-0.32738218, -0.43457359]], dtype=torch.float64
)
key = torch.tensor(
    [[-2.54009796, 1.82991692], [-0.95688637, 0.60349328]], dtype=torch.float64
)
rotated_query = torch.tensor(
    [[-3.01517413, 2.4430872], [2.11630464, 1.40111342]], dtype=torch.float64
)
rotated_key = torch.tensor(
    [[5.03454859, -3.12492845], [4.58643881, -2.00780098]], dtype=torch.float64
)
qk, ov = from_positional(query, key, -1.5 * torch.eye(2, dtype=torch.float64))
positions = {
    "without positions": None,
    "with rotary positions": td.RotaryPositions(
        rotated_query, rotated_key, scale=0.5**0.5
    ),
}
start = torch.tensor(
    [[1.0, 0.5], [-0.8, 1.2], [0.6, -1.1], [-1.3, -0.4]], dtype=torch.float64
)
times = [0.05 * step for step in range(25)]

largest = []
for scheme in positions.values():
    run = td.simulate(
        td.Flow(td.Attention(qk, ov, positions=scheme), td.Free()), start, times
    )
    largest.append(run.states.norm(dim=-1).amax(dim=-1))
assert largest[0][-1] < largest[0][0] < largest[1][-1]

td.figures.over_time(
    times, torch.stack(largest), "largest norm", names=list(positions), log="values"
)
