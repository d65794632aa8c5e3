"""`positional` Figure 1: distances between tokens, growing for A_sym ≻ 0 and said to shrink for A_sym ≺ 0."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from reproductions.drawing import footnote
from reproductions.positional.flows import (
    AS_DEFINED,
    UNTRANSPOSED,
    Reading,
    contraction_flow,
    run_free,
    symmetric_eigenvalues,
)
from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures, observables
from tokendynamics.dynamics import Trajectory

PRINTED = published("positional", "fig1")
LEFT_HORIZON, RIGHT_HORIZON = 1.0, 6.0
READINGS: tuple[Reading, Reading] = (AS_DEFINED, UNTRANSPOSED)

_VISIBLE = 0.01
"""A distance counts as constant while it changes by less than this share: what an eye sees in the figure."""


@timed
def reproduce() -> Record:
    """Run both panels under both readings of A = W V^(−T)."""
    horizons = {"left": LEFT_HORIZON, "right": RIGHT_HORIZON}
    computed: dict[str, Any] = {side: symmetric_eigenvalues(PRINTED.matrix(f"{side.upper()}_A")) for side in horizons}
    runs: dict[Reading, tuple[Trajectory, ...]] = {}
    for reading, suffix in zip(READINGS, ("", "_turned"), strict=True):
        runs[reading] = tuple(_run(side.upper(), horizon, reading) for side, horizon in horizons.items())
        left, right = runs[reading]
        computed |= {f"falling{suffix}": falling(left), f"growing{suffix}": growing(right)}
    return PRINTED.record(PRINTED.quantities(computed), {"runs": runs})


def _run(side: str, horizon: float, reading: Reading) -> Trajectory:
    """Run the printed start of one panel."""
    flow = contraction_flow(PRINTED.matrix(f"{side}_A"), PRINTED.matrix(f"{side}_W"), reading)
    return run_free(flow, PRINTED.matrix(f"{side}_START"), np.linspace(0, horizon, 201))


def distances(run: Trajectory) -> np.ndarray:
    """Return the distances of all pairs, (time, pair)."""
    first, second = np.triu_indices(run.tensor.shape[-2], k=1)
    return observables.pairwise_distances(run.tensor).numpy()[:, first, second]


def growing(run: Trajectory) -> int:
    """Return how many distances are, at the end, visibly above the start."""
    apart = distances(run)
    return int((apart[-1] > (1 + _VISIBLE) * apart[0]).sum())


def falling(run: Trajectory) -> int:
    """Return how many distances are, at the end, visibly below the start."""
    apart = distances(run)
    return int((apart[-1] < (1 - _VISIBLE) * apart[0]).sum())


def draw(record: Record) -> Figure:
    """Draw two rows, one for each reading."""
    signs = ("A_sym ≻ 0", "A_sym ≺ 0")
    titles = [f"{sign}, {reading}" for reading in READINGS for sign in signs]
    figure, panels = figures.panels(2, 2, width=figures.DOUBLE, height=5.2, titles=titles)
    runs = [run for reading in READINGS for run in record.results["runs"][reading]]
    for index, (panel, run) in enumerate(zip(panels, runs, strict=True)):
        figures.distances(run.times, run.tensor, log="values" if index % 2 == 0 else "none", axes=panel)
    return footnote(figure, record, "Upper row: V as the paper defines it; lower row: its transpose.")
