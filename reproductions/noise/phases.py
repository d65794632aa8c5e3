"""`noise`: at which coupling tokens with noise have an ordered rest on the circle, by its order and β."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.optimize import brentq

from reproductions.drawing import footnote
from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures
from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, Noise, simulate
from tokendynamics.spaces import Sphere
from tokendynamics.theorems import predict_noise_transition

PRINTED = published("noise", "phases")
CALM, SHARP = (0.5, 1.0, 2.4), (3.0, 4.0, 6.0)
"""Values of β below and above β_* = 2.44692."""
MEANS = np.concatenate([[0.001], np.linspace(0.02, 0.96, 33)])
SIZE, TOKENS, STEP, HORIZON = 128, 200, 0.02, 40.0
RUNS = ((1.0, 0.3), (1.0, 1.6), (4.0, 0.98), (6.0, 0.95))
"""Pairs of β and K/K_# of runs that start near one direction."""
_ENOUGH, _SWEEPS = 1e-13, 4000


def density(beta: float, mean: float, size: int = SIZE) -> tuple[np.ndarray, float]:
    """Return the density at rest with mean cos θ = `mean`, on equal angles, and its coupling K.

    At rest the density is ``exp(2K/β · (e^{β cos} * density))`` over its integral: the potential of the drift. The
    coupling is what gives it the mean, and the rest is a fixed point.
    """
    angles = 2 * np.pi * np.arange(size) / size
    kernel = np.exp(beta * (np.cos(angles[:, None] - angles) - 1)) / size
    now, cosine = 1 + 2 * mean * np.cos(angles), np.cos(angles)

    def law(strength: float, potential: np.ndarray) -> np.ndarray:
        weight = np.exp(strength * (potential - potential.max()))
        return weight / weight.mean()

    strength = 0.0
    for _ in range(_SWEEPS):
        potential = kernel @ now
        potential = potential / (potential.max() - potential.min())

        def excess(tried: float, potential: np.ndarray = potential) -> float:
            return float((law(tried, potential) * cosine).mean()) - mean

        strength = _root(excess, 0.0, 1e4, 1e-14)
        after = law(strength, potential)
        change, now = float(np.abs(after - now).max()), after
        if change < _ENOUGH * now.max():
            break
    unscaled = kernel @ now
    return now, strength * beta / 2 / float(unscaled.max() - unscaled.min()) * math.exp(-beta)


def ratio(beta: float, mean: float) -> float:
    """Return the coupling of a rest over K_#."""
    return density(beta, mean)[1] / predict_noise_transition(beta, 2).coupling


def simulated(seed: int, tokens: int, horizon: float) -> np.ndarray:
    """Return the mean length of the mean token over the second half of each of `RUNS`."""
    couplings = [share * predict_noise_transition(beta, 2).coupling for beta, share in RUNS]
    qk, ov = (
        torch.tensor(values).double()[:, None, None, None] * torch.eye(2).double()
        for values in ([beta for beta, _ in RUNS], couplings)
    )
    flow = Flow(Attention(qk, ov, weights="exponential", normalization="plain"), Sphere())
    start = Sphere().project(Sphere().sample(tokens, 2, seed=seed) / 4 + torch.eye(2).double()[0])
    times = np.linspace(0.0, horizon, 61)
    run = simulate(flow, start.expand(len(RUNS), -1, -1), times, noise=Noise(1.0, seed=seed), step=STEP)
    return run.tensor[:, 30:].mean(dim=-2).norm(dim=-1).mean(dim=-1).numpy()


@timed
def reproduce(*, tokens: int = TOKENS, horizon: float = HORIZON, seed: int = 5) -> Record:
    """Find the coupling of every rest, where it first falls below K_#, and the order of runs."""
    curves = {beta: np.array([ratio(beta, mean) for mean in MEANS]) for beta in (*CALM, *SHARP)}
    tricritical = _root(lambda beta: ratio(beta, 0.01) - 1, 2.0, 3.0, 1e-6)
    seen = simulated(seed, tokens, horizon)
    expected = np.array([_order(beta, share) for beta, share in RUNS])
    quantities = PRINTED.quantities(
        {
            "tricritical": tricritical,
            "threshold": max(abs(curve[0] - 1) for curve in curves.values()),
            "continuous": min(float(curves[beta].min()) for beta in CALM),
            "jump": max(float(curves[beta].min()) for beta in SHARP),
            "particles": float(np.abs(seen - expected).max()),
        },
        calm=", ".join(map(str, CALM)),
        sharp=", ".join(map(str, SHARP)),
    )
    results = {"means": MEANS, "curves": curves, "seen": seen, "runs": RUNS}
    sizes = {"size": SIZE, "tokens": tokens, "step": STEP, "horizon": horizon}
    return PRINTED.record(quantities, results, seed=seed, **sizes)


def _order(beta: float, share: float) -> float:
    """Return the largest mean of a rest at a coupling, 0 where only the uniform one exists."""
    above = [mean for mean in MEANS if ratio(beta, mean) <= share]
    if not above:
        return 0.0
    return _root(lambda mean: ratio(beta, mean) - share, max(above), MEANS[-1] + 0.02, 1e-4)


def _root(function: Callable[[float], float], left: float, right: float, error: float) -> float:
    root: Any = brentq(function, left, right, xtol=error)
    return float(root)


def draw(record: Record) -> Figure:
    """Draw the coupling over K_# by the mean of the rest, a line for each β, and runs as points."""
    results = record.results
    figure = figures.over_time(
        results["means"],
        np.array(list(results["curves"].values())),
        "K / K_#",
        names=[f"β = {beta}" for beta in results["curves"]],
        time_label="length of the mean token at rest",
        width=figures.SINGLE,
    )
    panel = figure.axes[0]
    panel.set_ylim(0.2, 2.0)
    panel.plot(results["seen"], [share for _, share in results["runs"]], "o", color="black", markersize=4)
    return footnote(figure, record, "Where a line falls, the rest is unstable. Points: runs.")
