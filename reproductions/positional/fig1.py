"""`positional` Figure 1: distances between tokens, growing for A_sym ≻ 0 and said to shrink for A_sym ≺ 0."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from reproductions.drawing import footnote
from reproductions.positional.flows import (
    AS_DEFINED,
    UNTRANSPOSED,
    Reading,
    contraction_flow,
    matrix,
    printed_eigenvalues,
    run_free,
)
from reproductions.record import Quantity, Record, timed
from tokendynamics import observables, plots
from tokendynamics.dynamics import Trajectory

LEFT_A = ((1.72628, -3.79592), (-0.914069, 3.49779))
LEFT_W = ((0.534636, -0.798866), (-1.17152, -1.92153))
LEFT_START = ((-1.17525, 1.99834), (-0.0231564, 0.591678), (-0.94811, -1.37996), (1.00246, 1.69335))
RIGHT_A = ((-1.43778, -1.10989), (0.563455, -0.401696))
RIGHT_W = ((0.433083, -0.0371911), (-0.715343, -1.53568))
RIGHT_START = ((0.123688, 0.20691), (0.53086, 1.47281), (-0.78388, -1.24115), (1.63476, 0.321809))
LEFT_HORIZON, RIGHT_HORIZON = 1.0, 6.0
READINGS: tuple[Reading, Reading] = (AS_DEFINED, UNTRANSPOSED)

_VISIBLE = 0.01
"""A distance counts as constant while it changes by less than this share: what an eye sees in the figure."""

_TRANSPOSED = "with the paper's own definition of A three of the six distances grow"


@timed
def reproduce() -> Record:
    """Run both panels under both readings of A = W V^(−T)."""
    left_matrices, right_matrices = (matrix(LEFT_A), matrix(LEFT_W)), (matrix(RIGHT_A), matrix(RIGHT_W))
    quantities = [
        *printed_eigenvalues("A_sym, left", left_matrices[0], (5.12809, 0.0959758), 1e-5),
        *printed_eigenvalues("A_sym, right", right_matrices[0], (-1.50541, -0.334061), 1e-5),
    ]
    runs: dict[Reading, tuple[Trajectory, Trajectory]] = {}
    for reading in READINGS:
        left = run_free(
            contraction_flow(*left_matrices, reading), matrix(LEFT_START), np.linspace(0, LEFT_HORIZON, 201)
        )
        right = run_free(
            contraction_flow(*right_matrices, reading), matrix(RIGHT_START), np.linspace(0, RIGHT_HORIZON, 201)
        )
        runs[reading] = (left, right)
        reason = _TRANSPOSED if reading == AS_DEFINED else ""
        quantities += [
            Quantity(f"left, {reading}: distances that fall", 0, falling(left), 0, source="reading"),
            Quantity(f"right, {reading}: distances that grow", 0, growing(right), 0, source="reading", reason=reason),
        ]
    return Record(
        paper="positional",
        figure="Figure 1",
        statement="Distances do not decrease on the left, and do not increase on the right only if V = A⁻¹W is read "
        "instead of the paper's own V = (A⁻¹W)ᵀ.",
        quantities=tuple(quantities),
        invented="the horizons; matrices and initial tokens are printed",
        seed=None,
        results={"runs": runs},
    )


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
    figure, panels = plots.panels(2, 2, width=plots.DOUBLE, height=5.2, titles=titles)
    runs = [run for reading in READINGS for run in record.results["runs"][reading]]
    for index, (panel, run) in enumerate(zip(panels, runs, strict=True)):
        plots.distances(run.times, run.tensor, log="values" if index % 2 == 0 else "none", axes=panel)
    return footnote(
        figure, f"Upper row: V as the paper defines it; lower row: its transpose. Invented: {record.invented}."
    )
