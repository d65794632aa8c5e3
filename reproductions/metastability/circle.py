"""The number of clusters in which tokens on the circle stay for a while, against β and the linearized flow."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.special import ive

from reproductions.drawing import footnote
from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures
from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.spaces import Sphere
from tokendynamics.theorems import predict_interaction_window

PRINTED = published("metastability", "circle")
BETAS = (4.0, 9.0, 16.0, 36.0, 64.0)
TIMES = np.concatenate([[0.0], 2.0 * 2 ** (np.arange(25) / 4)])
_DOUBLED = 4
"""Saved times after which t has doubled."""


def growth(mode: np.ndarray | int, beta: float) -> np.ndarray:
    """Return the rate k²I_k(β)/(βI₀(β)) at which a mode of a nearly uniform density grows."""
    return np.asarray(np.square(mode) * ive(mode, beta) / (beta * ive(0, beta)))


def fastest(beta: float) -> int:
    """Return the mode that grows fastest."""
    modes = np.arange(1, 100)
    return int(modes[growth(modes, beta).argmax()])


def flow(beta: float) -> Flow:
    """Return the flow of softmax weights on the circle."""
    eye = torch.eye(2, dtype=torch.float64)
    return Flow(Attention(beta * eye, eye, normalization="plain"), Sphere())


def measured_growth(beta: float, tokens: int) -> float:
    """Return the rate of the fastest mode of equidistant tokens, moved by a millionth along it."""
    rest = 2 * np.pi * np.arange(tokens) / tokens
    displacement = 1e-6 * np.sin(fastest(beta) * rest)
    angles = torch.from_numpy(rest + displacement)
    states = torch.stack([angles.cos(), angles.sin()], dim=-1)
    velocity = flow(beta).velocity(states, 0.0)
    turn = (states[:, 0] * velocity[:, 1] - states[:, 1] * velocity[:, 0]).numpy()
    return float(turn @ displacement / (displacement @ displacement))


def plateau(angles: np.ndarray, beta: float) -> float:
    """Return the number of clusters of angles (time, token) on the first plateau, NaN without one.

    Gaps above τ/2 part clusters. A plateau begins where no other gap is above a hundredth of that, and the number of
    clusters stays until t has doubled.
    """
    window = float(predict_interaction_window(beta))
    ordered = np.sort(angles % (2 * np.pi), axis=-1)
    gaps = np.diff(ordered, axis=-1, append=ordered[:, :1] + 2 * np.pi)
    counts, fine = (np.maximum((gaps > share * window).sum(axis=-1), 1) for share in (0.5, 0.005))
    for time in range(len(counts) - _DOUBLED):
        if (counts[time : time + _DOUBLED + 1] == fine[time]).all():
            return float(counts[time])
    return np.nan


@timed
def reproduce(*, draws: int = 20, tokens: int = 500, seed: int = 1) -> Record:
    """Count the clusters of the first plateau at every β, and compare them with the fastest mode."""
    random, counts = np.random.default_rng(seed), []
    for beta in BETAS:
        angles = random.uniform(0, 2 * np.pi, (draws, tokens))
        start = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
        run = simulate(flow(beta), start, TIMES, rtol=1e-6, atol=1e-8)
        seen = torch.atan2(run.tensor[..., 1], run.tensor[..., 0]).numpy()[:, 1:]
        counts.append([plateau(one, beta) for one in seen])
    number, modes = np.array(counts), np.array([fastest(beta) for beta in BETAS])
    means = np.nanmean(number, axis=1)
    rates = [measured_growth(beta, tokens) / growth(fastest(beta), beta) - 1 for beta in BETAS]
    quantities = PRINTED.quantities(
        {
            "counts": means,
            "power": float(np.polyfit(np.log(BETAS), np.log(means), 1)[0]),
            "modes": float(np.abs(modes - np.sqrt(2 * np.array(BETAS))).max()),
            "growth": float(np.abs(rates).max()),
            "plateaus": float(np.isfinite(number).mean()),
        }
    )
    results = {"betas": BETAS, "counts": number, "modes": modes}
    return PRINTED.record(quantities, results, seed=seed, tokens=tokens, draws=draws)


def draw(record: Record) -> Figure:
    """Draw the mean number of clusters, the fastest mode and √(2β) against β."""
    results = record.results
    betas = np.array(results["betas"])
    figure = figures.over_time(
        betas,
        np.array([np.nanmean(np.array(results["counts"], dtype=float), axis=1), results["modes"], np.sqrt(2 * betas)]),
        "clusters",
        names=["clusters on the first plateau (mean)", "fastest mode of the linearized flow", "√(2β)"],
        time_label="β",
        width=figures.SINGLE,
    )
    return footnote(figure, record, "Starts drawn uniformly.")
