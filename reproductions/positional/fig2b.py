"""`positional` Figure 2b: A = 2W, so that tokens grow in a few directions."""

from __future__ import annotations

import math

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.spatial import ConvexHull
from torch import Tensor

from reproductions.drawing import footnote
from reproductions.positional.flows import contraction_flow, draw_tokens, run_free
from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures, observables
from tokendynamics.spaces import Free

PRINTED = published("positional", "fig2b")
TOKENS, HORIZON = 12, 12.0
_DRAWN = 4.0
"""How far the tokens are drawn: later the start is a point."""


@timed
def reproduce(*, seed: int = 1) -> Record:
    """Run twelve tokens under A = 2W to t = 12, and under the printed V = 2I to a quarter of that."""
    qk = PRINTED.matrix("W")
    start = Free().sample(TOKENS, 2, seed=seed)
    times = np.linspace(0, HORIZON, 241)
    flow = contraction_flow(2 * qk, qk)
    run = run_free(flow, start, times)
    printed = run_free(contraction_flow(qk / 2, qk), start, times / 4)
    scaled = torch.from_numpy(np.exp(-times / 2))[:, None, None] * run.tensor
    value = float(flow.attention.ov.matrix_at(0.0)[0, 0, 0])
    computed = {
        "printed": value,
        "value": value,
        "quick": ((printed.tensor - run.tensor).norm(dim=-1) / run.tensor.norm(dim=-1)).max(),
        "hull": outside(scaled, start),
        "groups": int(observables.clusters(run.tensor[-1], math.radians(5))),
        "rate": _rate(run.tensor, times),
    }
    return PRINTED.record(PRINTED.quantities(computed), {"run": run, "scaled": scaled}, seed=seed, tokens=TOKENS)


def outside(points: Tensor, start: Tensor) -> float:
    """Return the largest distance of `points` (…, dim) beyond a face of the convex hull of `start` (token, dim)."""
    faces = torch.from_numpy(ConvexHull(start.numpy()).equations)
    return float((points @ faces[:, :-1].T + faces[:, -1]).max())


def draw(record: Record) -> Figure:
    """Draw the tokens, the same divided by e^(t/2), and their norms."""
    run, scaled = record.results["run"], record.results["scaled"]
    shown = run.times <= _DRAWN
    titles = [f"tokens to t = {_DRAWN:g}", "over $e^{t/2}$", "norms"]
    figure, (left, middle, right) = figures.panels(3, width=figures.DOUBLE, height=3.0, titles=titles)
    draw_tokens(left, run.tensor[shown])
    draw_tokens(middle, scaled)
    figures.norms(run.times, run.tensor, axes=right)
    low, high = right.get_ylim()
    right.set_ylim(low / 5, high)  # room for the legend
    return footnote(
        figure,
        record,
        "Left: the axes have scales of their own. V = I/2, which is what A = 2W means.",
    )


def _rate(states: Tensor, times: np.ndarray) -> float:
    quarter = 3 * len(times) // 4
    smallest = states.norm(dim=-1).amin(dim=-1)
    return float((smallest[-1] / smallest[quarter]).log()) / float(times[-1] - times[quarter])
