"""`positional` Figure 2a: tokens shrink to zero, slowly, for A_sym ≺ 0 and W_sym ≻ 0."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from reproductions.drawing import footnote
from reproductions.positional.flows import (
    contraction_flow,
    draw_tokens,
    largest_norms,
    run_free,
    symmetric_eigenvalues,
)
from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures
from tokendynamics.spaces import Free

PRINTED = published("positional", "fig2a")
TOKENS = 4


@timed
def reproduce(*, systems: int = 24, seed: int = 20) -> Record:
    """Measure the largest norm over time, from `systems` standard normal starts, to t = 10,000."""
    contraction, qk = PRINTED.matrix("A"), PRINTED.matrix("W")
    marks = PRINTED["rows"]["medians"]["time"]
    times = np.union1d(np.concatenate([[0.0], np.geomspace(1e-2, 1e4, 181)]), marks)
    start = Free().sample(TOKENS, 2, (systems,), seed=seed)
    run = run_free(contraction_flow(contraction, qk), start, times, engine="stiff")
    norms = largest_norms(run)
    medians = np.median(norms, axis=0)
    at = {float(time): float(value) for time, value in zip(times, medians, strict=True)}
    computed = {
        "contraction": symmetric_eigenvalues(contraction),
        "qk": symmetric_eigenvalues(qk),
        "medians": [at[time] for time in marks],
        "slope": math.log10(at[1e4] / at[1e3]),
        "worst": (norms[:, -1] / norms[:, 0]).max(),
    }
    sizes = {"systems": systems, "tokens": TOKENS}
    return PRINTED.record(PRINTED.quantities(computed), {"run": run, "norms": norms}, seed=seed, **sizes)


def draw(record: Record) -> Figure:
    """Draw one start in the plane, and the largest norm of every start."""
    run, norms = record.results["run"], record.results["norms"]
    titles = ["tokens of the first start", "largest norm"]
    figure, (left, right) = figures.panels(2, width=figures.DOUBLE, height=3.0, titles=titles)
    draw_tokens(left, run, system=0)
    figures.over_time(run.times[1:], norms[:, 1:], "largest norm $|x_i|$", log="both", many="starts", axes=right)
    return footnote(figure, record)
