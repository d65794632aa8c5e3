"""`asymptotic` Figure 5: 50 causal tokens of 500 features all go to the first (Theorem 5.1)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from reproductions.drawing import footnote
from reproductions.published import published
from reproductions.record import Quantity, Record, timed
from tokendynamics import figures, observables
from tokendynamics.attention import Attention, Sinusoidal
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.numerics.arguments import generator
from tokendynamics.provenance.progress import Progress, reporting, tracked
from tokendynamics.spaces import Sphere

PRINTED = published("asymptotic", "fig5")
HORIZON = 150.0
_AT_ONCE = 10
"""Starts that are run together: the states of ten at 301 times take 600 MB."""


def paper_flow(dim: int, seed: int) -> Flow:
    """Draw two causal heads diag(|2 sin(wt + φ)|) P', P' in ]−0.5, 0.5[, w in ]0, 1[, φ in ]0, 2π[ (section 7.4)."""
    random = generator(seed)
    matrices = torch.rand(2, dim, dim, dtype=torch.float64, generator=random) - 0.5
    frequency, phase = torch.rand(2, 2, dim, dtype=torch.float64, generator=random)
    identity = torch.eye(dim, dtype=torch.float64)
    qk = Sinusoidal(matrices, 2.0, frequency, 2 * math.pi * phase, absolute=True)
    return Flow(Attention(qk, torch.stack([identity, identity]), causal=True), Sphere())


@timed
def reproduce(
    *,
    systems: int = 100,
    tokens: int = 50,
    dim: int = 500,
    seed: int = 5,
    rtol: float = 1e-6,
    progress: bool | Progress = False,
) -> Record:
    """Run many starts to t = 150 and measure E of (25).

    The kinks of |sin| (about 160 per unit of time) hold the order of any method down, and each is a 500th of the
    matrix: at these tolerances Dormand–Prince is still the cheapest, and E is right to about 1e-5.

    Args:
        systems: Starts; 100 in the paper, which take minutes.
        tokens: 50 in the paper.
        dim: 500 in the paper. Whether E falls throughout and when it passes 0.1, 0.01 and 0.001 is compared for
            50 × 500 only: fewer tokens of fewer features may rise first.
        seed: Of the matrices; the starts have the next one.
        rtol: Relative tolerance per step.
        progress: Of the parts of the work.
    """
    box = torch.rand(systems, tokens, dim, dtype=torch.float64, generator=generator(seed + 1)) - 0.5
    flow, times = paper_flow(dim, seed), np.linspace(0, HORIZON, 301)
    parts = list(Sphere().project(box).split(_AT_ONCE))
    with reporting(progress) as report:
        curves = [
            consensus_along(flow, part, times, rtol) for part in tracked(parts, report, f"{_AT_ONCE} starts at a time")
        ]
    consensus = np.concatenate(curves)
    expected = (1 - 1 / tokens) * (1 - math.sqrt(2 / (math.pi * dim)))
    sampling = 4 * 0.61 / math.sqrt(dim * systems * (tokens - 1))  # four standard deviations of the mean |cosine|
    start = Quantity("mean E at t = 0", expected, float(consensus[:, 0].mean()), sampling, source="theory")
    computed: dict[str, Any] = {"end": consensus[:, -1].max()}
    if (tokens, dim) == (50, 500):
        rises, median = np.diff(consensus, axis=-1), np.median(consensus, axis=0)
        computed["median"], computed["later"], computed["ever"] = (
            np.diff(median).max(),
            rises[:, times[:-1] >= 5].max(),
            rises.max(),
        )
        computed["below"] = [_passing(times, median, level) for level in PRINTED["rows"]["below"]["level"]]
    sizes = {"systems": systems, "tokens": tokens, "dim": dim, "next_seed": seed + 1}
    results = {"times": times, "consensus": consensus}
    return PRINTED.record([start, *PRINTED.quantities(computed, some=True)], results, seed=seed, **sizes)


def consensus_along(flow: Flow, start: Tensor, times: np.ndarray, rtol: float) -> np.ndarray:
    """Return E of (25) at `times` from each start (system, token, dim), (system, time); states are not kept."""
    run = simulate(flow, start, times, rtol=rtol, atol=rtol / 100, engine="batched")
    return observables.consensus(run.tensor).numpy()


def draw(record: Record) -> Figure:
    """Draw E of every start, as printed and on a logarithmic axis."""
    times, consensus = record.results["times"], record.results["consensus"]
    titles = ["as printed", "logarithmic"]
    figure, (left, right) = figures.panels(2, width=figures.DOUBLE, height=2.6, titles=titles)
    figures.over_time(times, consensus, "consensus E of (25)", many="starts", axes=left)
    figures.over_time(times, consensus, "consensus E of (25)", many="starts", log="values", axes=right)
    return footnote(figure, record)


def _passing(times: np.ndarray, curve: np.ndarray, level: float) -> float:
    """Return the first time at which a curve is below a level; NaN if it never is."""
    below = curve < level
    return float(times[below.argmax()]) if below.any() else math.nan
