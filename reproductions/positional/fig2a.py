"""`positional` Figure 2a: tokens shrink to zero, slowly, for A_sym ≺ 0 and W_sym ≻ 0."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from reproductions.drawing import footnote, framed
from reproductions.positional.flows import (
    contraction_flow,
    largest_norms,
    matrix,
    printed_eigenvalues,
    run_free,
)
from reproductions.record import Quantity, Record, timed
from tokendynamics import plots
from tokendynamics.spaces import Free

A = ((-2.94058, -2.12076), (-5.14498, -4.58104))
W = ((0.902496, -2.37879), (4.36478, 3.84768))
MEDIANS = ((5.0, 0.68), (20.0, 0.32), (100.0, 0.145), (1e3, 0.046), (1e4, 0.014))
"""Time, and the median over starts of the largest norm then."""

TOKENS = 4


@timed
def reproduce(*, systems: int = 24, seed: int = 20) -> Record:
    """Measure the largest norm over time, from `systems` standard normal starts, to t = 10,000."""
    contraction, qk = matrix(A), matrix(W)
    marks = np.array([time for time, _ in MEDIANS])
    times = np.union1d(np.concatenate([[0.0], np.geomspace(1e-2, 1e4, 181)]), marks)
    start = Free().sample(TOKENS, 2, (systems,), seed=seed)
    run = run_free(contraction_flow(contraction, qk), start, times, engine="stiff")
    norms = largest_norms(run)
    medians = np.median(norms, axis=0)
    at = {float(time): float(value) for time, value in zip(times, medians, strict=True)}
    worst = float((norms[:, -1] / norms[:, 0]).max())
    slope = math.log10(at[1e4] / at[1e3])
    quantities = (
        *printed_eigenvalues("A_sym", contraction, (-7.48513, -0.0364942), 1e-5),
        *printed_eigenvalues("W_sym", qk, (4.15119, 0.598979), 1e-5),
        *(
            Quantity(f"median of the largest norm at t = {time:g}", value, at[time], 0.15 * value, source="simulation")
            for time, value in MEDIANS
        ),
        Quantity("log–log slope from t = 1e3 to 1e4", -0.5, slope, 0.05, source="theory"),
        Quantity("largest norm at t = 1e4 over that at 0, worst start", 0.0, worst, 0.05, "≤", "reading"),
    )
    return Record(
        paper="positional",
        figure="Figure 2a",
        statement="All tokens go to zero, slowly: their norms fall like t^(−1/2).",
        quantities=quantities,
        invented=f"{systems} starts of {TOKENS} standard normal tokens (seed {seed}), and the horizon",
        seed=seed,
        results={"run": run, "norms": norms},
    )


def draw(record: Record) -> Figure:
    """Draw one start in the plane, and the largest norm of every start."""
    run, norms = record.results["run"], record.results["norms"]
    titles = ["tokens of the first start", "largest norm"]
    figure, (left, right) = plots.panels(2, width=plots.DOUBLE, height=3.0, titles=titles)
    plots.phase_plane(run, system=0, axes=left)
    framed(left)
    plots.over_time(run.times[1:], norms[:, 1:], "largest norm $|x_i|$", log="both", many="starts", axes=right)
    return footnote(figure, f"Invented: {record.invented}.")
