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

from bench.flows import equal_error, peers
from bench.flows.costs import costs
from bench.flows.equal_error import Contender, Entry, Race
from bench.flows.sphere_flow import SphereFlow
from bench.measure import Comparison, Cost
from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, Trajectory, simulate
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.spaces import Sphere

TOKENS, BETA, STARTS = 64, 25.0, 8
HORIZONS = (1e6, 1e9, 1e12)
JUDGED, CALLS, GROWTH = 1e9, 1500, 1.1
RTOL, ATOL = 1e-6, 1e-8
RACED, RACED_TO_QUICKLY, WANTED = 2, 1e4, 1e-4
REFERENCE_RTOL, REFERENCE_ATOL = 1e-12, 1e-13
APART = 0.05
"""Tokens of different clusters are at least so far apart, in radians."""


def entry(quick: bool) -> Entry:
    """Implicit solvers: an explicit one takes a step for every unit of time, and there are 1e9."""
    flow = SphereFlow(BETA * torch.eye(2, dtype=torch.float64)[None])
    contenders = [
        Contender("ours, stiff", lambda: peers.ours(flow, "stiff"), RACED, alone=True),
        Contender("scipy LSODA", lambda: peers.scipy(flow, "LSODA"), RACED, alone=True),
        Contender("diffrax Kvaerno5", peers.where_installed("diffrax", flow, method="Kvaerno5"), RACED),
    ]
    return Entry(
        Sphere().sample(TOKENS, 2, (STARTS,), seed=0)[:RACED], RACED_TO_QUICKLY if quick else JUDGED, contenders
    )


def run(quick: bool = False) -> Iterator[Comparison | Cost]:
    """Right-hand sides, which are what a longer horizon could cost; then a run beside others' solvers."""
    yield from _right_hand_sides(HORIZONS[: 2 if quick else None])
    with limited_threads(1):
        taking_part = entry(quick)
        exact = _reference(taking_part.starts, taking_part.horizon)
        workload = f"{TOKENS} tokens on the circle, β = {BETA:g}, to t = {taking_part.horizon:.0e}"
        race = Race(workload, taking_part, taking_part.horizon, exact, loosest=1e-3)
        timed = equal_error.run(race, WANTED, 1 if quick else 3)
        for other in taking_part.contenders[1:]:
            yield equal_error.against(race, timed, WANTED, "ours, stiff", other.name, None)
        yield from costs("metastable", timed, taking_part.contenders, quick)


def _right_hand_sides(horizons: tuple[float, ...]) -> Iterator[Comparison]:
    starts = Sphere().sample(TOKENS, 2, (STARTS,), seed=0)
    identity = torch.eye(2, dtype=torch.float64)
    flow = Flow(Attention(BETA * identity, identity), Sphere())
    runs = {horizon: simulate(flow, starts, [0.0, horizon], rtol=RTOL, atol=ATOL) for horizon in horizons}
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
    for shorter, longer in pairwise(horizons):
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
