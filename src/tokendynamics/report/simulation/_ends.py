"""Where every system ended: what was measured of its last state, and a table of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from tokendynamics import observables
from tokendynamics.figures.figure import Table, cells, fold, gather
from tokendynamics.report.simulation._measures import ANGLE, over_states
from tokendynamics.report.simulation._shown import Shown, with_directions

MOST_ROWS = 2000
_FEW = 12
_PAIRS = 2**25


@dataclass(frozen=True)
class Ends:
    """Numbers of the state in which each system ended, (system,), NaN where they are not defined.

    Attributes:
        cosine: Mean cosine of two tokens.
        cosine_at_start: The same of the first state kept.
        clusters: Groups of directions; NaN also where the pairs are too many to be measured.
        angle: The largest angle between two tokens, in degrees; likewise.
        distance: The largest distance between two tokens; likewise.
        distance_at_start: The same of the first state kept.
        norm: The median norm of a token.
        norm_at_start: The same of the first state kept.
        largest_norm: Of a token.
        finite: Whether the state is.
    """

    cosine: np.ndarray
    cosine_at_start: np.ndarray
    clusters: np.ndarray
    angle: np.ndarray
    distance: np.ndarray
    distance_at_start: np.ndarray
    norm: np.ndarray
    norm_at_start: np.ndarray
    largest_norm: np.ndarray
    finite: np.ndarray


def ends(run: Shown) -> Ends:
    """Measure the last state of every system, and the first.

    Args:
        run: What is shown; all its systems are measured.
    """
    finite, size = torch.isfinite(run.last).all(dim=-1).all(dim=-1).numpy(), run.tokens**2
    begun = np.ones_like(finite)
    directed, directed_then = (with_directions(states) & (run.tokens > 1) for states in (run.last, run.first))
    pairs = run.tokens > 1 and run.many * size <= _PAIRS
    rows = run.tokens * run.dim
    return Ends(
        cosine=over_states(run.last, directed, observables.mean_pair_cosine, rows),
        cosine_at_start=over_states(run.first, directed_then, observables.mean_pair_cosine, rows),
        clusters=over_states(run.last, directed & pairs, lambda x: observables.clusters(x, ANGLE), size),
        angle=np.degrees(over_states(run.last, directed & pairs, _widest, size)),
        distance=over_states(run.last, finite & pairs, observables.diameter, size),
        distance_at_start=over_states(run.first, begun & pairs, observables.diameter, size),
        norm=over_states(run.last, finite, lambda x: observables.norms(x).quantile(0.5, dim=-1), rows),
        norm_at_start=over_states(run.first, begun, lambda x: observables.norms(x).quantile(0.5, dim=-1), rows),
        largest_norm=over_states(run.last, finite, lambda x: observables.norms(x).amax(dim=-1), rows),
        finite=finite,
    )


def _widest(states: torch.Tensor) -> torch.Tensor:
    return observables.diameter(states, geometry="sphere")


def systems_table(run: Shown, found: Ends) -> Table:
    """Return how and where each system ended; systems that ended alike are one line with the range of their numbers.

    Args:
        run: What is shown.
        found: Its ends.
    """
    columns: dict[str, np.ndarray] = {"End time": run.end_times}
    if run.tokens > 1:
        columns |= {"Mean cosine": found.cosine, f"Clusters at {math.degrees(ANGLE):g}°": found.clusters}
        columns |= {"Largest angle (°)": found.angle}
        columns |= {} if run.on_surface else {"Largest distance": found.distance}
    columns |= {} if run.on_surface else {"Median norm": found.norm, "Largest norm": found.largest_norm}
    shown = range(min(run.many, MOST_ROWS))
    rows = tuple(
        cells([system, str(run.status[system]), *(float(each[system]) for each in columns.values())])
        for system in shown
    )
    rest = "" if run.many <= MOST_ROWS else f", the first {MOST_ROWS:,} of {run.many:,}"
    table = Table(f"How and where each system ended{rest}", ("System", "Status", *columns), rows)
    if run.many <= _FEW:
        return table
    folded = fold(table, [1])
    return folded if len(folded.shown) <= _FEW else gather(table, [1])
