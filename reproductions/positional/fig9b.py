"""`positional` Figure 9b: rotary positions and V = 1.5 I, tokens grow."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from reproductions.drawing import footnote
from reproductions.positional.flows import FOUR_TOKENS, draw_tokens, largest_norms, rotary_flow, run_free
from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures

PRINTED = published("positional", "fig9b")
"""K̄ is printed as a second K."""

HORIZON = 4.0
_DRAWN = 1.5
"""How far the tokens are drawn: later the start is a point."""


@timed
def reproduce() -> Record:
    """Run four tokens to t = 4."""
    run = run_free(rotary_flow(PRINTED), FOUR_TOKENS, np.linspace(0, HORIZON, 401))
    grows = largest_norms(run)
    smallest = run.tensor.norm(dim=-1).amin(dim=-1)
    computed = {
        "largest_1": grows[100],
        "largest_4": grows[-1],
        "smallest_4": smallest[-1],
        "rate": math.log(grows[-1] / grows[300]),
        "leaves": smallest[-1],
    }
    return PRINTED.record(PRINTED.quantities(computed), {"run": run})


def draw(record: Record) -> Figure:
    """Draw the tokens in the plane, and their norms."""
    run = record.results["run"]
    titles = [f"tokens to t = {_DRAWN:g}", "norms"]
    figure, (left, right) = figures.panels(2, width=figures.DOUBLE, height=3.0, titles=titles)
    draw_tokens(left, run.tensor[run.times <= _DRAWN])
    figures.norms(run.times, run.tensor, axes=right)
    return footnote(figure, record)
