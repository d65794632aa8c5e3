"""`positional` Figure 5: rotary positions turn a flow that shrinks into one that grows."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from reproductions.drawing import footnote
from reproductions.positional.flows import (
    FOUR_TOKENS,
    draw_tokens,
    largest_norms,
    query_key_flow,
    rotary_flow,
    run_free,
    symmetric_eigenvalues,
)
from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures

PRINTED = published("positional", "fig5")
LEFT_HORIZON, RIGHT_HORIZON = 100.0, 4.0
_DRAWN = 1.5
"""How far growing tokens are drawn: later the start is a point."""


@timed
def reproduce() -> Record:
    """Run four tokens without and with the rotary term."""
    query, key = PRINTED.matrix("Q"), PRINTED.matrix("K")
    plain, turned = query_key_flow(query, key, PRINTED["VALUE"]), rotary_flow(PRINTED)
    left = run_free(plain, FOUR_TOKENS, np.linspace(0, LEFT_HORIZON, 401))
    right = run_free(turned, FOUR_TOKENS, np.linspace(0, RIGHT_HORIZON, 401), engine="stiff")
    shrinking, growing = largest_norms(left), largest_norms(right)
    half = len(growing) // 2
    computed = {
        "eigenvalues": symmetric_eigenvalues(query @ key.mT),
        "rise": np.diff(shrinking).max(),
        "left_50": shrinking[200],
        "left_100": shrinking[-1],
        "right_1": growing[100],
        "right_2": growing[half],
        "right_4": growing[-1],
        "rate": math.log(growing[-1] / growing[half]) / (RIGHT_HORIZON / 2),
    }
    return PRINTED.record(PRINTED.quantities(computed), {"left": left, "right": right})


def draw(record: Record) -> Figure:
    """Draw tokens in the plane above, norms below."""
    titles = ["no rotary term", f"rotary term, to t = {_DRAWN:g}", "", ""]
    figure, panels = figures.panels(2, 2, width=figures.DOUBLE, height=5.4, titles=titles)
    for column, (name, limit) in enumerate((("left", LEFT_HORIZON), ("right", _DRAWN))):
        run = record.results[name]
        draw_tokens(panels[column], run.tensor[run.times <= limit])
        figures.norms(run.times, run.tensor, axes=panels[column + 2])
    return footnote(figure, record, "Upper right: the axes have scales of their own.")
