"""`metastability`: the time at which tokens leave their caps, against the time that is proved, for growing β."""

from __future__ import annotations

import math

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from reproductions.drawing import footnote
from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures
from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.numerics.arguments import generator
from tokendynamics.spaces import Sphere

PRINTED = published("metastability", "lifetime")
TOKENS, DIM, EPSILON, RATE = 4, 3, 3e-4, 0.3
_PER_E = 100
"""Saved times for each factor e: leaving is seen to a hundredth of its logarithm."""


def proved_times(beta: float) -> tuple[float, float]:
    """Return log T₁ and log T₂ of the theorem, caps of twice the size around orthogonal centers being apart by α."""
    alpha = math.sin(2 * math.acos(1 - 2 * EPSILON))
    first = 2 * TOKENS * math.exp(8 * EPSILON * beta) + math.e * TOKENS * RATE * beta**2 / (beta - 1)
    return math.log(first), math.log(EPSILON / TOKENS) + (1 - alpha) * beta


def starts(draws: int, seed: int) -> Tensor:
    """Return draws (draw, token, dim) of two tokens in each of two caps, uniform in the angle to its center."""
    random = generator(seed)
    centers = torch.eye(DIM, dtype=torch.float64)[[0, 0, 1, 1]]
    normal = torch.randn(draws, TOKENS, DIM, dtype=torch.float64, generator=random)
    across = normal - (normal * centers).sum(dim=-1, keepdim=True) * centers
    across = torch.nn.functional.normalize(across, dim=-1)
    angle = math.acos(1 - EPSILON) * torch.rand(draws, TOKENS, 1, dtype=torch.float64, generator=random)
    return angle.cos() * centers + angle.sin() * across


@timed
def reproduce(*, draws: int = 20, least: int = 16, most: int = 22, seed: int = 5) -> Record:
    """Run every draw at every β until its tokens have left their caps, and compare with both proved times."""
    start, betas = starts(draws, seed), np.arange(least, most + 1)
    centers = torch.eye(DIM, dtype=torch.float64)[[0, 0, 1, 1]]
    leaving, largest, proved = [], [], []
    for beta in betas.tolist():
        first, second = proved_times(beta)
        logs = np.arange(0.0, second + 10.0, 1 / _PER_E)
        run = simulate(
            Flow(Attention(beta * torch.eye(DIM).double(), torch.eye(DIM).double(), normalization="plain"), Sphere()),
            start,
            [0.0, *np.exp(logs)],
            engine="stiff",
        )
        states = run.tensor[:, 1:]
        outside = ((states * centers).sum(dim=-1) < 1 - 2 * EPSILON).any(dim=-1).numpy()
        leaving.append(np.where(outside.any(axis=-1), logs[outside.argmax(axis=-1)], np.inf))
        apart = (states[:, :, [0, 2]] - states[:, :, [1, 3]]).square().sum(dim=-1).amax(dim=-1).numpy()
        window = (logs >= first) & (logs <= second)
        largest.append(apart[:, window].max() / (2 * math.exp(-RATE * beta)))
        proved.append((first, second))
    log_leaving, log_proved = np.array(leaving), np.array(proved)
    quantities = PRINTED.quantities(
        {
            "stays": float((log_proved[:, 1] - log_leaving.min(axis=1)).max()),
            "meets": float(max(largest)),
            "slope": float(np.polyfit(betas, np.median(log_leaving, axis=1), 1)[0]),
            "loose": float(np.exp(np.median(log_leaving[-1]) - log_proved[-1, 1])),
        }
    )
    sizes = {"tokens": TOKENS, "dim": DIM, "epsilon": EPSILON, "rate": RATE, "draws": draws}
    results = {"betas": betas, "leaving": log_leaving, "proved": log_proved}
    return PRINTED.record(quantities, results, seed=seed, least=least, most=most, **sizes)


def draw(record: Record) -> Figure:
    """Draw the three times by β on a logarithmic axis: of leaving, and the two that are proved."""
    leaving, proved = record.results["leaving"], record.results["proved"]
    figure = figures.over_time(
        record.results["betas"],
        np.exp([np.median(leaving, axis=1), proved[:, 1], proved[:, 0]]),
        "time",
        names=["a token leaves (median)", "T₂, proved: none leaves before", "T₁, proved: nearly one from here on"],
        time_label="β",
        log="values",
        width=figures.SINGLE,
    )
    return footnote(figure, record, "A straight line is an exponential.")
