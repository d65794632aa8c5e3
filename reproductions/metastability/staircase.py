"""`metastability`: the energy of tokens on the circle is a staircase, each jump of which is a merger."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure

from reproductions.drawing import footnote
from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures
from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.spaces import Sphere

PRINTED = published("metastability", "staircase")
TOKENS, BETA, HORIZON, PER_E = 8, 60.0, 32.0, 20
RADIUS = 1 / math.sqrt(BETA * math.log(BETA))
LEVEL = 1e-3
"""Changes of the energy over a unit of log t that a plateau may have."""


def starts(draws: int, seed: int) -> np.ndarray:
    """Return angles (draw, token) whose gaps are equally spaced numbers in random order: no two pairs are as near."""
    random = np.random.default_rng(seed)
    gaps = np.stack([random.permutation(np.linspace(0.5, 1.0, TOKENS)) for _ in range(draws)])
    return np.cumsum(gaps, axis=-1) * (2 * np.pi / gaps[0].sum())


def groups(angles: np.ndarray) -> list[list[int]]:
    """Return the clusters of tokens at angles (token,): neighbors that are within the radius, in their order."""
    order = np.argsort(angles % (2 * np.pi))
    gaps = np.diff(angles[order] % (2 * np.pi), append=angles[order[0]] % (2 * np.pi) + 2 * np.pi)
    (ends,) = np.nonzero(gaps > RADIUS)
    if not len(ends):
        return [order.tolist()]
    turned = np.roll(order, -int(ends[-1]) - 1)
    return [part.tolist() for part in np.split(turned, (ends[:-1] - ends[-1]) % TOKENS)]


def plateaus(energy: np.ndarray) -> list[float]:
    """Return the levels of a staircase (time,) on the grid of log t: stretches of a unit without a change, as one."""
    flat = np.abs(energy[PER_E:] - energy[:-PER_E]) < LEVEL
    levels: list[float] = []
    for value in energy[:-PER_E][flat]:
        if not levels or value - levels[-1] > LEVEL:
            levels.append(float(value))
    return levels


@dataclass(frozen=True)
class Merger:
    """Clusters that become one.

    Attributes:
        time: The index of the saved time at which they are.
        gap: Their angle on the plateau before.
        least: The least angle of two clusters then.
        lost: How many clusters fewer there are.
    """

    time: int
    gap: float
    least: float
    lost: int


def mergers(angles: np.ndarray) -> list[Merger]:
    """Return the mergers of tokens at angles (time, token), save those that no plateau can follow before the end."""
    seen: list[Merger] = []
    before, since = groups(angles[0]), 0
    for time, now in enumerate(angles[:-PER_E]):
        after = groups(now)
        if len(after) < len(before):
            # Halfway between two mergers in log t, all are at rest.
            plateau = np.exp(1j * angles[(since + time) // 2])
            centers = np.angle([plateau[members].mean() for members in before])
            apart = np.abs(np.angle(np.exp(1j * (centers - centers[:, None])))) + 2 * np.pi * np.eye(len(before))
            joined = [[k for k, members in enumerate(before) if members[0] in whole] for whole in after]
            seen += [
                Merger(time, float(apart[np.ix_(k, k)].min()), float(apart.min()), len(k) - 1)
                for k in joined
                if len(k) > 1
            ]
            before, since = after, time
    return seen


def well_apart(events: list[Merger]) -> bool:
    """Tell whether a plateau of a unit of log t fits between any two mergers."""
    return bool((np.diff([one.time for one in events]) > PER_E).all())


@timed
def reproduce(*, draws: int = 20, seed: int = 3) -> Record:
    """Run every draw to the horizon, and compare plateaus with clusters, and mergers with the closest pairs."""
    angles, eye = starts(draws, seed), torch.eye(2, dtype=torch.float64)
    attention = Attention(BETA * eye, eye, weights="exponential", offset=BETA, normalization="plain")
    logs = np.arange(0.0, HORIZON, 1 / PER_E)
    start = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    run = simulate(Flow(attention, Sphere()), start, [0.0, *np.exp(logs)], engine="stiff", rtol=1e-8, atol=1e-12)
    states = run.tensor[:, 1:]
    energy = (BETA * (states @ states.mT - 1)).exp().mean(dim=(-2, -1)).numpy()
    seen = torch.atan2(states[..., 1], states[..., 0]).numpy()
    events = [mergers(one) for one in seen]
    levels = [plateaus(one) for one in energy]
    flat = np.abs(energy[:, PER_E:] - energy[:, :-PER_E]) < LEVEL
    squares = np.array([[sum(len(part) ** 2 for part in groups(one)) / TOKENS**2 for one in run_] for run_ in seen])
    every = [one for of_draw in events for one in of_draw]
    distinct = [(one, two) for one, two in zip(levels, events, strict=True) if well_apart(two)]
    quantities = PRINTED.quantities(
        {
            "counts": float(np.mean([len(one) == 1 + len(two) for one, two in distinct])) if distinct else math.nan,
            "closest": float(np.mean([one.gap <= one.least * (1 + 1e-9) for one in every])),
            "pairs": max(one.lost for one in every),
            "levels": float(np.abs(energy - squares)[:, :-PER_E][flat].max()),
            "falls": float(-np.diff(energy, axis=1).min()),
            "printed": float(2 * BETA * (energy / (2 * BETA)).max()),
            "mergers": len(every),
            "distinct": len(distinct) / draws,
        },
        {} if distinct else {"counts": "no draw has all its mergers a unit of log t apart"},
    )
    results = {"log_times": logs, "energy": energy[: min(draws, 4)]}
    sizes = {"tokens": TOKENS, "beta": BETA, "horizon": HORIZON, "draws": draws, "level": LEVEL}
    return PRINTED.record(quantities, results, seed=seed, **sizes)


def draw(record: Record) -> Figure:
    """Draw the energy of four draws against log t."""
    energy = record.results["energy"]
    figure = figures.over_time(
        record.results["log_times"],
        energy,
        "mean of exp(β(cos θ − 1)) over pairs",
        names=[f"draw {k}" for k in range(1, len(energy) + 1)],
        time_label="log t",
        width=figures.SINGLE,
    )
    return footnote(figure, record, "Each step is a merger of two clusters.")
