"""
Weights of one token
====================

The softmax weights that a token gives to tokens at other angles, for four inverse temperatures β: from uniform
to nearly one token.
"""

import math

import torch

import tokendynamics as td

angles = torch.linspace(-math.pi, math.pi, 41, dtype=torch.float64)
tokens = torch.stack([angles.cos(), angles.sin()], dim=-1)
betas = (0.0, 1.0, 4.0, 16.0)
weights = []
for beta in betas:
    attention = td.Attention(
        beta * torch.eye(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    )
    weights.append(attention.pattern(tokens)[0, 20])
    assert abs(float(weights[-1].sum()) - 1) < 1e-12

td.figures.over_time(
    angles,
    torch.stack(weights),
    "weight from the token at 0",
    names=[f"β = {beta:g}" for beta in betas],
    time_label="angle of the other token (radians)",
)
