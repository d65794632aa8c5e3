"""
The same circuits in three spaces
=================================

Six tokens under qk = ov = I: on the circle and on an ellipse they meet, in free space they fly apart.
"""

import torch

import tokendynamics as td

identity = torch.eye(2, dtype=torch.float64)
start = td.Sphere().sample(6, 2, seed=3)
spaces = {
    "circle": td.Sphere(),
    "ellipse": td.Ellipsoid(
        torch.tensor([[0.4, 0.0], [0.0, 1.0]], dtype=torch.float64)
    ),
    "free": td.Free(),
}
times = {"circle": 20.0, "ellipse": 20.0, "free": 0.7}
figure, panels = td.figures.panels(
    3, width=td.figures.DOUBLE, height=2.5, titles=list(spaces)
)
for (name, space), panel in zip(spaces.items(), panels, strict=True):
    flow = td.Flow(td.Attention(identity, identity), space)
    run = td.simulate(flow, start, [times[name] * step / 60 for step in range(61)])
    td.figures.tokens(run, axes=panel)
figure
