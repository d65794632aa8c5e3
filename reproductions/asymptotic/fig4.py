"""`asymptotic` Figure 4: one causal head with a symmetric value matrix (Theorem 6.1)."""

from __future__ import annotations

import math

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from reproductions.asymptotic.fig2 import FAST, PHASE
from reproductions.drawing import footnote
from reproductions.record import Quantity, Record, timed
from tokendynamics import observables, plots
from tokendynamics.attention import Attention, Sinusoidal
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.spaces import Sphere

P = ((0.3598, 0.4150, 0.1319), (0.0971, -0.0668, -0.2046), (0.1548, -0.2102, 0.1220))
U = ((-0.2590, 0.4965, 0.5609), (0.4965, -0.7174, -0.5003), (0.5609, -0.5003, -0.0247))
TOKENS, HORIZON = 10, 20.0
EIGENVALUES = (-1.41849, -0.02148, 0.43888)
EIGENVECTOR = (0.57806, -0.10208, 0.80958)


@timed
def reproduce(*, seed: int = 4) -> Record:
    """Run two tokens placed so that V_2 rises first, eight drawn on the side of v, to t = 20."""
    ov = torch.tensor(U, dtype=torch.float64)
    eigenvalues, vectors = torch.linalg.eigh(ov)
    top, lowest = _signed(vectors[:, 2]), -_signed(vectors[:, 0])
    flow = Flow(Attention(Sinusoidal(P, 2.0, FAST, PHASE), ov, causal=True), Sphere())
    drawn = Sphere().sample_hemisphere(TOKENS - 2, top, seed=seed)
    start = torch.cat([rising_pair(top, lowest), drawn])
    times = np.linspace(0, HORIZON, 2001)
    run = simulate(flow, start, times, rtol=1e-10, atol=1e-12, engine="batched")
    deficits = observables.direction_deficit(run.tensor, top).numpy()
    first, second = deficits[:, 0], deficits[:, 1]
    exact = torch.linalg.matrix_exp(HORIZON / math.sqrt(3) * ov) @ start[0]
    off = float((exact / exact.norm() - run.tensor[-1, 0]).norm())
    known = float((top - top.new_tensor(EIGENVECTOR)).norm())
    end, rise = float(deficits[-1].max()), float(np.diff(first).max())
    quantities = (
        *(
            Quantity(f"eigenvalue {k + 1} of U", EIGENVALUES[k], float(eigenvalues[k]), 1e-5, source="simulation")
            for k in range(3)
        ),
        Quantity("distance of v from its known value", 0.0, known, 1e-5, "≤", "simulation"),
        Quantity("max_i (1 − v·y_i) at t = 20", 1.8e-3, end, 0.0, "≤", "simulation"),
        Quantity("largest rise of V_1 between saved times", 0.0, rise, 1e-12, "≤", "reading"),
        Quantity("V_2 at t = 0", 0.100, float(second[0]), 5e-4, source="simulation"),
        Quantity("V_2 at its maximum: it rises first", 0.171, float(second.max()), 5e-4, source="simulation"),
        Quantity("time of that maximum", 1.9, float(times[second.argmax()]), 0.1, source="simulation"),
        Quantity("token 1 against its closed form at t = 20", 0.0, off, 1e-8, "≤", "theory"),
    )
    return Record(
        paper="asymptotic",
        figure="Figure 4",
        statement="Tokens on the side of v, the top eigenvector of U, go to it; V_2 may rise before it falls.",
        quantities=quantities,
        invented=f"all initial tokens: y_1 and y_2 such that V_2 rises first, the others uniform (seed {seed})",
        seed=seed,
        results={"run": run, "deficits": deficits},
    )


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
    figure, (left, right) = plots.panels(2, width=plots.DOUBLE, height=3.2, titles=titles)
    plots.tokens(run, axes=left)
    shown = run.times <= HORIZON / 2
    plots.over_time(run.times[shown], deficits[shown, :2].T, "1 − v·y", names=["$V_1$", "$V_2$"], axes=right)
    return footnote(figure, f"Invented: {record.invented}.")


def _signed(vector: Tensor) -> Tensor:
    """Return the eigenvector whose first entry is positive."""
    return vector * vector[0].sign()
