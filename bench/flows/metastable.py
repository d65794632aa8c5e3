"""64 tokens on the circle, β = 25: clusters that stand for very long and then meet."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from bench.measure import Comparison
from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, Trajectory, simulate
from tokendynamics.spaces import Sphere

TOKENS, BETA, STARTS = 64, 25.0, 8
HORIZONS = (1e6, 1e9, 1e12)
JUDGED, CALLS, GROWTH = 1e9, 1500, 1.1
RTOL, ATOL = 1e-6, 1e-8
REFERENCE_RTOL, REFERENCE_ATOL = 1e-12, 1e-13
APART = 0.05
"""Tokens of different clusters are at least so far apart, in radians."""


def run() -> Iterator[Comparison]:
    """Right-hand sides, which are what a longer horizon could cost."""
    starts = Sphere().sample(TOKENS, 2, (STARTS,), seed=0)
    identity = torch.eye(2, dtype=torch.float64)
    flow = Flow(Attention(BETA * identity, identity), Sphere())
    runs = {horizon: simulate(flow, starts, [0.0, horizon], rtol=RTOL, atol=ATOL) for horizon in HORIZONS}
    name = f"{TOKENS} tokens on the circle, β = {BETA:g}"
    judged = runs[JUDGED]
    calls = _calls(judged)
    difference = float((judged.tensor[:, -1] - _reference(starts, JUDGED)).abs().max())
    shares = [one / CALLS for one in calls]
    yield Comparison(
        f"{name}, to t = {JUDGED:.0e}, engine {judged.engine}, right-hand sides, median of {STARTS} starts",
        statistics.median(calls), CALLS, statistics.median(shares), (min(shares), max(shares)),
        f"median ≤ {CALLS}", statistics.median(calls) <= CALLS, f"{difference:.0e} at rtol {RTOL:.0e}", "calls",
    )  # fmt: skip
    for shorter, longer in pairwise(HORIZONS):
        yield _growth(name, runs, shorter, longer)


def _growth(name: str, runs: dict[float, Trajectory], shorter: float, longer: float) -> Comparison:
    """What the longer horizon costs the starts of which no clusters meet in between."""
    before, after = _calls(runs[shorter]), _calls(runs[longer])
    meetings = (_clusters(runs[shorter]) - _clusters(runs[longer])).tolist()
    quiet = [(late, early) for late, early, met in zip(after, before, meetings, strict=True) if not met]
    more = [(late - early) / met for late, early, met in zip(after, before, meetings, strict=True) if met]
    ratios = [late / early for late, early in quiet] or [math.nan]
    told = f"; a meeting costs {statistics.median(more):.0f} calls more" if more else ""
    late, early = (statistics.median(side) for side in zip(*quiet, strict=True)) if quiet else (math.nan, math.nan)
    return Comparison(
        f"{name}, right-hand sides to t = {longer:.0e} against {shorter:.0e}, where no clusters meet in between "
        f"({len(quiet)} of {STARTS} starts)",
        late, early, statistics.median(ratios), (min(ratios), max(ratios)), f"≤ {GROWTH:g} × the calls",
        statistics.median(ratios) <= GROWTH, f"as above{told}", "calls",
    )  # fmt: skip


def _calls(run: Trajectory) -> list[int]:
    return [int(count) for count in run.counts["right_hand_sides"]]


def _clusters(run: Trajectory) -> np.ndarray:
    """Number of clusters at the horizon, one for each start: gaps between neighbours on the circle."""
    angles = np.sort(_angles(run.tensor[:, -1]), axis=1)
    gaps = np.diff(angles, axis=1, append=angles[:, :1] + 2 * math.pi)
    return np.maximum((gaps > APART).sum(axis=1), 1)


def _angles(states: Tensor) -> np.ndarray:
    return np.arctan2(states[..., 1].numpy(), states[..., 0].numpy())


def _reference(starts: Tensor, horizon: float) -> Tensor:
    """The same flow in angles, ``θ_i' = Σ_j w_ij sin(θ_j − θ_i) / √2``, by SciPy at a much tighter tolerance."""
    options = {"method": "LSODA", "jac": _jacobian, "rtol": REFERENCE_RTOL, "atol": REFERENCE_ATOL}
    ends = [solve_ivp(_velocity, (0.0, horizon), start, **options).y[:, -1] for start in _angles(starts)]
    angles = torch.from_numpy(np.stack(ends))
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def _velocity(t: float, angles: np.ndarray) -> np.ndarray:
    between = angles - angles[:, None]
    return (_weights(between) * np.sin(between)).sum(axis=1) / math.sqrt(2)


def _jacobian(t: float, angles: np.ndarray) -> np.ndarray:
    between = angles - angles[:, None]
    weights, sines = _weights(between), np.sin(between)
    mean = (weights * sines).sum(axis=1, keepdims=True)
    slope = weights * (np.cos(between) - BETA * sines * (sines - mean)) / math.sqrt(2)
    # Turning all tokens together changes no velocity.
    np.fill_diagonal(slope, 0.0)
    return slope - np.diag(slope.sum(axis=1))


def _weights(between: np.ndarray) -> np.ndarray:
    weights = np.exp(BETA * (np.cos(between) - 1))
    return weights / weights.sum(axis=1, keepdims=True)
