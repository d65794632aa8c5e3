"""`asymptotic` Figure 2: Frobenius norms of the two time-varying matrices of Figure 3, and the gates of section 7."""

from __future__ import annotations

import math

import numpy as np
import torch
from matplotlib.figure import Figure

from reproductions.record import Quantity, Record, timed
from tokendynamics import plots
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


PERIOD = 0.5


@timed
def reproduce() -> Record:
    """Compute both norms over two periods, from the printed matrices alone."""
    times = np.linspace(0, 2 * PERIOD, 4001)
    schedule = two_heads()
    norms = torch.stack([schedule.matrix_at(float(t)).norm(dim=(-2, -1)) for t in times], dim=-1).numpy()
    half = len(times) // 2
    periodic = float(np.abs(norms[:, : half + 1] - norms[:, half:]).max())
    shorter = min(
        float(np.abs(norms[:, : half + 1] - np.roll(norms[:, : half + 1], k)).max())
        for k in (half // 2, half // 3, half // 5)
    )
    first, second = norms
    quantities = (
        Quantity("change of both norms after 0.5 time units", 0.0, periodic, 1e-12, "≤", "theory"),
        Quantity("least change after 1/2, 1/3 or 1/5 of that", 0.05, shorter, 0.0, "≥", "theory"),
        Quantity("|P_1| at t = 0", 0.826335, float(first[0]), 1e-6, source="simulation"),
        Quantity("|P_1|, maximum", 1.0708, float(first.max()), 1e-4, source="simulation"),
        Quantity("|P_1|, minimum", 0.6003, float(first.min()), 1e-4, source="simulation"),
        Quantity("|P_2| at t = 0", 0.770807, float(second[0]), 1e-6, source="simulation"),
        Quantity("|P_2|, maximum", 0.770807, float(second.max()), 1e-6, source="simulation"),
        Quantity("|P_2|, minimum", 0.3641, float(second.min()), 1e-4, source="simulation"),
    )
    return Record(
        paper="asymptotic",
        figure="Figure 2",
        statement="Frobenius norms of P_1(t) and P_2(t) of Figure 3, drawn over two periods.",
        quantities=quantities,
        invented="nothing: all matrices are printed",
        seed=None,
        results={"times": times, "norms": norms},
    )


def draw(record: Record) -> Figure:
    """Draw both norms over two periods."""
    times, norms = record.results["times"], record.results["norms"]
    return plots.over_time(times, norms, "Frobenius norm", names=["$P_1$", "$P_2$"])
