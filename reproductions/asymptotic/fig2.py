"""`asymptotic` Figure 2: Frobenius norms of the two time-varying matrices of Figure 3, and the gates of section 7."""

from __future__ import annotations

import math

import numpy as np
import torch
from matplotlib.figure import Figure

from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures
from tokendynamics.attention.schedules import Sinusoidal

PRINTED = published("asymptotic", "fig2")
PHASE = (math.pi / 2, 0.0, math.pi / 2)
"""Of diag(2 cos, 2 sin, 2 cos), every gate of the section."""

FAST = (10 * math.pi, 10 * math.pi, 6 * math.pi)
SLOW = (6 * math.pi, 6 * math.pi, 4 * math.pi)


def two_heads() -> Sinusoidal:
    """Return P_1(t) = D_1(t) P'_1 and P_2(t) = D_2(t) P'_2 (section 7.2)."""
    matrices = torch.stack([PRINTED.matrix("P1"), PRINTED.matrix("P2")])
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
    computed = {"period": periodic, "shorter": shorter}
    for name, curve in zip(("1", "2"), norms, strict=True):
        computed |= {f"start_{name}": curve[0], f"highest_{name}": curve.max(), f"lowest_{name}": curve.min()}
    return PRINTED.record(PRINTED.quantities(computed), {"times": times, "norms": norms})


def draw(record: Record) -> Figure:
    """Draw both norms over two periods."""
    times, norms = record.results["times"], record.results["norms"]
    return figures.over_time(times, norms, "Frobenius norm", names=["$P_1$", "$P_2$"])
