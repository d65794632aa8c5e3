"""`asymptotic` Figure 4: one causal head with a symmetric value matrix (Theorem 6.1)."""

from __future__ import annotations

import math

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from reproductions.asymptotic.fig2 import FAST, PHASE
from reproductions.drawing import footnote
from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures, observables
from tokendynamics.attention import Attention, Sinusoidal
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.spaces import Sphere

PRINTED = published("asymptotic", "fig4")
TOKENS, HORIZON = 10, 20.0


@timed
def reproduce(*, seed: int = 4) -> Record:
    """Run two tokens placed so that V_2 rises first, eight drawn on the side of v, to t = 20."""
    ov = PRINTED.matrix("U")
    eigenvalues, vectors = torch.linalg.eigh(ov)
    top, lowest = _signed(vectors[:, 2]), -_signed(vectors[:, 0])
    flow = Flow(Attention(Sinusoidal(PRINTED.matrix("P"), 2.0, FAST, PHASE), ov, causal=True), Sphere())
    drawn = Sphere().sample_hemisphere(TOKENS - 2, top, seed=seed)
    start = torch.cat([rising_pair(top, lowest), drawn])
    times = np.linspace(0, HORIZON, 2001)
    run = simulate(flow, start, times, rtol=1e-10, atol=1e-12, engine="batched")
    deficits = observables.direction_deficit(run.tensor, top).numpy()
    first, second = deficits[:, 0], deficits[:, 1]
    exact = torch.linalg.matrix_exp(HORIZON / math.sqrt(3) * ov) @ start[0]
    computed = {
        "eigenvalues": eigenvalues,
        "vector": (top - PRINTED.matrix("EIGENVECTOR")).norm(),
        "end": deficits[-1].max(),
        "rise": np.diff(first).max(),
        "start": second[0],
        "highest": second.max(),
        "peak": times[second.argmax()],
        "closed_form": (exact / exact.norm() - run.tensor[-1, 0]).norm(),
    }
    return PRINTED.record(PRINTED.quantities(computed), {"run": run, "deficits": deficits}, seed=seed)


def rising_pair(top: Tensor, lowest: Tensor) -> Tensor:
    """Return y_1 = 0.1 v + √0.99 q and y_2 = 0.9 v − √0.19 q, (2, dim): token 1 first pulls token 2 from v.

    Args:
        top: v, the unit eigenvector of the highest eigenvalue.
        lowest: q, that of the lowest.
    """
    return torch.stack([0.1 * top + math.sqrt(0.99) * lowest, 0.9 * top - math.sqrt(0.19) * lowest])


def draw(record: Record) -> Figure:
    """Draw the tokens, and V_1 and V_2 over time."""
    run, deficits = record.results["run"], record.results["deficits"]
    titles = ["tokens on the sphere", "distance from v"]
    figure, (left, right) = figures.panels(2, width=figures.DOUBLE, height=3.2, titles=titles)
    figures.tokens(run, axes=left)
    shown = run.times <= HORIZON / 2
    figures.over_time(run.times[shown], deficits[shown, :2].T, "1 − v·y", names=["$V_1$", "$V_2$"], axes=right)
    return footnote(figure, record)


def _signed(vector: Tensor) -> Tensor:
    """Return the eigenvector whose first entry is positive."""
    return vector * vector[0].sign()
