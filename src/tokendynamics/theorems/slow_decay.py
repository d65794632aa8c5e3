"""Decay like a power of time: its measured slope, and what a certificate concludes from it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Trajectory
from tokendynamics.theorems.result import Condition

EXPONENT = -0.5
"""Near zero the field is cubic in the tokens once their mean has died out, so they shrink like t^(−1/2)."""
WIDTH = 0.05
"""Largest difference of the measured slope from `EXPONENT`."""
_SETTLED = 0.02
_DECADE = 10.0
_FEWEST = 3


def log_log_slope(times: np.ndarray, values: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Fit the slope of log values against log times over the counted entries; NaN below three of them.

    Args:
        times: (time,).
        values: Positive, (…, time).
        counted: Which entries count, (…, time); times among them are positive.

    >>> times = np.array([1.0, 10.0, 100.0])
    >>> round(float(log_log_slope(times, times**-0.5, times > 0)), 12)
    -0.5
    """
    tiny = np.finfo(float).tiny
    counts = counted.sum(axis=-1)
    weight = counted / np.maximum(counts, 1)[..., None]
    x, y = np.log(np.maximum(times, tiny)), np.log(np.maximum(values, tiny))
    deviation = x - (weight * x).sum(axis=-1, keepdims=True)
    spread = (weight * deviation**2).sum(axis=-1)
    slope = (weight * deviation * y).sum(axis=-1) / np.where(spread > 0, spread, 1.0)
    return np.where((counts >= _FEWEST) & (spread > 0), slope, np.nan)


def slope_condition(states: Tensor, trajectory: Trajectory, stiffness: np.ndarray) -> Condition:
    """Require that the largest norm shrink like t^(−1/2) over the last decade of the run.

    It holds where the slope of log max_l |x_l| against log t is −0.5 ± 0.05. On the way there the slope can stay for
    decades between 0 (small tokens, or a direction in which they hardly differ) and −0.5 κ (a direction that dies
    out first), κ the ratio of the extreme eigenvalues of ov. It fails where the slopes of the last two decades
    agree outside that range. Otherwise the run was too short to tell.

    Args:
        states: (…, time, token, dim), tending to zero.
        trajectory: The run they come from.
        stiffness: κ, of the shape of the systems.
    """
    times, reached = np.asarray(trajectory.times, dtype=float), np.asarray(trajectory.reached)
    norms = torch.linalg.vector_norm(states, dim=-1).amax(dim=-1).numpy()
    elapsed = times - times[0]
    end = np.where(reached, elapsed, 0.0).max(axis=-1, keepdims=True)
    usable = reached & (elapsed > 0)
    last = log_log_slope(elapsed, norms, usable & (elapsed >= end / _DECADE))
    before = usable & (elapsed >= end / _DECADE**2) & (elapsed <= end / _DECADE)
    settled = np.abs(last - log_log_slope(elapsed, norms, before)) <= _SETTLED
    margin = WIDTH - np.abs(last - EXPONENT)
    unreachable = (last < EXPONENT * stiffness - WIDTH) | (last > WIDTH)
    outcome = np.where(margin >= 0, "holds", np.where(settled & unreachable, "fails", "undecided"))
    first = np.where(outcome == "fails", end[..., 0] + times[0], np.nan)
    text = "slope of log max|x_l| against log t over the last decade, distance from −0.5"
    return Condition(text, outcome, np.where(np.isnan(margin), -np.inf, margin), WIDTH, first)
