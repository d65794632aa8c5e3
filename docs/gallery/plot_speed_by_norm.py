"""
Where the norm stands decides the speed
=======================================

The same tokens and circuits under a norm after attention (post), before it (pre) and on both sides (peri). On the sphere
angles fall exponentially; a token with a radius turns more slowly the longer it is, so that they fall like 1/t.
"""

import numpy as np

import tokendynamics as td

attention = td.Attention(2 * np.eye(3), np.eye(3), normalization="plain")
start = td.Sphere().sample_hemisphere(8, [1.0, 0.0, 0.0], seed=4)
times = np.geomspace(0.1, 1000.0, 121)
angles = {}
for scheme in ("post", "pre", "peri"):
    flow = td.Flow(attention, td.Normalized(scheme))
    run = td.simulate(flow, start, [0.0, *times])
    angles[scheme] = td.observables.diameter(run.tensor[1:], geometry="sphere").numpy()
assert angles["post"][-1] < 1e-5 < 1e-3 < angles["pre"][-1]
td.figures.over_time(
    times,
    np.stack([np.where(angle > 1e-7, angle, 0.0) for angle in angles.values()]),
    "largest angle",
    names=list(angles),
    time_label="t",
    log="both",
)
