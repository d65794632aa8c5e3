"""`positional` Figure 2b: A = 2W, so that tokens grow in a few directions."""

from __future__ import annotations

import math

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.spatial import ConvexHull
from torch import Tensor

from reproductions.drawing import footnote, framed
from reproductions.positional.flows import contraction_flow, matrix, run_free
from reproductions.record import Quantity, Record, timed
from tokendynamics import observables, plots
from tokendynamics.spaces import Free

W = ((-0.404078, 0.982735), (-0.567909, 0.600242))
TOKENS, HORIZON = 12, 12.0
_DRAWN = 4.0
"""How far the tokens are drawn: later the start is a point."""


@timed
def reproduce(*, seed: int = 1) -> Record:
    """Run twelve tokens under A = 2W to t = 12, and under the printed V = 2I to a quarter of that."""
    qk = matrix(W)
    start = Free().sample(TOKENS, 2, seed=seed)
    times = np.linspace(0, HORIZON, 241)
    flow = contraction_flow(2 * qk, qk)
    run = run_free(flow, start, times)
    printed = run_free(contraction_flow(qk / 2, qk), start, times / 4)
    scaled = torch.from_numpy(np.exp(-times / 2))[:, None, None] * run.tensor
    value = float(flow.attention.ov.matrix_at(0.0)[0, 0, 0])
    quick = _relative(printed.tensor, run.tensor)
    groups = int(observables.clusters(run.tensor[-1], math.radians(5)))
    quantities = (
        Quantity("V for A = 2W, as a multiple of I", 2.0, value, 1e-6, reason="A = W V^(−T) = 2W means V = I/2"),
        Quantity("V = A⁻¹W for A = 2W, as a multiple of I", 0.5, value, 1e-12, source="theory"),
        Quantity("V = 2I at t/4 against V = I/2 at t, relative", 0.0, quick, 1e-7, "≤", "theory"),
        Quantity("how far e^(−t/2) x leaves the initial hull", 0.0, outside(scaled, start), 1e-8, "≤", "theory"),
        Quantity("groups of directions at t = 12, linked within 5°", TOKENS // 3, groups, 0, "≤", "reading"),
        Quantity("growth rate of the smallest norm, t = 9 … 12", 0.5, _rate(run.tensor, times), 0.05, source="theory"),
    )
    return Record(
        paper="positional",
        figure="Figure 2b",
        statement="With A = 2W, that is V = I/2 and not the printed 2I (the same curves, four times as fast), tokens "
        "go to infinity in a few directions.",
        quantities=quantities,
        invented=f"the {TOKENS} initial tokens (standard normal, seed {seed}, chosen for two groups), and the horizon",
        seed=seed,
        results={"run": run, "scaled": scaled},
    )


def outside(points: Tensor, start: Tensor) -> float:
    """Return the largest distance of `points` (…, dim) beyond a face of the convex hull of `start` (token, dim)."""
    faces = torch.from_numpy(ConvexHull(start.numpy()).equations)
    return float((points @ faces[:, :-1].T + faces[:, -1]).max())


def draw(record: Record) -> Figure:
    """Draw the tokens, the same divided by e^(t/2), and their norms."""
    run, scaled = record.results["run"], record.results["scaled"]
    shown = run.times <= _DRAWN
    titles = [f"tokens to t = {_DRAWN:g}", "over $e^{t/2}$", "norms"]
    figure, (left, middle, right) = plots.panels(3, width=plots.DOUBLE, height=3.0, titles=titles)
    plots.phase_plane(run.tensor[shown], axes=left)
    plots.phase_plane(scaled, axes=middle)
    framed(left)
    framed(middle)
    plots.norms(run.times, run.tensor, axes=right)
    low, high = right.get_ylim()
    right.set_ylim(low / 5, high)  # room for the legend
    return footnote(
        figure,
        f"Left: the axes have scales of their own. V = I/2, which is what A = 2W means. Invented: {record.invented}.",
    )


def _relative(first: Tensor, second: Tensor) -> float:
    return float(((first - second).norm(dim=-1) / second.norm(dim=-1)).max())


def _rate(states: Tensor, times: np.ndarray) -> float:
    quarter = 3 * len(times) // 4
    smallest = states.norm(dim=-1).amin(dim=-1)
    return float((smallest[-1] / smallest[quarter]).log()) / float(times[-1] - times[quarter])
