"""`norms`: how fast the variance of directions falls under each scheme of normalization, and how radii grow."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure

from reproductions.drawing import footnote
from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures
from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.numerics.arguments import generator
from tokendynamics.spaces import Normalized, Sphere
from tokendynamics.theorems import certify

PRINTED = published("norms", "rates")
TOKENS, DIM, SPREAD, BETA = 4, 3, 0.004, 0.5
SWITCH, ALPHA = 0.5, 0.5
SPACES = {
    "post": Normalized("post"),
    "pre": Normalized("pre"),
    "mix": Normalized("mix", switch=SWITCH),
    "peri": Normalized("peri"),
    "ngpt": Normalized("ngpt", rate=ALPHA),
    "scaled": Normalized("scaled"),
}
_SMALLEST = 1e-10
"""Smaller shares of the start are left out of the figure: they come to rounding."""


def _log_variance(states: torch.Tensor) -> np.ndarray:
    directions = states / states.norm(dim=-1, keepdim=True)
    apart = directions - directions.mean(dim=-2, keepdim=True)
    return apart.square().sum(dim=-1).mean(dim=-1).log().numpy()


@timed
def reproduce(*, systems: int = 40, seed: int = 5) -> Record:
    """Run every scheme from the same narrow cones, and fit the slopes of log variance over the last saved times."""
    random = generator(seed)
    center = Sphere().sample(1, DIM, (systems,), seed=seed)
    start = center + SPREAD * torch.randn(systems, TOKENS, DIM, dtype=torch.float64, generator=random)
    start = start / start.norm(dim=-1, keepdim=True)
    identity = torch.eye(DIM, dtype=torch.float64)
    attention = Attention(BETA * identity, identity, normalization="plain")
    times = np.unique(np.concatenate([np.linspace(0.0, 4.0, 41), np.geomspace(0.1, 1000.0, 41)]))
    clocks = {"post": np.asarray, "ngpt": lambda t: ALPHA * t, "scaled": lambda t: np.sqrt(1 + t)}
    slopes: dict[str, float] = {}
    logs: dict[str, np.ndarray] = {}
    bounds, low, high = [], [], []
    for name, space in SPACES.items():
        run = simulate(Flow(attention, space), start, times, rtol=1e-11, atol=1e-13)
        logs[name] = _log_variance(run.tensor)
        # What falls exponentially is fitted before it reaches rounding, a power of t over the last decade.
        first, last = np.searchsorted(times, (3.0, 4.0) if name in clocks else (100.0, 1000.0) - np.array(1e-9))
        passed = np.diff(clocks.get(name, np.log)(times[[first, last]]))[0]
        slopes[name] = float(np.median(logs[name][:, last] - logs[name][:, first]) / passed)
        variance, radius = (certify(run, [f"norms-4.3-{what}"])[0].conditions for what in ("variance", "radius"))
        bounds.append(variance[0].tolerance - float(variance[0].margin.min()))
        if space.has_radius:
            low.append(radius[0].tolerance - float(radius[0].margin.min()))
            high.append(radius[1].tolerance - float(radius[1].margin.min()))
    quantities = PRINTED.quantities(slopes | {"bounds": max(bounds), "low": max(low), "high": max(high)})
    sizes = {"systems": systems, "tokens": TOKENS, "dim": DIM, "spread": SPREAD, "beta": BETA}
    return PRINTED.record(quantities, {"logs": logs, "times": times}, seed=seed, switch=SWITCH, alpha=ALPHA, **sizes)


def draw(record: Record) -> Figure:
    """Draw the variance relative to the start over time, the median over systems, on logarithmic axes."""
    logs = record.results["logs"]
    fallen = np.stack([np.exp(np.median(log_variance - log_variance[:, :1], axis=0)) for log_variance in logs.values()])
    figure = figures.over_time(
        record.results["times"],
        np.where(fallen > _SMALLEST, fallen, 0.0),
        "Var / Var(0)",
        names=list(logs),
        time_label="t",
        log="both",
        width=figures.SINGLE,
    )
    return footnote(figure, record, "A straight line is a power of t.")
