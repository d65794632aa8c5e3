"""`positional` Figure 9b: rotary positions and V = 1.5 I, tokens grow."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from reproductions.drawing import footnote, framed
from reproductions.positional.flows import FOUR_TOKENS, largest_norms, matrix, query_key_flow, run_free
from reproductions.record import Quantity, Record, timed
from tokendynamics import plots

Q = ((2.068739, -1.83750201), (-0.75622145, 0.4784381))
K = ((-1.12583337, -1.40120114), (-2.79629618, -3.24668939))
QBAR = ((-0.67880222, 1.21234986), (-0.67132474, 0.90406252))
KBAR = ((0.57406142, 2.88899216), (-1.10421806, 0.75603913))
"""Printed as a second K."""

VALUE, HORIZON = 1.5, 4.0
_DRAWN = 1.5
"""How far the tokens are drawn: later the start is a point."""


@timed
def reproduce() -> Record:
    """Run four tokens to t = 4."""
    flow = query_key_flow(matrix(Q), matrix(K), VALUE, (matrix(QBAR), matrix(KBAR)))
    times = np.linspace(0, HORIZON, 401)
    run = run_free(flow, FOUR_TOKENS, times)
    grows = largest_norms(run)
    smallest = run.tensor.norm(dim=-1).amin(dim=-1)
    rate = math.log(grows[-1] / grows[300])
    quantities = (
        Quantity("largest norm at t = 1", 5.756265129, float(grows[100]), 1e-7, source="simulation"),
        Quantity("largest norm at t = 4", 518.162474785, float(grows[-1]), 1e-5, source="simulation"),
        Quantity("smallest norm at t = 4", 243.186366081, float(smallest[-1]), 1e-5, source="simulation"),
        Quantity("growth rate of the largest norm, t = 3 … 4", VALUE, rate, 1e-3, source="theory"),
        Quantity("smallest norm at t = 4", 10.0, float(smallest[-1]), 0.0, "≥", "reading"),
    )
    return Record(
        paper="positional",
        figure="Figure 9b",
        statement="Tokens go to infinity at the rate of V = 1.5 I. The second matrix printed as K is K̄.",
        quantities=quantities,
        invented="the four initial tokens (fixed, in general position), and the horizon",
        seed=None,
        results={"run": run},
    )


def draw(record: Record) -> Figure:
    """Draw the tokens in the plane, and their norms."""
    run = record.results["run"]
    titles = [f"tokens to t = {_DRAWN:g}", "norms"]
    figure, (left, right) = plots.panels(2, width=plots.DOUBLE, height=3.0, titles=titles)
    plots.phase_plane(run.tensor[run.times <= _DRAWN], axes=left)
    framed(left)
    plots.norms(run.times, run.tensor, axes=right)
    return footnote(figure, f"Invented: {record.invented}.")
