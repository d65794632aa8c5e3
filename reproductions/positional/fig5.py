"""`positional` Figure 5: rotary positions turn a flow that shrinks into one that grows."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from reproductions.drawing import footnote, framed
from reproductions.positional.flows import (
    FOUR_TOKENS,
    largest_norms,
    matrix,
    printed_eigenvalues,
    query_key_flow,
    run_free,
)
from reproductions.record import Quantity, Record, timed
from tokendynamics import plots

Q = ((0.07331137, 0.17647239), (-0.32738218, -0.43457359))
K = ((-2.54009796, 1.82991692), (-0.95688637, 0.60349328))
VALUE = -1.5
QBAR = ((-3.01517413, 2.4430872), (2.11630464, 1.40111342))
KBAR = ((5.03454859, -3.12492845), (4.58643881, -2.00780098))
LEFT_HORIZON, RIGHT_HORIZON = 100.0, 4.0
_DRAWN = 1.5
"""How far growing tokens are drawn: later the start is a point."""


@timed
def reproduce() -> Record:
    """Run four tokens without and with the rotary term."""
    query, key = matrix(Q), matrix(K)
    plain = query_key_flow(query, key, VALUE)
    turned = query_key_flow(query, key, VALUE, (matrix(QBAR), matrix(KBAR)))
    left = run_free(plain, FOUR_TOKENS, np.linspace(0, LEFT_HORIZON, 401))
    right = run_free(turned, FOUR_TOKENS, np.linspace(0, RIGHT_HORIZON, 401), engine="stiff")
    shrinking, growing = largest_norms(left), largest_norms(right)
    half = len(growing) // 2
    rate = math.log(growing[-1] / growing[half]) / (RIGHT_HORIZON / 2)
    quantities = (
        *printed_eigenvalues("W_sym, W = QKᵀ", query @ key.mT, (0.03766541, 0.15005164), 1e-7),
        Quantity("left: largest rise of the largest norm", 0.0, float(np.diff(shrinking).max()), 1e-9, "≤", "reading"),
        Quantity("left: largest norm at t = 50", 0.540694663, float(shrinking[200]), 1e-8, source="simulation"),
        Quantity("left: largest norm at t = 100", 0.399595145, float(shrinking[-1]), 1e-8, source="simulation"),
        Quantity("right: largest norm at t = 1", 3.597020711, float(growing[100]), 1e-7, source="simulation"),
        Quantity("right: largest norm at t = 2", 14.91407272, float(growing[half]), 1e-6, source="simulation"),
        Quantity("right: largest norm at t = 4", 298.5342568, float(growing[-1]), 1e-4, source="simulation"),
        Quantity("right: growth rate of the largest norm, t = 2 … 4", 0.5, rate, 0.0, "≥", "reading"),
    )
    return Record(
        paper="positional",
        figure="Figure 5",
        statement="Without rotary positions the tokens go to zero; with the printed Q̄ and K̄ they grow.",
        quantities=quantities,
        invented="the four initial tokens (fixed, in general position), and the horizons",
        seed=None,
        results={"left": left, "right": right},
    )


def draw(record: Record) -> Figure:
    """Draw tokens in the plane above, norms below."""
    titles = ["no rotary term", f"rotary term, to t = {_DRAWN:g}", "", ""]
    figure, panels = plots.panels(2, 2, width=plots.DOUBLE, height=5.4, titles=titles)
    for column, (name, limit) in enumerate((("left", LEFT_HORIZON), ("right", _DRAWN))):
        run = record.results[name]
        plots.phase_plane(run.tensor[run.times <= limit], axes=panels[column])
        framed(panels[column])
        plots.norms(run.times, run.tensor, axes=panels[column + 2])
    return footnote(figure, f"Upper right: the axes have scales of their own. Invented: {record.invented}.")
