"""The printed diagonal gates of `asymptotic` section 7, and the matrices of Figures 2 and 3."""

from __future__ import annotations

import math

import torch

from tokendynamics.attention.schedules import Sinusoidal

P1 = ((0.0805, -0.1929, 0.1991), (-0.2312, 0.3131, -0.2335), (0.1788, -0.1732, -0.1594))
P2 = ((-0.3067, 0.0349, 0.1107), (0.0572, -0.0557, 0.1343), (0.1375, 0.1083, 0.1018))
PHASE = (math.pi / 2, 0.0, math.pi / 2)
"""Of diag(2 cos, 2 sin, 2 cos), every gate of the section."""

FAST = (10 * math.pi, 10 * math.pi, 6 * math.pi)
SLOW = (6 * math.pi, 6 * math.pi, 4 * math.pi)


def two_heads() -> Sinusoidal:
    """Return P_1(t) = D_1(t) P'_1 and P_2(t) = D_2(t) P'_2 (section 7.2)."""
    matrices = torch.tensor([P1, P2], dtype=torch.float64)
    return Sinusoidal(matrices, 2.0, [FAST, SLOW], [PHASE, PHASE])
