"""`asymptotic` Figure 5: 50 causal tokens of 500 features all go to the first (Theorem 5.1)."""

from __future__ import annotations

import math

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from reproductions.drawing import footnote
from reproductions.record import Quantity, Record, timed
from tokendynamics import observables, plots
from tokendynamics.attention import Attention, Sinusoidal
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.numerics._seeding import generator
from tokendynamics.provenance._progress import Progress, reporting, tracked
from tokendynamics.spaces import Sphere

HORIZON = 150.0
THRESHOLDS = ((0.1, 60.0), (0.01, 105.0), (1e-3, 135.0))
"""E and the time by which the median start of 50 × 500 is below it."""

_EARLY = (
    "E counts |cos|: tokens on the far side of token 1 must first come to lie across it, so that |cos| falls and E "
    "rises before it falls for good"
)
_MEDIAN = f"the same early rise, in so many starts that the median shows it: {_EARLY}"
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
    start, flow, times = Sphere().project(box), paper_flow(dim, seed), np.linspace(0, HORIZON, 301)
    parts = list(start.split(_AT_ONCE))
    with reporting(progress) as report:
        curves = [
            consensus_along(flow, part, times, rtol) for part in tracked(parts, report, f"{_AT_ONCE} starts at a time")
        ]
    consensus = np.concatenate(curves)
    expected = (1 - 1 / tokens) * (1 - math.sqrt(2 / (math.pi * dim)))
    sampling = 4 * 0.61 / math.sqrt(dim * systems * (tokens - 1))  # four standard deviations of the mean |cosine|
    quantities = [
        Quantity("mean E at t = 0", expected, float(consensus[:, 0].mean()), sampling, source="theory"),
        Quantity("largest E at t = 150", 0.0, float(consensus[:, -1].max()), 1e-2, "≤", "reading"),
    ]
    if (tokens, dim) == (50, 500):
        rises, later = np.diff(consensus, axis=-1), times[:-1] >= 5
        median = float(np.diff(np.median(consensus, axis=0)).max())
        quantities += [
            Quantity("largest rise of the median E between saved times", 0.0, median, 1e-9, "≤", "reading", _MEDIAN),
            Quantity("largest rise of any E after t = 5", 0.0, float(rises[:, later].max()), 1e-9, "≤", "reading"),
            Quantity("largest rise of any E at all", 0.0, float(rises.max()), 1e-9, "≤", "reading", _EARLY),
        ]
        quantities += [_passing(times, consensus, level, expected_time) for level, expected_time in THRESHOLDS]
    return Record(
        paper="asymptotic",
        figure="Figure 5",
        statement=f"E of (25) goes to zero along {systems} starts of {tokens} tokens × {dim} features. That is all the "
        "paper says; that E falls monotonically, read here as not rising from one saved time (every 0.5) to the next, "
        "is true of every start after t = 5 only, and before that some rise.",
        quantities=tuple(quantities),
        invented=f"all matrices, frequencies and phases (laws as printed, seed {seed}), all starts (seed {seed + 1})",
        seed=seed,
        results={"times": times, "consensus": consensus},
    )


def consensus_along(flow: Flow, start: Tensor, times: np.ndarray, rtol: float) -> np.ndarray:
    """Return E of (25) at `times` from each start (system, token, dim), (system, time); states are not kept."""
    run = simulate(flow, start, times, rtol=rtol, atol=rtol / 100, engine="batched")
    return observables.consensus(run.tensor).numpy()


def draw(record: Record) -> Figure:
    """Draw E of every start, as printed and on a logarithmic axis."""
    times, consensus = record.results["times"], record.results["consensus"]
    titles = ["as printed", "logarithmic"]
    figure, (left, right) = plots.panels(2, width=plots.DOUBLE, height=2.6, titles=titles)
    plots.over_time(times, consensus, "consensus E of (25)", many="starts", axes=left)
    plots.over_time(times, consensus, "consensus E of (25)", many="starts", log="values", axes=right)
    return footnote(figure, f"Invented: {record.invented}.")


def _passing(times: np.ndarray, consensus: np.ndarray, level: float, expected: float) -> Quantity:
    below = np.median(consensus, axis=0) < level
    passed = float(times[below.argmax()]) if below.any() else math.nan
    return Quantity(f"time at which the median E falls below {level:g}", expected, passed, 12.0, source="simulation")
