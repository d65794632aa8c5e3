"""
Three causal tokens
===================

Token 3 starts between two tokens that go to token 1 both ways round the circle. From one angle it goes to the
antipode instead: the start that the printed basin of theorem 5.1 overlooks.
"""

import math

import torch

import tokendynamics as td

identity = torch.eye(2, dtype=torch.float64)
flow = td.Flow(
    td.Attention(identity, identity, causal=True, normalization="plain"), td.Sphere()
)
starts = (3.7, 3.7852751016621813, 3.87)
times = [0.25 * step for step in range(121)]
paths = []
for third in starts:
    angles = torch.tensor([0.0, 2.0, third], dtype=torch.float64)
    run = td.simulate(flow, torch.stack([angles.cos(), angles.sin()], dim=-1), times)
    token = torch.as_tensor(run.states)[:, 2]
    paths.append(torch.atan2(token[:, 1], token[:, 0]) % (2 * math.pi))
assert abs(float(paths[1][-1]) - math.pi) < 1e-2
assert [round(float(path[-1]) / math.pi) % 2 for path in paths] == [0, 1, 0]

figure = td.figures.over_time(
    times,
    torch.stack(paths),
    "angle of token 3",
    names=[f"from {third:.3f}" for third in starts],
    references={"antipode of token 1": math.pi},
)
figure.axes[0].set_ylim(top=9)
figure
